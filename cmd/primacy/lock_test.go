//go:build linux

package main

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// lockWorld has long leases: where a test is not about losing one, a busy machine must not lose it.
func lockWorld(t *testing.T) *world { return newWorld(t).with("PRIMACY_TTL=60s") }

func TestALocksCommandIsTheCommand(t *testing.T) {
	w := lockWorld(t).with("SHELL=")
	for _, c := range []struct {
		args []string
		code int
		out  string
	}{
		{[]string{"n", "true"}, 0, ""},
		{[]string{"n", "sh", "-c", "exit 7"}, 7, ""},
		{[]string{"n", "sh", "-c", "exit 124"}, 124, ""}, // its own: nothing is said
		{[]string{"n", "sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{[]string{"n", "sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{[]string{"n", "ls", "-d", "/"}, 0, "/\n"},
		{[]string{"n", "--", "ls", "-d", "/"}, 0, "/\n"},
		{[]string{"--", "n", "--", "echo", "--", "-n", "-q"}, 0, "-- -n -q\n"},
		{[]string{"-n", "n", "echo", "-n"}, 0, ""},
		{[]string{"-x", "n", "echo", "x"}, 0, "x\n"},
		{[]string{"-e", "-w", "5", "n", "echo", "x"}, 0, "x\n"},
		// Through a shell, as flock has it, before and behind the name.
		{[]string{"-c", `echo "$0 $PRIMACY_NAME" | tr a-z A-Z; exit 3`, "n"}, 3, "/BIN/SH N\n"},
		{[]string{"n", "-c", `echo "$PRIMACY_NAME"; exit 4`}, 4, "n\n"},
		{[]string{"n", "--command", ""}, 0, ""},
		{[]string{"a b/ü", "sh", "-c", `printf %s "$PRIMACY_NAME"`}, 0, "a b/ü"},
	} {
		p := w.start(append([]string{"lock", "-q"}, c.args...)...).ends(c.code)
		if p.out.String() != c.out || p.err.String() != "" {
			t.Errorf("%v: stdout %q, stderr %q; want %q and nothing", p, p.out.String(), p.err.String(), c.out)
		}
	}
	w.with("SHELL=/bin/bash").start("lock", "-q", "n", "-c", `echo $0`).ends(0).says("/bin/bash\n")
	if left := w.keys(w.prefix); len(left) > 0 {
		t.Errorf("%q is left in the store", left[0].Key)
	}
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data)
	if p := w.startWith(bytes.NewReader(data), "lock", "-q", "n", "cat").ends(0); p.out.String() != string(data) {
		t.Errorf("%d bytes came out, not the %d that went in", len(p.out.String()), len(data))
	}
}

// Each of these is refused before anything is asked of a store: the URL leads nowhere.
func TestALockThatCannotWorkIsOneLine(t *testing.T) {
	w := lockWorld(t).with("PRIMACY_STORE=etcd://127.0.0.1:1")
	for _, c := range []struct {
		args, env string
		code      int
		want      string
	}{
		{"-n -w 5 n true", "", exitUsage, "lock n: -n and -w exclude each other"},
		{"-n n true", "PRIMACY_WAIT=5", exitUsage, "-n and -w exclude each other"},
		{"-s --slots 3 n true", "", exitUsage, "-s and --slots exclude each other"},
		{"-s -x n true", "", exitUsage, "-s and -x exclude each other"},
		{"-x --slots 3 n true", "", exitUsage, "-x and --slots exclude each other"},
		{"--slots 0 n true", "", exitUsage, "--slots 0: use 1 to 1000"},
		{"--slots -1 n true", "", exitUsage, "--slots -1: use 1 to 1000"},
		{"--slots 1001 n true", "", exitUsage, "--slots 1001: use 1 to 1000"},
		{"-c true n true", "", exitUsage, "-c and the command true exclude each other"},
		{"n -c", "", exitUsage, "-c takes one argument"},
		{"n -c echo x", "", exitUsage, "-c takes one argument"},
		{"", "", exitUsage, "give the NAME of a lock"},
		{"-n", "", exitUsage, "give the NAME of a lock"},
		{"n --", "", exitUsage, "give a COMMAND after --"},
		{"n -n true", "", exitUsage, "options stand before NAME: put -n there"},
		{"-E 256 n true", "", exitUsage, "-E 256: an exit code is 0 to 255"},
		{"-E -1 n true", "", exitUsage, "-E -1: an exit code is 0 to 255"},
		{"-E x n true", "", exitUsage, `invalid argument "x" for "-E, --conflict-exit-code"`},
		{"-w soon n true", "", exitUsage, "give seconds, such as 2.5, or a duration, such as 2m"},
		{"-w -1 n true", "", exitUsage, "must not be negative"},
		{"-w 1e300 n true", "", exitUsage, "give seconds"},
		{"n true", "PRIMACY_WAIT=soon", exitUsage, `PRIMACY_WAIT="soon"`},
		{"n true", "PRIMACY_HELD=yes", exitUsage, `PRIMACY_HELD="yes" is not what`},
		{"--stop-timeout -1s n true", "", exitUsage, "must not be negative"},
		{"n nosuchcommand", "", 127, "command not found: nosuchcommand"},
		{"n /etc", "", 126, "command not executable: /etc"},
		{"n true", "", exitUnreachable, "127.0.0.1:1"},
		{"n", "", exitUnreachable, "127.0.0.1:1"},
	} {
		p := w.with(c.env).start(append([]string{"lock", "--timeout", "2s"}, strings.Fields(c.args)...)...)
		p.ends(c.code).inOneLine().complains(c.want)
	}
	w.start("lock", "\x1b[1m").ends(exitUsage).inOneLine().complains("control character")
}

func TestALockOnASilentStoreIs121(t *testing.T) {
	w := lockWorld(t)
	hole := newHole(w)
	for _, flag := range []string{"-n", "-x"} {
		p := w.start("lock", flag, "--timeout", "1500ms", "--store", "etcd://"+hole.Addr(), "n",
			"true").ends(exitUnreachable).inOneLine().complains("1.5s")
		if p.took > 12*time.Second {
			t.Errorf("%v took %v", p, p.took)
		}
	}
}

func TestSecondsAreFlocksAndOurs(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"0": 0, "5": 5 * time.Second, "2.5": 2500 * time.Millisecond, ".25": 250 * time.Millisecond,
		"1e3": 1000 * time.Second, "0x10": -1,
		"2m": 2 * time.Minute, "1m30s": 90 * time.Second, "100ms": 100 * time.Millisecond, "-0": 0,
		"": -1, "-1": -1, "-1s": -1, "nan": -1, "inf": -1, "-inf": -1, "1e10": -1, "5 ": -1, "5x": -1, "1,5": -1,
		"9223372030": 9223372030 * time.Second, "9223372037": -1,
	} {
		var s seconds
		if err := s.Set(in); (err != nil) != (want < 0) || err == nil && time.Duration(s) != want {
			t.Errorf("%q: got %v, %v; want %v", in, time.Duration(s), err, want)
		}
	}
}

func TestALockThatIsNotHadIs124OrWhatEIs(t *testing.T) {
	w := lockWorld(t)
	w.start("lock", "--id", "first", "n").prints("first holds the lock n under token ")
	claim := w.awaitLine("n", 1)[0].CreateRevision
	w.start("lock", "-n", "n", "echo",
		"never").ends(exitNotAcquired).inOneLine().complains("the lock n is not free: first holds it under claim " +
		claim + ", 0 waiting")
	w.start("lock", "-w", "0", "n", "echo",
		"never").ends(exitNotAcquired).inOneLine().complains("the lock n is not free")
	w.start("lock", "-s", "-n", "-E", "9", "n", "echo", "never").ends(9).inOneLine().complains("first holds it")
	w.start("lock", "--slots", "2", "-n", "-E", "255", "n", "echo",
		"never").ends(255).inOneLine().complains("first holds it")
	for _, wait := range []string{"0.7", "700ms"} {
		p := w.start("lock", "-w", wait, "-E", "0", "n", "echo", "never").ends(0)
		p.complains("waits for the lock n: first holds it under claim "+claim, "not holding the lock n after 700ms")
		if p.took < 700*time.Millisecond || p.out.String() != "" {
			t.Errorf("%v: after %v, with %q", p, p.took, p.out.String())
		}
	}
	// With -q the exit code is the answer, as it is flock's.
	for _, flag := range []string{"-n", "--wait=0.2"} {
		if p := w.start("lock", "-q", flag, "n", "echo",
			"never").ends(exitNotAcquired); p.err.String()+p.out.String() != "" {
			t.Errorf("%v: %q", p, p.err.String()+p.out.String())
		}
	}
	w.with("PRIMACY_NONBLOCK=1", "PRIMACY_CONFLICT_EXIT_CODE=33").start("lock", "n", "true").ends(33)
	w.awaitLine("n", 1) // they have left the line
	// An election of that name is the same line.
	w.start("run", "-q", "--wait", "300ms", "n", "true").ends(exitNotAcquired)
	w.start("run", "--id", "leader", "m", "sleep", "1000").tells("leads m")
	w.start("lock", "-n", "m", "true").ends(exitNotAcquired).complains("leader holds it")
}

// Four shells that lock, again and again, what tolerates one: the counter misses nobody, and the
// tokens grow.
func TestLockedRoundsOfFourProcessesExcludeEachOther(t *testing.T) {
	w := lockWorld(t)
	const shells, rounds = 4, 15
	script := `for i in $(seq ` + strconv.Itoa(rounds) + `); do primacy lock -q n -- sh -c '
		mkdir busy || echo TWO >>bad
		n=$(cat count 2>/dev/null || echo 0); echo $PRIMACY_TOKEN >>tokens; echo $((n+1)) >count
		rmdir busy'; done`
	if err := os.WriteFile(filepath.Join(w.dir, "rounds"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	var progs []*prog
	for range shells {
		progs = append(progs, w.start("lock", "-q", "shell"+strconv.Itoa(len(progs)), "sh", "rounds"))
	}
	for _, p := range progs {
		p.within(4 * limit).ends(0)
	}
	if b, err := os.ReadFile(filepath.Join(w.dir, "bad")); err == nil {
		t.Errorf("two at once: %s", b)
	}
	if b, _ := os.ReadFile(filepath.Join(w.dir, "count")); strings.TrimSpace(string(b)) != strconv.Itoa(shells*rounds) {
		t.Errorf("%q rounds were counted, want %d", b, shells*rounds)
	}
	if tokens := numbersIn(w, "tokens"); len(tokens) != shells*rounds || !slices.IsSorted(tokens) ||
		len(slices.Compact(tokens)) != shells*rounds {
		t.Errorf("tokens %v", tokens)
	}
}

func numbersIn(w *world, file string) (out []uint64) {
	w.Helper()
	b, err := os.ReadFile(filepath.Join(w.dir, file))
	if err != nil {
		w.Fatal(err)
	}
	for f := range strings.FieldsSeq(string(b)) {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			w.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func TestWaitingForALockEndsAtOnceOnASignal(t *testing.T) {
	w := lockWorld(t)
	holder := w.start("lock", "--id", "first", "n", "sleep", "1000").tells("first holds the lock n under token ")
	for _, args := range [][]string{{"n", "echo", "never"}, {"n"}, {"-s", "n"}} {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
			p := w.start(append([]string{"lock"}, args...)...).tells("waits for the lock n: first holds it")
			w.awaitLine("n", 2)
			p.signal(sig).ends(128 + int(sig))
			if p.out.String() != "" {
				t.Errorf("%v: %q", p, p.out.String())
			}
			w.awaitLine("n", 1)
		}
	}
	holder.signal(syscall.SIGTERM).ends(128 + 15)
	w.awaitLine("n", 0)
}

// What nohup ignores must not end the wait, and reaches a command that asks for it.
func TestAnIgnoredHangupDoesNotEndTheWait(t *testing.T) {
	w := lockWorld(t)
	for _, verb := range []string{"run", "lock"} {
		holder := w.start(verb, "n", "sleep", "1000").tells("n under token")
		p := w.start("lock", "-q", "shell", "sh", "-c",
			`trap '' HUP; primacy `+verb+` n sh -c 'echo got it' & echo $! >pid; wait $!`)
		p.tells("waits for")
		w.eventually("its pid is written", func() bool {
			b, _ := os.ReadFile(filepath.Join(w.dir, "pid"))
			return strings.HasSuffix(string(b), "\n")
		})
		pid := int(numbersIn(w, "pid")[0])
		if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond) // were it to end, it would now
		w.awaitLine("n", 2)
		holder.signal(syscall.SIGTERM).ends(128 + 15)
		p.ends(0).says("got it\n")
		_ = os.Remove(filepath.Join(w.dir, "pid"))
	}
}

func TestALockLostOrTakenAwayStopsTheCommand(t *testing.T) {
	w := lockWorld(t)
	const deaf = `trap '' TERM; echo up; while :; do sleep 0.05; done`
	for _, flags := range [][]string{{"-x"}, {"-s"}, {"--slots", "2"}} {
		args := append(append([]string{"lock"}, flags...), "n", "sh", "-c")
		p := w.start(append(args, deaf)...).prints("up")
		w.revoke(w.awaitLine("n", 1)[0].Lease)
		p.ends(exitLost).complains(`the lock on "n" under token`)
		p = w.start(append(args, deaf)...).prints("up")
		w.delete(strings.TrimPrefix(string(w.awaitLine("n", 1)[0].Key), w.prefix))
		p.ends(exitLost).complains(`the lock on "n" under token`, "removed by somebody else")
		// An operator's word is another thing; only who holds alone can be asked.
		p = w.start(append(args,
			`trap 'sleep 0.2; echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done`)...).prints("up")
		next := w.start("lock", "--id", "second", "n", "sh", "-c", "echo up; sleep 1000").tells("waits for the lock n")
		w.awaitLine("n", 2)
		if flags[0] != "-x" {
			w.start("resign", "n").ends(exitUnreachable).inOneLine().complains("that claim is shared")
			p.signal(syscall.SIGTERM).ends(0)
			next.prints("up").signal(syscall.SIGTERM).ends(128 + 15)
			continue
		}
		w.start("resign", "--reason", "new kernel", "n").ends(0).says("second\n")
		p.ends(exitResigned).says("bye\n").complains("new kernel")
		next.prints("up").signal(syscall.SIGTERM).ends(128 + 15)
	}
}

func TestAStoreThatFallsSilentCostsTheLockBeforeItsDeadline(t *testing.T) {
	w := lockWorld(t)
	proxy := etcdtest.NewProxy(t, w.server.Addr())
	store := "etcd://" + proxy.Addr() + "/" + w.prefix
	p := w.start("lock", "--ttl", "6s", "--store", store, "n", "sh", "-c",
		`trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done`).prints("up")
	bare := w.start("lock", "--ttl", "6s", "--stop-timeout", "100ms", "--store", store, "m").prints("holds the lock m")
	proxy.Hold()
	at := time.Now()
	bare.ends(exitLost).complains(`the lock on "m" under token`, "ran out")
	if d := time.Since(at); d > 6*time.Second {
		t.Errorf("without a command it ended %v after the last answer, with a ttl of 6s", d)
	}
	p.ends(exitLost).says("bye").complains(`the lock on "n" under token`)
}

func TestTheHelpOfLockShowsHow(t *testing.T) {
	w := lockWorld(t)
	help := w.start("lock", "--help").ends(0)
	help.says("primacy lock -n -q nightly -- ./report", "primacy lock --slots 3 build -- make",
		"primacy lock deploy -c 'cd /srv && ./up'",
		"-w, --wait", "-E, --conflict-exit-code", "-s, --shared", "-x, --exclusive", "-n, --nonblock", "--slots",
		"-c, --command")
	if !regexp.MustCompile(`(?m)^  lock +\S`).MatchString(w.start("--help").ends(0).out.String()) {
		t.Error("the help of all does not name lock")
	}
	for line := range strings.SplitSeq(help.out.String(), "\n") {
		if len([]rune(line)) > 160 {
			t.Errorf("a line of %d characters: %q", len(line), line)
		}
	}
}
