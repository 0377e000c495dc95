package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/core"
)

// work runs the command in the term and returns when nothing of it is left.
func (r *runner) work(term *primacy.Term) error {
	deadline := term.Deadline()
	state, err := newStateFile(r.name, r.session.ID(), term.Token(), deadline)
	if err != nil {
		return err
	}
	defer state.remove()
	// The session's own rule: the guardian must send SIGTERM when the term's context ends, not at another time.
	grace := core.Timing{Grace: r.stopTimeout}.Fill(term.TTL()).Grace
	r.say("%s", r.won(term))
	start := func() (*supervise.Process, error) {
		return r.supervisor.Start(supervise.Command{Args: r.args, Env: r.env(term, state.path), Deadline: deadline, Grace: grace,
			Margin: margin(term.TTL()), Will: r.will(term)})
	}
	p, err := start()
	for tries := 0; tries < 3 && errors.Is(err, supervise.ErrTooLate); tries++ {
		// The machine was busy. If the term was renewed meanwhile it is not lost, and there is time again.
		if deadline, _ = term.NextDeadline(term.Context(), deadline); deadline == 0 {
			break
		}
		if err := state.write(deadline); err != nil {
			return err
		}
		p, err = start()
	}
	if err != nil {
		return startError(err)
	}
	r.started = true
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.feed(ctx, term, deadline, p, state) })
	wg.Go(func() { r.forward(ctx, p) })
	select {
	case <-p.Done():
	case <-term.Context().Done():
		cause := context.Cause(term.Context())
		r.say("%v; stopping the command", cause)
		if errors.Is(cause, primacy.ErrDeposed) {
			grace = 0 // the claim is gone: somebody else may lead already
		}
		p.Stop(grace)
	}
	r.status = p.Wait()
	cancel()
	wg.Wait()
	if r.status.Overrun > 0 {
		r.say("ERROR: the command outlived its right by %v", r.status.Overrun)
	}
	return nil
}

// feed moves the command's deadline on with each renewal.
func (r *runner) feed(ctx context.Context, term *primacy.Term, d time.Duration, p *supervise.Process, state *stateFile) {
	for {
		var err error
		if d, err = term.NextDeadline(ctx, d); err != nil || d == 0 {
			return
		}
		p.Extend(d)
		if err := state.write(d); err != nil {
			r.say("%v", err) // the command sees a term that seems over: safe
		}
	}
}

// forward passes signals on to the command.
func (r *runner) forward(ctx context.Context, p *supervise.Process) {
	for {
		select {
		case sig := <-r.signals:
			p.Signal(sig.(syscall.Signal))
		case <-ctx.Done():
			return
		}
	}
}

// env is the command's environment: ours, the term's, and the store only if no password is in it.
func (r *runner) env(term *primacy.Term, stateFile string) []string {
	set := map[string]string{
		"PRIMACY_NAME":   r.name,
		"PRIMACY_ID":     r.session.ID(),
		"PRIMACY_TOKEN":  term.Token().String(),
		"PRIMACY_TTL_MS": strconv.FormatInt(term.TTL().Milliseconds(), 10),
		stateFileEnv:     stateFile,
		heldEnv:          r.holding(term),
		"PRIMACY_STORE":  r.store,
	}
	// Not what was meant for this process alone, and each name once: the first of two would win in some programs.
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ours := set[name]
		return ours || slices.Contains(r.own, name)
	})
	for name, value := range set {
		if name == "PRIMACY_STORE" && (value == "" || hasPassword(value)) {
			continue
		}
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// hasPassword errs on the side of yes: an unescaped slash in a password must not hide it.
func hasPassword(store string) bool {
	_, rest, _ := strings.Cut(store, "://")
	i := strings.LastIndex(rest, "@")
	return i >= 0 && strings.Contains(rest[:i], ":")
}

// margin is how long before the deadline SIGKILL goes out: a busy machine may wake the guardian 130 ms late.
func margin(ttl time.Duration) time.Duration { return min(250*time.Millisecond, ttl/20) }
