// Leadership through `primacy serve` on this machine, with Node's standard library only.
//
//   await election("billing", async (term) => {   // waits until this process leads
//     while (await term.wait(1000)) {             // false as soon as the work has to stop
//       term.check();                             // throws Lost: ask before each act
//       await write({ token: term.token });       // the resource refuses a smaller token
//     }
//   });                                           // the connection is closed, which resigns: the work has stopped by then
//
// The connection is the leadership. If this process dies, the kernel closes it and the next candidate leads at once. If the sidecar dies or hangs, no
// more renewals come and term.check() says no at the last deadline that did: the store keeps the name for longer than that.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { request } from "node:http";
import { createInterface } from "node:readline";

// Lost says that leadership is over, or that there is none to be had.
export class Lost extends Error {}

// uptime is cut to 10 ms: 10 are added, so that it is never slow.
const uptime = () => Number(readFileSync("/proc/uptime", "ascii").split(" ")[0]) * 1000 + 10;

// behind is by how much uptime may be late. Where lxcfs is mounted over /proc/uptime it counts from the start of the container, and deadlines would seem to be
// hours away. When a process began is told by the boot clock itself (field 22 of its stat, in ticks of 10 ms): one is started, and it cannot have begun before it was.
const before = uptime();
const stat = execFileSync(process.execPath, ["-p", 'require("fs").readFileSync("/proc/self/stat", "ascii")'], { encoding: "ascii" });
const behind = Math.max(0, Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19]) * 10 + 10 - before);

// bootMillis reads the boot clock, which counts suspend; Node's own clocks stop there or jump.
const bootMillis = () => uptime() + behind;

const bootID = readFileSync("/proc/sys/kernel/random/boot_id", "ascii").trim();

// Term is one reign. Whether it lasts is a comparison of the clock with the deadline, made when you ask; never a flag.
export class Term {
  #deadline = 0;
  #ttl = 0;
  #stop = new AbortController();

  constructor(name, token) {
    this.name = name;
    this.token = token; // a string of digits: a number would be rounded above 2^53
  }

  // signal is aborted when the work has to stop: hand it to fetch and the like. It may come late, as all timers do; check() does not.
  get signal() {
    return this.#stop.signal;
  }

  // remaining returns the milliseconds until this process must not act as leader any more; it moves with each renewal.
  remaining() {
    return Math.max(0, this.#deadline - bootMillis());
  }

  // check throws Lost unless this process leads at this instant. No check recalls a write that is under way: send the token with it.
  check() {
    if (this.remaining() === 0) {
      throw new Lost(`leadership of ${this.name} under token ${this.token} is over: ${this.signal.reason ?? "it was not renewed in time"}`);
    }
  }

  // wait sleeps. It returns false as soon as the work has to stop.
  async wait(ms) {
    for (const end = performance.now() + ms; !this.signal.aborted && this.remaining() > 0; ) {
      const left = end - performance.now();
      if (left <= 0) return true;
      await new Promise((resolve) => {
        const done = () => {
          clearTimeout(timer);
          this.signal.removeEventListener("abort", done);
          resolve();
        };
        const timer = setTimeout(done, Math.min(left, this.remaining()));
        this.signal.addEventListener("abort", done);
      });
    }
    return false;
  }

  take(event) {
    if (event.event === "elected" || event.event === "renewed") {
      const deadline = Number(BigInt(event.deadline_boot_ns) / 1000000n);
      this.#ttl = event.ttl_ms ?? this.#ttl;
      if (event.boot_id !== bootID || deadline - bootMillis() > this.#ttl) {
        this.#deadline = 0; // of another machine's clock, or of another time namespace's, a deadline says nothing here
        return this.end("the sidecar's clock is not this process's");
      }
      this.#deadline = deadline;
    } else if (event.event === "stopping") {
      this.end(event.reason); // its deadline does not move any more
    }
  }

  end(reason) {
    this.#stop.abort(reason);
  }
}

// election stands for name, runs work while leading, and resigns when work has returned or thrown. It returns what work returned.
// candidate: id, ttl_ms, value, priority, wait_ms.
export async function election(name, work, candidate = {}) {
  const runtime = process.env.XDG_RUNTIME_DIR || "/run";
  const socketPath = process.env.PRIMACY_SOCKET || `${runtime}/primacy/primacy.sock`;
  const path = `/v1/elections/${encodeURIComponent(name)}/campaign`;
  const call = request({ socketPath, path, method: "POST", agent: false, headers: { host: "localhost", "content-type": "application/json" } });
  try {
    call.end(JSON.stringify({ ...candidate, direct: true })); // closing it resigns: no proxy may be in between
    const answer = await new Promise((resolve, reject) => call.on("response", resolve).on("error", reject));
    call.on("error", () => {}); // the loop below sees it
    const term = await won(name, answer);
    return await work(term);
  } finally {
    call.destroy();
  }
}

// won reads events until this process leads, and has the term hear the others.
function won(name, answer) {
  return new Promise((resolve, reject) => {
    let term;
    const events = createInterface({ input: answer });
    answer.on("error", () => events.close());
    events
      .on("error", () => events.close())
      .on("line", (line) => {
        const event = JSON.parse(line);
        if (term) return term.take(event);
        if (event.event === "elected") {
          term = new Term(name, event.token);
          term.take(event);
          resolve(term);
        } else if (event.event !== "waiting") {
          reject(new Lost(`${name}: ${event.detail ?? event.problem?.detail ?? line}`));
        }
      })
      .on("close", () => {
        term?.end("the sidecar is gone"); // what was promised until the deadline holds; nothing is promised beyond
        reject(Object.assign(new Error(`${name}: the sidecar is gone`), { code: "ECONNRESET" }));
      });
  });
}
