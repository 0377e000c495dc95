//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rows checks that status shows these places of the line, in order, each with its ID.
func (w *world) rows(name string, want ...string) {
	w.Helper()
	var got []string
	w.eventually("the line is "+strings.Join(want, "; "), func() bool {
		p := w.start("status", name)
		<-p.exited
		got = nil
		for line := range strings.SplitSeq(p.out.String(), "\n") {
			if m := regexp.MustCompile(`^((?:leads|holds|waits).*?) {2,}(\S+)`).FindStringSubmatch(line); m != nil {
				got = append(got, m[1]+" "+m[2])
			}
		}
		return strings.Join(got, "; ") == strings.Join(want, "; ")
	})
}

func TestReadersShareALockAndAWriterDoesNot(t *testing.T) {
	w := lockWorld(t)
	start := func(id string, flags ...string) *prog {
		return w.start(append(append([]string{"lock", "--id", id}, flags...), "n", "sh", "-c",
			"echo up; sleep 1000")...)
	}
	r1 := start("r1", "-s").prints("up")
	r2 := start("r2", "-s").tells("r2 holds the lock n under token").tells(", shared)").prints("up")
	if strings.Contains(r2.err.String(), "waits") {
		t.Errorf("a reader beside a reader says %q", r2.err.String())
	}
	writer := start("w").tells("w waits for the lock n: r1 and 1 more hold it, 0 waiting")
	w.awaitLine("n", 3)
	r3 := start("r3", "-s").tells("r3 waits for the lock n: r1 and 1 more hold it, 1 waiting")
	w.rows("n", "holds, shared r1", "holds, shared r2", "waits 1, exclusive w", "waits 2, shared r3")
	w.start("status").ends(0).says("r1 and 1 more")
	if out := w.start("leader", "n").ends(0).out.String(); out != "r1\nr2\n" {
		t.Errorf("leader says %q", out)
	}
	w.start("leader", "--is", "r2", "n").ends(0)
	w.start("leader", "--is", "w", "n").ends(exitNo)
	w.start("leader", "--is", "r3", "n").ends(exitNo)
	st := decode[stateJSON](w, w.start("status", "-o", "json", "n").ends(0).out.String())
	if !st.Leader.Held || st.Leader.Slots != "unlimited" || len(st.Waiting) != 3 || !st.Waiting[0].Held ||
		st.Waiting[1].Held || st.Waiting[1].Slots != "" || st.Waiting[2].Held {
		t.Errorf("status -o json: %+v, %+v", st.Leader, st)
	}
	numbersAreStrings(w, w.start("status", "-o", "json", "n").ends(0).out.String())
	w.start("lock", "-s", "-n", "n", "true").ends(exitNotAcquired) // it must not overtake the writer
	r1.signal(syscall.SIGTERM).ends(128 + 15)
	w.rows("n", "holds, shared r2", "waits 1, exclusive w", "waits 2, shared r3")
	if strings.Contains(writer.out.String()+r3.out.String(), "up") {
		t.Error("the writer, or a reader behind it, runs beside a reader")
	}
	r2.signal(syscall.SIGTERM).ends(128 + 15)
	writer.prints("up")
	w.rows("n", "holds, exclusive w", "waits 1, shared r3")
	writer.signal(syscall.SIGTERM).ends(128 + 15)
	r3.prints("up").signal(syscall.SIGTERM).ends(128 + 15)
	w.awaitLine("n", 0)
}

func TestSlotsAreNeverMoreThanThree(t *testing.T) {
	w := lockWorld(t)
	var all []*prog
	for i := range 9 {
		all = append(all, w.start("lock", "--id", "p"+strconv.Itoa(i), "--slots", "3", "n", "sh", "-c", `echo $PRIMACY_TOKEN >>tokens; echo + >>log
			until [ "$(grep -c + log)" -ge 3 ]; do sleep 0.02; done; sleep 0.2; echo - >>log`)) // the first three meet
	}
	for _, p := range all {
		p.ends(0)
	}
	b, err := os.ReadFile(filepath.Join(w.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	in, most := 0, 0
	for sign := range strings.FieldsSeq(string(b)) {
		if in--; sign == "+" {
			in += 2
		}
		most = max(most, in)
	}
	if most != 3 || in != 0 {
		t.Errorf("at most %d at once, %d at the end; want 3, 0: %q", most, in, b)
	}
	tokens := map[uint64]bool{}
	for _, n := range numbersIn(w, "tokens") {
		tokens[n] = true
	}
	if len(tokens) != 9 {
		t.Errorf("%d tokens of 9", len(tokens))
	}
}

func TestASemaphoresLine(t *testing.T) {
	w := lockWorld(t)
	hold := func(id string) *prog {
		p := w.start("lock", "--id", id, "--slots", "2", "n", "sleep", "1000")
		return p
	}
	a := hold("a").tells("a holds the lock n under token").tells(", slot of 2)")
	b := hold("b").tells("b holds the lock n")
	c := hold("c").tells("c waits for the lock n: a and 1 more hold it, 0 waiting")
	w.rows("n", "holds, slot of 2 a", "holds, slot of 2 b", "waits 1, slot of 2 c")
	w.start("lock", "--slots", "2", "-n", "n",
		"true").ends(exitNotAcquired).complains("a and 1 more hold it, 1 waiting")
	w.start("lock", "--slots", "3", "n", "true").ends(exitUnreachable).complains("2 slots", "3 slots")
	a.signal(syscall.SIGTERM).ends(128 + 15)
	c.tells("c holds the lock n")
	b.signal(syscall.SIGTERM).ends(128 + 15)
	w.rows("n", "holds, slot of 2 c")
	c.signal(syscall.SIGTERM).ends(128 + 15)
	w.awaitLine("n", 0)
}

// overlaps judges what workers wrote as they acted.
func (w *world) overlaps(file string, want int) {
	w.Helper()
	reigns, err := readReigns(filepath.Join(w.dir, file))
	if err != nil {
		w.Fatal(err)
	}
	instants, backwards := twoLeaders(reigns)
	if instants != 0 || backwards != 0 || len(reigns) != want {
		w.Errorf("%d held, want %d: %d instants with two, %d tokens that did not grow: %+v", len(reigns), want,
			instants, backwards, reigns)
	}
}

func TestTheCommandOfAKilledOrFrozenHolderIsGoneBeforeTheNext(t *testing.T) {
	w := lockWorld(t)
	for i, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		file := "acts" + strconv.Itoa(i)
		acts := func() int { b, _ := os.ReadFile(filepath.Join(w.dir, file)); return len(b) }
		first := w.start("lock", "--ttl", "5s", "--id", "first", "n", "primacy", "worker", file)
		w.eventually("the first acts", func() bool { return acts() > 0 })
		next := w.start("lock", "--ttl", "5s", "--id", "next", "n", "primacy", "worker",
			file).tells("waits for the lock n: first")
		w.awaitLine("n", 2)
		at := time.Now()
		first.signal(sig)
		next.tells("next holds the lock n under token")
		took := time.Since(at)
		if sig == syscall.SIGSTOP && took < time.Second {
			t.Errorf("the frozen one's lock was taken after %v", took)
		}
		before := acts()
		w.eventually("the next acts", func() bool { return acts() > before+1000 })
		_ = first.cmd.Process.Signal(syscall.SIGCONT) // the killed one is no more
		if code := first.wait(); sig == syscall.SIGSTOP && code != exitLost {
			t.Errorf("the frozen one ends with %d, want %d", code, exitLost)
		}
		next.signal(syscall.SIGTERM).ends(0) // a worker obeys
		w.overlaps(file, 2)
	}
}

func TestWithoutACommandASignalGivesItBack(t *testing.T) {
	w := lockWorld(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		p := w.start("lock", "--id", "me", "a b/ü").prints("\n")
		line := regexp.MustCompile(`^me holds the lock a b/ü under token (\d+) \(claim (\d+)\)\n$`).FindStringSubmatch(p.out.String())
		if line == nil {
			t.Fatalf("it prints %q", p.out.String())
		}
		token, _ := strconv.ParseUint(line[1], 10, 64)
		if claim, _ := strconv.ParseUint(line[2], 10, 64); token>>16 != claim || claim == 0 {
			t.Errorf("token %d, claim %d", token, claim)
		}
		w.start("leader", "--is", "me", "a b/ü").ends(0)
		p.signal(syscall.SIGUSR1).signal(sig).ends(0)
		w.start("status", "a b/ü").ends(exitNo)
	}
	p := w.start("lock", "-o", "json", "--id", "me", "--slots", "5", "n").prints("\n")
	if strings.Count(p.out.String(), "\n") != 1 || strings.Contains(p.out.String(), "\n ") {
		t.Errorf("not one line: %q", p.out.String())
	}
	var raw map[string]any
	if err := json.Unmarshal([]byte(p.out.String()), &raw); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"token", "claim"} {
		if _, ok := raw[key].(string); !ok {
			t.Errorf("%s is %T", key, raw[key])
		}
	}
	got := decode[heldLine](w, p.out.String())
	if got.Name != "n" || got.ID != "me" || got.Claim.String() != w.awaitLine("n", 1)[0].CreateRevision ||
		got.Share != "slot of 5" {
		t.Errorf("got %+v", got)
	}
	p.signal(syscall.SIGTERM).ends(0)
	w.awaitLine("n", 0)
}

func TestWithoutACommandALossIsToldAtOnce(t *testing.T) {
	w := lockWorld(t)
	const over = `the lock on "n" under token`
	hold := func() *prog {
		return w.start("lock", "-q", "--ttl", "5s", "--id", "me", "n").prints("holds the lock n")
	}
	for name, c := range map[string]struct {
		do   func(p *prog)
		code int
		want string
	}{
		"lease revoked": {func(*prog) { w.revoke(w.awaitLine("n", 1)[0].Lease) }, exitLost, over},
		"claim deleted": {func(*prog) { w.delete("n/" + hexLease(w.awaitLine("n", 1)[0])) }, exitLost,
			"removed by somebody else"},
		"resigned": {func(*prog) { w.start("resign", "--reason", "why", "n").ends(0) }, exitResigned, "(why)"},
		"frozen": {func(p *prog) { p.signal(syscall.SIGSTOP); w.awaitLine("n", 0); p.signal(syscall.SIGCONT) },
			exitLost, over},
	} {
		p := hold()
		c.do(p)
		at := time.Now()
		p.ends(c.code).complains(c.want)
		if strings.Count(p.err.String(), "\n") != 1 {
			t.Errorf("%s: %q", name, p.err.String())
		}
		if d := time.Since(at); d > 5*time.Second {
			t.Errorf("%s: ended %v later", name, d)
		}
	}
	w.awaitLine("n", 0)
}

func TestALockInsideTheSameLockIsRefused(t *testing.T) {
	w := lockWorld(t)
	const refused = "by the command around this one already"
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"lock n primacy lock n true", exitUsage, "the lock n is held " + refused},
		{"lock n primacy lock -q n true", exitUsage, refused},
		{"lock n primacy lock -n n true", exitUsage, refused},
		{"lock n primacy lock n", exitUsage, refused},
		{"lock n primacy lock -s n true", exitUsage, refused},
		{"lock -s n primacy lock n true", exitUsage, refused},
		{"lock -s n primacy lock -s n true", exitUsage, refused},
		{"lock n primacy run n true", exitUsage, refused},
		{"run n primacy lock n true", exitUsage, refused},
		{"run n primacy run n true", exitUsage, refused},
		{"lock n primacy lock m primacy lock n true", exitUsage, refused},
		{"lock n primacy run m primacy lock n true", exitUsage, refused},
		{"lock --slots 1 n primacy lock --slots 1 n true", exitUsage, refused},
		{"lock --slots 2 n primacy lock --slots 2 n primacy lock --slots 2 n true", exitUsage, refused},
		{"lock --slots 2 n primacy lock n true", exitUsage, refused},
		{"lock --slots 2 n primacy lock --slots 2 n echo both", 0, ""},
		{"lock n primacy lock m echo both", 0, ""},
		{"lock n primacy lock n/m echo both", 0, ""},
	} {
		p := w.start(strings.Fields(c.args)...).ends(c.code).complains(c.want)
		if ran := strings.Contains(p.out.String(), "both"); ran != (c.code == 0) {
			t.Errorf("%v: stdout %q, stderr %q", p, p.out.String(), p.err.String())
		}
	}
	// The same name in another store is another lock, with the same identity too; and what is over
	// is held by nobody.
	other := "etcd://" + w.server.Addr() + "/" + w.prefix + "other"
	w.start("lock", "--id", "me", "n", "primacy", "-S", other, "lock", "n", "echo", "both").ends(0).says("both\n")
	w.start("lock", "--id", "me", "n", "sh", "-c", "echo $PRIMACY_HELD >held").ends(0)
	b, err := os.ReadFile(filepath.Join(w.dir, "held"))
	if err != nil || !strings.Contains(string(b), `"name":"n"`) {
		t.Fatalf("PRIMACY_HELD is %q, %v", b, err)
	}
	w.with("PRIMACY_HELD="+strings.TrimSpace(string(b))).start("lock", "--id", "me", "n", "echo",
		"free").ends(0).says("free\n")
}

// What was meant for the outer lock alone does not reach an inner one, and what was meant for an
// inner run does.
func TestALocksOwnVariablesStayWithIt(t *testing.T) {
	w := lockWorld(t).with("PRIMACY_SLOTS=3", "PRIMACY_WAIT=2.5", "PRIMACY_CONFLICT_EXIT_CODE=9", "PRIMACY_VALUE=v",
		"PRIMACY_QUIET=1")
	p := w.start("lock", "n", "sh", "-c", "env | grep ^PRIMACY_ | cut -d= -f1 | sort | tr '\\n' ' '").ends(0)
	const want = "PRIMACY_HELD PRIMACY_ID PRIMACY_NAME PRIMACY_QUIET PRIMACY_ROLE PRIMACY_STATE_FILE PRIMACY_STORE PRIMACY_TOKEN PRIMACY_TTL PRIMACY_TTL_MS PRIMACY_VALUE "
	if p.out.String() != want {
		t.Errorf("got %q, want %q", p.out.String(), want)
	}
	p = w.with("PRIMACY_SLOTS=", "PRIMACY_WAIT=").start("lock", "n", "sh", "-c",
		"primacy leader n --valid && echo $PRIMACY_TOKEN").ends(0)
	if n, err := strconv.ParseUint(strings.TrimSpace(p.out.String()), 10, 64); err != nil || n < 1<<16 {
		t.Errorf("got %q, %v", p.out.String(), err)
	}
}
