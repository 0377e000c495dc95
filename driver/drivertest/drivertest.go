// Package drivertest holds a store to the port: the clauses of package driver are tests here, each
// named as a sentence. What it cannot see from outside stays with the store's own tests: a Renew
// answered by a leader of the store's cluster that was deposed, claims that other programs entered,
// clients that Store.Close must leave open, and [driver.ErrRefused].
//
//	func TestConformance(t *testing.T) {
//		addr := startServer(t)
//		drivertest.Run(t, drivertest.Harness{
//			Open: func(t testing.TB) driver.Store { return open(t, addr) },
//			TTL:  2 * time.Second,
//		})
//	}
//
// Beside the suite: [Faulty] does to the calls of any store what networks do, [NewProxy] cuts a
// connection silently, and [Check] finds two leaders in a history.
//
// docs/new-store.md leads through writing a store, and says what its own tests must see beside the
// suite.
//
// Import this package from tests only. It imports testing, and no user's binary may contain it.
package drivertest

import (
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Harness is what the suite needs to know about a store. Only Open is required. Clauses that need a
// hook which is nil are skipped, and say so.
type Harness struct {
	// Open returns a new client of the storage under test. All calls share one storage, so that the
	// suite can look at what one client did through another. The suite closes the store. The
	// storage need not be empty: names are random.
	Open func(t testing.TB) driver.Store

	// TTL is the ttl of leases that are meant to end: short, because the suite waits for it, but
	// long enough that a busy machine still renews in time. Default 2 s, and at least the store's
	// MinTTL.
	TTL time.Duration

	// Remove deletes the claim with that token from the line of name behind the back of the store,
	// as an operator would by hand. It must not end the claim's lease.
	Remove func(t testing.TB, name string, token uint64)

	// Cut returns a new client of the same storage, and a switch that cuts it off and heals it:
	// packets vanish silently while connections stay open. See [NewProxy].
	Cut func(t testing.TB) (s driver.Store, cut func(bool))

	// Restart stops the storage and starts it again with its data. Clients stay open. It runs when
	// no other clause does.
	Restart func(t testing.TB)

	// Faults, if set, runs each clause through [Faulty], with a caller above who repeats what was
	// answered with an unknown error. Late and Twice stay 0 here: they may move an Update behind a
	// later one, which the port allows and clauses about values do not expect.
	Faults *Faults
}

// Clause is one sentence of the port and the test that holds a store to it.
type Clause struct {
	Name  string
	Check func(t *testing.T, h Harness)

	slow  bool // waits for the end of a lease; started first
	alone bool // disturbs all clients of the storage
}

// Clauses returns the whole suite. Most stores call [Run] instead; this is for a store in memory,
// which runs each clause in its own testing/synctest bubble, where subtests are not allowed.
func Clauses() []Clause {
	var all []Clause
	for _, some := range [][]Clause{
		leaseClauses, claimClauses, waitClauses, releaseClauses, updateClauses, lineClauses, newsClauses, seatClauses, sharedClauses,
		semaphoreClauses, transferClauses,
		followClauses, exchangeClauses, journalClauses, recordClauses,
		callClauses, restartClauses,
	} {
		all = append(all, some...)
	}
	return all
}

// Run runs the suite as subtests of t. Clauses run beside each other, since most of the time they
// wait for leases to end; those that disturb the storage run last, one by one.
func Run(t *testing.T, h Harness) {
	var slow, fast, alone []Clause
	for _, c := range Clauses() {
		switch {
		case c.alone:
			alone = append(alone, c)
		case c.slow:
			slow = append(slow, c)
		default:
			fast = append(fast, c)
		}
	}
	// Not t.Parallel: that runs no more tests at once than there are processors, and these need
	// none while they wait.
	var all sync.WaitGroup
	beside := make(chan struct{}, 16)
	for _, c := range append(slow, fast...) {
		beside <- struct{}{}
		all.Go(func() {
			defer func() { <-beside }()
			t.Run(c.Name, func(t *testing.T) { c.Check(t, h) })
		})
	}
	all.Wait()
	for _, c := range alone {
		t.Run(c.Name, func(t *testing.T) { c.Check(t, h) })
	}
}
