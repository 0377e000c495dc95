package etcdapi

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	pauses "github.com/primacy-go/primacy/pause"
)

// slowUpdates is a store whose Updates wait until the test lets them go on.
type slowUpdates struct {
	*memstore.Store
	goOn chan struct{}
}

type slowLease struct {
	driver.Lease
	goOn chan struct{}
}

func (s slowUpdates) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return slowLease{l, s.goOn}, nil
}

func (l slowLease) Update(ctx context.Context, p driver.Place, value []byte) error {
	select {
	case <-l.goOn:
		return l.Lease.Update(ctx, p, value)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A value whose call was given up still comes to the store. So the client that then says again what
// it had said before is not told that others see it already.
func TestAValueThatComesLateIsReplacedByTheNext(t *testing.T) {
	t.Parallel()
	store := slowUpdates{memstore.New(memstore.Options{}), make(chan struct{})}
	s, _ := serve(t, store, Options{})
	l, err := s.grant(t.Context(), 0, someTTL)
	if err != nil {
		t.Fatal(err)
	}
	campaign := func(ctx context.Context, value string) error {
		_, err := l.campaign(ctx, "n", primacy.CampaignOptions{Value: []byte(value)})
		return err
	}
	seen := func() string {
		line, err := store.Line(t.Context(), "n")
		if err != nil || line.Holder == nil {
			t.Fatalf("the line is %+v, %v", line, err)
		}
		return string(line.Holder.Value)
	}
	if err := campaign(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := campaign(short, "second"); err == nil {
		t.Fatal("a value was confirmed that the store has not taken")
	}
	close(store.goOn)
	eventually(t, time.Minute, "the value of the call that was given up", func() bool { return seen() == "second" })
	if err := campaign(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	if got := seen(); got != "first" {
		t.Errorf("others see %q, and the client was told that they see %q", got, "first")
	}
}

func TestACampaignObeysAPauseAndALockDoesNot(t *testing.T) {
	t.Parallel()
	c, store := ours(t)
	p := pauses.Pause{Scope: "n", By: "ops", Reason: "drill", NoElections: true}
	if _, err := pauses.Set(t.Context(), store, p); err != nil {
		t.Fatal(err)
	}
	if _, err := c.lock(c.grant(5), "n", time.Minute); err != nil {
		t.Errorf("a lock in a pause: %v", err)
	}
	p.Scope = "m"
	if _, err := pauses.Set(t.Context(), store, p); err != nil {
		t.Fatal(err)
	}
	lease := c.grant(5)
	if k, err := c.try(lease, "m", "v", 500*time.Millisecond); err == nil {
		t.Fatalf("%v was elected in a pause", k)
	}
	if _, err := pauses.Resume(t.Context(), store, "m", "ops"); err != nil {
		t.Fatal(err)
	}
	c.win(lease, "m", "v")
}
