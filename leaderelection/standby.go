package leaderelection

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/primacy-go/primacy/internal/core"
)

// acquire waits until the Lease is ours. It returns the boot clock's reading from before the call
// that won it, and false if ctx ends before.
func (le *LeaderElector) acquire(ctx context.Context) (asked core.Time, won bool) {
	if le.work != nil {
		select {
		case <-le.work:
		case <-ctx.Done():
			return 0, false
		}
	}
	logger := klog.FromContext(ctx).WithValues("lock", le.config.Lock.Describe())
	logger.Info("Attempting to acquire leader lease...")
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var w *watcher
	for ctx.Err() == nil {
		asked, known := le.boot(), le.renewedAt()
		call, cancel := context.WithTimeout(ctx, le.config.callLimit())
		came := le.try(call, false)
		cancel()
		if w != nil && w.silence() > le.config.mostSilence() && !known.Equal(le.renewedAt()) {
			w.renew() // it has not told this renewal
		}
		le.maybeReportTransition()
		switch {
		case ctx.Err() != nil:
			return 0, false
		case came == held && le.boot() < asked+le.timing.Span()-le.timing.Grace:
			say(func() {
				le.metrics.On(le.config.Name)
				le.event("became leader")
				logger.Info("Successfully acquired lease")
			})
			return asked, true
		case came == held:
			continue // the call took so long that the term would be over: once more
		}
		if w == nil {
			w = follow(watching, le.config.Lock)
		}
		le.await(ctx, w, came == busy)
	}
	return 0, false
}

// renewedAt is the time of the renewal that was seen last, by the clock of who made it.
func (le *LeaderElector) renewedAt() time.Time {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.observedRecord.RenewTime.Time
}

// mostSilence is how long a watch may tell nothing before the Lease is read. A leader renews each
// RetryPeriod. A watch whose connection is dead says nothing either, and nothing ends it.
func (c LeaderElectionConfig) mostSilence() time.Duration {
	return min(c.RenewDeadline, time.Duration(2*JitterFactor*float64(c.RetryPeriod)))
}

// await waits until there is a reason for another try. While the Lease is another's and is watched,
// that is its end, or the silence of the watch; else RetryPeriod with some jitter.
func (le *LeaderElector) await(ctx context.Context, w *watcher, busy bool) {
	poll := le.clock.Now().Add(wait.Jitter(le.config.RetryPeriod, JitterFactor))
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		until := poll
		if busy {
			le.mu.Lock()
			until = le.runsOutLocked()
			le.mu.Unlock()
			read := poll
			if doubt := le.clock.Now().Add(le.config.mostSilence() - w.silence()); w.alive.Load() && doubt.After(poll) {
				read = doubt
			}
			if until.After(read) {
				until = read
			}
		}
		timer.Reset(max(time.Millisecond, until.Sub(le.clock.Now())))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case lease := <-w.changes:
			if lease == nil {
				return // it was deleted
			}
			r := rl.LeaseSpecToLeaderElectionRecord(&lease.Spec)
			raw, err := json.Marshal(r)
			if err != nil {
				return
			}
			again := le.heard(r, raw, le.clock.Now())
			le.maybeReportTransition()
			if again {
				return
			}
			busy = true
		}
	}
}

// watcher follows the Lease of a LeaseLock.
type watcher struct {
	changes chan *coordinationv1.Lease // the last change that was not taken yet; nil: it was deleted
	alive   atomic.Bool                // else nothing is told
	began   time.Time
	told    atomic.Int64                       // when it began or told a change last, in time since began
	end     atomic.Pointer[context.CancelFunc] // of the watch under way
}

// silence is how long the watch has told nothing.
func (w *watcher) silence() time.Duration { return time.Since(w.began) - time.Duration(w.told.Load()) }

// renew ends the watch, and run begins another.
func (w *watcher) renew() {
	w.alive.Store(false)
	if end := w.end.Load(); end != nil {
		(*end)()
	}
}

// follow watches the Lease until ctx ends. A lock that is no LeaseLock is not watched.
func follow(ctx context.Context, lock rl.Interface) *watcher {
	w := &watcher{changes: make(chan *coordinationv1.Lease, 1), began: time.Now()}
	if l, ok := lock.(*rl.LeaseLock); ok {
		go w.run(ctx, l)
	}
	return w
}

func (w *watcher) run(ctx context.Context, l *rl.LeaseLock) {
	for try := 1; ; try++ {
		began := time.Now()
		pause := core.Pause(try)
		if err := w.once(ctx, l); apierrors.IsForbidden(err) {
			pause = time.Minute // it is polled
		}
		w.alive.Store(false)
		if time.Since(began) > time.Second {
			try, pause = 1, core.Pause(1)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// once watches until the server ends the watch, or renew does. With no resourceVersion it begins
// with what the Lease is now: before that is told the connection may be dead.
func (w *watcher) once(ctx context.Context, l *rl.LeaseLock) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.end.Store(&cancel)
	w.told.Store(int64(time.Since(w.began)))
	changes, err := l.Client.Leases(l.LeaseMeta.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", l.LeaseMeta.Name).String()})
	if err != nil {
		return err
	}
	defer changes.Stop()
	for {
		var c watch.Event
		open := false
		select {
		case c, open = <-changes.ResultChan():
		case <-ctx.Done():
		}
		if !open {
			return nil
		}
		lease, ok := c.Object.(*coordinationv1.Lease)
		switch {
		case c.Type == watch.Error:
			return apierrors.FromObject(c.Object)
		case !ok || c.Type == watch.Bookmark:
			continue
		case c.Type == watch.Deleted:
			lease = nil
		}
		w.told.Store(int64(time.Since(w.began)))
		w.alive.Store(true)
		select {
		case <-w.changes: // it is out of date
		default:
		}
		w.changes <- lease
	}
}
