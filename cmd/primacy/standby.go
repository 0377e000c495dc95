package main

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/core"
)

// forever is a deadline for what has none: it is no leader's work.
const forever = 50 * 365 * 24 * time.Hour

// startLimit is how long a standby may take to start. Without it a guardian that hangs before that would keep one who has won from leading, for ever.
const startLimit = 10 * time.Second

// backoff is how long is waited before what ended is started again: a second at first, twice as long each time, half a minute at most. One
// that ran for longer than that begins anew.
type backoff struct{ next time.Duration }

func (b *backoff) after(ran time.Duration) time.Duration {
	const least, most = time.Second, 30 * time.Second
	if ran > most || b.next == 0 {
		b.next = least
	}
	d := b.next
	b.next = min(2*b.next, most)
	return d
}

// standBy runs the standby until the returned function is called, which returns when nothing of it is left.
func (r *runner) standBy(ctx context.Context) (end func()) {
	if r.standbyLine == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var b backoff
		for ctx.Err() == nil {
			began := boottime.Now()
			r.oneStandby(ctx)
			if ctx.Err() == nil {
				pause(ctx, b.after(boottime.Now()-began))
			}
		}
	}()
	return func() { cancel(); <-done }
}

// oneStandby runs the standby once. It returns when nothing of it is left.
func (r *runner) oneStandby(ctx context.Context) {
	null, err := os.Open(os.DevNull) // what is typed, or piped in, is for COMMAND
	if err != nil {
		r.say("standby: %v", err)
		return
	}
	defer null.Close()
	grace := r.stopGrace(r.ttl)
	r.standby.starts()
	p, err := r.supervisor.Start(supervise.Command{Args: shellLine(r.standbyLine), Env: r.env(map[string]string{roleEnv: "standby"}), Stdin: null,
		Deadline: boottime.Now() + grace + startLimit, Grace: grace, Margin: time.Second})
	if err == nil {
		p.Extend(boottime.Now() + forever)
	}
	r.standby.runs(p)
	if err != nil {
		r.say("standby: %v", err)
		return
	}
	r.tell(moment{Event: "standby_started", PID: p.PID()})
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Stop(grace)
	}
	st := p.Wait()
	r.standby.runs(nil)
	r.tell(moment{Event: "standby_exited", Status: &st.Code})
	if ctx.Err() == nil {
		r.say("the standby ended with status %d; it is started again", st.Code)
	}
}

// understudy is who gets signals while this process waits.
type understudy struct {
	mu       sync.Mutex
	starting bool
	early    []syscall.Signal // came while it was being started
	p        *supervise.Process
}

func (u *understudy) starts() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.starting = true
}

// runs says who it is now, nil if nobody.
func (u *understudy) runs(p *supervise.Process) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if p != nil {
		for _, sig := range u.early {
			p.Signal(sig)
		}
	}
	u.p, u.starting, u.early = p, false, nil
}

func (u *understudy) signal(sig syscall.Signal) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.p != nil:
		u.p.Signal(sig)
	case u.starting && len(u.early) < 16:
		u.early = append(u.early, sig)
	}
}

// stopGrace is what a command gets from SIGTERM to SIGKILL: the session's own rule, so that the guardian sends SIGTERM when the term's context
// ends, not at another time.
func (r *runner) stopGrace(ttl time.Duration) time.Duration {
	return core.Timing{Grace: r.stopTimeout}.Fill(ttl).Grace
}

// shellLine is what a line of a hook or a standby runs as.
func shellLine(line string) []string { return []string{"/bin/sh", "-c", line} }
