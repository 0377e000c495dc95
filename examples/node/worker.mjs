// worker.mjs NAME: prints a line ten times a second while it leads NAME.
//
// Exit status: 0 after SIGTERM or SIGINT, 121 no sidecar, 122 leadership was lost.
import { election, Lost } from "./election.mjs";

const name = process.argv[2];
if (!name || process.argv.length > 3) {
  console.error("usage: worker.mjs NAME");
  process.exit(1);
}

let stopped = false;
let leading = false;
for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => {
    stopped = true; // the loop below ends between two steps, and then leadership is resigned
    if (!leading) process.exit(0); // it only waits: the kernel closes the connection
  });
}

try {
  await election(name, async (term) => {
    leading = true;
    console.log("leads", term.token);
    while (!stopped && (await term.wait(100))) {
      term.check();
      console.log("works", term.token); // your work, with the token in each write
    }
    if (!stopped) throw new Lost(`leadership of ${name} ends: ${term.signal.reason ?? "it was not renewed in time"}`);
  });
} catch (why) {
  console.error(why.message);
  process.exitCode = why instanceof Lost ? 122 : why.code ? 121 : 1;
}
