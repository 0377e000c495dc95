// Package memstore is a store in the memory of one process: the reference for people who write a
// store, and the store for tests of programs that use Primacy. Nothing outlives the process and no
// other process sees it.
//
// Read it first. A store is a map of lines and some leases; each method of the port is one step
// under one mutex:
//
//	Store ──► line "db-primary":  claim 7 (holds) ◄─ claim 9 (waits) ◄─ claim 12 (waits)
//	  │                              │                   │                   │
//	  └─────► lease a (timer) ───────┴───────────────────│───────────────────┘
//	  └─────► lease b (timer) ───────────────────────────┘
//
// Leases end by time.AfterFunc, so testing/synctest moves them, and the deadlines of sessions with
// them: a test of a program that leads for an hour takes no time. Call New and primacy.NewSession
// inside the bubble, and close the session before it ends.
//
//	synctest.Test(t, func(t *testing.T) {
//		s, err := primacy.NewSession(memstore.New(memstore.Options{}), nil)
//		…
//		defer s.Close(context.Background())
//
// [Options.Rate] makes the store's clock run fast or slow against the caller's, [Store.Partition],
// [Store.Expire] and [Store.Remove] do what networks and operators do.
package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// Options sets a store up. The zero value works.
type Options struct {
	// Rate is how fast the store's clock runs against the caller's: 1.05 is 5 % fast, so a lease of
	// 10 s ends after 9.52 s. Default 1.
	Rate float64
	// MinTTL is the least ttl; a shorter one is rounded up to it. Default 1 ms.
	MinTTL time.Duration
	// MaxTTL is the largest ttl; a longer one is refused. Default 24 h.
	MaxTTL time.Duration
}

// Store keeps leases and lines in memory. It implements driver.Store, driver.Asker
// and driver.Journal. All who share the value are clients of one storage.
type Store struct {
	opts Options

	mu    sync.Mutex
	count uint64                   // the last revision, token or lease ID given out: one counter, so all of them only grow
	lines map[string]*line         // never shrinks: a line that is forgotten would start its revisions again
	cut   map[string]chan struct{} // owners who cannot reach the store; closed when they can again

	journals map[string]map[string][]byte // records by journal and key
}

var (
	_ driver.Store   = (*Store)(nil)
	_ driver.Asker   = (*Store)(nil)
	_ driver.Journal = (*Store)(nil)
)

// New returns an empty store. It panics if o contradicts itself, which no test should be able to
// overlook.
func New(o Options) *Store {
	if o.Rate == 0 {
		o.Rate = 1
	}
	if o.MinTTL == 0 {
		o.MinTTL = time.Millisecond
	}
	if o.MaxTTL == 0 {
		o.MaxTTL = 24 * time.Hour
	}
	if o.Rate < 0 || o.MinTTL < 0 || o.MaxTTL < o.MinTTL {
		panic(fmt.Sprintf("memstore: Rate must be positive and MinTTL <= MaxTTL, got %+v", o))
	}
	// The count starts at 1 because revision 0 means "older than every line", also than one never
	// used.
	return &Store{opts: o, count: 1, lines: map[string]*line{}, cut: map[string]chan struct{}{}, journals: map[string]map[string][]byte{}}
}

// Caps tells what the store does. It promises tokens only until loss: a new process counts from the
// start again.
func (s *Store) Caps() driver.Caps {
	return driver.Caps{
		Store:         "memory",
		FIFO:          true,
		Token:         driver.TokenUntilLoss,
		Push:          true,
		ExpiryPush:    true,
		SharedRenewal: true,
		Shared:        true,
		AtomicBatch:   true,
		Linearizable:  true,
		ProcessClock:  true,
		MinTTL:        s.opts.MinTTL,
		MaxTTL:        s.opts.MaxTTL,
		Warnings:      []string{"the memory store is seen by this process only and ends with it"},
	}
}

// Grant makes a lease that ends ttl after its last renewal, on the store's clock.
func (s *Store) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 || ttl > s.opts.MaxTTL {
		return nil, fmt.Errorf("ttl %v is not between 0 and %v: %w", ttl, s.opts.MaxTTL, driver.ErrRefused)
	}
	l := &lease{
		store: s, owner: owner, ttl: max(ttl, s.opts.MinTTL),
		claims: map[storeutil.Seat]*claim{}, told: make(chan struct{}),
	}
	err := s.do(ctx, owner, func() error {
		l.id = strconv.FormatUint(s.next(), 16)
		l.start()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Line returns the line of name as it stands now.
func (s *Store) Line(ctx context.Context, name string) (ln driver.Line, err error) {
	err = s.do(ctx, "", func() error {
		ln = s.line(name).show()
		return nil
	})
	return ln, err
}

// Next blocks until the line of name is newer than after, and returns it.
func (s *Store) Next(ctx context.Context, name string, after uint64) (ln driver.Line, err error) {
	err = s.until(ctx, "", func() (<-chan struct{}, error) {
		now := s.line(name)
		if now.revision <= after {
			return now.changed, nil
		}
		ln = now.show()
		return nil, nil
	})
	return ln, err
}

// Lines returns the lines in which somebody stands whose name begins with prefix, by name.
func (s *Store) Lines(ctx context.Context, prefix string) (all []driver.Line, err error) {
	err = s.do(ctx, "", func() error {
		for _, name := range slices.Sorted(maps.Keys(s.lines)) {
			if ln := s.lines[name]; strings.HasPrefix(name, prefix) && len(ln.claims) > 0 {
				all = append(all, ln.show())
			}
		}
		return nil
	})
	return all, err
}

// Ask brings r to the lease that holds name under r.Token.
func (s *Store) Ask(ctx context.Context, name string, r driver.Request) error {
	return s.do(ctx, "", func() error {
		holder := s.line(name).holder()
		if holder == nil || holder.token != r.Token {
			return driver.ErrGone
		}
		if holder.slots != 0 {
			return fmt.Errorf("%s is shared: nobody holds it alone: %w", name, driver.ErrRefused)
		}
		holder.lease.tell(driver.News{Place: holder.place(), Request: &r})
		return nil
	})
}

// Close does nothing: leases stay until they end.
func (s *Store) Close() error { return nil }

// Expire ends the lease that holds name as if its ttl had passed, and reports whether there was
// one.
func (s *Store) Expire(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	holder := s.line(name).holder()
	if holder != nil {
		holder.lease.end()
	}
	return holder != nil
}

// Remove deletes the claim with that token from the line of name, as an operator would by hand: its
// lease lives on and hears of it by News. It reports whether there was one.
func (s *Store) Remove(name string, token uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.line(name).claims {
		if c.token == token {
			s.depose(c)
			return true
		}
	}
	return false
}

// Partition cuts owner off, or heals it. While it lasts, every call for a lease of owner hangs
// until its context ends, and no answer arrives, not even of a News that began before. Calls that
// still hang when it heals reach the store then.
func (s *Store) Partition(owner string, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	healed := s.cut[owner]
	switch {
	case cut && healed == nil:
		s.cut[owner] = make(chan struct{})
	case !cut && healed != nil:
		close(healed)
		delete(s.cut, owner)
	}
}

// do runs f as one step of the store, as soon as owner can reach it. An error that is not f's means
// that f did not run.
func (s *Store) do(ctx context.Context, owner string, f func() error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		healed := s.cut[owner]
		if healed == nil {
			defer s.mu.Unlock()
			return f()
		}
		s.mu.Unlock()
		select {
		case <-healed:
		case <-ctx.Done():
		}
	}
}

// until runs f as one step, and again after each signal that f tells it to wait for. What f saw
// before a signal is not carried over: the signal says only that it is worth looking again. In
// memory no signal is lost, so no timer is needed beside it; a store behind a network needs one.
func (s *Store) until(ctx context.Context, owner string, f func() (wait <-chan struct{}, err error)) error {
	for {
		var wait <-chan struct{}
		err := s.do(ctx, owner, func() (err error) {
			wait, err = f()
			return err
		})
		if err != nil || wait == nil {
			return err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next counts one up. The caller has the mutex, as in all that follows in this package.
func (s *Store) next() uint64 {
	s.count++
	return s.count
}
