//go:build linux

package peerstest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/internal/safety"
)

type times struct{ lease, renew, retry time.Duration }

func (at times) String() string { return fmt.Sprintf("%v/%v/%v", at.lease, at.renew, at.retry) }

// requests is the limit of a request that client-go's NewFromKubeconfig sets, and
// controller-runtime.
func (at times) requests() time.Duration { return max(at.renew/2, time.Second) }

// election is one Lease and the processes that stand for it.
type election struct {
	testing.TB
	srv     *k8stest.Server
	name    string
	dir     string
	at      times
	release bool // ReleaseOnCancel
	noLimit bool // of a request
	all     []*process
}

type process struct {
	kind, id string
	link     *proxy.Proxy
	cmd      *exec.Cmd
	log      *bytes.Buffer
	exited   chan struct{}
}

func newElection(t testing.TB, srv *k8stest.Server, name string, at times) *election {
	e := &election{TB: t, srv: srv, name: name, dir: t.TempDir(), at: at}
	if err := os.WriteFile(filepath.Join(e.dir, "ca.pem"), srv.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range e.all {
			_ = p.cmd.Process.Kill()
			<-p.exited
			p.link.Close()
			if t.Failed() {
				t.Logf("the log of %s:\n%s", p.id, p.log)
			}
		}
	})
	return e
}

// start starts a process of a program, which has a link of its own to the API server, and waits
// until it stands.
func (e *election) start(program, kind, id string) *process {
	e.Helper()
	link, err := proxy.Listen(e.srv.Addr)
	if err != nil {
		e.Fatal(err)
	}
	p := &process{kind: kind, id: id, link: link, log: &bytes.Buffer{}, exited: make(chan struct{})}
	limit := e.at.requests()
	if e.noLimit {
		limit = 0
	}
	p.cmd = exec.Command(program, "-elector", kind, "-id", id, "-server", "https://"+link.Addr(), "-ca",
		filepath.Join(e.dir, "ca.pem"), "-name", e.name, "-dir", e.dir, "-lease", e.at.lease.String(), "-renew",
		e.at.renew.String(), "-retry", e.at.retry.String(), fmt.Sprint("-release=", e.release),
		"-limit", limit.String())
	p.cmd.Env = append(os.Environ(), workerEnv+"=1")
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		link.Close()
		e.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.exited) }()
	e.all = append(e.all, p)
	if _, ok := e.await(0, time.Minute, func(h happening) bool { return h.what == stands && h.id == id }); !ok {
		e.Fatalf("%s does not stand:\n%s", id, p.log)
	}
	return p
}

func (e *election) signal(p *process, s syscall.Signal) {
	e.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		e.Fatalf("%v to %s: %v", s, p.id, err)
	}
}

// running are the processes that have not exited.
func (e *election) running() (some []*process) {
	for _, p := range e.all {
		select {
		case <-p.exited:
		default:
			some = append(some, p)
		}
	}
	return some
}

// end asks processes to end, and waits until they have.
func (e *election) end(some ...*process) {
	e.Helper()
	for _, p := range some {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may just have exited
	}
	limit := time.After(e.at.lease*2 + 10*time.Second)
	for _, p := range some {
		select {
		case <-p.exited:
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				e.Errorf("%s exited with %d", p.id, code)
			}
		case <-limit:
			e.Errorf("%s does not end", p.id)
			return
		}
	}
}

// happening is a line of the events.
type happening struct {
	at    time.Duration
	what  string
	id    string
	token uint64
}

// record returns the whole lines of a file.
func (e *election) record(name string) []string {
	e.Helper()
	text, err := os.ReadFile(filepath.Join(e.dir, name))
	if err != nil && !os.IsNotExist(err) {
		e.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	return lines[:len(lines)-1]
}

// happened returns the events in the order of their times: a release is written down when it is
// answered, which may be after another leads.
func (e *election) happened() (all []happening) {
	e.Helper()
	for _, line := range e.record(events) {
		var h happening
		if _, err := fmt.Sscanf(line, "%d %s %s %d", &h.at, &h.what, &h.id, &h.token); err != nil {
			e.Fatalf("%s: %q: %v", events, line, err)
		}
		all = append(all, h)
	}
	slices.SortStableFunc(all, func(a, b happening) int { return cmp.Compare(a.at, b.at) })
	return all
}

// await waits for an event after since that fits, and says whether it came.
func (e *election) await(since time.Duration, limit time.Duration, fits func(h happening) bool) (happening, bool) {
	e.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		all := e.happened()
		if i := slices.IndexFunc(all, func(h happening) bool { return h.at >= since && fits(h) }); i >= 0 {
			return all[i], true
		}
		if time.Now().After(end) {
			return happening{}, false
		}
	}
}

// leads waits until another process than the given one leads, from since on.
func (e *election) leads(since time.Duration, not *process) *process {
	e.Helper()
	h, ok := e.await(since, e.at.lease*3+20*time.Second, func(h happening) bool {
		return h.what == started && (not == nil || h.id != not.id)
	})
	if !ok {
		e.Fatal("nobody leads")
	}
	return e.all[slices.IndexFunc(e.all, func(p *process) bool { return p.id == h.id })]
}

// stops waits until the work of a process has ended.
func (e *election) stops(p *process) {
	e.Helper()
	if _, ok := e.await(0, (e.at.lease+e.at.renew)*2+20*time.Second, func(h happening) bool {
		return h.what == stopped && h.id == p.id
	}); !ok {
		e.Errorf("the work of %s does not end", p.id)
	}
}

// pause is for how long a worker that is awake may be silent at most, on a busy machine.
const pause = 250 * time.Millisecond

// pieces returns from when to when each term's work acted. One that was frozen and then acts once
// more has not acted in between.
func (e *election) pieces(file string) []safety.Interval {
	e.Helper()
	var acts []safety.Act
	for _, line := range e.record(file) {
		var a safety.Act
		if _, err := fmt.Sscanf(line, "%d %d %s", &a.At, &a.Token, &a.Who); err != nil {
			e.Fatalf("%s: %q: %v", file, line, err)
		}
		acts = append(acts, a)
	}
	_, pieces := safety.Terms(e.name, acts, pause)
	return pieces
}

// now is the clock of the records.
func now() time.Duration { return boottime.Now() }
