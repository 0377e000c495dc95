package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/boottime"
)

// What a hook finds in its environment beside the command's.
const (
	roleEnv   = "PRIMACY_ROLE"
	eventEnv  = "PRIMACY_EVENT"
	leaderEnv = "PRIMACY_LEADER"
	reasonEnv = "PRIMACY_REASON"
	tokenEnv  = "PRIMACY_TOKEN"
	ttlEnv    = "PRIMACY_TTL_MS"
)

// hookGrace is what a hook gets from SIGTERM to SIGKILL when its time is over.
const hookGrace = time.Second

// hookLimit is how long a hook may hold up the end of this process.
func (r *runner) hookLimit() time.Duration {
	if r.onDeposed == "" && r.onLeaderChange == "" {
		return 0
	}
	return r.hookTimeout + hookGrace
}

// elected runs the on-elected hook in the term: it acts as leader, so it is gone by the term's deadline, as the command is. What it says or
// does not do keeps the command from nothing.
func (r *runner) elected(ctx context.Context, term *primacy.Term) {
	if r.onElected == "" {
		return
	}
	grace, deadline := r.stopGrace(term.TTL()), term.Deadline()
	c := supervise.Command{Args: shellLine(r.onElected), Deadline: deadline, Grace: grace, Margin: margin(term.TTL()), LastAction: r.will(term),
		Env: r.env(map[string]string{eventEnv: "elected", roleEnv: "leader", tokenEnv: term.Token().String(), leaderEnv: r.session.ID(), heldEnv: r.holding(term)})}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(term.Context(), func() { cancel(context.Cause(term.Context())) })()
	r.hook(ctx, "on-elected", c, func(ctx context.Context, p *supervise.Process) { r.feed(ctx, term, deadline, p, nil) })
}

// deposed starts the on-deposed hook and returns at once. What it returns waits for the hook's end, with signals answered meanwhile.
func (r *runner) deposed(ctx context.Context, term *primacy.Term, err error) (wait func()) {
	reason := reasonOf(err, r.started)
	switch {
	case err == nil && !r.started:
		reason = shown.Stopped // a lock without a command, by a signal
	case err == nil && r.status.By != supervise.Exited:
		reason = primacy.Failed // its guardian was killed
	}
	r.tell(endOf(term, reason, err))
	if r.onDeposed == "" {
		return func() {}
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the signal that ends us is what it is for
	go func() {
		defer close(done)
		r.hook(ctx, "on-deposed", r.apart(r.onDeposed, map[string]string{eventEnv: "deposed", roleEnv: "standby", tokenEnv: term.Token().String(), reasonEnv: string(reason)}), nil)
	}()
	return func() {
		defer cancel()
		r.idle(func() { <-done })
	}
}

// endOf is the moment that says how a term ended.
func endOf(term *primacy.Term, reason primacy.Reason, err error) moment {
	m := moment{Event: string(reason), Token: term.Token(), Reason: reason}
	switch reason {
	case primacy.Expired, shown.Unreachable, primacy.Closed:
		m.Event = "lost"
	case shown.Exited, shown.Stopped, primacy.Failed:
		m.Event = "resigned"
	}
	e := shown.EndingOf(err)
	m.By, m.Text = e.By, e.Text
	if err != nil {
		m.Err = oneLine(err)
	}
	return m
}

// leaderChanged runs the on-leader-change hook. It is nobody's work as leader.
func (r *runner) leaderChanged(ctx context.Context, leader string, token primacy.Token) {
	if r.onLeaderChange == "" {
		return
	}
	role := "standby"
	if r.session.ID() == leader {
		role = "leader"
	}
	set := map[string]string{eventEnv: "leader-change", roleEnv: role, leaderEnv: leader}
	if token != 0 {
		set[tokenEnv] = token.String()
	}
	r.hook(ctx, "on-leader-change", r.apart(r.onLeaderChange, set), nil)
}

// apart is a hook that has only its own time limit.
func (r *runner) apart(line string, set map[string]string) supervise.Command {
	return supervise.Command{Args: shellLine(line), Env: r.env(set), Deadline: boottime.Now() + r.hookTimeout + hookGrace + 10*time.Second, Grace: hookGrace, Margin: time.Second}
}

// hook runs one hook and returns when nothing of it is left: at the end of its time limit, or when ctx ends, it is stopped. Its output is
// our own stderr: stdout belongs to the command.
func (r *runner) hook(ctx context.Context, name string, c supervise.Command, feed func(context.Context, *supervise.Process)) {
	m := moment{Event: "hook", Hook: name}
	defer func() {
		if m.Err != "" && !r.leaving.Load() || m.Err != "" && name == "on-deposed" {
			r.say("%s: %s", name, m.Err)
		}
		r.tell(m)
	}()
	null, err := os.Open(os.DevNull)
	if err != nil {
		m.Err = err.Error()
		return
	}
	defer null.Close()
	c.Stdin, c.Stdout, c.NoJobControl = null, os.Stderr, true
	began := boottime.Now()
	p, err := r.supervisor.Start(c)
	if err != nil {
		m.Err = oneLine(err)
		return
	}
	var feeding sync.WaitGroup
	fed, stop := context.WithCancel(context.Background())
	if feed != nil {
		feeding.Go(func() { feed(fed, p) })
	}
	limit := time.NewTimer(r.hookTimeout)
	defer limit.Stop()
	late := false
	select {
	case <-p.Done():
	case <-limit.C:
		late = true
		p.Stop(hookGrace)
	case <-ctx.Done():
		grace := hookGrace
		if errors.Is(context.Cause(ctx), primacy.ErrDeposed) {
			grace = 0 // somebody else may lead already
		}
		p.Stop(grace)
	}
	st := p.Wait()
	stop()
	feeding.Wait()
	m.Status, m.TookMS = &st.Code, (boottime.Now() - began).Milliseconds()
	switch {
	case late:
		m.Err = fmt.Sprintf("stopped after --hook-timeout %v", r.hookTimeout)
	case st.By != supervise.Exited:
		m.Err = "stopped before its end"
	case st.Code != 0:
		m.Err = fmt.Sprintf("exit status %d", st.Code)
	}
}
