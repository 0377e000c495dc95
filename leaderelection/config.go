package leaderelection

import (
	"errors"
	"time"

	orig "k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/core"
)

// JitterFactor is by how much at most of itself a RetryPeriod is lengthened, by chance, between two
// polls.
const JitterFactor = orig.JitterFactor

// LeaderElectionConfig says what to stand for, and how.
type LeaderElectionConfig struct { //nolint:revive // client-go's name
	// Lock is the Lease, and who stands: see [rl.LeaseLock]. A lock of another kind is polled. One
	// that keeps the record's JSON, and so whole seconds, waits LeaseDuration longer where the
	// answer to the write that won is lost.
	Lock rl.Interface

	// LeaseDuration is for how long others wait after the last renewal that they saw. It is rounded
	// up to whole seconds. No work runs under a term for longer than nine tenths of it after the
	// last renewal: by a tenth the rates of two clocks may differ. Kubernetes uses 15 s.
	LeaseDuration time.Duration
	// RenewDeadline is how long after its last renewal the context of a term ends, at most 0.855 of
	// LeaseDuration; of one below 12 s, 0.93 of what it has beyond a second. Kubernetes uses
	// 10 s.
	RenewDeadline time.Duration
	// RetryPeriod is the time from one renewal to the next, at most a third of RenewDeadline, and
	// how often the Lease is polled where it cannot be watched. Kubernetes uses 2 s.
	RetryPeriod time.Duration

	// Callbacks say what to do: see [LeaderElector.Run].
	Callbacks LeaderCallbacks

	// WatchDog tells a health check of a leader that does not renew. It may be nil.
	WatchDog *HealthzAdaptor

	// ReleaseOnCancel releases the Lease when a term ends and its work has returned.
	ReleaseOnCancel bool

	// Name is for metrics and the health check.
	Name string

	// Coordinated is refused.
	Coordinated bool
}

// LeaderCallbacks are client-go's. OnStartedLeading runs in a goroutine of its own, OnNewLeader
// too.
type LeaderCallbacks = orig.LeaderCallbacks

// validate says what is wrong, in client-go's words where client-go refuses it too.
func (c LeaderElectionConfig) validate() error {
	switch {
	case c.LeaseDuration <= c.RenewDeadline:
		return errors.New("leaseDuration must be greater than renewDeadline")
	case c.RenewDeadline <= time.Duration(JitterFactor*float64(c.RetryPeriod)):
		return errors.New("renewDeadline must be greater than retryPeriod*JitterFactor")
	case c.RetryPeriod < 1:
		return errors.New("retryPeriod must be greater than zero")
	case c.Callbacks.OnStartedLeading == nil:
		return errors.New("OnStartedLeading callback must not be nil")
	case c.Callbacks.OnStoppedLeading == nil:
		return errors.New("OnStoppedLeading callback must not be nil")
	case c.Lock == nil:
		return errors.New("Lock must not be nil.") //nolint:staticcheck // client-go's words
	case c.Lock.Identity() == "":
		return errors.New("Lock identity is empty")
	case c.Coordinated:
		return errors.New("coordinated election is not supported: there the API server chooses the leader")
	case !boottime.Reliable:
		return errors.New("this operating system offers no clock that goes on in suspend")
	}
	return nil
}

// recorded is the duration of the lease as the record has it, in seconds.
func (c LeaderElectionConfig) recorded() int {
	return int((c.LeaseDuration + time.Second - 1) / time.Second)
}

// timing says how a term is kept. A client-go user's RenewDeadline is when its context ends. Some
// of the time until the deadline must be left to the work, even where the configuration leaves
// none. Electors of client-go that stand by compare records as text, in which a time has whole
// seconds: of several renewals within a second they see one, and may count from the first. So the
// time that a term has without a renewal is a second shorter than the lease, or more.
func (c LeaderElectionConfig) timing() core.Timing {
	t := core.Timing{Drift: 0.1}
	t.TTL = time.Duration(c.recorded()) * time.Second
	if t.TTL > time.Second { // of one second nothing would be left
		t.Drift = max(t.Drift, 0.01+float64(time.Second)/float64(t.TTL))
	}
	soft := min(c.RenewDeadline, t.Span()-t.Span()/20)
	t.Grace = t.Span() - soft
	t.Every = min(c.RetryPeriod, soft/3)
	t.Attempt = (soft - t.Every) / 2
	return t
}

// callLimit is for how long who waits lets the API server take for a try.
func (c LeaderElectionConfig) callLimit() time.Duration { return max(c.RenewDeadline/2, time.Second) }
