package registerstore_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/registerstore"
)

// described notes what the last value under each kind of key means.
type described struct {
	*memstore.Register
	t *testing.T

	mu   sync.Mutex
	last map[string]registerstore.Description
}

func (d *described) Put(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
	what, err := registerstore.Describe(key, value)
	if err != nil {
		d.t.Errorf("%s: %v", key, err)
	}
	d.mu.Lock()
	d.last[what.Kind] = what
	d.mu.Unlock()
	return d.Register.Put(ctx, key, value, version)
}

func TestAValueSaysWhatItMeans(t *testing.T) {
	r := &described{Register: memstore.NewRegister(), t: t, last: map[string]registerstore.Description{}}
	s, err := registerstore.FromRegister(r, registerstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Grant(t.Context(), "me", 7*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	places, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "c", Value: []byte("v")})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Append(t.Context(), "j", driver.Record{Key: "k"}, 1); err != nil {
		t.Fatal(err)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.last["lease"]; d.Owner != "me" || d.TTL != 7*time.Second || d.Over {
		t.Errorf("the lease: %+v", d)
	}
	if h := r.last["line"].Line.Holder; h == nil || h.Owner != "me" || h.Token != places[0].Token || h.Lease != l.ID() {
		t.Errorf("the line: %+v", h)
	}
	if _, ok := r.last["journal"]; !ok {
		t.Error("the journal is of no kind")
	}
	if _, err := registerstore.Describe("other.x", nil); err == nil {
		t.Error("a key of something else is described")
	}
	if _, err := registerstore.Describe("line.x", []byte("{")); err == nil {
		t.Error("half a value is described")
	}
}
