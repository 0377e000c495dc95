package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
)

// live opens the session and stands, until it is all over.
func (r *runner) live(ctx context.Context) error {
	var done func()
	var err error
	r.idle(func() {
		r.session, r.at, done, err = r.openSession(ctx, primacy.Options{Grace: r.stopTimeout}, true)
		if err == nil {
			err = r.look(ctx)
		}
	})
	if done != nil {
		defer done()
	}
	if err != nil {
		return r.ended(ctx, err)
	}
	unfollow, err := r.followAll(ctx)
	if err != nil {
		return err
	}
	defer unfollow()
	for short := 0; ; short++ {
		began := time.Now()
		if err := r.stand(ctx); !r.again(ctx, err) {
			return r.ended(ctx, err)
		}
		if time.Since(began) > r.ttl {
			short = 0
		}
		r.idle(func() { pause(ctx, min(time.Duration(short)*200*time.Millisecond, 5*time.Second)) })
	}
}

// again says whether to stand again after a term, or a wait, that ended so.
func (r *runner) again(ctx context.Context, err error) bool {
	if r.onLost != recampaign || ctx.Err() != nil || r.ending.Load() || r.started && r.status.By == supervise.Exited {
		return false
	}
	code := codeOf(r.ended(ctx, err))
	return err != nil && (code == exitLost || code == exitResigned)
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

// stand wins once and leads. From the win on the contest's time limit must not end the term.
func (r *runner) stand(ctx context.Context) error {
	r.started, r.status, r.gaveUp = false, supervise.Status{}, false
	campaign, cancel := r.limited(ctx)
	defer cancel()
	var term *primacy.Term
	var err error
	r.idle(func() {
		end := r.standBy(ctx)
		r.tell(moment{Event: "candidate"})
		began := time.Now()
		if term, err = r.win(campaign, r.session); err == nil {
			r.current.Store(term)
			r.tell(moment{Event: "elected", Token: term.Token(), WaitMS: time.Since(began).Milliseconds()})
		}
		end() // nothing of it is left
		if err == nil {
			r.elected(ctx, term)
		}
	})
	if err != nil {
		return err
	}
	return r.lead(ctx, term)
}

// lead runs the command in the term and gives it up.
func (r *runner) lead(ctx context.Context, term *primacy.Term) error {
	err := r.stoppedMeanwhile(ctx)
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
	if !r.again(ctx, err) {
		r.leaving.Store(true)
		r.manager.stopping(releaseLimit + r.hookLimit())
	}
	hook := r.deposed(ctx, term, err) // beside the release
	r.explain(term, err)
	r.release(term)
	hook()
	return err
}

// explain says why the term ends, for its history.
func (r *runner) explain(term *primacy.Term, err error) {
	switch {
	case r.started && r.status.By == supervise.Exited:
		term.Explain(fmt.Sprintf("the command ended with status %d", r.status.Code), r.status.Code != 0 && !r.ending.Load())
	case r.started && err == nil:
		term.Explain("the command's guardian was killed", true)
	case err != nil:
		var sig signalled
		term.Explain(oneLine(err), !errors.As(err, &sig))
	}
}

// releaseLimit is how long the store is asked to confirm that a term is given up.
const releaseLimit = 3 * time.Second

// release gives the term up. Nothing runs any more.
func (r *runner) release(term *primacy.Term) {
	limit, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	m := moment{Event: "released", Token: term.Token()}
	if err := term.Resign(limit); err != nil {
		m.Err = oneLine(err)
		r.say("the store did not confirm the release of %s; its lease runs out in %v", r.name, term.TTL())
	}
	r.tell(m)
}

// lost returns why the command was stopped, nil if it ended by itself: then its own status counts, whatever came after.
func (r *runner) lost(term *primacy.Term) error {
	lost := context.Cause(term.Context())
	switch {
	case r.started && r.status.By == supervise.Exited:
		return nil
	case lost == nil && r.status.By == supervise.Deadline: // the guardian saw it come before our own timer did
		return fail(exitLost, "%s %q under token %d ended: %w", r.right, r.name, term.Token(), primacy.ErrExpired)
	case lost == nil && r.gaveUp:
		return fail(exitLost, "%s %q under token %d given up: a renewal failed (--on-unreachable %s)", r.right, r.name, term.Token(), stopNow)
	}
	return lost
}

// stoppedMeanwhile returns the signal that ended the wait in the very moment of the win: nobody would forward it to the command.
func (r *runner) stoppedMeanwhile(ctx context.Context) error {
	var sig signalled
	if errors.As(context.Cause(ctx), &sig) {
		return sig
	}
	return nil
}
