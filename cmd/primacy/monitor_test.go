//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// events returns what --events has written.
func (w *world) events(file string) (all []event) {
	w.Helper()
	for _, line := range w.lines(file) {
		if line != "" {
			all = append(all, decode[event](w, line))
		}
	}
	return all
}

func words(all []event) (words []string) {
	for _, m := range all {
		if m.Event != "leader" && m.Event != "renew_late" { // these come when they come
			words = append(words, m.Event)
		}
	}
	return words
}

func TestEventsTellALife(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--id", "me", "--events", "log", "--on-lost", "recampaign", "--on-elected", "true", "n", "sh",
		"-c", deaf).prints("up\n")
	w.revoke(w.awaitLine("n", 1)[0].Lease)
	p.prints("up\nup\n")
	w.start("resign", "--id", "op", "--reason", "new kernel", "n").ends(0)
	p.prints("up\nup\nup\n")
	w.eventually("the third start is written", func() bool {
		return strings.Count(w.read("log"),
			`"event":"started"`) == 3
	})
	p.signal(syscall.SIGKILL)
	<-p.exited
	all := w.events("log")
	want := "candidate elected hook started stopping killed exited deposed released" +
		" candidate elected hook started stopping killed exited resigned released candidate elected hook started"
	if got := strings.Join(words(all), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for i, m := range all {
		if m.Election != "n" || m.ID != "me" || m.Time.IsZero() || i > 0 && m.Time.Before(all[i-1].Time) {
			t.Errorf("%+v", m)
		}
	}
	i := slices.IndexFunc(all, func(m event) bool { return m.Event == "resigned" })
	if m := all[i]; m.By == "" || m.Text != "new kernel" || m.Reason != "resigned" || m.Token == 0 {
		t.Errorf("%+v", m)
	}
	// The exit code is the last line; a lock has a life too.
	w.start("lock", "--events", "log2", "n2", "sh", "-c", "exit 7").ends(7)
	all = w.events("log2")
	if got := strings.Join(words(all), " "); got != "candidate elected started exited resigned released finished" ||
		*all[len(all)-1].Status != 7 {
		t.Errorf("got %s, %+v", got, all[len(all)-1])
	}
	hold := w.start("lock", "--events", "log3", "n3").prints("holds the lock")
	hold.signal(syscall.SIGTERM).ends(0)
	all = w.events("log3")
	if got := strings.Join(words(all), " "); got != "candidate elected resigned released finished" ||
		all[len(all)-3].Reason != "stopped" || *all[len(all)-1].Status != 0 {
		t.Errorf("got %s, %+v", got, all)
	}
}

// Nobody reads the pipe: neither the work nor its end wait for that.
func TestEventsToAFullPipe(t *testing.T) {
	w := newWorld(t)
	full := func(f *os.File) {
		t.Helper()
		fd := int(f.Fd()) // once: it makes the file a blocking one
		_ = unix.SetNonblock(fd, true)
		for _, size := range []int{4096, 1} {
			for err := error(nil); err == nil; {
				_, err = unix.Write(fd, make([]byte, size))
			}
		}
		_ = unix.SetNonblock(fd, false)
	}
	r, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	full(pw)
	c := exec.Command(filepath.Join(shared.dir, "primacy"), "run", "-q", "--events", "fd:3", "n", "sh", "-c",
		"ls /proc/$$/fd; exit 5")
	c.Env, c.Dir, c.ExtraFiles = w.env, w.dir, []*os.File{pw}
	began := time.Now()
	out, err := c.Output()
	pw.Close()
	if code := c.ProcessState.ExitCode(); code != 5 || time.Since(began) > limit {
		t.Errorf("exit %d (%v) after %v", code, err, time.Since(began))
	}
	if string(out) != "0\n1\n2\n" {
		t.Errorf("the command has descriptors %q", out)
	}
	// A named pipe without a reader, then with one.
	fifo := filepath.Join(w.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	w.start("run", "--events", "fifo", "n", "sh", "-c", "exit 6").ends(6)
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0) // to write too, so that it does not wait for a writer
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	w.start("run", "--events", "fifo", "n", "sh", "-c", "exit 6").ends(6)
	_ = reader.SetReadDeadline(time.Now().Add(limit))
	got, buf := "", make([]byte, 4096)
	for err == nil && !strings.Contains(got, `"event":"finished"`) {
		n := 0
		n, err = reader.Read(buf)
		got += string(buf[:n])
	}
	if err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// The newest lines are kept, and how many were not is told.
func TestEventsThatNobodyTakes(t *testing.T) {
	onlyInVerify(t)
	r, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := &eventLog{file: pw, say: t.Logf, more: make(chan struct{}, 1), done: make(chan struct{})}
	for i := range eventsKept + 44 {
		l.write(event{Event: "e", PID: i + 1})
	}
	go l.run()
	l.close()
	all, _ := io.ReadAll(r)
	lines := strings.Split(strings.TrimSpace(string(all)), "\n")
	var first, last event
	if json.Unmarshal([]byte(lines[0]), &first) != nil || json.Unmarshal([]byte(lines[len(lines)-1]), &last) != nil {
		t.Fatal(lines)
	}
	if len(lines) != eventsKept || first.Dropped != 44 || first.PID != 45 || last.PID != eventsKept+44 {
		t.Errorf("%d lines, first %+v, last %+v", len(lines), first, last)
	}
	var none *eventLog
	none.write(event{})
	none.close()
}

// managerOf is a service manager's socket that keeps what it hears.
type managerOf struct {
	*world
	mu   sync.Mutex
	said []string
}

func newServiceManager(w *world, env ...string) (*managerOf, *world) {
	w.Helper()
	path := filepath.Join(w.dir, "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { c.Close() })
	m := &managerOf{world: w}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.said = append(m.said, strings.Split(string(buf[:n]), "\n")...)
			m.mu.Unlock()
		}
	}()
	return m, w.with(append(env, "NOTIFY_SOCKET="+path)...)
}

func (m *managerOf) count(line string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.said {
		if strings.HasPrefix(s, line) {
			n++
		}
	}
	return n
}

func (m *managerOf) hears(line string) {
	m.Helper()
	m.eventually("the service manager hears "+line, func() bool { return m.count(line) > 0 })
}

// tell says a line to the manager, and waits until it is heard, with all that was said before.
func (m *managerOf) tell(line string) {
	m.Helper()
	c, err := net.Dial("unixgram", filepath.Join(m.dir, "notify"))
	if err != nil {
		m.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, line); err != nil {
		m.Fatal(err)
	}
	m.hears(line)
}

// stateOf returns the letter of a process's state, as ps shows it.
func stateOf(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	letter, _, _ := strings.Cut(rest, " ")
	return letter
}

func TestTheServiceManagerIsTold(t *testing.T) {
	w := newWorld(t)
	m, in := newServiceManager(w, "WATCHDOG_USEC=600000")
	first := w.start("run", "--id", "first", "n", "sleep", "1000").tells("leads n")
	p := in.start("run", "--id", "me", "n", "sh", "-c", "echo $NOTIFY_SOCKET; exec sleep 1000")
	m.hears("READY=1") // a candidate is ready: `systemctl start` must not hang on a standby
	m.hears("STATUS=waits for n, which first leads")
	m.hears("WATCHDOG=1")
	first.signal(syscall.SIGTERM).ends(143)
	p.prints(filepath.Join(w.dir, "notify") + "\n")
	m.hears("STATUS=leader of n, token " + w.awaitLine("n", 1)[0].CreateRevision + ", since ")
	// Frozen, it gives no sign of life.
	m.eventually("signs of life", func() bool { return m.count("WATCHDOG=1") > 3 })
	p.signal(syscall.SIGSTOP)
	m.eventually("it is frozen", func() bool { return stateOf(p.cmd.Process.Pid) == "T" })
	m.tell("what it said before is heard")
	before := m.count("WATCHDOG=1")
	time.Sleep(time.Second)
	if n := m.count("WATCHDOG=1"); n != before {
		t.Errorf("a frozen process gave %d signs of life", n-before)
	}
	p.signal(syscall.SIGCONT)
	m.eventually("signs of life again", func() bool { return m.count("WATCHDOG=1") > before })
	p.signal(syscall.SIGTERM).ends(143)
	m.hears("STOPPING=1")
	m.hears("EXTEND_TIMEOUT_USEC=")
	m.hears("STATUS=ended with status 143")
	if n := m.count("READY=1"); n != 1 {
		t.Errorf("READY=1 was told %d times", n)
	}
}

func TestReadyWhenLeading(t *testing.T) {
	w := newWorld(t)
	m, in := newServiceManager(w)
	first := w.start("run", "--id", "first", "n", "sleep", "1000").tells("leads n")
	p := in.start("run", "--notify", "leader", "n", "sleep", "1000")
	m.hears("STATUS=waits for n, which first leads")
	if m.count("READY=1") != 0 {
		t.Error("READY=1 was told of one that waits")
	}
	first.signal(syscall.SIGTERM).ends(143)
	m.hears("READY=1")
	p.signal(syscall.SIGTERM).ends(143)
	// A manager that is not there keeps nobody from leading.
	w.with("NOTIFY_SOCKET=/proc/nosuch/notify").start("run", "n", "sh", "-c",
		"exit 3").ends(3).complains("warning: NOTIFY_SOCKET")
}

// A process whose lease nobody renews any more is wedged, but not one whose store is silent.
func TestWedged(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	m, in := newServiceManager(w, "WATCHDOG_USEC=300000")
	proxy := etcdtest.NewProxy(w, w.server.Addr())
	first := w.start("run", "n", "sleep", "1000").tells("leads n")
	p := in.start("run", "--ttl", "3s", "--store", "etcd://"+proxy.Addr()+"/"+w.prefix, "n", "sleep", "1000")
	m.hears("READY=1")
	proxy.Hold()
	time.Sleep(4 * time.Second) // its lease is over
	before := m.count("WATCHDOG=1")
	m.eventually("signs of life", func() bool { return m.count("WATCHDOG=1") > before })
	if m.count("STATUS=no watchdog ping") != 0 {
		t.Error("a waiter whose store is silent counts as wedged")
	}
	p.signal(syscall.SIGTERM).ends(143)
	first.signal(syscall.SIGTERM).ends(143)
	h := newRenewals()
	if err := h.stuck(time.Second); err != nil {
		t.Error(err)
	}
	h.last.Add(-int64(time.Minute))
	if h.stuck(time.Second) == nil {
		t.Error("a lease that is not renewed for a minute is not seen")
	}
	h.leased.Store(false)
	if err := h.stuck(time.Second); err != nil {
		t.Error(err)
	}
}

func TestStatusOverHTTP(t *testing.T) {
	w := newWorld(t)
	ask := func(network, addr, path string) int {
		c := &http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}}}
		resp, err := c.Get("http://x" + path)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	addr := freeAddr(t)
	sock := filepath.Join(w.dir, "status.sock")
	a := w.start("run", "--status", addr, "--ttl", "15s", "n", "sleep", "1000").tells("leads n")
	b := w.start("run", "--status", "unix:"+sock, "n", "sleep", "1000").tells("waits for n")
	w.awaitLine("n", 2)
	w.eventually("both answer", func() bool {
		return ask("tcp", addr, "/livez") == 200 &&
			ask("unix", sock, "/livez") == 200
	})
	check := func(network, at string, want map[string]int) {
		t.Helper()
		for path, code := range want {
			if got := ask(network, at, path); got != code {
				t.Errorf("%s %s: %d, want %d", at, path, got, code)
			}
		}
	}
	token := w.awaitLine("n", 2)[0].CreateRevision
	check("tcp", addr, map[string]int{"/leader": 200, "/leader/n": 200, "/leader/m": 503,
		"/leader?token=" + token: 200, "/leader?token=1": 503, "/readyz": 200, "/replica": 503, "/metrics": 200})
	check("unix", sock, map[string]int{"/leader": 503, "/leader/n": 503, "/readyz": 200, "/replica": 200})
	w.start("run", "--status", "unix:"+sock, "m", "true").ends(exitUsage).complains("another process answers there")
	a.signal(syscall.SIGSTOP)
	b.tells("leads n")
	check("unix", sock, map[string]int{"/leader": 200})
	a.ends(exitLost)
	// What a killed one left behind is replaced.
	b.signal(syscall.SIGKILL)
	<-b.exited
	w.start("run", "--status", "unix:"+sock, "m", "true").ends(0)
}

// Who opens connections to --status and keeps them must not take the descriptors that the process
// needs for its store.
func TestStatusTakesNoMoreThanItsConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer answerStatus(l, http.NotFoundHandler())()
	ask := func() (net.Conn, error) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err = c.Read(make([]byte, 1))
		return c, err
	}
	var last net.Conn
	for i := range statusConns {
		if last, err = ask(); err != nil {
			t.Fatalf("connection %d of %d: %v", i+1, statusConns, err)
		}
	}
	if _, err := ask(); err == nil {
		t.Errorf("connection %d is answered", statusConns+1)
	}
	last.Close()
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if _, err := ask(); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal("nobody comes in where one has gone")
		}
	}
}

// As process 1 of a container it buries orphans that are not its own, and passes signals on.
func TestProcess1(t *testing.T) {
	w := newWorld(t)
	unshare := []string{"--fork", "--pid", "--mount-proc", "--kill-child"}
	if out, err := exec.Command("unshare", append(unshare, "true")...).CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err, string(out))
		}
		t.Skip("no process namespaces here")
	}
	script := `[ "$(cat /proc/1/comm)" = primacy ] || exit 90; trap 'echo got term; exit 7' TERM
		echo up; while :; do sleep 0.05; done`
	args := append(unshare, filepath.Join(shared.dir, "primacy"), "run", "-q", "n", "sh", "-c", script)
	c := exec.Command("unshare", args...)
	c.Env, c.Dir = w.env, w.dir
	var out buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill() }()
	w.eventually("the command runs", func() bool { return strings.Contains(out.String(), "up") })
	init := childOf(w, c.Process.Pid)
	// Somebody enters the container and leaves an orphan behind, as `docker exec` does; it falls to
	// process 1 and ends.
	enter := exec.Command("nsenter", "-t", fmt.Sprint(init), "-p", "-m", "sh", "-c",
		"(sleep 0.2; exit 3) & sh -c 'sleep 0.2 & sleep 0.1 & echo $!'")
	if text, err := enter.CombinedOutput(); err != nil {
		t.Fatal(err, string(text))
	}
	time.Sleep(400 * time.Millisecond)
	w.eventually("no dead child is left", func() bool { return zombiesOf(w, init) == 0 })
	if err := syscall.Kill(init, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 7 || !strings.Contains(out.String(), "got term") {
		t.Errorf("exit %d, %q", code, out.String())
	}
	w.awaitLine("n", 0)
}

func childrenOf(w *world, pid int) []string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	return strings.Fields(string(b))
}

func childOf(w *world, pid int) (child int) {
	w.Helper()
	w.eventually("a child", func() bool {
		n, _ := fmt.Sscan(strings.Join(childrenOf(w, pid), " "),
			&child)
		return n == 1
	})
	return child
}

func zombiesOf(w *world, pid int) (n int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range tasks {
		b, _ := os.ReadFile(file)
		for _, child := range strings.Fields(string(b)) {
			if stat, err := os.ReadFile("/proc/" + child + "/stat"); err == nil &&
				strings.Contains(string(stat), ") Z ") {
				n++
			}
		}
	}
	return n
}

// smallDisk takes so many bytes, and then no more until it has room again.
type smallDisk struct {
	bytes.Buffer
	room int
}

func (d *smallDisk) Write(b []byte) (int, error) {
	n, _ := d.Buffer.Write(b[:min(len(b), d.room)])
	if d.room -= n; n < len(b) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func (d *smallDisk) Close() error { return nil }

// A disk that was full leaves half a line. The next event is a line of its own all the same, and
// says how many are missing.
func TestAnEventAfterAFullDiskIsALine(t *testing.T) {
	disk := &smallDisk{room: 20}
	l := &eventLog{file: disk, say: t.Logf}
	l.put(event{Event: "won"})
	l.put(event{Event: "lost"})
	disk.room = 1000
	l.put(event{Event: "won", Dropped: 2})
	l.put(event{Event: "ended"})
	lines := strings.Split(strings.TrimSpace(disk.String()), "\n")
	var second, last event
	if len(lines) != 3 || json.Unmarshal([]byte(lines[1]), &second) != nil || second.Dropped != 2 ||
		json.Unmarshal([]byte(lines[2]), &last) != nil || last.Event != "ended" {
		t.Errorf("%q", lines)
	}
}
