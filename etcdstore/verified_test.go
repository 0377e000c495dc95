package etcdstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// subject is a lease renewed through one member, and what became of it.
type subject struct {
	store    *etcdstore.Store
	lease    driver.Lease
	accepted []time.Duration // when each renewal that was accepted was called
	tried    int
	gone     time.Duration // when the claim was first seen to be gone
}

func newSubject(t *testing.T, endpoint, name string, ttl time.Duration, unverified bool) *subject {
	t.Helper()
	s := openAt(t, etcdstore.Config{Endpoints: []string{endpoint}})
	t.Cleanup(func() { _ = s.Close() })
	if unverified {
		etcdstore.Unverified(s)
	}
	sub := &subject{store: s, lease: grant(t, s, name, ttl)}
	claim(t, sub.lease, name)
	if err := sub.lease.Renew(soon(t)); err != nil {
		t.Fatalf("Renew before the fault: %v", err)
	}
	return sub
}

// renewFor renews as often as it can for d, each time for at most so long.
func (s *subject) renewFor(d, most time.Duration) {
	for end := boottime.Now() + d; boottime.Now() < end || s.tried < 5; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), most)
		sent := boottime.Now()
		err := s.lease.Renew(ctx)
		cancel()
		s.tried++
		if err == nil {
			s.accepted = append(s.accepted, sent)
		}
		if errors.Is(err, driver.ErrGone) {
			return
		}
	}
}

// untilGone polls the claim through a healthy member until it is gone.
func (s *subject) untilGone(t *testing.T, c *clientv3.Client, name string) {
	ctx := within(t, 40*time.Second)
	for {
		resp, err := c.Get(ctx, "primacy/"+name+"/"+s.lease.ID())
		switch {
		case ctx.Err() != nil:
			t.Errorf("%s: the claim did not go", name)
			return
		case err == nil && len(resp.Kvs) == 0:
			s.gone = boottime.Now()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// worst returns by how much an accepted renewal promised more than the store kept; negative if
// all were kept.
func (s *subject) worst() time.Duration {
	worst := -time.Hour
	for _, sent := range s.accepted {
		worst = max(worst, sent+s.lease.TTL()-s.gone)
	}
	return worst
}

// TestADeposedLeaderCannotRenew: etcd's leader is paused and cut off from its peers, which elect
// another. When it wakes up it acknowledges keepalives for almost two seconds, while the majority
// counts the lease down. The plain keepalive beside it must be taken in, or the fault was too
// weak and the test shows nothing.
func TestADeposedLeaderCannotRenew(t *testing.T) {
	t.Parallel()
	nw := etcdtest.NewNetwork(t, 3)
	cluster := etcdtest.StartCluster(t, 3, nw.Options(etcdtest.Options{}))
	const ttl, pause = 8 * time.Second, 5 * time.Second
	fooled := false
	for round := 0; round < 3 && !fooled; round++ {
		lead := cluster.WaitLeader()
		var others []string
		cut := -1
		for i, m := range cluster.Members {
			if m == lead {
				cut = i
			} else {
				others = append(others, m.Endpoint())
			}
		}
		healthy := plainClient(t, others...)
		verified := newSubject(t, lead.Endpoint(), "verified", ttl, false)
		plain := newSubject(t, lead.Endpoint(), "plain", ttl, true)

		lead.Stop()
		nw.Cut(cut)
		time.Sleep(pause) // the length of the fault
		lead.Cont()
		done := make(chan struct{}, 4)
		for name, s := range map[string]*subject{"verified": verified, "plain": plain} {
			go func() { s.renewFor(3500*time.Millisecond, 300*time.Millisecond); done <- struct{}{} }()
			go func() { s.untilGone(t, healthy, name); done <- struct{}{} }()
		}
		for range cap(done) {
			<-done
		}
		nw.Heal()
		t.Logf("round %d: plain: %d of %d accepted, worst promise broken by %v; verified: %d of %d accepted", round,
			len(plain.accepted), plain.tried, plain.worst(), len(verified.accepted), verified.tried)
		if w := verified.worst(); w > 0 {
			t.Errorf("a verified renewal promised %v more than the store kept", w)
		}
		if verified.tried < 5 {
			t.Errorf("only %d verified renewals were tried", verified.tried)
		}
		fooled = plain.worst() > 500*time.Millisecond
	}
	if !fooled {
		t.Error("the plain keepalive was never taken in: the fault is too weak for this test to show anything")
	}
}
