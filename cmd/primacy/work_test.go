//go:build linux

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/cmd/internal/slowguardian"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// fill makes a pipe take nothing more.
func fill(f *os.File) {
	fd := int(f.Fd()) // once: it makes the file a blocking one
	_ = unix.SetNonblock(fd, true)
	for _, size := range []int{4096, 1} {
		for err := error(nil); err == nil; {
			_, err = unix.Write(fd, make([]byte, size))
		}
	}
	_ = unix.SetNonblock(fd, false)
}

// Nobody reads what it says: it gives leadership up all the same. When somebody reads again, it is
// told what comes then.
func TestNobodyReadsStderr(t *testing.T) {
	w := newWorld(t)
	r, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := exec.Command(filepath.Join(shared.dir, "primacy"), "run", "-v", "n", "sh", "-c",
		"exec 2>&-; echo up >>log; exec sleep 1000")
	c.Env, c.Dir, c.Stderr = w.env, w.dir, pw
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	w.writes("log", "up")
	fill(pw)
	next := w.start("run", "n", "sh", "-c", "echo up").tells("waits for n")
	w.awaitLine("n", 2)
	w.start("resign", "n").ends(0)
	next.ends(0).says("up")
	pw.Close()
	if err := c.Wait(); c.ProcessState.ExitCode() != exitResigned {
		t.Error(err)
	}
}

// Nothing else on the terminal says why the command is gone.
func TestAKilledGuardianIsTold(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "-q", "n", "sh", "-c", upAndSleep).prints("up")
	if err := syscall.Kill(p.guardian(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.ends(128 + 9).complains("n: the command's guardian was killed")
}

// Whoever read what it says has gone: that is the end of neither the leader nor its command.
func TestTheReaderOfStderrIsGone(t *testing.T) {
	w := newWorld(t)
	r, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(filepath.Join(shared.dir, "primacy"), "run", "--on-exit", "restart", "n", "sh", "-c",
		"exec 2>&-; echo $PRIMACY_TOKEN >>log; read x <fifo; exit 9")
	c.Env, c.Dir, c.Stderr = w.env, w.dir, pw
	fifo := filepath.Join(w.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	pw.Close()
	w.writes("log", "\n")
	r.Close()
	// the first command ends, and it is said that it is started again
	if err := os.WriteFile(fifo, []byte("end\n"), 0); err != nil {
		t.Fatal(err)
	}
	w.eventually("the second start", func() bool { return len(w.lines("log")) == 2 })
	if l := w.lines("log"); l[0] != l[1] {
		t.Errorf("another term: %q", l)
	}
	_ = c.Process.Signal(syscall.SIGTERM)
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 143 {
		t.Errorf("exit %d", code)
	}
}

func TestPatient(t *testing.T) {
	r, pw := io.Pipe()
	p := newDropWriter(pw)
	began := time.Now()
	for range 100 {
		_, _ = p.Write([]byte("x")) // the first one waits, the others do not
	}
	if d := time.Since(began); d > prompt {
		t.Errorf("it took %v", d)
	}
	got := make([]byte, 1)
	_, _ = io.ReadFull(r, got)
	all := make(chan string)
	go func() { b, _ := io.ReadAll(r); all <- string(b) }()
	for end := time.Now().Add(limit); ; {
		if n, err := p.Write([]byte("y")); n == 1 && err == nil && p.under == nil { // written
			break
		}
		if time.Now().After(end) {
			t.Fatal("it never listened again")
		}
	}
	_, _ = p.Write([]byte("z"))
	pw.Close()
	if s := <-all; !strings.Contains(s, "y") {
		t.Errorf("got %q", s)
	}
}

// A guardian that hangs before it starts the standby must not keep one who has won from leading.
func TestAStandbyThatDoesNotStart(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	first := w.start("run", "n", "sh", "-c", upAndSleep).prints("up")
	if err := os.WriteFile(filepath.Join(w.dir, slowguardian.File), []byte("1h"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := w.start("run", "--standby", "exec sleep 1000", "n", "sh", "-c", "echo up")
	// It must be the standby's guardian that hangs, and not the command's.
	w.eventually("a guardian hangs", func() bool {
		_, err := os.Stat(filepath.Join(w.dir, slowguardian.File))
		return os.IsNotExist(err)
	})
	w.awaitLine("n", 2)
	first.signal(syscall.SIGTERM).ends(143)
	p.ends(0).says("up")
}

// The command ends by itself, what it left behind takes its time, and meanwhile the term ends: that
// is a loss, and not the command's end for good.
func TestLostWhileTheCommandEnds(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--on-exit", "restart", "--on-lost", "recampaign", "--stop-timeout", "10s", "n", "sh", "-c",
		`echo up; [ -e once ] && exec sleep 1000; touch once
		setsid sh -c 'trap "echo told" TERM; touch trapped; while :; do sleep 0.05; done' &
		until [ -e trapped ]; do sleep 0.05; done; exit 9`)
	p.prints("told\n") // the command has ended, its child has not
	w.revoke(w.awaitLine("n", 1)[0].Lease)
	p.prints("told\nup\n")
	p.signal(syscall.SIGTERM).ends(143)
}

// The command was told to stop, and then the claim is lost: somebody else may lead, so what was
// left of its time to stop is over too. The same for a hook in the term.
func TestLostWhileTheCommandStops(t *testing.T) {
	const deaf = `trap 'echo told' TERM; echo up; while :; do sleep 0.1; done`
	for _, args := range [][]string{{"n", "sh", "-c", deaf}, {"--hook-timeout", "1h", "--on-elected",
		"exec 1>>log; " + deaf, "n", "true"}} {
		t.Run(args[0], func(t *testing.T) {
			w := newWorld(t)
			p := w.start(append([]string{"run", "--ttl", "5m", "--stop-timeout", "2m"}, args...)...)
			tells := func(text string) {
				w.eventually("it says "+text, func() bool {
					return strings.Contains(p.out.String()+w.read("log"), text)
				})
			}
			tells("up")
			asked := w.start("resign", "n")
			tells("told")
			w.revoke(w.awaitLine("n", 1)[0].Lease)
			p.wait() // a minute at most, not the two that it had
			asked.wait()
		})
	}
}

// With stop-now a renewal that fails in the pause before a restart counts too, and it is told as
// what it is.
func TestStopNowInThePause(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	proxy := newProxyOf(w)
	p := w.start("run", "--on-exit", "restart", "--on-unreachable", "stop-now", "--on-deposed",
		"echo $PRIMACY_REASON >>log",
		"--store", "etcd://"+proxy.Addr()+"/"+w.prefix, "n", "sh", "-c", "echo up; exit 1")
	p.tells("again in 1s")
	proxy.Hold()
	p.ends(exitLost).complains("given up: a renewal failed")
	if strings.Contains(p.err.String(), "again in 30s") {
		t.Errorf("the lease was over before it ended: %q", p.err.String())
	}
	if got := w.read("log"); got != "unreachable\n" {
		t.Errorf("the reason is %q", got)
	}
}

// A socket whose owner does not take us, because it is frozen, say, is not one that was left
// behind.
func TestTheStatusSocketOfOneThatIsBusy(t *testing.T) {
	w := newWorld(t)
	sock := filepath.Join(w.dir, "s.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: sock}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 { // its queue is full
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(c)
		_ = unix.Connect(c, &unix.SockaddrUnix{Name: sock})
	}
	before, err := os.Stat(sock)
	if err != nil {
		t.Fatal(err)
	}
	w.start("run", "--status", "unix:"+sock, "m", "true").ends(exitUsage).complains("address already in use")
	if after, err := os.Stat(sock); err != nil || !os.SameFile(before, after) {
		t.Errorf("the socket was taken away: %v", err)
	}
	w.start("run", "--status", "unix:", "m",
		"true").ends(exitUsage).inOneLine().complains("give HOST:PORT, or unix:PATH")
}

// What follows -- is a COMMAND where the file has the NAME: as a NAME it would be an election
// beside the fleet's, with the fleet's command.
func TestACommandForTheFilesName(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	if err := os.WriteFile(filepath.Join(w.dir, "c.toml"),
		[]byte("[run]\nname = \"n\"\ncommand = [\"echo\", \"file\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start("run", "--config", "c.toml", "--", "sh", "-c", "echo $PRIMACY_NAME").ends(0).says("n\n")
	w.start("run", "--config", "c.toml", "--", "env").ends(0).says("PRIMACY_NAME=n\n")
	w.start("run", "--config", "c.toml", "--").ends(0).says("file\n")
	w.start("run", "--", "m", "sh", "-c", "echo $PRIMACY_NAME").ends(0).says("m\n")
	if err := os.WriteFile(filepath.Join(w.dir, "c.toml"), []byte("[run]\nname = \"n\"\ncommand = \"echo file\"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	w.start("run", "--config", "c.toml").ends(exitUsage).inOneLine().complains("c.toml:3: run.command must be a list")
}

// It is too late to start the command again, and the term is over: that is a loss, however the
// command ended before.
func TestLostBeforeTheRestart(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	proxy := newProxyOf(w)
	p := w.start("run", "--ttl", "3s", "--on-exit", "restart", "--on-lost", "recampaign", "--on-deposed",
		"echo $PRIMACY_REASON >>log",
		"--store", "etcd://"+proxy.Addr()+"/"+w.prefix, "n", "sh", "-c",
		"echo up $PRIMACY_TOKEN; [ -e once ] && exec sleep 1000; touch once; exit 9")
	p.tells("again in 1s")
	if err := os.WriteFile(filepath.Join(w.dir, slowguardian.File), []byte("4s"), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy.Hold()
	w.writes("log", "expired\n")
	proxy.Heal()
	p.until(func() bool { return strings.Count(p.out.String(), "up") == 2 }, "leads again")
	p.signal(syscall.SIGTERM).ends(143)
}

// environ runs `env` in the term and returns what it shows.
func environ(w *world, args ...string) map[string]string {
	w.Helper()
	p := w.start(append(append([]string{"run", "-q"}, args...), "--", "n", "env", "-0")...).ends(0)
	got := map[string]string{}
	for kv := range strings.SplitSeq(strings.TrimSuffix(p.out.String(), "\x00"), "\x00") {
		name, value, _ := strings.Cut(kv, "=")
		if _, twice := got[name]; twice {
			w.Errorf("%s stands twice in the environment", name)
		}
		got[name] = value
	}
	return got
}

func TestTheCommandsEnvironmentIsExact(t *testing.T) {
	w := newWorld(t).without("PRIMACY_TTL").with("MINE=a\nb=c", "EMPTY=",
		// Of the same names, and from elsewhere.
		"PRIMACY_TOKEN=1", "PRIMACY_NAME=outer", "PRIMACY_STATE_FILE=/outer", "PRIMACY_TTL_MS=1",
		`PRIMACY_HELD=[{"name":"n","id":"elsewhere","claim":"1"},{"name":"outer","id":"me","claim":"2"}]`,
		// For this process alone.
		"PRIMACY_WAIT=1m", "PRIMACY_VALUE=v", "PRIMACY_STOP_TIMEOUT=1s",
		// For this process and any below it.
		"PRIMACY_TIMEOUT=20s")
	got := environ(w, "--id", "me", "--ttl", "9s")
	token := got["PRIMACY_TOKEN"]
	around := `[{"name":"n","id":"elsewhere","claim":"1"},{"name":"outer","id":"me","claim":"2"},` +
		`{"name":"n","id":"me","claim":"` + token + `"}]`
	want := map[string]string{
		"PRIMACY_NAME": "n", "PRIMACY_ID": "me", "PRIMACY_TOKEN": token, "PRIMACY_TTL_MS": "9000",
		"PRIMACY_TIMEOUT": "20s", "PRIMACY_ROLE": "leader",
		"PRIMACY_STORE": w.store, "PRIMACY_STATE_FILE": got["PRIMACY_STATE_FILE"], "PRIMACY_HELD": around,
	}
	for _, kv := range w.env {
		if name, value, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "PRIMACY_") {
			want[name] = value
		}
	}
	if !maps.Equal(got, want) {
		for _, name := range slices.Sorted(maps.Keys(got)) {
			if v, ok := want[name]; !ok || v != got[name] {
				t.Errorf("%s=%q, want %q", name, got[name], v)
			}
			delete(want, name)
		}
		t.Errorf("missing: %q", want)
	}
	var n uint64
	if _, err := fmt.Sscan(token, &n); err != nil || n < 2 || fmt.Sprint(n) != token {
		t.Errorf("the token is %q", token)
	}
	if f := got["PRIMACY_STATE_FILE"]; filepath.Dir(filepath.Dir(f)) != w.dir {
		t.Errorf("the state file is %q", f)
	} else if _, err := os.Stat(f); !os.IsNotExist(err) {
		t.Errorf("the state file is still there after the term: %v", err)
	}
	if again := environ(w); again["PRIMACY_TOKEN"] == token {
		t.Errorf("the next term has the token %s too", token)
	}
}

func TestTheTokenIsTheOneInTheStore(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "-q", "n", "sh", "-c", "echo $PRIMACY_TOKEN; sleep 1000").prints("\n")
	if got, want := strings.TrimSpace(p.out.String()), w.awaitLine("n", 1)[0].CreateRevision; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestARunInARunSeesItsOwnTerm(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	script := `echo "$PRIMACY_NAME $PRIMACY_ID $PRIMACY_TOKEN $PRIMACY_STATE_FILE"
		primacy leader $PRIMACY_NAME --valid && primacy leader $PRIMACY_NAME --is-me && echo yes`
	p := w.start("run", "-q", "--id", "o", "outer", "sh", "-c", script+`
		primacy run -q --id i inner sh -c "$1"`, "sh", script).ends(0)
	lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
	if len(lines) != 4 || lines[1] != "yes" || lines[3] != "yes" {
		t.Fatalf("got %q", lines)
	}
	outer, inner := strings.Fields(lines[0]), strings.Fields(lines[2])
	if outer[0] != "outer" || outer[1] != "o" || inner[0] != "inner" || inner[1] != "i" || outer[2] == inner[2] ||
		outer[3] == inner[3] {
		t.Errorf("outer %q, inner %q", outer, inner)
	}
}

// cheapLogins are etcd's options where somebody logs in: each time costs a tenth of a second of
// computing otherwise, and seconds on a busy machine.
var cheapLogins = []string{"--bcrypt-cost", "4"}

// The password must be nowhere but in what the user gave us.
func TestThePasswordIsNowhere(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	shared.start(t)
	server := etcdtest.Start(t, etcdtest.Options{Args: cheapLogins})
	w := newWorldOn(t, server).with("PRIMACY_TTL=30s")
	const canary = "SWORDFISH/?@:%"
	const written = "SWORDFISH%2F%3F%40%3A%25"
	mark := func(where, text string) {
		t.Helper()
		if strings.Contains(text, "SWORDF") {
			t.Errorf("the password is in %s: %q", where, clip(text))
		}
	}
	w.post("/v3/auth/user/add", map[string]string{"name": "root", "password": canary}, nil)
	w.post("/v3/auth/user/grant", map[string]string{"user": "root", "role": "root"}, nil)
	w.post("/v3/auth/enable", struct{}{}, nil)
	url := func(pw string) string { return "etcd://root:" + pw + "@" + server.Addr() + "/" + w.prefix }

	// Where it is right: a run, seen from outside and from inside.
	in := w.with("PRIMACY_STORE=" + url(written))
	p := in.start("run", "-v", "n", "sh", "-c",
		"cat /proc/self/environ /proc/$PPID/environ /proc/$PPID/cmdline $PRIMACY_STATE_FILE; echo up; sleep 1000")
	p.prints("up")
	for _, link := range w.processes() {
		cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		mark(link, string(cmdline))
		environ, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "environ"))
		if filepath.Base(filepath.Dir(link)) != fmt.Sprint(p.cmd.Process.Pid) { // there the user has put it himself
			mark(link+"'s environment", string(environ))
		}
	}
	if n := len(w.processes()); n < 3 {
		t.Errorf("looked at %d processes, want supervisor, guardian, command", n)
	}
	for _, file := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.guardian(), file))
		if err != nil {
			t.Error(err)
		}
		mark("the guardian's "+file, string(text))
	}
	for _, args := range [][]string{{"status"}, {"leader", "n"}, {"status", "-o", "json"},
		{"resign", "--reason", "x", "n"}} {
		q := in.start(append([]string{"-v"}, args...)...).ends(0)
		mark(q.String(), q.out.String()+q.err.String())
	}
	p.ends(exitResigned)
	mark("the output of run -v", p.out.String()+p.err.String())

	// The guardian of a killed one has it too, and nobody else: the lease would live for a minute.
	p = in.start("run", "-v", "--ttl", "60s", "n", "sh", "-c", "echo up; exec sleep 1000").prints("up")
	p.signal(syscall.SIGKILL)
	in.start("run", "--wait", "30s", "n", "true").ends(0)
	<-p.exited
	mark("what is left of run -v", p.out.String()+p.err.String())

	// Where it is wrong, or cannot be read.
	for _, u := range []string{url("SWORDFISH"), url(canary), url(written + "x"),
		strings.Replace(url(written), "root:", "nobody:", 1)} {
		for _, args := range [][]string{{"run", "n", "true"}, {"status"}} {
			q := w.start(append([]string{"-v", "--timeout", "20s", "--store", u}, args...)...)
			if code := q.wait(); code != exitUnreachable && code != exitUsage {
				t.Errorf("%v: exit %d", q, code)
			}
			mark("an error", q.out.String()+q.err.String())
			q.complains("primacy: ")
		}
	}
	q := w.start("--timeout", "50s", "--store", url("SWORDFISH"), "run", "n", "true").ends(exitUnreachable).inOneLine()
	q.complains(server.Addr(), "authentication failed")
	if q.took > prompt { // it is not tried again and again, for as long as it may take
		t.Errorf("a wrong password took %v", q.took)
	}
	// From a file, the URL has nothing to hide, and the command gets it.
	file := filepath.Join(w.dir, "password")
	if err := os.WriteFile(file, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	store := "etcd://root@" + server.Addr() + "/" + w.prefix + "?password-file=" + file
	if got := environ(w, "--store", store)["PRIMACY_STORE"]; got != store {
		t.Errorf("the command's PRIMACY_STORE is %q, want %q", got, store)
	}
}
