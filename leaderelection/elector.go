package leaderelection

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/runtime"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/core"
)

// LeaderElector stands in an election. It runs one term per call of Run. Its other methods are safe
// for concurrent use.
type LeaderElector struct {
	config  LeaderElectionConfig
	timing  core.Timing
	clock   clock.Clock    // by which others' leases run out: where it stands still we wait longer
	boot    boottime.Clock // of our own deadline
	metrics LeaderMetric

	calls sync.Mutex    // held during a call of config.Lock, which is not safe for concurrent use
	work  chan struct{} // closed when the last term's OnStartedLeading has returned; nil before the first
	until atomic.Int64  // on the boot clock, when the context of the term ends; 0: it has ended
	token atomic.Uint64

	mu sync.Mutex // guards what follows
	// What the Lease held last, and since when, as we saw it.
	observedRecord    rl.LeaderElectionRecord
	observedRawRecord []byte
	observedTime      time.Time
	// The observed record has our identity, but is not of our present term: another process has
	// that identity too, or the record is of a term that ended.
	foreign bool
	// What was sent to win the Lease, as long as the outcome is unknown.
	attempts []rl.LeaderElectionRecord
	// The record of our last term. It is over, so nobody needs to wait for it to run out.
	ended          rl.LeaderElectionRecord
	reportedLeader string
}

// NewLeaderElector returns an elector, or an error that says which field of the configuration
// cannot be.
func NewLeaderElector(lec LeaderElectionConfig) (*LeaderElector, error) {
	if err := lec.validate(); err != nil {
		return nil, err
	}
	le := &LeaderElector{config: lec, timing: lec.timing(), clock: clock.RealClock{}, boot: boottime.Now,
		metrics: globalMetricsFactory.newLeaderMetrics()}
	le.metrics.Off(lec.Name)
	return le, nil
}

// RunOrDie makes an elector and calls its Run. It panics if the configuration cannot be.
func RunOrDie(ctx context.Context, lec LeaderElectionConfig) {
	le, err := NewLeaderElector(lec)
	if err != nil {
		panic(err)
	}
	if lec.WatchDog != nil {
		lec.WatchDog.SetLeaderElection(le)
	}
	le.Run(ctx)
}

// How a term's work stood when the term was over.
type workState int

const (
	workReturned  workState = iota // after its context had ended
	workWasBefore                  // it had returned while its context was alive: what it started may run on
	workRuns                       // it has not returned
)

// Run waits until it wins the Lease, calls OnStartedLeading in a goroutine, and keeps the Lease
// until ctx ends or the Lease is lost. It returns when the term is over, or when ctx ended before
// there was one. The context of OnStartedLeading ends
//
//   - when ctx ends. Then the Lease is renewed while OnStartedLeading runs, for LeaseDuration at
//     most;
//   - RenewDeadline after the last renewal, counted from before that call. Then OnStartedLeading
//     has time until nine tenths of LeaseDuration are over;
//   - at once when the Lease turns out to be another's, or deleted.
//
// OnStoppedLeading is called once by each Run, also if there was no term: when OnStartedLeading has
// returned, or when its time is over. It must end what still runs then: most end the process.
//
// With ReleaseOnCancel the Lease is released when OnStartedLeading has returned, before
// OnStoppedLeading is called, so that this may end the process. The release comes after it if there
// is no time left, and if OnStartedLeading returned while its context was alive: what it started
// only OnStoppedLeading can end. If OnStartedLeading has not returned when its time is over the
// Lease is not released.
//
// Another Run, after this has returned, waits until the work of this one has. Two at a time must
// not be: both would lead under one identity.
func (le *LeaderElector) Run(ctx context.Context) {
	defer runtime.HandleCrashWithContext(ctx)
	logger := klog.FromContext(ctx)
	defer le.endTerm()
	state := workReturned
	asked, won := le.acquire(ctx)
	deadline := le.boot() + le.config.RenewDeadline
	if won {
		state, deadline = le.lead(ctx, asked)
		say(func() {
			le.metrics.Off(le.config.Name)
			le.event("stopped leading")
		})
	}
	releases := le.config.ReleaseOnCancel && le.mayHold()
	if left := deadline - le.boot(); releases && state == workReturned && left > 0 {
		le.releaseWithin(left, logger)
		releases = false
	}
	le.config.Callbacks.OnStoppedLeading()
	switch {
	case !releases:
	case state == workRuns:
		say(func() {
			logger.Info("The lease is not released: OnStartedLeading has not returned",
				"lock", le.config.Lock.Describe())
		})
	default:
		le.release(logger)
	}
}

// lead runs the work and keeps the Lease, which was won in answer to a call made at asked. It
// returns how the work stands and until when nobody else can lead.
func (le *LeaderElector) lead(ctx context.Context, asked core.Time) (state workState, deadline core.Time) {
	logger := klog.FromContext(ctx)
	lease := core.NewLease(le.timing, asked)
	term, stop := context.WithCancel(ctx)
	defer stop()
	renewing, stopRenewing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRenewing()
	le.mu.Lock()
	le.token.Store(uint64(le.observedRecord.LeaderTransitions) + 1)
	le.mu.Unlock()
	le.until.Store(int64(lease.SoftEnd()))
	defer le.until.Store(0)
	returned, ended := make(chan struct{}), workReturned
	le.work = returned
	go func() {
		defer close(returned)
		if !le.IsLeader() { // the process stood still meanwhile
			return
		}
		le.config.Callbacks.OnStartedLeading(term)
		if term.Err() == nil {
			ended = workWasBefore
		}
	}()
	events := make(chan core.LeaseEvent, 1)
	// One that hangs in the client does not hold up this loop, and no second one is sent meanwhile.
	var inClient atomic.Bool
	timer := time.NewTimer(0)
	defer timer.Stop()
	state = workRuns
	asks, giveUp := ctx.Done(), core.Time(0)
	e := core.LeaseEvent{Kind: core.Tick}
	for {
		now := le.boot()
		o := lease.Step(now, e)
		e = core.LeaseEvent{Kind: core.Tick}
		if o.Stop != core.None {
			stop()
		}
		if term.Err() != nil {
			le.until.Store(0)
		} else {
			le.until.Store(int64(lease.SoftEnd()))
		}
		if misses := lease.Misses(); o.Stop != core.None {
			say(func() {
				logger.Info("Leadership is lost", "lock", le.config.Lock.Describe(), "cause", o.Stop.String(),
					"misses", misses)
			})
		}
		if o.Renew {
			go func() {
				e := core.LeaseEvent{Kind: core.Unknown, Asked: now}
				if inClient.CompareAndSwap(false, true) {
					e.Kind = le.renew(renewing)
					inClient.Store(false)
				}
				select {
				case events <- e:
				case <-renewing.Done():
				}
			}()
		}
		if term.Err() != nil && (state != workRuns || lease.Phase() == core.Over || giveUp != 0 && now >= giveUp) {
			return state, lease.Deadline()
		}
		wake := o.Wake
		if giveUp != 0 {
			wake = min(wake, giveUp)
		}
		timer.Reset(min(time.Second, max(0, wake-le.boot()))) // timers stand still in suspend
		select {
		case e = <-events:
		case <-timer.C:
		case <-asks:
			asks, giveUp = nil, le.boot()+le.config.LeaseDuration // term ends with ctx
		case <-returned:
			returned, state = nil, ended
		}
	}
}

// say tells somebody something, and does not wait for one who does not listen: a log that is a full
// pipe must hold up no end.
func say(tell func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		tell()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Millisecond):
	}
}

// renew renews the Lease once, and says what came of it.
func (le *LeaderElector) renew(ctx context.Context) core.LeaseEventKind {
	ctx, cancel := context.WithTimeout(ctx, le.timing.Attempt)
	defer cancel()
	defer le.maybeReportTransition()
	switch le.try(ctx, true) {
	case held:
		return core.Accepted
	case lost:
		return core.Gone
	}
	return core.Unknown
}

// GetLeader returns the identity of the leader as this elector saw it last, or "". It may be long
// out of date.
func (le *LeaderElector) GetLeader() string {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.observedRecord.HolderIdentity
}

// IsLeader says whether the context of a term is alive at this instant, by the clock: it is right
// also in a process that was paused. Ask it before each act that nobody else may do.
func (le *LeaderElector) IsLeader() bool { return le.boot() < core.Time(le.until.Load()) }

// Token returns the fencing token of the present term, or else of the last; 0 before the first. It
// is larger than that of every earlier term of this Lease, whoever's: it is one more than the
// Lease's leaseTransitions. It begins anew where somebody deletes the Lease. A term of client-go's
// under the same identity as the one before it has the token of that one.
func (le *LeaderElector) Token() uint64 { return le.token.Load() }

// Check returns an error if this elector holds the Lease, and has neither renewed it nor let it go
// since more than LeaseDuration and that time.
func (le *LeaderElector) Check(maxTolerableExpiredLease time.Duration) error {
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.ownsLocked() && le.clock.Since(le.observedTime) > le.config.LeaseDuration+maxTolerableExpiredLease {
		return fmt.Errorf("failed election to renew leadership on lease %s", le.config.Name)
	}
	return nil
}

// event records an event of the Lease, unless a call of the lock is under way that does not return
// soon.
func (le *LeaderElector) event(what string) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Millisecond) // less than say waits
	defer cancel()
	if le.lockCalls(ctx) {
		defer le.calls.Unlock()
		le.config.Lock.RecordEvent(what)
	}
}

// lockCalls locks calls, unless ctx ends before: a call may hang in the client.
func (le *LeaderElector) lockCalls(ctx context.Context) bool {
	for !le.calls.TryLock() {
		if ctx.Err() != nil {
			return false
		}
		time.Sleep(2 * time.Millisecond)
	}
	return true
}

func (le *LeaderElector) maybeReportTransition() {
	le.mu.Lock()
	leader := le.observedRecord.HolderIdentity
	changed := leader != le.reportedLeader
	le.reportedLeader = leader
	le.mu.Unlock()
	if changed && le.config.Callbacks.OnNewLeader != nil {
		go le.config.Callbacks.OnNewLeader(leader)
	}
}
