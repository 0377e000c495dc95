//go:build linux

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	if d := time.Since(began); d > 10*time.Second {
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
	w := newWorld(t)
	if err := os.WriteFile(filepath.Join(w.dir, slowGuardian), []byte("1h"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start("run", "--standby", "exec sleep 1000", "n", "sh", "-c", "echo up").ends(0).says("up")
}

// The command ends by itself, what it left behind takes its time, and meanwhile the term ends: that
// is a loss, and not the command's end for good.
func TestLostWhileTheCommandEnds(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--on-exit", "restart", "--on-lost", "recampaign", "--stop-timeout", "3s", "n", "sh", "-c",
		`echo up; [ -e once ] && exec sleep 1000; touch once; setsid sh -c 'trap "echo told" TERM; while :; do sleep 0.05; done' & sleep 0.3; exit 9`)
	p.prints("told\n") // the command has ended, its child has not
	w.revoke(w.awaitLine("n", 1)[0].Lease)
	p.prints("told\nup\n")
	p.signal(syscall.SIGTERM).ends(143)
}

// With stop-now a renewal that fails in the pause before a restart counts too, and it is told as
// what it is.
func TestStopNowInThePause(t *testing.T) {
	w := newWorld(t)
	proxy := newProxyOf(w)
	p := w.start("run", "--ttl", "10s", "--on-exit", "restart", "--on-unreachable", "stop-now", "--on-deposed",
		"echo $PRIMACY_REASON >>log",
		"--store", "etcd://"+proxy.Addr()+"/"+w.prefix, "n", "sh", "-c", "echo up; exit 1")
	p.tells("again in 8s")
	proxy.Hold()
	p.ends(exitLost)
	if n := strings.Count(p.out.String(), "up"); n != 4 {
		t.Errorf("it was started %d times, want 4", n)
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
	w := newWorld(t)
	proxy := newProxyOf(w)
	p := w.start("run", "--ttl", "3s", "--on-exit", "restart", "--on-lost", "recampaign", "--on-deposed",
		"echo $PRIMACY_REASON >>log",
		"--store", "etcd://"+proxy.Addr()+"/"+w.prefix, "n", "sh", "-c",
		"echo up $PRIMACY_TOKEN; [ -e once ] && exec sleep 1000; touch once; exit 9")
	p.tells("again in 1s")
	if err := os.WriteFile(filepath.Join(w.dir, slowGuardian), []byte("4s"), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy.Hold()
	w.writes("log", "expired\n")
	proxy.Heal()
	p.until(func() bool { return strings.Count(p.out.String(), "up") == 2 }, "leads again")
	p.signal(syscall.SIGTERM).ends(143)
}
