package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/core"
)

// Variables of a command, a hook or a standby, beside PRIMACY_NAME, PRIMACY_ID and PRIMACY_STORE.
const (
	roleEnv   = "PRIMACY_ROLE"
	eventEnv  = "PRIMACY_EVENT"
	leaderEnv = "PRIMACY_LEADER"
	reasonEnv = "PRIMACY_REASON"
	tokenEnv  = "PRIMACY_TOKEN"
	ttlEnv    = "PRIMACY_TTL_MS"
)

// work runs the command in the term, again if it is to be restarted, and returns when nothing of it
// is left.
func (r *runner) work(ctx context.Context, term *primacy.Term) error {
	state, err := newStateFile(r.name, r.session.ID(), term.Token(), term.Deadline())
	if err != nil {
		return err
	}
	defer state.remove()
	r.say("%s", r.won(r.session.ID(), term))
	failed := r.monitor.unreachable()
	for b := (backoff{}); ; {
		began := boottime.Now()
		if err := r.once(term, state, failed); err != nil || !r.restarts() {
			return err
		}
		r.rest(ctx, term, b.after(boottime.Now()-began), failed)
		if err := r.stoppedMeanwhile(ctx); err != nil {
			return err
		}
		if r.gaveUp || context.Cause(term.Context()) != nil {
			r.status.Cause = "" // it is the term that ended
			return nil
		}
	}
}

// restarts says whether a command that ended is started again, as long as there is the term.
func (r *runner) restarts() bool {
	cause := r.status.Cause
	return r.onExit == restart && !r.ending.Load() &&
		(cause == supervise.CauseExited || cause == supervise.CauseGuardianLost)
}

// rest is the pause before the command is started again. It ends with the term, and with a renewal
// that failed if the command is to stop for it.
func (r *runner) rest(ctx context.Context, term *primacy.Term, wait time.Duration, failed <-chan struct{}) {
	if r.gaveUp || context.Cause(term.Context()) != nil {
		return
	}
	r.say("the command ended with status %d; it is started again in %v", r.status.Code, wait)
	t := time.NewTimer(wait)
	defer t.Stop()
	r.idle(func() {
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-term.Context().Done():
		case <-failed:
			r.gaveUp = true
		case <-storeGone:
			r.gaveUp = true
		}
	})
}

// once runs the command once.
func (r *runner) once(term *primacy.Term, state *stateFile, failed <-chan struct{}) error {
	r.status = supervise.Status{} // how it ended before says nothing of a start that fails
	out, errs, copied, err := outputs(r)
	if err != nil {
		return err
	}
	p, deadline, err := r.start(term, state, out, errs)
	if err != nil {
		copied()
		return startError(err)
	}
	r.started = true
	r.report(event{Event: "started", Token: term.Token(), PID: p.PID()})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.feed(ctx, term, deadline, p, state) })
	wg.Go(func() { r.forward(ctx, p) })
	select {
	case <-p.Done():
	case <-failed:
		r.gaveUp = true
		r.stopFor(p, term, shown.Unreachable, errors.New("a renewal failed"))
	case <-storeGone:
		r.gaveUp = true
		r.stopFor(p, term, shown.Unreachable, errors.New("the embedded store is gone"))
	case <-term.Context().Done():
		cause := context.Cause(term.Context())
		r.stopFor(p, term, reasonOf(cause, false), cause)
	}
	r.status = p.Wait()
	if r.status.Interrupted == syscall.Signal(r.passedOn.Load()) {
		r.status.Interrupted = 0 // we got it, and passed it on: nobody has pressed ^C
	}
	if r.status.Interrupted != 0 { // we did not get it: the command had the terminal
		r.ending.Store(true)
	}
	copied()
	cancel()
	wg.Wait()
	if r.status.Cause == supervise.CauseGuardianLost { // -q leaves errors
		fmt.Fprintf(r.stderr, "primacy: %s: the command's guardian was killed or frozen, so the command was killed\n",
			clean(r.name))
	}
	if r.status.Killed {
		r.report(event{Event: "killed", Token: term.Token()})
	}
	r.report(event{Event: "exited", Token: term.Token(), Reason: primacy.Reason(r.status.Cause),
		Status: &r.status.Code})
	if r.status.Overrun > 0 {
		r.say("ERROR: the command was alive %v after its lease deadline", r.status.Overrun)
		term.Outlived(r.status.Overrun)
	}
	return nil
}

// stopFor stops the command because of what happened to the term.
func (r *runner) stopFor(p *supervise.Process, term *primacy.Term, reason primacy.Reason, cause error) {
	grace := r.stopGrace(term.TTL())
	if errors.Is(cause, primacy.ErrDeposed) {
		grace = 0 // the claim is gone: somebody else may lead already
	}
	p.Stop(grace) // before anything is told
	r.say("%v; stopping the command", cause)
	r.report(event{Event: "stopping", Token: term.Token(), Reason: reason, Remaining: term.Remaining().Milliseconds()})
}

// start starts the command and returns the deadline it was given. Nil files are our own.
func (r *runner) start(term *primacy.Term, state *stateFile, out, errs *os.File) (*supervise.Process, time.Duration,
	error,
) {
	deadline := term.Deadline()
	start := func() (*supervise.Process, error) {
		c := supervise.Command{Args: r.args, Env: r.workEnv(term, state.path), Stdout: out, Stderr: errs,
			Deadline: deadline, Grace: r.stopGrace(term.TTL()),
			Margin: margin(term.TTL()), LastAction: r.lastAction(term)}
		if r.shard != nil {
			r.shard.alone(&c)
		}
		return r.supervisor.Start(c)
	}
	if err := state.write(deadline); err != nil {
		return nil, 0, err
	}
	p, err := start()
	for tries := 0; tries < 3 && errors.Is(err, supervise.ErrTooLate); tries++ {
		// The machine was busy. If the term was renewed meanwhile it is not lost, and there is time
		// again.
		if deadline, _ = term.NextDeadline(term.Context(), deadline); deadline == 0 {
			break
		}
		if err := state.write(deadline); err != nil {
			return nil, 0, err
		}
		p, err = start()
	}
	return p, deadline, err
}

// feed moves the command's deadline on with each renewal. When the right is over it kills the
// command: it may have been stopping with a grace since before, and somebody else may lead now.
func (r *runner) feed(ctx context.Context, term *primacy.Term, d time.Duration, p *supervise.Process,
	state *stateFile,
) {
	for {
		var err error
		if d, err = term.NextDeadline(ctx, d); err != nil {
			return
		}
		if d == 0 {
			<-term.Context().Done() // at once: once is to see why, and not only that the command has ended
			p.Stop(0)
			return
		}
		p.Extend(d)
		if state == nil {
			continue
		}
		if err := state.write(d); err != nil {
			r.say("%v", err) // the command sees a term that seems over: safe
		}
	}
}

// forward passes signals on to the command, and notes those that ask it to end for good.
func (r *runner) forward(ctx context.Context, p *supervise.Process) {
	for {
		select {
		case sig := <-r.signals:
			if sig != syscall.SIGHUP && r.ends(sig) { // to many a command that one means: read your files again
				r.ending.Store(true)
			}
			r.passedOn.Store(int32(sig.(syscall.Signal)))
			p.Signal(sig.(syscall.Signal))
		case <-ctx.Done():
			return
		}
	}
}

// workEnv is the command's environment.
func (r *runner) workEnv(term *primacy.Term, stateFile string) []string {
	return r.env(map[string]string{
		tokenEnv:     term.Token().String(),
		ttlEnv:       strconv.FormatInt(term.TTL().Milliseconds(), 10),
		roleEnv:      r.role,
		stateFileEnv: stateFile,
		heldEnv:      r.holding(r.session.ID(), term),
	})
}

// env is an environment: ours, what is set, and the store only if no password is in it. What is set
// by the command around this one is not passed on where it would be taken for ours.
func (r *runner) env(set map[string]string) []string {
	set["PRIMACY_NAME"], set["PRIMACY_ID"] = r.name, r.session.ID()
	if set[ttlEnv] == "" {
		set[ttlEnv] = strconv.FormatInt(r.ttl.Milliseconds(), 10)
	}
	if r.store != "" && !hasPassword(r.store) {
		set["PRIMACY_STORE"] = r.store
	}
	if r.shard != nil {
		maps.Copy(set, r.shard.variables())
	}
	if set[tokenEnv] == "0" { // the store has none, and a resource would take 0 for the smallest
		delete(set, tokenEnv)
	}
	never := []string{"PRIMACY_STORE", tokenEnv, roleEnv, eventEnv, leaderEnv, reasonEnv, stateFileEnv, shardEnv,
		shardsEnv}
	// Not what was meant for this process alone, and each name once: the first of two would win in
	// some programs.
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ours := set[name]
		return ours || slices.Contains(never, name) || slices.Contains(r.own, name)
	})
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// stopGrace is what a command gets from SIGTERM to SIGKILL: the session's own rule, so that the
// guardian sends SIGTERM when the term's context ends, not at another time.
func (r *runner) stopGrace(ttl time.Duration) time.Duration {
	return core.Timing{Grace: r.stopTimeout}.Fill(ttl).Grace
}

// hasPassword errs on the side of yes: an unescaped slash in a password must not hide it. A URL of
// PostgreSQL may have passwords among its options (password, sslpassword).
func hasPassword(store string) bool {
	_, rest, _ := strings.Cut(store, "://")
	_, options, _ := strings.Cut(rest, "?")
	if plain, err := url.QueryUnescape(options); err == nil {
		options = plain
	}
	if strings.Contains(options, "password=") {
		return true
	}
	i := strings.LastIndex(rest, "@")
	return i >= 0 && strings.Contains(rest[:i], ":")
}

// margin is how long before the deadline SIGKILL goes out: a busy machine may wake the guardian 130
// ms late.
func margin(ttl time.Duration) time.Duration { return min(250*time.Millisecond, ttl/20) }
