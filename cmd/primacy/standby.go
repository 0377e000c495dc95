package main

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/boottime"
)

// backoff is how long to wait before what ended is started again: a second at first, twice as long
// each time, half a minute at most. What ran for longer than that begins anew.
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

// standby runs the shell line of --standby while this process waits, and passes signals on to it.
type standby struct {
	r *runner

	mu       sync.Mutex
	starting bool
	early    []syscall.Signal // came while it was being started
	p        *supervise.Process
}

// begin runs the standby until the returned function is called, which returns when nothing of it is
// left.
func (s *standby) begin(ctx context.Context) (end func()) {
	if s.r.standbyLine == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var b backoff
		for ctx.Err() == nil {
			began := boottime.Now()
			s.once(ctx)
			if ctx.Err() == nil {
				pause(ctx, b.after(boottime.Now()-began))
			}
		}
	}()
	return func() { cancel(); <-done }
}

// once runs the standby once. It returns when nothing of it is left.
func (s *standby) once(ctx context.Context) {
	grace := s.r.stopGrace(s.r.ttl)
	c := supervise.Command{
		Args: shellLine(s.r.standbyLine), Env: s.r.env(map[string]string{roleEnv: "standby"}),
		Deadline: supervise.NoDeadline, Grace: grace, // it is no leader's work
	}
	s.starts()
	st, _, err := runLimited(ctx, s.r.supervisor, c, supervise.NoDeadline, grace, func(p *supervise.Process) {
		s.runs(p)
		s.r.report(event{Event: "standby_started", PID: p.PID()})
	})
	s.runs(nil)
	if err != nil {
		s.r.say("standby: %v", err)
		return
	}
	s.r.report(event{Event: "standby_exited", Status: &st.Code})
	if ctx.Err() == nil {
		s.r.say("the standby ended with status %d; it is started again", st.Code)
	}
}

func (s *standby) starts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting = true
}

// runs says which process it is now, nil if there is none.
func (s *standby) runs(p *supervise.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p != nil {
		for _, sig := range s.early {
			p.Signal(sig)
		}
	}
	s.p, s.starting, s.early = p, false, nil
}

// signal passes a signal on, once the standby has started.
func (s *standby) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.p != nil:
		s.p.Signal(sig)
	case s.starting && len(s.early) < 16:
		s.early = append(s.early, sig)
	}
}
