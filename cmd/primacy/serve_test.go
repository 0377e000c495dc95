//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// side is one `primacy serve`.
type side struct {
	*prog
	socket string
	client *http.Client
}

// serve starts a server on a socket of its own and waits until it is ready.
func (w *world) serve(name string, args ...string) *side {
	w.Helper()
	socket := filepath.Join(w.dir, name, "s")
	s := sideOn(w.start(append([]string{"serve", "--id", name, "--socket", socket}, args...)...), socket)
	s.ready()
	return s
}

func sideOn(p *prog, socket string) *side {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &side{prog: p, socket: socket, client: &http.Client{Transport: &http.Transport{DialContext: dial,
		DisableKeepAlives: true}}}
}

func (s *side) ready() {
	s.Helper()
	s.until(func() bool { code, _ := s.ask("GET", "/readyz", ""); return code == 200 }, "is ready")
}

// ask makes one request; the status is 0 where nobody answers.
func (s *side) ask(method, path, body string, headers ...string) (int, string) {
	r, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// said is a line of a stream, as far as the tests look at it.
type said struct {
	Event    string `json:"event"`
	ID       string `json:"id"`
	Token    string `json:"token"`
	LeaseMS  int64  `json:"lease_ms"`
	Deadline string `json:"deadline_boot_ns"`
	Reason   string `json:"reason"`
	at       time.Duration
}

// curl is a client in a process of its own.
type curl struct {
	*world
	cmd   *exec.Cmd
	lines chan said
}

func (s *side) curl(args ...string) *curl {
	s.Helper()
	c := &curl{world: s.world, cmd: exec.Command("curl", append([]string{"-sSN", "--unix-socket", s.socket},
		args...)...), lines: make(chan said, 1000)}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	c.cmd.Dir = s.dir
	if err := c.cmd.Start(); err != nil {
		s.Fatalf("curl: %v", err)
	}
	go func() {
		defer close(c.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			l := said{at: boottime.Now()}
			if json.Unmarshal(in.Bytes(), &l) == nil {
				c.lines <- l
			}
		}
	}()
	s.Cleanup(func() { _ = c.cmd.Process.Kill(); _ = c.cmd.Wait() })
	return c
}

func (c *curl) next(event string) said {
	c.Helper()
	for late := time.After(limit); ; {
		select {
		case l, ok := <-c.lines:
			if !ok {
				c.Fatalf("the stream ended before %s", event)
			}
			if l.Event == event {
				return l
			}
		case <-late:
			c.Fatalf("no %s within %v", event, limit)
		}
	}
}

func (s *side) campaign(id string) *curl { return s.campaignFor("a%2Fn", id) }

func (s *side) campaignFor(name, id string) *curl {
	return s.curl("--json", fmt.Sprintf(`{"id":%q}`, id), "http://localhost/v1/elections/"+name+"/campaign")
}

// awaitWaiting waits until somebody waits behind the leader.
func (s *side) awaitWaiting(name string) {
	s.Helper()
	s.until(func() bool {
		_, text := s.ask("GET", "/v1/elections/"+strings.ReplaceAll(name, "/", "%2F"), "")
		return !strings.Contains(text, `"waiting":[]`)
	}, "shows who waits for %s", name)
}

// A client that is killed has resigned at once, whatever the ttl is.
func TestServeAKilledClientHasResigned(t *testing.T) {
	w := newWorld(t)
	a, b := w.serve("a", "--ttl", "60s"), w.serve("b", "--ttl", "60s")
	one := a.campaign("one")
	won := one.next("elected")
	two := b.campaign("two")
	a.awaitWaiting("a/n")
	for id, s := range map[string]*side{"200": a, "503": b} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			for _, path := range []string{"/leader/a/n", "/leader/a%2Fn", "/primary?election=a%2Fn",
				"/leader?election=a/n"} {
				if code, text := s.ask(method, path, ""); fmt.Sprint(code) != id {
					t.Errorf("%s: %s %s: %d %s", s.args, method, path, code, text)
				}
			}
		}
	}
	began := boottime.Now()
	if err := one.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	next := two.next("elected")
	t.Logf("the next one led %v after the kill", next.at-began)
	if next.at-began > 10*time.Second {
		t.Errorf("the next one led after %v", next.at-began)
	}
	if code, _ := a.ask("GET", "/leader/a/n?token="+won.Token, ""); code != 503 {
		t.Errorf("the killed client's server says %d", code)
	}
}

// A server that is frozen loses its clients' terms, and its first answer when it is thawed is no.
// The client that heard nothing knows from the deadline that it was told.
func TestServeFrozen(t *testing.T) {
	w := newWorld(t)
	a, b := w.serve("a", "--ttl", "4s"), w.serve("b", "--ttl", "4s")
	one := a.campaign("one")
	one.next("renewed")
	two := b.campaign("two")
	a.awaitWaiting("a/n")
	a.signal(syscall.SIGSTOP)
	next := two.next("elected")
	var told time.Duration
	for len(one.lines) > 0 { // the last word of the frozen one
		if l := <-one.lines; l.Deadline != "" {
			var ns int64
			fmt.Sscan(l.Deadline, &ns)
			told = max(told, time.Duration(ns))
		}
	}
	if next.at < told {
		t.Errorf("the next one leads %v before the time that the first was told is over", told-next.at)
	}
	var asked []net.Conn // they wait in the socket's queue for the thaw
	for range 20 {
		c, err := net.Dial("unix", a.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET /leader/a/n HTTP/1.1\r\nHost: x\r\n\r\n")
		asked = append(asked, c)
	}
	a.signal(syscall.SIGCONT)
	for i, c := range asked {
		_ = c.SetReadDeadline(time.Now().Add(limit))
		status, err := bufio.NewReader(c).ReadString('\n')
		if err != nil || !strings.Contains(status, " 503 ") {
			t.Errorf("answer %d after the thaw: %q %v", i, status, err)
		}
	}
	if end := one.next("ended"); end.Reason != "expired" {
		t.Errorf("the client of the frozen one is told %+v", end)
	}
	if code, _ := a.ask("GET", "/livez", ""); code != 200 {
		t.Errorf("livez says %d", code)
	}
}

// On SIGTERM every client is told, and everything is given up before the process ends; a client
// that does not stop is waited for no longer than it was told.
func TestServeStops(t *testing.T) {
	w := newWorld(t)
	a := w.serve("a", "--ttl", "4s")
	deaf := a.curl("-X", "POST", "http://localhost/v1/elections/n/campaign")
	deaf.next("elected")
	code, text := a.ask("POST", "/v1/locks/l", `{"lease_ms":1000}`)
	if code != 200 {
		t.Fatal(text)
	}
	a.signal(syscall.SIGTERM)
	stop := deaf.next("stopping")
	if stop.Reason != "shutdown" || stop.LeaseMS <= 0 {
		t.Errorf("got %+v", stop)
	}
	if end := deaf.next("ended"); end.Reason != "shutdown" {
		t.Errorf("got %+v", end)
	}
	a.ends(0)
	w.start("leader", "n").ends(exitNo)
	w.start("leader", "l").ends(exitNo)
	if _, err := os.Lstat(a.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}

	// What a killed one leaves behind is replaced; beside a living one there is no place, frozen or
	// not.
	b := w.serve("b")
	b.signal(syscall.SIGSTOP)
	w.start("serve", "--socket", b.socket).ends(exitUsage).inOneLine().complains("another 'primacy serve' runs on")
	b.signal(syscall.SIGKILL)
	<-b.exited
	w.serve("b").signal(syscall.SIGINT).ends(0)
}

func TestServeWhatCannotWork(t *testing.T) {
	w := newWorld(t)
	short := filepath.Join(w.dir, "short")
	if err := os.WriteFile(short, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"0.0.0.0:0 is reached from other machines": {"--listen", "0.0.0.0:0"},
		"use at least 16":                          {"--token-file", short},
		"--token-file: open /nowhere":              {"--token-file", "/nowhere"},
		"give --tls-cert and --tls-key":            {"--tls-cert", short},
		"--tls-cert: ":                             {"--tls-cert", short, "--tls-key", short},
		"nothing to listen on":                     {"--socket", "none"},
		"give HOST:PORT":                           {"--listen", "80"},
		"is no socket":                             {"--socket", short},
		"must be a folder of your own":             {"--socket", "/tmp/s"},
		"--max-clients 0":                          {"--max-clients", "0"},
		"--election: ":                             {"--election", "a\nb"},
		"unknown command":                          {"x"},
	} {
		p := w.start(append([]string{"serve"}, args...)...)
		p.ends(exitUsage).inOneLine().complains(want)
	}
	w.start("serve", "--timeout", "1s", "--store", "etcd://127.0.0.1:1").ends(exitUnreachable).inOneLine()
}

// A socket that the service manager opened is served, and what it passes to us we pass to nobody.
func TestServeOnASocketThatIsPassedIn(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(w.dir, "passed")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	p := w.startSh(f, `LISTEN_PID=$$ LISTEN_FDS=1 exec primacy serve`)
	s := sideOn(p, path)
	s.ready()
	if _, err := os.Lstat(filepath.Join(w.dir, "primacy", "primacy.sock")); err == nil {
		t.Error("it made a socket of its own too")
	}
	s.signal(syscall.SIGTERM).ends(0)
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("it removed the manager's socket: %v", err)
	}
}

// startSh runs a shell with a file as descriptor 3.
func (w *world) startSh(f *os.File, script string) *prog {
	w.Helper()
	p := &prog{world: w, args: []string{script}, exited: make(chan struct{}), patience: limit}
	p.cmd = exec.Command("sh", "-c", script)
	p.cmd.Env, p.cmd.Dir, p.cmd.ExtraFiles = w.env, w.dir, []*os.File{f}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if err := p.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	go func() { p.waitErr = p.cmd.Wait(); close(p.exited) }()
	w.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.exited })
	return p
}
