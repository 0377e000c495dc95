package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/proxy"
)

// process is a candidate as the torture sees it: its process, and its links to the store. Faults
// reach it as a [faults.Candidate].
type process struct {
	run   *run
	id    string
	conf  Conf
	links []*proxy.Proxy // one for each server; none where the store has no network
	busy  bool           // a fault is under way; run.mu guards it

	mu     sync.Mutex
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer
	exited chan struct{}
}

// start starts the process. Each line that it writes goes to handle.
func (p *process) start(command []string, do func(func()), handle func(who, line string)) error {
	c := exec.Command(command[0], command[1:]...)
	c.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "PRIMACY_") })
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // ^C is for the doctor only
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err1 != nil || err2 != nil {
		return fmt.Errorf("start a candidate: %v, %v", err1, err2)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stderr.Reset()
	c.Stderr = &head{p: p}
	var err error
	do(func() { err = c.Start() })
	if err != nil {
		return fmt.Errorf("start a candidate: %w", err)
	}
	exited := make(chan struct{})
	p.cmd, p.stdin, p.exited = c, in, exited
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			handle(p.id, lines.Text())
		}
		_ = c.Wait()
		close(exited)
	}()
	conf, err := json.Marshal(p.conf)
	if err == nil {
		_, err = in.Write(append(conf, '\n'))
	}
	return err
}

// head keeps the beginning of what a process writes to stderr.
type head struct{ p *process }

func (h *head) Write(b []byte) (int, error) {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if h.p.stderr.Len() < 2000 {
		h.p.stderr.Write(b)
	}
	return len(b), nil
}

// said returns what the process has written to stderr since it was started.
func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(strings.Fields(p.stderr.String()), " ")
}

// current returns the process as it was started last, and what is closed when it has ended.
func (p *process) current() (*exec.Cmd, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.exited
}

// signal sends a signal and returns whether the process was there.
func (p *process) signal(sig syscall.Signal) bool {
	c, _ := p.current()
	return c != nil && c.Process.Signal(sig) == nil
}

func (p *process) ended() bool {
	_, exited := p.current()
	select {
	case <-exited:
		return true
	default:
		return false
	}
}

// overran says whether the process ended itself because its work outlived its right: what a leader
// that was frozen must do.
func (p *process) overran() bool {
	c, _ := p.current()
	return p.ended() && c.ProcessState != nil && c.ProcessState.ExitCode() == 122
}

// awaitExit waits for the end of the process and returns whether it came in time.
func (p *process) awaitExit(limit time.Duration) bool {
	_, exited := p.current()
	if exited == nil {
		return true
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-exited:
		return true
	case <-t.C:
		return false
	}
}

// stop ends the process. On SIGTERM it gives its lease back.
func (p *process) stop() {
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	if !p.awaitExit(4 * time.Second) {
		p.signal(syscall.SIGKILL)
		p.awaitExit(4 * time.Second)
	}
}

// TTL returns that of the candidate's lease.
func (p *process) TTL() time.Duration { return p.run.o.TTL }

// Links returns the links to the store's servers.
func (p *process) Links() []*proxy.Proxy { return p.links }

// Kill sends sig and waits for the end of the process.
func (p *process) Kill(sig syscall.Signal) bool {
	p.signal(sig)
	return p.awaitExit(5 * time.Second)
}

// Freeze stops the process.
func (p *process) Freeze(bool) bool { return !p.ended() && p.signal(syscall.SIGSTOP) }

// Thaw continues it.
func (p *process) Thaw() { p.signal(syscall.SIGCONT) }

// claim finds the candidate's claim in the line.
func (p *process) claim(ctx context.Context) (s driver.Entry, held, ok bool) {
	ln, err := p.run.o.Store.Line(ctx, p.run.name)
	if err != nil {
		return s, false, false
	}
	if ln.Holder != nil && ln.Holder.Owner == p.id {
		return *ln.Holder, true, true
	}
	for _, w := range ln.Waiters {
		if w.Owner == p.id {
			return w, false, true
		}
	}
	return s, false, false
}

// AskToResign asks the candidate to resign, if it leads.
func (p *process) AskToResign(ctx context.Context) bool {
	asker, ok := p.run.o.Store.(driver.Asker)
	s, held, found := p.claim(ctx)
	request := driver.Request{Token: s.Token, By: p.run.prefix, Reason: "torture"}
	return ok && found && held && asker.Ask(ctx, p.run.name, request) == nil
}

// RemoveClaim removes the candidate's claim from the store. Only a store with a driver.Admin is
// asked for it.
func (p *process) RemoveClaim(ctx context.Context) bool {
	s, _, ok := p.claim(ctx)
	if !ok {
		return false
	}
	r := removal{token: s.Token, who: p.id, from: now()}
	err := p.run.o.Store.(driver.Admin).RemoveClaim(ctx, p.run.name, s.Token)
	r.to = now()
	if err != nil {
		r.to = math.MaxInt64 // its answer was lost: it may still happen at any time, to this one claim
	}
	p.run.judge.removed(r)
	return true
}

// EndLease ends the candidate's lease in the store. Only a store with a driver.Admin is asked for
// it.
func (p *process) EndLease(ctx context.Context) bool {
	s, _, ok := p.claim(ctx)
	if !ok || s.Lease == "" {
		return false
	}
	r := removal{who: p.id, from: now()} // it may have won meanwhile, so all its terms are excused
	err := p.run.o.Store.Revoke(ctx, s.Lease)
	r.to = now()
	if err != nil { // its answer was lost. Without an end it would excuse all later terms, of other leases
		r.to += p.run.o.TTL + lateRevoke
	}
	p.run.judge.removed(r)
	return true
}

// lateRevoke is by how much more than a TTL a request to end a lease may happen after it was given
// up.
const lateRevoke = 5 * time.Second
