package etcdstore_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// renewer renews a lease as a session does, and notes how long it went without success.
type renewer struct {
	lease   driver.Lease
	stop    context.CancelFunc
	done    chan struct{}
	worst   time.Duration // from the first call that failed to the next success
	gap     time.Duration // from the call of one success to the call of the next
	renewed atomic.Int64
	last    error
}

// renewEvery renews each interval with a limit for each attempt, until halt.
func renewEvery(l driver.Lease, every, attempt time.Duration) *renewer {
	ctx, cancel := context.WithCancel(context.Background())
	r := &renewer{lease: l, stop: cancel, done: make(chan struct{})}
	go r.run(ctx, every, attempt)
	return r
}

func (r *renewer) run(ctx context.Context, every, attempt time.Duration) {
	defer close(r.done)
	good, failing := time.Now(), time.Time{}
	for ctx.Err() == nil {
		sent := time.Now()
		actx, cancel := context.WithTimeout(ctx, attempt)
		err := r.lease.Renew(actx)
		cancel()
		switch {
		case ctx.Err() != nil:
		case err == nil:
			r.gap, good = max(r.gap, sent.Sub(good)), sent
			if !failing.IsZero() {
				r.worst = max(r.worst, time.Since(failing))
			}
			failing = time.Time{}
			r.renewed.Add(1)
		default:
			if r.last = err; failing.IsZero() {
				failing = sent
			}
		}
		pause := every
		if !failing.IsZero() {
			pause = 50 * time.Millisecond
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// await waits until n more renewals have succeeded.
func (r *renewer) await(t *testing.T, n int64) {
	t.Helper()
	n += r.renewed.Load()
	eventually(t, "a renewal", time.Minute, func() bool { return r.renewed.Load() >= n })
}

func (r *renewer) halt() {
	r.stop()
	<-r.done
}

// TestAFrozenMemberEndsNoLease: a lease is renewed as a session does it, also while a member or
// etcd's leader is frozen.
func TestAFrozenMemberEndsNoLease(t *testing.T) {
	t.Parallel()
	c := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	freezeTwo(t, c, etcdstore.Config{Endpoints: c.Endpoints()})
}

// TestAFrozenMemberKeepsNoTokenBack is the same with authentication, where opening a stream asks
// for a token, which the client does through a balancer that knows nothing of the frozen member.
func TestAFrozenMemberKeepsNoTokenBack(t *testing.T) {
	t.Parallel()
	c := guarded(t, 3)
	freezeTwo(t, c, etcdstore.Config{Endpoints: c.Endpoints(), Username: "runner", Password: "secret"})
}

// freezeTwo freezes the member that is asked first, and then etcd's leader, each until renewals
// succeed without it.
//
// With the default ttl of 10 s a session ends its contexts 8 s after the last good call: the ttl
// less drift and grace. Where the machine stalls renewals take longer, so that one of three tries
// has to do with that.
func freezeTwo(t *testing.T, c *etcdtest.Cluster, config etcdstore.Config) {
	t.Helper()
	var gap, limit time.Duration
	for range 3 {
		if gap, limit = gapOfTwo(t, c, config); gap <= limit {
			return
		}
	}
	t.Errorf("%v from one renewal to the next, want at most %v", gap, limit)
}

// gapOfTwo returns the longest time from one renewal to the next, and how long it may be.
func gapOfTwo(t *testing.T, c *etcdtest.Cluster, config etcdstore.Config) (gap, limit time.Duration) {
	t.Helper()
	s := openAt(t, config)
	defer s.Close()
	l := grant(t, s, "holder", 30*time.Second)
	p := claim(t, l, "frozen")
	r := renewEvery(l, time.Second, 2*time.Second)
	begun := time.Now()
	r.await(t, 3)
	usual := time.Since(begun) / 3 // a second, or more on a busy machine
	for _, next := range []func() *etcdtest.Server{func() *etcdtest.Server { return c.Members[0] }, c.WaitLeader} {
		m := next()
		leads := c.WaitLeader() == m
		m.Stop()
		r.await(t, 2) // the first may have been on its way before
		m.Cont()
		c.WaitLeader()
		t.Logf("%s was frozen (it led: %v)", m.Addr(), leads)
	}
	r.halt()
	t.Logf("%d renewals, longest failure %v, longest gap %v, last error: %v", r.renewed.Load(), r.worst, r.gap, r.last)
	if err := l.Renew(soon(t)); err != nil {
		t.Fatalf("Renew after all: %v (last: %v)", err, r.last)
	}
	if got := line(t, s, "frozen").Holder; got == nil || got.Token != p.Token {
		t.Errorf("holder = %+v, want token %d", got, p.Token)
	}
	if err := l.Release(soon(t), p); err != nil { // another try stands in the same line
		t.Errorf("Release: %v", err)
	}
	return r.gap, max(8*time.Second, 8*usual)
}

// TestAWaiterIsNotFrozenWithItsMember: the member that serves the watch freezes, and the turn
// comes all the same.
func TestAWaiterIsNotFrozenWithItsMember(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	c := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	lead := c.WaitLeader()
	var eps []string // a follower first: the ring begins there
	for _, m := range c.Members {
		if m != lead {
			eps = append(eps, m.Endpoint())
		}
	}
	eps = append(eps, lead.Endpoint())
	var served *etcdtest.Server
	for _, m := range c.Members {
		if m.Endpoint() == eps[0] {
			served = m
		}
	}
	waiter, holder := open(t, eps...), open(t, lead.Endpoint())
	first, second := grant(t, holder, "first", time.Minute), grant(t, waiter, "second", time.Minute)
	p := claim(t, first, "turn")
	turn := waiting(t, second, claim(t, second, "turn"))
	now := line(t, holder, "turn").Revision
	next := make(chan error, 1)
	go func() {
		_, err := waiter.Next(soon(t), "turn", now)
		next <- err
	}()
	select {
	case err := <-turn:
		t.Fatalf("Wait returned while another holds: %v", err)
	case <-time.After(300 * time.Millisecond): // the watches stand by now; if not, the test only becomes easier
	}
	served.Stop()
	defer served.Cont()
	release(t, first, p)
	begun := time.Now()
	if err := receive(t, "Wait", turn, 25*time.Second); err != nil {
		t.Error(err)
	}
	t.Logf("the turn came %v after the release", time.Since(begun))
	if err := receive(t, "Next", next, 25*time.Second); err != nil {
		t.Error(err)
	}
}

// TestAChangeOfEtcdsLeaderIsNoEvent: while the leader moves about, waiters and holders notice
// nothing but delay.
func TestAChangeOfEtcdsLeaderIsNoEvent(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	c := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	s := open(t, c.Endpoints()...)
	l, other := grant(t, s, "a", 30*time.Second), grant(t, s, "b", time.Minute)
	p := claim(t, l, "leader")
	turn := waiting(t, other, claim(t, other, "leader"))
	r := renewEvery(l, 50*time.Millisecond, 2*time.Second)
	for range 2 {
		for _, m := range c.Members {
			c.MoveLeader(m)
		}
	}
	killed := c.WaitLeader()
	killed.Kill()
	c.WaitLeader()
	before := r.renewed.Load()
	eventually(t, "a renewal after the leader was killed", time.Minute,
		func() bool { return r.renewed.Load() > before })
	killed.Restart()
	r.halt()
	t.Logf("%d renewals, longest failure %v, last error: %v", r.renewed.Load(), r.worst, r.last)
	select {
	case err := <-turn:
		t.Fatalf("Wait returned while another holds: %v", err)
	default:
	}
	if err := l.Update(soon(t), p, []byte("still mine")); err != nil {
		t.Errorf("Update: %v", err)
	}
	release(t, l, p)
	if err := receive(t, "Wait", turn, time.Minute); err != nil {
		t.Error(err)
	}
}
