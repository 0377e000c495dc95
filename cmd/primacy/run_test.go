//go:build linux

package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/slowguardian"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

func TestTheCommandsOwnStatusPasses(t *testing.T) {
	w := newWorld(t)
	for i, c := range []struct {
		command []string
		code    int
		out     string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"sh", "-c", "exit 3"}, 3, ""},
		{[]string{"sh", "-c", "exit 7"}, 7, ""},
		{[]string{"sh", "-c", "exit 200"}, 200, ""},
		{[]string{"sh", "-c", "exit 122"}, 122, ""}, // rare, and its own: nothing is said
		{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{[]string{"sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{[]string{"sh", "-c", "kill -SEGV $$"}, 128 + 11, ""},
		// Flags after NAME are the command's, and one "--" is swallowed.
		{[]string{"ls", "-d", "/"}, 0, "/\n"},
		{[]string{"--", "ls", "-d", "/"}, 0, "/\n"},
		{[]string{"--", "echo", "--", "--ttl", "-q"}, 0, "-- --ttl -q\n"},
		{[]string{"echo", "--", "--help"}, 0, "-- --help\n"},
	} {
		if few(3, i) {
			continue
		}
		p := w.start(append([]string{"run", "--quiet", "--backoff", "0", "n"}, c.command...)...).ends(c.code)
		if p.out.String() != c.out || p.err.String() != "" {
			t.Errorf("%v: stdout %q, stderr %q; want %q and nothing", p, p.out.String(), p.err.String(), c.out)
		}
	}
	// A "--" before NAME ends our flags; then one after it is still ours.
	if p := w.start("run", "-q", "--", "n", "--", "echo", "x").ends(0); p.out.String() != "x\n" {
		t.Errorf("got %q", p.out.String())
	}
	for _, left := range w.keys(w.prefix) {
		if !strings.HasPrefix(string(left.Key), w.prefix+"@journal/") {
			t.Errorf("%q is left in the store", left.Key)
		}
	}
	// The second of two is the command, and there is none of that name.
	w.start("run", "n", "--", "--", "x").ends(127).inOneLine().complains("command not found: --")
}

func TestACommandThatCannotRunDoesNotStand(t *testing.T) {
	w := newWorld(t)
	text := filepath.Join(w.dir, "text")
	if err := os.WriteFile(text, []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(w.dir, "script")
	if err := os.WriteFile(script, []byte("#!/proc/nosuch/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command string
		code    int
		want    string
	}{
		{"nosuchcommand", 127, "command not found: nosuchcommand"},
		{"/proc/nosuch/command", 127, "command not found: /proc/nosuch/command"},
		{"", 127, "command not found"},
		{text, 126, "command not executable: " + text},
		{"/etc", 126, "command not executable: /etc"},
	} {
		// The store is never asked: its URL leads nowhere.
		w.start("run", "--store", "etcd://127.0.0.1:1", "n", c.command).ends(c.code).inOneLine().complains(c.want)
	}
	// That the interpreter is missing shows only when it is started; then the term ends at once.
	w.start("run", "n", script).ends(127).complains("script")
	if line := w.line("n"); len(line) > 0 {
		t.Errorf("%q is left in the line", line[0].Key)
	}
}

func TestStdinStdoutStderrPassUntouched(t *testing.T) {
	w := newWorld(t)
	data := make([]byte, 10<<20)
	_, _ = rand.Read(data)
	p := w.startWith(bytes.NewReader(data), "run", "-q", "n", "cat").ends(0)
	if got := p.out.String(); sha256.Sum256([]byte(got)) != sha256.Sum256(data) {
		t.Errorf("%d bytes came out, not the %d that went in", len(got), len(data))
	}
	p = w.startWith(bytes.NewReader(data[:1<<20]), "run", "-q", "n", "sh", "-c", "cat >&2; echo out").ends(0)
	if got := p.err.String(); got != string(data[:1<<20]) || p.out.String() != "out\n" {
		t.Errorf("%d bytes on stderr, %q on stdout", len(got), clip(p.out.String()))
	}
	// A closed stdin is a closed stdin.
	if p = w.start("run", "-q", "n", "wc", "-c").ends(0); strings.TrimSpace(p.out.String()) != "0" {
		t.Errorf("got %q", p.out.String())
	}
}

func TestWaitingEndsAtOnceOnASignal(t *testing.T) {
	w := newWorld(t)
	leader := w.start("run", "--id", "first", "n", "sleep", "1000").tells("leads n")
	token := w.awaitLine("n", 1)[0].CreateRevision
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		p := w.start("run", "n", "echo", "never").tells("waits for n: first leads under token " + token + ", ")
		w.awaitLine("n", 2)
		at := time.Now()
		p.signal(sig).ends(128 + int(sig))
		if d := time.Since(at); d > prompt {
			t.Errorf("%v: ended %v later", sig, d)
		}
		if p.out.String() != "" {
			t.Errorf("%v: the command ran: %q", sig, p.out.String())
		}
		w.awaitLine("n", 1) // it has left the line
	}
	leader.signal(syscall.SIGTERM).ends(128 + 15)
	w.awaitLine("n", 0)
}

func TestASignalWhileTheStoreIsSilentEndsTheWait(t *testing.T) {
	w := newWorld(t)
	hole := newHole(w)
	p := w.start("run", "--timeout", "1h", "--store", "etcd://"+hole.Addr(), "n", "true")
	w.eventually("it talks to the store", func() bool { return hole.Holds(etcdtest.Up, []byte("PRI * HTTP/2")) })
	at := time.Now()
	p.signal(syscall.SIGTERM).ends(128 + 15)
	if d := time.Since(at); d > prompt {
		t.Errorf("ended %v later", d)
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	w := newWorld(t)
	// A shell that counts up to the last, which ends it with a status of its own.
	script := `for s in HUP INT QUIT USR1 USR2 WINCH CONT; do trap "echo $s" $s; done; trap 'echo TERM; exit 9' TERM
		echo ready; while :; do sleep 0.02; done`
	p := w.start("run", "n", "sh", "-c", script).prints("ready")
	for _, s := range []struct {
		sig  syscall.Signal
		name string
	}{{syscall.SIGHUP, "HUP"}, {syscall.SIGINT, "INT"}, {syscall.SIGQUIT, "QUIT"}, {syscall.SIGUSR1, "USR1"},
		{syscall.SIGUSR2, "USR2"}, {syscall.SIGWINCH, "WINCH"}, {syscall.SIGCONT, "CONT"}} {
		p.signal(s.sig).prints(s.name + "\n")
	}
	p.signal(syscall.SIGTERM).ends(9).says("TERM\n")
	// One that does not care about them is not killed by them either: the command decides.
	deaf := w.start("run", "n", "sh", "-c",
		`trap '' TERM INT; echo ready; until [ -e go ]; do sleep 0.05; done; exit 4`).prints("ready")
	deaf.signal(syscall.SIGTERM).signal(syscall.SIGINT)
	time.Sleep(300 * time.Millisecond) // were it to be killed by them, it would be now
	w.touch("go")
	deaf.ends(4)
}

func TestWhatTheCommandLeavesBehindIsGoneBeforeTheNextLeads(t *testing.T) {
	w := newWorld(t)
	log := filepath.Join(w.dir, "log")
	// The command ends while another waits; its child, in a session of its own, goes on writing.
	first := w.start("run", "n", "sh", "-c", `setsid sh -c 'while :; do echo child >>log; sleep 0.01; done' &
		until [ -s log ] && [ -e go ]; do sleep 0.02; done; exit 5`)
	first.tells("leads n")
	next := w.start("run", "n", "sh", "-c", "cp log seen; sleep 0.3; cmp log seen").tells("waits for n")
	w.awaitLine("n", 2)
	w.touch("go")
	first.ends(5)
	next.ends(0)
	if info, err := os.Stat(log); err != nil || info.Size() == 0 {
		t.Errorf("the child wrote nothing: %v", err)
	}
}

func TestWaitGivesUpWith124(t *testing.T) {
	w := newWorld(t)
	w.start("run", "--id", "first", "n", "sleep", "1000").tells("leads n")
	p := w.start("run", "--quiet", "--wait", "700ms", "n",
		"true").ends(exitNotAcquired).inOneLine().complains("not leading n after 700ms")
	if p.took < 700*time.Millisecond {
		t.Errorf("gave up after %v", p.took)
	}
	w.with("PRIMACY_WAIT=300ms").start("run", "-q", "n",
		"true").ends(exitNotAcquired).inOneLine().complains("after 300ms")
	w.awaitLine("n", 1)
	// Won in time, the limit is of no account any more.
	w.start("run", "-q", "--wait", "10s", "other", "sleep", "10.5").ends(0)
}

// On a busy machine the guardian may come too late for the deadline it was given. The term was
// renewed meanwhile: it is not lost.
func TestAGuardianThatStartsLateCostsNoTerm(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	if err := os.WriteFile(filepath.Join(w.dir, slowguardian.File), []byte("14s"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := w.start("run", "--ttl", "20s", "--stop-timeout", "6s", "n", "sh", "-c",
		"primacy leader n --valid && echo up").ends(0).says("up\n")
	if p.took < 14*time.Second {
		t.Errorf("the guardian was not slow: it took %v", p.took)
	}
}

func TestALeaseRevokedByHandEndsTheCommandWith122(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "n", "sh", "-c", deaf).prints("up")
	w.revoke(w.awaitLine("n", 1)[0].Lease)
	p.ends(exitLost).complains(`leadership of "n" under token`)
	// And by deleting the claim alone, as an operator may with etcdctl.
	p = w.start("run", "n", "sh", "-c", deaf).prints("up")
	next := w.start("run", "n", "true").tells("waits for n")
	w.delete("n/" + hexLease(w.awaitLine("n", 2)[0]))
	p.ends(exitLost).complains(`leadership of "n" under token`, "removed by somebody else")
	next.ends(0)
}

func TestResignedByAnOperatorIs123AndTheNextLeads(t *testing.T) {
	w := newWorld(t)
	first := w.start("run", "--id", "first", "n", "sh", "-c",
		stops).prints("up")
	second := w.start("run", "--id", "second", "n", "sh", "-c", "echo up; sleep 1000").tells("first leads under token")
	w.awaitLine("n", 2)
	w.start("resign", "--reason", "new kernel", "n").ends(0).says("second\n").complains("has resigned; now: second")
	first.ends(exitResigned).says("bye\n").complains("resigned", "new kernel") // its work was stopped, and waited for
	second.prints("up")
	second.signal(syscall.SIGTERM).ends(128 + 15)
	w.start("resign", "n").ends(exitNo).inOneLine().complains("nobody leads n")
}

func TestAResignThatIsNotObeyedIs124(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--ttl", "60s", "--stop-timeout", "20s", "n", "sh", "-c",
		deaf).prints("up")
	w.start("resign", "--wait", "500ms", "n").ends(exitNotAcquired).inOneLine().complains("still leads under token")
	p.signal(syscall.SIGKILL)
	w.killAll()
}

func TestFlagBeatsEnvironmentBeatsDefault(t *testing.T) {
	w := newWorld(t).without("PRIMACY_TTL")
	ttl := func(want string, w *world, flags ...string) {
		t.Helper()
		args := append(append([]string{"run", "-q"}, flags...), "n", "sh", "-c", "echo $PRIMACY_TTL_MS $PRIMACY_ID")
		if p := w.start(args...).ends(0); p.out.String() != want+"\n" {
			t.Errorf("%v: got %q, want %q", args, p.out.String(), want)
		}
	}
	ttl("10000 a", w, "--id", "a")
	ttl("27000 b", w.with("PRIMACY_TTL=27s", "PRIMACY_ID=b"))
	ttl("25000 c", w.with("PRIMACY_TTL=27s", "PRIMACY_ID=b"), "--ttl", "25s", "--id=c")
	// Flags stand before the verb, too.
	if p := w.start("--ttl", "26s", "run", "-q", "n", "sh", "-c",
		"echo $PRIMACY_TTL_MS").ends(0); p.out.String() != "26000\n" {
		t.Errorf("got %q", p.out.String())
	}
	other := "etcd://" + w.server.Addr() + "/" + w.prefix + "other"
	if p := w.start("run", "-q", "-S", other, "n", "sh", "-c",
		"echo $PRIMACY_STORE").ends(0); p.out.String() != other+"\n" {
		t.Errorf("got %q", p.out.String())
	}
}

// hexLease is how a claim's key ends.
func hexLease(c kv) string { return string(c.Key[strings.LastIndexByte(string(c.Key), '/')+1:]) }
