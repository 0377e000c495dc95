package etcdapi

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
)

const someTTL = 10 * time.Second

func someLease(t *testing.T) *lease {
	t.Helper()
	s, _ := serve(t, memstore.New(memstore.Options{}), Options{})
	l, err := s.grant(context.Background(), 0, someTTL)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestAWinIsToldOnlyWhenItLastsAsLongAsTheLease wins while the store's lease has less left than the
// client was promised.
func TestAWinIsToldOnlyWhenItLastsAsLongAsTheLease(t *testing.T) {
	t.Parallel()
	l := someLease(t)
	// 12 s are left of the store's 15 s, less the drift; the next renewal comes in half a second
	time.Sleep(someTTL * 3 / 20)
	l.mu.Lock()
	l.promised = l.clock() + someTTL*5/4
	promised := l.promised
	l.mu.Unlock()
	term, err := l.campaign(context.Background(), "n", primacy.CampaignOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if until := term.Deadline(); until < promised {
		t.Errorf("the claim is sure to stand until %v, the client believes in it until %v", until, promised)
	}
}

// TestAKeepaliveAfterTheEndRevivesNothing has the timer that ends a lease be late.
func TestAKeepaliveAfterTheEndRevivesNothing(t *testing.T) {
	t.Parallel()
	l := someLease(t)
	if ttl := l.keepAlive(context.Background()); ttl != someTTL {
		t.Errorf("ttl %v", ttl)
	}
	l.mu.Lock()
	l.moved.Stop()
	l.promised = l.clock() - l.slack() - time.Millisecond
	l.mu.Unlock()
	if ttl := l.keepAlive(context.Background()); ttl != 0 {
		t.Errorf("a lease that is over has %v", ttl)
	}
	l.look()
	select {
	case <-l.gone:
	case <-time.After(time.Minute):
		t.Error("it is not gone")
	}
}

// TestAClientWhoseClockIsSlowKeepsItsLease has a client renew after its ttl as the server counts
// it, but by less than its clock may be slow: it believes in what it holds, so nobody else may have
// it.
func TestAClientWhoseClockIsSlowKeepsItsLease(t *testing.T) {
	t.Parallel()
	s, _ := serve(t, memstore.New(memstore.Options{}), Options{})
	const ttl = 3 * time.Minute // the slack is long enough for a machine that stands still for a moment
	l, err := s.grant(context.Background(), 0, ttl)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	l.promised = l.clock() - time.Millisecond
	l.mu.Unlock()
	l.look()
	select {
	case <-l.gone:
		t.Fatal("the lease ends with the client's ttl")
	default:
	}
	if got := l.keepAlive(context.Background()); got != ttl {
		t.Errorf("a keepalive within the slack has %v, want %v", got, ttl)
	}
	l.mu.Lock()
	l.promised = l.clock() - ttl/10 // no more than that is waited for
	l.mu.Unlock()
	l.look()
	select {
	case <-l.gone:
	case <-time.After(time.Minute):
		t.Error("the lease of a silent client does not end")
	}
}
