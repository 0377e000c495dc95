package primacy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// bubble runs f in fake time with a store and a way to open sessions on it whose boot clock is the
// fake one.
func bubble(t *testing.T, f func(t *testing.T, b *world)) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		b := &world{t: t, store: memstore.New(memstore.Options{}), clock: func() time.Duration {
			return time.Since(start) + time.Hour
		}}
		f(t, b)
	})
}

type world struct {
	t     *testing.T
	store *memstore.Store
	clock func() time.Duration
}

func (b *world) session(id string, on driver.Store, o Options) *Session {
	b.t.Helper()
	if o.ID = id; o.TTL == 0 {
		o.TTL = 10 * time.Second
	}
	s, err := newSession(on, o, b.clock)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { // runs inside the bubble
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Close(ctx)
		time.Sleep(time.Minute) // leases that were left to run out end their goroutines
	})
	return s
}

func (b *world) lead(s *Session, name string) *Term {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	term, err := s.Election(name).Campaign(ctx, &CampaignOptions{Value: []byte("v-" + s.ID())})
	if err != nil {
		b.t.Fatal(err)
	}
	return term
}

// broken is a store whose Renew can be made to hang for ever, deaf to its context, as a bad client
// library does.
type broken struct {
	*memstore.Store
	hang atomic.Pointer[chan struct{}] // while not nil, renewals wait for it
}

type brokenLease struct {
	driver.Lease
	b *broken
}

func (b *broken) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := b.Store.Grant(ctx, owner, ttl)
	return &brokenLease{l, b}, err
}

func (l *brokenLease) Renew(ctx context.Context) error {
	err := l.Lease.Renew(ctx)
	if c := l.b.hang.Load(); c != nil {
		<-*c
	}
	return err
}

func wantEnded(t *testing.T, err error, cause error, by, reason string) {
	t.Helper()
	var e *EndedError
	if !errors.As(err, &e) || !errors.Is(err, cause) || e.By != by || e.Reason != reason {
		t.Errorf("got %v, want %v", err, fmt.Sprintf("%v, by %q (%s)", cause, by, reason))
	}
}

// hooked is a store whose lease calls can be replaced one by one; nil fields pass through.
type hooked struct {
	driver.Store
	claim  func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error)
	follow func(l driver.Lease, p ...driver.Place)
	news   func(l driver.Lease, ctx context.Context) ([]driver.News, error)
}

type hookedLease struct {
	driver.Lease
	h *hooked
}

func (h *hooked) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := h.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &hookedLease{l, h}, nil
}

func (l *hookedLease) Claim(ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
	if l.h.claim != nil {
		return l.h.claim(l.Lease, ctx, c...)
	}
	return l.Lease.Claim(ctx, c...)
}

func (l *hookedLease) Follow(p ...driver.Place) {
	if l.h.follow != nil {
		l.h.follow(l.Lease, p...)
		return
	}
	l.Lease.Follow(p...)
}

func (l *hookedLease) News(ctx context.Context) ([]driver.News, error) {
	if l.h.news != nil {
		return l.h.news(l.Lease, ctx)
	}
	return l.Lease.News(ctx)
}

// noNews hears nothing until its context ends: the push is slow, as after a reconnect.
func noNews(_ driver.Lease, ctx context.Context) ([]driver.News, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// past reads the history of a name.
func (b *world) past(name string, limit int) []TermRecord {
	b.t.Helper()
	s, err := newSession(b.store, Options{}, b.clock)
	if err != nil {
		b.t.Fatal(err)
	}
	all, err := s.Election(name).History(context.Background(), limit)
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// remove takes a claim out of the store, as an operator does.
func (b *world) remove(t *Term) {
	b.t.Helper()
	if !b.store.Remove(t.Name(), uint64(t.Token())) {
		b.t.Fatalf("no claim of %s to remove", t.Name())
	}
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// What each rule of the locks is held by, one test for each. None waits for ever when its rule is
// broken: a mutation has to fail, not to hang.

// slow is a store whose answers to Claim, and its news that a place is held, come late, while
// something else happens.
type slow struct {
	driver.Store
	claim, news func() // called between the store's answer and its arrival; nil: at once
}

type slowLease struct {
	driver.Lease
	s *slow
}

func (s *slow) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &slowLease{l, s}, nil
}

func (l *slowLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	if f := l.s.claim; f != nil {
		f()
	}
	return places, err
}

func (l *slowLease) News(ctx context.Context) ([]driver.News, error) {
	news, err := l.Lease.News(ctx)
	if f := l.s.news; f != nil && err == nil && news[0].Held {
		f()
	}
	return news, err
}

// later locks on a goroutine of its own, for at most a minute.
func later(t *testing.T, lock func(ctx context.Context) (*Term, error)) <-chan *Term {
	got := make(chan *Term, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		term, err := lock(ctx)
		if err != nil {
			t.Errorf("not had: %v", err)
		}
		got <- term
	}()
	synctest.Wait()
	return got
}

// soon is what has come after d, nil if nothing has.
func soon(got <-chan *Term, d time.Duration) *Term {
	select {
	case term := <-got:
		return term
	case <-time.After(d):
		return nil
	}
}

// nothingLeft wants a session that keeps nothing of the locks it had.
func nothingLeft(t *testing.T, s *Session) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queues)+len(s.seats.taken) > 0 {
		t.Errorf("%s keeps %d queues and %d seats", s.ID(), len(s.queues), len(s.seats.taken))
	}
}

func laterErr(f func(ctx context.Context) (*Term, error), ctx context.Context) chan error {
	got := make(chan error, 1)
	go func() {
		term, err := f(ctx)
		if term != nil {
			defer term.Resign(context.Background())
		}
		got <- err
	}()
	return got
}

// holds wants a line that one claim holds, or nobody.
func (b *world) holds(name string, want uint64) {
	b.t.Helper()
	synctest.Wait()
	ln := must[driver.Line](b.t)(b.store.Line(context.Background(), name))
	if ln.Holder == nil && want != 0 || ln.Holder != nil && ln.Holder.Token != want {
		b.t.Errorf("%s is held by %+v, want the claim %d", name, ln.Holder, want)
	}
}

func (b *world) emptyLines(names ...string) {
	b.t.Helper()
	for _, name := range names {
		if line, _ := b.store.Line(context.Background(), name); line.Holder != nil {
			b.t.Errorf("a claim stands on %s: %+v", name, *line.Holder)
		}
	}
}

// rounds repeats a race on the real clock for a while.
func rounds(t *testing.T, f func(i int)) {
	for i, until := 0, time.Now().Add(300*time.Millisecond); time.Now().Before(until) && !t.Failed(); i++ {
		f(i)
	}
}

// outside is a session outside a bubble, where real races happen.
func outside(t *testing.T) *Session {
	s := must[*Session](t)(NewSession(memstore.New(memstore.Options{}), &Options{ID: "a", TTL: 30 * time.Second}))
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// plain is a store that cannot carry requests or hand over.
type plain struct{ driver.Store }

type plainLease struct{ driver.Lease }

func (s plain) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return plainLease{l}, err
}
