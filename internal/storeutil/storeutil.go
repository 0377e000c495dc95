// Package storeutil has what every store needs and no store should write again: which claim IDs
// were given up, what a lease has one claim for, and how to wait before another try. It knows the
// port and nothing else of ours.
package storeutil

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Seat is what a lease has at most one claim for.
type Seat struct{ Name, Seat string }

// SeatOf returns the seat of a claim.
func SeatOf(c driver.Claim) Seat { return Seat{c.Name, c.Seat} }

// SeatAt returns the seat of a place.
func SeatAt(p driver.Place) Seat { return Seat{p.Name, p.Seat} }

// SpentIDs remembers the claim IDs of one lease that were given up: a Claim of such an ID that is
// called late, or is still under way, must not enter, since nobody would release it again. The zero
// value is empty. It is not safe for concurrent use.
//
// It knows at least the last 100,000 IDs and at most twice as many. A lease that gives up so many
// has made as many calls since, and a call is over long before that: each has a time limit, here or
// in the server. So the limit is there only to bound memory, and stores whose own limit was smaller
// lose nothing. An ID costs some 20 bytes, since its hash is kept and not its text. Two IDs of one
// hash, which makes a claim fail with ErrGone and nothing worse, come about once in 10^14 claims.
type SpentIDs struct {
	seed   maphash.Seed
	recent map[uint64]struct{}
	older  map[uint64]struct{} // dropped when recent is full
}

// generation is how many IDs recent holds at most.
const generation = 100_000

// Add remembers an ID.
func (s *SpentIDs) Add(id string) {
	if s.recent == nil {
		s.seed, s.recent = maphash.MakeSeed(), map[uint64]struct{}{}
	}
	if len(s.recent) >= generation {
		s.older, s.recent = s.recent, map[uint64]struct{}{}
	}
	s.recent[maphash.String(s.seed, id)] = struct{}{}
}

// Has says whether an ID was added and is still known.
func (s *SpentIDs) Has(id string) bool {
	if s.recent == nil {
		return false
	}
	h := maphash.String(s.seed, id)
	_, recent := s.recent[h]
	_, older := s.older[h]
	return recent || older
}

// Remove forgets an ID: it was not given up after all.
func (s *SpentIDs) Remove(id string) {
	if s.recent == nil {
		return
	}
	h := maphash.String(s.seed, id)
	delete(s.recent, h)
	delete(s.older, h)
}

// Sleep waits for d, or returns the error of ctx if that ends before.
func Sleep(ctx context.Context, d time.Duration) error { return WaitFor(ctx, d, nil) }

// WaitFor waits for a signal, which may be nil, but no longer than d. It returns an error only if
// ctx ended: that of ctx.
func WaitFor(ctx context.Context, d time.Duration, signal <-chan struct{}) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-signal:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// Backoff returns how long to wait after so many failed tries, from 1: a random time between half
// of and all of first, doubled with each further try up to limit. The chance keeps callers that
// failed together from coming back together.
func Backoff(tries int, first, limit time.Duration) time.Duration {
	d := limit
	if n := max(tries, 1) - 1; n < 32 && first<<n>>n == first { // not beyond what a Duration can hold
		d = min(first<<n, limit)
	}
	return d/2 + rand.N(d/2+1)
}

// Signal gives a signal to a channel that holds one, without blocking.
func Signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
