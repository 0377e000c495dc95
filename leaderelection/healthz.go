package leaderelection

import (
	"net/http"
	"sync"
	"time"
)

// HealthzAdaptor is a health check of an elector, which may be made before the elector is.
type HealthzAdaptor struct {
	timeout time.Duration

	mu sync.Mutex
	le *LeaderElector
}

// NewLeaderHealthzAdaptor returns a health check that fails when the elector holds the Lease and
// has not renewed it for LeaseDuration and timeout.
func NewLeaderHealthzAdaptor(timeout time.Duration) *HealthzAdaptor {
	return &HealthzAdaptor{timeout: timeout}
}

// Name returns the name of the check.
func (l *HealthzAdaptor) Name() string { return "leaderElection" }

// SetLeaderElection says which elector is checked. RunOrDie does so for the WatchDog.
func (l *HealthzAdaptor) SetLeaderElection(le *LeaderElector) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.le = le
}

// Check is [LeaderElector.Check]. Without an elector there is nothing to check.
func (l *HealthzAdaptor) Check(*http.Request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.le == nil {
		return nil
	}
	return l.le.Check(l.timeout)
}
