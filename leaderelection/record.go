package leaderelection

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// outcome is what came of a try to win or to renew the Lease.
type outcome int

const (
	failed outcome = iota // the API server refused or did not answer, or somebody else was faster
	busy                  // it is another's, and has not run out
	held                  // it is ours
	lost                  // it is not ours any more
)

// tryAcquireOrRenew says whether the Lease is ours, won or renewed by a call that began later than
// this one.
func (le *LeaderElector) tryAcquireOrRenew(ctx context.Context) bool {
	return le.try(ctx, false) == held
}

// try writes the Lease if it is ours, or free. Each write replaces what was read or written last,
// and nothing else: a LeaseLock sends the resourceVersion of that. So a write that was held up on
// its way changes nothing that came between.
func (le *LeaderElector) try(ctx context.Context, leading bool) outcome {
	le.calls.Lock()
	defer le.calls.Unlock()
	logger := klog.FromContext(ctx).WithValues("lock", le.config.Lock.Describe())
	lock, now := le.config.Lock, le.clock.Now()
	at := metav1.NewTime(now.Truncate(time.Microsecond)) // as a Lease keeps it
	next := rl.LeaderElectionRecord{HolderIdentity: lock.Identity(), LeaseDurationSeconds: le.config.recorded(),
		RenewTime: at, AcquireTime: drawnBefore(at)}
	if le.continues(&next) {
		err := lock.Update(ctx, next)
		if err == nil {
			le.wrote(next)
			return held
		}
		logger.V(2).Info("The lease could not be written without reading it", "err", err)
	}
	old, raw, err := lock.Get(ctx)
	switch {
	case apierrors.IsNotFound(err) && leading:
		return lost // who makes it anew leads at once
	case apierrors.IsNotFound(err):
		le.sends(next)
		if err := lock.Create(ctx, next); err != nil {
			logger.Error(err, "The lease could not be created")
			return failed
		}
		le.wrote(next)
		return held
	case err != nil:
		logger.Error(err, "The lease could not be read")
		return failed
	}
	ours, free := le.observe(old, raw, now)
	switch {
	case leading && !ours:
		return lost
	case !ours && !free:
		logger.V(4).Info("The lease is held and has not run out", "holder", old.HolderIdentity)
		return busy
	case ours:
		le.continues(&next)
		le.metrics.SlowpathExercised(le.config.Name)
	case old.LeaderTransitions >= math.MaxInt32:
		logger.Error(nil, "The lease has no more leaseTransitions: stop all candidates, and delete it")
		return failed
	default:
		next.LeaderTransitions = old.LeaderTransitions + 1
		le.sends(next)
	}
	if err := lock.Update(ctx, next); err != nil {
		logger.Error(err, "The lease could not be written")
		return failed
	}
	le.wrote(next)
	return held
}

// release gives the Lease back when OnStoppedLeading has been called.
func (le *LeaderElector) release(logger klog.Logger) bool {
	ctx, cancel := context.WithTimeout(klog.NewContext(context.Background(), logger), le.config.RenewDeadline)
	defer cancel()
	return le.tryRelease(ctx, logger.WithValues("lock", le.config.Lock.Describe()))
}

// releaseWithin gives the Lease back before OnStoppedLeading is called. A client or a log that
// hangs does not hold that up for longer than the limit: there may be something to stop.
func (le *LeaderElector) releaseWithin(limit time.Duration, logger klog.Logger) {
	ctx, cancel := context.WithTimeout(klog.NewContext(context.Background(), logger), limit)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		le.tryRelease(ctx, logger.WithValues("lock", le.config.Lock.Describe()))
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// tryRelease gives the Lease back, if it is ours or may become ours by a write that is under way.
// It does not repeat what failed: then the Lease runs out by itself.
func (le *LeaderElector) tryRelease(ctx context.Context, logger klog.Logger) bool {
	if !le.lockCalls(ctx) {
		logger.Info("The lease is not released: a renewal has not returned")
		return false
	}
	defer le.calls.Unlock()
	for {
		old, raw, err := le.config.Lock.Get(ctx)
		if err != nil {
			logger.Error(err, "The lease could not be read for its release")
			return false
		}
		now := le.clock.Now()
		ours, open := le.observe(old, raw, now)
		switch {
		case ctx.Err() != nil:
			return false
		case !ours && !(open && le.mayHold()): // a write under way must find another version
			return true
		}
		at := metav1.NewTime(now.Truncate(time.Microsecond))
		free := rl.LeaderElectionRecord{LeaderTransitions: old.LeaderTransitions, LeaseDurationSeconds: 1,
			RenewTime: at, AcquireTime: at}
		err = le.config.Lock.Update(ctx, free)
		switch {
		case err == nil:
			le.wrote(free)
			return true
		case !apierrors.IsConflict(err) || ctx.Err() != nil:
			logger.Error(err, "The lease could not be released")
			return false
		}
	}
}

// ownsLocked says whether the observed record is of our present term.
func (le *LeaderElector) ownsLocked() bool {
	return le.observedRecord.HolderIdentity == le.config.Lock.Identity() && !le.foreign
}

// mayHold says whether the Lease may be ours, or become ours by a write that is under way.
func (le *LeaderElector) mayHold() bool {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.ownsLocked() || len(le.attempts) > 0
}

// continues makes next a renewal of the term that the observed record is of, if that is ours.
func (le *LeaderElector) continues(next *rl.LeaderElectionRecord) bool {
	le.mu.Lock()
	defer le.mu.Unlock()
	if !le.ownsLocked() {
		return false
	}
	next.AcquireTime, next.LeaderTransitions = le.observedRecord.AcquireTime, le.observedRecord.LeaderTransitions
	if d := le.observedRecord.RenewTime.Sub(next.RenewTime.Time); d >= 0 && d < time.Millisecond {
		// The wall clock stands still. The API server does not write an update that changes
		// nothing, and nobody would see it.
		next.RenewTime.Time = le.observedRecord.RenewTime.Add(time.Microsecond)
	}
	return true
}

// drawnBefore returns a time less than a second before at. By it two processes with one identity
// tell their records apart that they write at the same instant.
func drawnBefore(at metav1.Time) metav1.Time {
	return metav1.NewTime(at.Add(-rand.N(time.Second)).Truncate(time.Microsecond))
}

// attemptsKept is how many writes of unknown outcome are remembered: one may be carried out when
// others have been sent after it.
const attemptsKept = 8

// sends remembers a record that is about to be sent in order to win the Lease. If there is no
// answer and the Lease has it later, it is ours.
func (le *LeaderElector) sends(r rl.LeaderElectionRecord) {
	le.mu.Lock()
	defer le.mu.Unlock()
	le.attempts = append(le.attempts[max(0, len(le.attempts)-attemptsKept+1):], r)
}

// wrote takes note of what is in the Lease by our own write.
func (le *LeaderElector) wrote(r rl.LeaderElectionRecord) {
	le.mu.Lock()
	defer le.mu.Unlock()
	le.observedRecord, le.observedRawRecord, le.observedTime = r, nil, le.clock.Now()
	// Of a term that has ended meanwhile: the next one is another, with another token.
	le.foreign = sameTerm(r, le.ended)
	le.attempts = nil
}

// endTerm has the next Run win a new term, also if the Lease still has the record of this one.
func (le *LeaderElector) endTerm() {
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.ownsLocked() {
		le.ended, le.foreign = le.observedRecord, true
	}
}

// observe takes note of what was read by the lock, whose next Update is bound to that version. It
// says whether the record is of our present term, and whether everybody may take the Lease at the
// time now.
func (le *LeaderElector) observe(r *rl.LeaderElectionRecord, raw []byte, now time.Time) (ours, free bool) {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.observeLocked(r, raw, now)
}

// heard takes note of what a watch told. It says whether the Lease is to be read now: it is free or
// ours, perhaps by a write of which we had no answer. What a watch tells may be old, and the lock's
// next Update is bound to the version that the lock read. So it is never a reason to take the Lease
// for ours that was another's at that version: the Update would be carried out, and two would lead.
func (le *LeaderElector) heard(r *rl.LeaderElectionRecord, raw []byte, now time.Time) (again bool) {
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.sentLocked(r) {
		return true
	}
	ours, free := le.observeLocked(r, raw, now)
	return ours || free
}

// sentLocked says whether the record is one that was sent and of which no answer came. In whole
// seconds another process with our identity may have sent the same: such a record is not ours.
func (le *LeaderElector) sentLocked(r *rl.LeaderElectionRecord) bool {
	return slices.ContainsFunc(le.attempts, func(sent rl.LeaderElectionRecord) bool {
		return sameTerm(*r, sent) && r.AcquireTime.Equal(&sent.AcquireTime) && r.RenewTime.Equal(&sent.RenewTime)
	})
}

func (le *LeaderElector) observeLocked(r *rl.LeaderElectionRecord, raw []byte, now time.Time) (ours, free bool) {
	ours = r.HolderIdentity == le.config.Lock.Identity() &&
		(le.sentLocked(r) || !le.foreign && sameTerm(*r, le.observedRecord))
	// The text of a record has whole seconds only. Two renewals within one are told apart by the
	// time.
	if !bytes.Equal(raw, le.observedRawRecord) || !r.RenewTime.Equal(&le.observedRecord.RenewTime) {
		le.observedRecord, le.observedRawRecord, le.observedTime = *r, raw, le.clock.Now()
	}
	le.foreign = !ours
	return ours, r.HolderIdentity == "" || sameTerm(*r, le.ended) || !le.runsOutLocked().After(now)
}

// runsOutLocked is when the observed lease runs out if it is not renewed.
func (le *LeaderElector) runsOutLocked() time.Time {
	return le.observedTime.Add(time.Duration(le.observedRecord.LeaseDurationSeconds) * time.Second)
}

// sameTerm says whether two records are of one term. A lock that keeps the record as its JSON, as
// that of a ConfigMap did, gives back whole seconds of what was written.
func sameTerm(a, b rl.LeaderElectionRecord) bool {
	x, y := a.AcquireTime, b.AcquireTime
	return a.HolderIdentity == b.HolderIdentity && a.LeaderTransitions == b.LeaderTransitions &&
		(x.Equal(&y) || (x.Nanosecond() == 0 || y.Nanosecond() == 0) && x.Unix() == y.Unix())
}
