//go:build linux

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
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

func TestALocksCommandIsTheCommand(t *testing.T) {
	w := newWorld(t).with("SHELL=")
	for i, c := range []struct {
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
		{[]string{"-e", "-w", "50", "n", "echo", "x"}, 0, "x\n"},
		// Through a shell, as flock has it, before and behind the name.
		{[]string{"-c", `echo "$0 $PRIMACY_NAME" | tr a-z A-Z; exit 3`, "n"}, 3, "/BIN/SH N\n"},
		{[]string{"n", "-c", `echo "$PRIMACY_NAME"; exit 4`}, 4, "n\n"},
		{[]string{"n", "--command", ""}, 0, ""},
		{[]string{"a b/ü", "sh", "-c", `printf %s "$PRIMACY_NAME"`}, 0, "a b/ü"},
	} {
		if few(3, i) {
			continue
		}
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
	w := newWorld(t).with("PRIMACY_STORE=etcd://127.0.0.1:1")
	for i, c := range []struct {
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
		{"-c true n true", "", exitUsage, "-c takes one argument: quote the whole command"},
		{"n -c", "", exitUsage, "flag needs an argument: 'c' in -c"},
		{"n -c echo x", "", exitUsage, "-c takes one argument"},
		{"", "", exitUsage, "give the NAME of a lock"},
		{"-n", "", exitUsage, "give the NAME of a lock"},
		{"n --", "", exitUsage, "give a COMMAND after --"},
		{"n -n --", "", exitUsage, "give a COMMAND after --"},
		{"n -n --slots 0 -- true", "", exitUsage, "--slots 0: use 1 to 1000"},
		{"n --slot 3 true", "", exitUsage, "unknown flag: --slot; did you mean --slots?"},
		{"n -- -n true", "", 127, "command not found: -n: flags of primacy go before the --"},
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
		{"-q n true", "", exitUnreachable, "127.0.0.1:1"},
		{"n -q", "", exitUnreachable, "127.0.0.1:1"},
	} {
		if few(4, i) {
			continue
		}
		p := w.with(c.env).start(append([]string{"lock", "--timeout", "2s"}, strings.Fields(c.args)...)...)
		p.ends(c.code).inOneLine().complains(c.want)
	}
	w.start("lock", "\x1b[1m").ends(exitUsage).inOneLine().complains("control character")
}

func TestALockOnASilentStoreIs121(t *testing.T) {
	w := newWorld(t)
	hole := newHole(w)
	for _, flag := range []string{"-n", "-x"} {
		p := w.start("lock", flag, "--timeout", "1500ms", "--store", "etcd://"+hole.Addr(), "n",
			"true").ends(exitUnreachable).inOneLine().complains("1.5s")
		if p.took > prompt {
			t.Errorf("%v took %v", p, p.took)
		}
	}
}

// On every verb --wait takes flock's seconds and durations.
func TestSecondsAreFlocksAndOurs(t *testing.T) {
	onlyInVerify(t)
	for in, want := range map[string]time.Duration{
		"0": 0, "5": 5 * time.Second, "2.5": 2500 * time.Millisecond, ".25": 250 * time.Millisecond,
		"1e3": 1000 * time.Second, "0x10": -1,
		"2m": 2 * time.Minute, "1m30s": 90 * time.Second, "100ms": 100 * time.Millisecond, "-0": 0,
		"": -1, "-1": -1, "-1s": -1, "nan": -1, "inf": -1, "-inf": -1, "1e10": -1, "5 ": -1, "5x": -1, "1,5": -1,
		"9223372030": 9223372030 * time.Second, "9223372037": -1,
	} {
		root := rootCommand(&app{})
		for _, verb := range []string{"lock", "run", "leader", "resign", "transfer", "drain", "top"} {
			c, _, err := root.Find([]string{verb})
			if err != nil {
				t.Fatal(err)
			}
			err = c.Flags().Set("wait", in)
			if got, _ := c.Flags().GetDuration("wait"); (err != nil) != (want < 0) || err == nil && got != want {
				t.Errorf("%s --wait %q: got %v, %v; want %v", verb, in, got, err, want)
			}
		}
	}
}

func TestALockThatIsNotHadIs124OrWhatEIs(t *testing.T) {
	w := newWorld(t)
	w.start("lock", "--id", "first", "n").prints("first holds the lock n under token ")
	claim := w.awaitLine("n", 1)[0].CreateRevision
	w.lockIsTaken(exitNotAcquired, "the lock n is not free: first holds it under claim "+claim+", nobody else waits",
		"-n", "n", "echo", "never")
	w.lockIsTaken(exitNotAcquired, "the lock n is not free", "-w", "0", "n", "echo", "never")
	w.lockIsTaken(9, "first holds it", "-s", "-n", "-E", "9", "n", "echo", "never")
	w.lockIsTaken(255, "first holds it", "--slots", "2", "-n", "-E", "255", "n", "echo", "never")
	for _, wait := range []string{"0.7", "700ms"} {
		p := w.start("lock", "-w", wait, "-E", "0", "n", "echo", "never").ends(0)
		p.complains("not holding the lock n after 700ms")
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
	w.lockIsTaken(exitNotAcquired, "leader holds it", "-n", "m", "true")
}

// lockIsTaken asks for a lock that is not to be had. On a busy machine the store may not say within
// a second who holds it: then it is asked for again.
func (w *world) lockIsTaken(code int, says string, args ...string) {
	w.Helper()
	for try := 1; ; try++ {
		p := w.start(append([]string{"lock"}, args...)...).ends(code).inOneLine()
		if try == 5 || !strings.Contains(p.err.String(), " was not free") {
			p.complains(says)
			return
		}
	}
}

// Four shells that lock, again and again, what tolerates one: the counter misses nobody, and the
// tokens grow.
func TestLockedRoundsOfFourProcessesExcludeEachOther(t *testing.T) {
	w := newWorld(t)
	shells, rounds := 4, 15
	if testing.Short() {
		rounds = 4
	}
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
	w := newWorld(t)
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
	onlyInVerify(t)
	w := newWorld(t)
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
	w := newWorld(t)
	for _, flags := range [][]string{{"-x"}, {"-s"}, {"--slots", "2"}} {
		args := append(append([]string{"lock"}, flags...), "n", "sh", "-c")
		p := w.start(append(args, deaf)...).prints("up")
		w.revoke(w.awaitLine("n", 1)[0].Lease)
		p.ends(exitLost).complains(`the lock on "n" under token`)
		p = w.start(append(args, deaf)...).prints("up")
		w.delete(strings.TrimPrefix(string(w.awaitLine("n", 1)[0].Key), w.prefix))
		p.ends(exitLost).complains(`the lock on "n" under token`, "removed by somebody else")
		// An operator's word is another thing; only who holds alone can be asked.
		p = w.start(append(args, stops)...).prints("up")
		next := w.start("lock", "--id", "second", "n", "sh", "-c", "echo up; sleep 1000").tells("waits for the lock n")
		w.awaitLine("n", 2)
		if flags[0] != "-x" {
			w.start("resign", "n").ends(exitUsage).inOneLine().complains("n is a lock that several share")
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
	w := newWorld(t)
	proxy := etcdtest.NewProxy(t, w.server.Addr())
	store := "etcd://" + proxy.Addr() + "/" + w.prefix
	p := w.start("lock", "--ttl", "20s", "--stop-timeout", "8s", "--store", store, "n", "sh", "-c",
		`trap 'echo bye; exit 0' TERM; echo up; sleep 1000 & wait`).prints("up")
	bare := w.start("lock", "--ttl", "20s", "--stop-timeout", "10s", "--store", store, "m").prints("holds the lock m")
	proxy.Hold()
	at := time.Now()
	bare.ends(exitLost).complains(`the lock on "m" under token`, "in time (the store confirmed no renewal for ")
	if d := time.Since(at); d > 20*time.Second {
		t.Errorf("without a command it ended %v after the last answer, with a ttl of 20s", d)
	}
	p.ends(exitLost).says("bye").complains(`the lock on "n" under token`)
}

func TestTheHelpOfLockShowsHow(t *testing.T) {
	w := newWorld(t)
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
	w := newWorld(t)
	start := func(id string, flags ...string) *prog {
		return w.start(append(append([]string{"lock", "--id", id}, flags...), "n", "sh", "-c",
			"echo up; sleep 1000")...)
	}
	r1 := start("r1", "-s").prints("up")
	r2 := start("r2", "-s").tells("r2 holds the lock n under token").tells(", shared)").prints("up")
	if strings.Contains(r2.err.String(), "waits") {
		t.Errorf("a reader beside a reader says %q", r2.err.String())
	}
	writer := start("w").tells("w waits for the lock n: r1 and 1 more hold it, nobody else waits")
	w.awaitLine("n", 3)
	r3 := start("r3", "-s").tells("r3 waits for the lock n: r1 and 1 more hold it, 1 other waits")
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
	w := newWorld(t)
	var all []*prog
	for i := range 9 {
		all = append(all, w.start("lock", "--id", "p"+strconv.Itoa(i), "--slots", "3", "n", "sh", "-c",
			`echo $PRIMACY_TOKEN >>tokens; echo + >>log
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
	w := newWorld(t)
	hold := func(id string) *prog {
		p := w.start("lock", "--id", id, "--slots", "2", "n", "sleep", "1000")
		return p
	}
	a := hold("a").tells("a holds the lock n under token").tells(", slot of 2)")
	b := hold("b").tells("b holds the lock n")
	c := hold("c").tells("c waits for the lock n: a and 1 more hold it, nobody else waits")
	w.rows("n", "holds, slot of 2 a", "holds, slot of 2 b", "waits 1, slot of 2 c")
	w.start("lock", "--slots", "2", "-n", "n",
		"true").ends(exitNotAcquired).complains("a and 1 more hold it, 1 other waits")
	w.start("lock", "--slots", "3", "n", "true").ends(exitUsage).complains("2 slots", "3 slots")
	for _, verb := range [][]string{{"resign", "n"}, {"transfer", "n", "--to", "c"}} {
		w.start(verb...).ends(exitUsage).inOneLine().complains("n is a lock that several share")
	}
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
	periods, err := readPeriods(filepath.Join(w.dir, file))
	if err != nil {
		w.Fatal(err)
	}
	instants, backwards := twoLeaders(periods)
	if instants != 0 || backwards != 0 || len(periods) != want {
		w.Errorf("%d held, want %d: %d instants with two, %d tokens that did not grow: %+v", len(periods), want,
			instants, backwards, periods)
	}
}

func TestTheCommandOfAKilledOrFrozenHolderIsGoneBeforeTheNext(t *testing.T) {
	w := newWorld(t)
	for i, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		file := "acts" + strconv.Itoa(i)
		acts := func() int { b, _ := os.ReadFile(filepath.Join(w.dir, file)); return len(b) }
		first := w.start("lock", "--ttl", "12s", "--id", "first", "n", "primacy", "worker", file)
		w.eventually("the first acts", func() bool { return acts() > 0 })
		next := w.start("lock", "--ttl", "12s", "--id", "next", "n", "primacy", "worker",
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
	w := newWorld(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		p := w.start("lock", "--id", "me", "a b/ü").prints("\n")
		says := regexp.MustCompile(`^me holds the lock a b/ü under token (\d+) \(claim (\d+)\)\n$`)
		line := says.FindStringSubmatch(p.out.String())
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
	w := newWorld(t)
	const over = `the lock on "n" under token`
	hold := func(ttl string) *prog {
		return w.start("lock", "-q", "--ttl", ttl, "--id", "me", "n").prints("holds the lock n")
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
		ttl := "60s"
		if name == "frozen" { // until the lease is over
			ttl = "10s"
		}
		p := hold(ttl)
		c.do(p)
		at := time.Now()
		p.ends(c.code).complains(c.want)
		if strings.Count(p.err.String(), "\n") != 1 {
			t.Errorf("%s: %q", name, p.err.String())
		}
		if d := time.Since(at); d > prompt {
			t.Errorf("%s: ended %v later", name, d)
		}
	}
	w.awaitLine("n", 0)
}

func TestALockInsideTheSameLockIsRefused(t *testing.T) {
	w := newWorld(t)
	const refused = "by the command around this one already"
	for i, c := range []struct {
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
		if few(4, i) {
			continue
		}
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
	w := newWorld(t).with("PRIMACY_SLOTS=3", "PRIMACY_WAIT=52.5", "PRIMACY_CONFLICT_EXIT_CODE=9", "PRIMACY_VALUE=v",
		"PRIMACY_QUIET=1")
	p := w.start("lock", "n", "sh", "-c", "env | grep ^PRIMACY_ | cut -d= -f1 | sort | tr '\\n' ' '").ends(0)
	const want = "PRIMACY_HELD PRIMACY_ID PRIMACY_NAME PRIMACY_QUIET PRIMACY_ROLE PRIMACY_STATE_FILE " +
		"PRIMACY_STORE PRIMACY_TOKEN PRIMACY_TTL PRIMACY_TTL_MS PRIMACY_VALUE "
	if p.out.String() != want {
		t.Errorf("got %q, want %q", p.out.String(), want)
	}
	p = w.with("PRIMACY_SLOTS=", "PRIMACY_WAIT=").start("lock", "n", "sh", "-c",
		"primacy leader n --valid && echo $PRIMACY_TOKEN").ends(0)
	if n, err := strconv.ParseUint(strings.TrimSpace(p.out.String()), 10, 64); err != nil || n < 1<<16 {
		t.Errorf("got %q, %v", p.out.String(), err)
	}
}
