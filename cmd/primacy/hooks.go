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

// hookGrace is what a hook gets from SIGTERM to SIGKILL when its time is over.
const hookGrace = time.Second

// hooks runs the shell lines of --on-elected, --on-deposed and --on-leader-change.
type hooks struct{ r *runner }

// limit is how long a hook may hold up the end of this process.
func (h hooks) limit() time.Duration {
	if h.r.onDeposed == "" && h.r.onLeaderChange == "" {
		return 0
	}
	return h.r.hookTimeout + hookGrace
}

// elected runs the on-elected hook in the term: it acts as leader, so it is gone by the term's
// deadline, as the command is. Whatever it does, the command starts after it.
func (h hooks) elected(ctx context.Context, term *primacy.Term) {
	r := h.r
	if r.onElected == "" {
		return
	}
	deadline := term.Deadline()
	c := supervise.Command{
		Args: shellLine(r.onElected), Deadline: deadline, Grace: r.stopGrace(term.TTL()), Margin: margin(term.TTL()),
		LastAction: r.lastAction(term),
		Env: r.env(map[string]string{
			eventEnv: "elected", roleEnv: "leader", tokenEnv: term.Token().String(), leaderEnv: r.session.ID(),
			heldEnv: r.holding(r.session.ID(), term),
		}),
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(term.Context(), func() { cancel(context.Cause(term.Context())) })()
	feedCtx, stopFeeding := context.WithCancel(context.Background())
	var feeding sync.WaitGroup
	h.run(ctx, "on-elected", c, func(p *supervise.Process) {
		feeding.Go(func() { r.feed(feedCtx, term, deadline, p, nil) })
	})
	stopFeeding()
	feeding.Wait()
}

// deposed starts the on-deposed hook and returns at once. What it returns waits for the hook's end,
// with signals answered meanwhile.
func (h hooks) deposed(ctx context.Context, term *primacy.Term, err error) (wait func()) {
	r := h.r
	reason := reasonOf(err, r.started)
	switch {
	case err == nil && !r.started:
		reason = shown.Stopped // a lock without a command, by a signal
	case err == nil && r.status.Cause != supervise.CauseExited:
		reason = primacy.Failed // its guardian was killed
	}
	r.report(endOf(term, reason, err))
	if r.onDeposed == "" {
		return func() {}
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the signal that ends us is what it is for
	set := map[string]string{
		eventEnv: "deposed", roleEnv: "standby", tokenEnv: term.Token().String(), reasonEnv: string(reason),
	}
	go func() {
		defer close(done)
		h.run(ctx, "on-deposed", h.outsideTerm(r.onDeposed, set), nil)
	}()
	return func() {
		defer cancel()
		r.idle(func() { <-done })
	}
}

// leaderChanged runs the on-leader-change hook, which does not act as leader.
func (h hooks) leaderChanged(ctx context.Context, leader string, token primacy.Token) {
	if h.r.onLeaderChange == "" {
		return
	}
	role := "standby"
	if h.r.session.ID() == leader {
		role = "leader"
	}
	set := map[string]string{eventEnv: "leader-change", roleEnv: role, leaderEnv: leader}
	if token != 0 {
		set[tokenEnv] = token.String()
	}
	h.run(ctx, "on-leader-change", h.outsideTerm(h.r.onLeaderChange, set), nil)
}

// outsideTerm returns the command of a hook that no term bounds, only --hook-timeout.
func (h hooks) outsideTerm(line string, set map[string]string) supervise.Command {
	return supervise.Command{
		Args: shellLine(line), Env: h.r.env(set),
		Deadline: boottime.Now() + h.r.hookTimeout + hookGrace + 10*time.Second, Grace: hookGrace, Margin: time.Second,
	}
}

// run runs one hook, reports what became of it, and returns when nothing of it is left. Its output
// is our own stderr: stdout belongs to the command. Begun, if there is one, gets its process.
func (h hooks) run(ctx context.Context, name string, c supervise.Command, begun func(*supervise.Process)) {
	c.Stdout, c.NoJobControl = os.Stderr, true
	began := boottime.Now()
	st, late, err := runLimited(ctx, h.r.supervisor, c, h.r.hookTimeout, hookGrace, begun)
	e := event{Event: "hook", Hook: name}
	switch {
	case err != nil:
		e.Err = oneLine(err)
	case late:
		e.Err = fmt.Sprintf("stopped after --hook-timeout %v", h.r.hookTimeout)
	case st.Cause != supervise.CauseExited:
		e.Err = "stopped before its end"
	case st.Code != 0:
		e.Err = fmt.Sprintf("exit status %d", st.Code)
	}
	if err == nil {
		e.Status, e.TookMS = &st.Code, (boottime.Now() - began).Milliseconds()
	}
	if e.Err != "" && (!h.r.leaving.Load() || name == "on-deposed") {
		h.r.say("%s: %s", name, e.Err)
	}
	h.r.report(e)
}

// runLimited runs c without input and returns when nothing of it is left. After limit, and when ctx
// ends, it gets SIGTERM and, grace later, SIGKILL; at once where a term was deposed, since somebody
// else may lead already. Begun, if there is one, gets its process. Late says that the limit ended
// it; an error, that it was not started.
func runLimited(ctx context.Context, s *supervise.Supervisor, c supervise.Command, limit, grace time.Duration,
	begun func(*supervise.Process),
) (st supervise.Status, late bool, err error) {
	null, err := os.Open(os.DevNull) // what is typed, or piped in, is for COMMAND
	if err != nil {
		return st, false, err
	}
	defer null.Close()
	c.Stdin = null
	p, err := s.Start(c)
	if err != nil {
		return st, false, err
	}
	if begun != nil {
		begun(p)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.Done():
	case <-timer.C:
		late = true
		p.Stop(grace)
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), primacy.ErrDeposed) {
			grace = 0
		}
		p.Stop(grace)
	}
	return p.Wait(), late, nil
}

// shellLine is what a line of a hook or a standby runs as.
func shellLine(line string) []string { return []string{"/bin/sh", "-c", line} }
