package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/shards"
)

// live opens the session and stands, until it is all over.
func (r *runner) live(ctx context.Context) error {
	var done func()
	var err error
	r.idle(func() {
		o := primacy.Options{Grace: r.stopTimeout, History: runHistory}
		r.session, r.at, done, err = r.openSession(ctx, o, true)
		if err == nil {
			err = r.look(ctx)
		}
	})
	if done != nil {
		defer func() { done(); keepUnrecorded(r) }()
	}
	if err != nil {
		return r.ended(ctx, err)
	}
	endMonitor, err := r.monitor.start(ctx)
	if err != nil {
		return err
	}
	defer func() { endMonitor(); r.healthCheck.end() }()
	if err := r.healthCheck.start(); err != nil {
		return err
	}
	r.idle(func() {
		recordUnrecorded(ctx, r)
		err = waitAfterCrashes(ctx, r)
	})
	if err != nil {
		return r.ended(ctx, err)
	}
	var c core.Candidate
	step := func(e core.CandidateEvent) core.CandidateOrder { return c.Step(boottime.Now(), e) }
	wait := func(tries int) error {
		if tries > 0 {
			d := core.Pause(tries)
			r.idle(func() { pause(ctx, d/2+rand.N(d/2+1)) })
		}
		return nil // where ctx has ended, standing says so
	}
	win := func() (*primacy.Term, error) { return r.stand(ctx) }
	err = core.RunCandidate(step, wait, win, func(term *primacy.Term) (lost, again bool, err error) {
		again, err = r.lead(ctx, term)
		return again, again, err
	})
	return r.ended(ctx, err)
}

// again says whether to stand again after a term that ended with err.
func (r *runner) again(ctx context.Context, token primacy.Token, err error) bool {
	if r.onLost != recampaign && !r.forHealth(token, err) || ctx.Err() != nil || r.ending.Load() ||
		r.started && r.status.Cause == supervise.CauseExited {
		return false
	}
	code := codeOf(r.ended(ctx, err))
	return err != nil && (code == exitLost || code == exitResigned)
}

// forHealth says whether the term ended because this candidate is unhealthy. Then it stays: what is
// known of its health would be lost with the process. Its command may ask it to resign under the
// same ID, which is another thing. Where the store has no tokens the two look alike if it is
// unhealthy then.
func (r *runner) forHealth(token primacy.Token, err error) bool {
	h := r.healthCheck.health()
	switch {
	case h == nil:
		return false
	case token != 0:
		return h.State().GaveUp == token
	}
	return !h.State().Healthy && (errors.Is(err, primacy.ErrResigned) || errors.Is(err, primacy.ErrTransferred))
}

// pause waits for so long, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// stand runs the standby until the term is won, and then the on-elected hook.
func (r *runner) stand(ctx context.Context) (term *primacy.Term, err error) {
	r.started, r.status, r.gaveUp = false, supervise.Status{}, false
	r.idle(func() {
		end := r.standby.begin(ctx)
		r.report(event{Event: "candidate"})
		began := time.Now()
		limited, cancel := r.limited(ctx, r.timeout)
		term, err = r.win(limited, r.session)
		r.spent = 0
		cancel() // from the win on the contest's time limit does not count
		if err == nil {
			inTerms.Add(1)
			r.current.Store(term)
			waited := time.Since(began).Milliseconds()
			r.report(event{Event: "elected", Token: term.Token(), WaitMS: &waited})
		}
		end() // nothing of the standby is left
		if err == nil {
			r.hooks.elected(ctx, term)
		}
	})
	return term, err
}

// lead runs the command in the term and gives it up. It says whether to stand again.
func (r *runner) lead(ctx context.Context, term *primacy.Term) (again bool, err error) {
	defer func() {
		if again {
			inTerms.Add(-1)
		} // else this process ends by itself
	}()
	err = r.stoppedMeanwhile(ctx)
	switch {
	case err != nil, context.Cause(term.Context()) != nil:
	case len(r.args) > 0:
		err = r.work(ctx, term)
	default:
		err = r.hold(term)
	}
	if err == nil {
		err = r.lost(term)
	}
	r.current.Store(nil)
	if again = r.again(ctx, term.Token(), err); !again {
		r.leaving.Store(true)
		r.manager.stopping(releaseLimit + r.hooks.limit())
	}
	awaitHook := r.hooks.deposed(ctx, term, err) // beside the release
	r.explain(term, err)
	r.release(term)
	awaitHook()
	return again && ctx.Err() == nil, err // a signal that came while the hook ran is the end
}

// explain says why the term ends, for its history.
func (r *runner) explain(term *primacy.Term, err error) {
	switch {
	case r.started && r.status.Cause == supervise.CauseExited:
		term.Explain(fmt.Sprintf("the command ended with status %d", r.status.Code),
			r.status.Code != 0 && !r.ending.Load())
	case r.started && err == nil:
		term.Explain("the command's guardian was killed", true)
	case errors.Is(err, shards.ErrLeft): // no failure: the term's own end says it
	case err != nil && primacy.ReasonOf(err) == "": // else the same
		var sig signalled
		term.Explain(oneLine(err), !errors.As(err, &sig))
	}
}

// releaseLimit is how long the store is asked to confirm that a term is given up.
const releaseLimit = 3 * time.Second

// release gives the term up. Nothing runs any more.
func (r *runner) release(term *primacy.Term) {
	wait := releaseLimit
	if lostStore() {
		wait = 0 // nobody is there to confirm it
	}
	limit, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	e := event{Event: "released", Token: term.Token()}
	if err := term.Resign(limit); err != nil {
		e.Err = oneLine(err)
		r.say("the store did not confirm the release of %s; its lease runs out in %v", r.name, term.TTL())
	}
	r.report(e)
}

// lost returns why the command was stopped, nil if it ended by itself: then its own status counts,
// whatever came after.
func (r *runner) lost(term *primacy.Term) error {
	lost := context.Cause(term.Context())
	switch {
	case r.started && r.status.Cause == supervise.CauseExited:
		return nil
	case lost == nil && r.status.Cause == supervise.CauseDeadline:
		// The guardian saw the deadline come before our own timer did.
		return fail(exitLost, "%s %q%s ended: %w", r.right, r.name, under("token", term.Token()), primacy.ErrExpired)
	case lost == nil && r.gaveUp && lostStore():
		return fail(exitLost, "%s %q%s given up: the embedded store is gone", r.right, r.name,
			under("token", term.Token()))
	case lost == nil && r.gaveUp:
		return fail(exitLost, "%s %q%s given up: a renewal failed (--on-unreachable %s)", r.right,
			r.name, under("token", term.Token()), stopNow)
	}
	return lost
}

// signalled says that a signal ended the wait.
type signalled struct{ sig syscall.Signal }

func (s signalled) Error() string { return "stopped by " + s.sig.String() }

// stoppedMeanwhile returns the signal that ended the wait in the very moment of the win: nobody
// would forward it to the command.
func (r *runner) stoppedMeanwhile(ctx context.Context) error {
	var sig signalled
	if errors.As(context.Cause(ctx), &sig) {
		return sig
	}
	return nil
}

// idle does something while no command runs, and answers signals meanwhile.
func (r *runner) idle(do func()) {
	done := make(chan struct{})
	answered := make(chan struct{})
	go func() { defer close(answered); r.answerWhileWaiting(done) }()
	defer func() { close(done); <-answered }()
	do()
}

// answerWhileWaiting ends the wait on a signal that asks for it: a candidate without a command has
// nobody to forward it to. Any other signal goes to its standby.
func (r *runner) answerWhileWaiting(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case sig := <-r.signals:
			if r.ends(sig) {
				r.stop(signalled{sig.(syscall.Signal)})
			} else {
				r.standby.signal(sig.(syscall.Signal))
			}
		}
	}
}

// ends says whether a signal ends a process that has no command to forward it to. Not one that
// nohup, or a shell that starts a job in the background, made it ignore.
func (r *runner) ends(sig os.Signal) bool {
	switch sig {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
		return !slices.Contains(r.ignored, sig)
	}
	return false
}
