package etcdstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// TestKeep: a value is written over the version that its writer read, while the writer's claim
// stands, and by nobody else.
func TestKeep(t *testing.T) {
	t.Parallel()
	ctx, s := soon(t), open(t, etcdtest.Start(t, etcdtest.Options{}).Addr())
	l := grant(t, s, "a", 5*time.Minute)
	p := claim(t, l, "postgres/orders")
	key, err := s.ClaimKey(ctx, p.Name, p.Token)
	if err != nil {
		t.Fatal(err)
	}
	if value, version, err := s.Kept(ctx, p.Name); err != nil || value != nil || version != 0 {
		t.Fatalf("before anything was written: got %q, %d, %v", value, version, err)
	}
	first, ok, err := s.Keep(ctx, p.Name, []byte("one"), 0, key, p.Token)
	if err != nil || !ok {
		t.Fatalf("the first write: got %v, %v", ok, err)
	}
	if _, ok, err := s.Keep(ctx, p.Name, []byte("two"), 0, key, p.Token); err != nil || ok {
		t.Errorf("a write over nothing, where something stands: got %v, %v, want false, nil", ok, err)
	}
	second, ok, err := s.Keep(ctx, p.Name, []byte("two"), first, key, p.Token)
	if err != nil || !ok {
		t.Fatalf("the second write: got %v, %v", ok, err)
	}
	release(t, l, p)
	if _, _, err := s.Keep(ctx, p.Name, []byte("three"), second, key, p.Token); !errors.Is(err, driver.ErrGone) {
		t.Errorf("a write of a claim that is gone: got %v, want ErrGone", err)
	}
	next := claim(t, l, p.Name)
	if _, _, err := s.Keep(ctx, p.Name, []byte("three"), second, key, p.Token); !errors.Is(err, driver.ErrGone) {
		t.Errorf("a write of a former term of the same session: got %v, want ErrGone", err)
	}
	if value, version, err := s.Kept(ctx, p.Name); err != nil || string(value) != "two" || version != second {
		t.Errorf("at the end: got %q, %d, %v, want two, %d", value, version, err, second)
	}
	if _, ok, err := s.Keep(ctx, p.Name, []byte("three"), second, key, next.Token); err != nil || !ok {
		t.Errorf("a write of the next term: got %v, %v", ok, err)
	}
}

// TestRaw: a key of another program is written only over the version that was read.
func TestRaw(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	ctx, r := soon(t), open(t, srv.Addr()).Raw()
	const key = "/service/orders/config"
	if value, version, err := r.Get(ctx, key); err != nil || value != nil || version != 0 {
		t.Fatalf("before anything was written: got %q, %d, %v", value, version, err)
	}
	first, ok, err := r.Put(ctx, key, []byte("one"), 0)
	if err != nil || !ok {
		t.Fatalf("the first write: got %v, %v", ok, err)
	}
	if _, ok, err := r.Put(ctx, key, []byte("two"), 0); err != nil || ok {
		t.Errorf("a write over nothing, where something stands: got %v, %v, want false, nil", ok, err)
	}
	if _, err := plainClient(t, srv.Endpoint()).Put(ctx, key, "theirs"); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := r.Put(ctx, key, []byte("two"), first); err != nil || ok {
		t.Errorf("a write over what another program has written meanwhile: got %v, %v, want false, nil", ok, err)
	}
	if value, version, err := r.Get(ctx, key); err != nil || string(value) != "theirs" || version <= first {
		t.Errorf("at the end: got %q, %d, %v", value, version, err)
	}
}
