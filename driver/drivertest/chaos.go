package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// fight is many workers on few names, and the record of who led when.
type fight struct {
	names []string // those that only one worker has
	begun time.Time

	mu      sync.Mutex
	history []Interval
	leases  []driver.Lease
}

func chaosLeavesNothing(t *testing.T, h Harness) {
	h.Faults = nil // it brings its own, and repeats by itself: two who repeat one claim would release it for each other
	var stores []driver.Store
	var nets []FaultyStore
	for i := range 3 {
		f := Faulty(open(t, h), Faults{
			Seed: uint64(i + 1), Delay: 3 * time.Millisecond, Lag: 200 * time.Millisecond,
			Drop: 0.1, Lose: 0.1, Late: 0.1, Twice: 0.1,
		})
		stores, nets = append(stores, f), append(nets, f)
	}
	runFight(t, open(t, h), stores, 2, 6, func() {
		for _, f := range nets {
			f.Settle()
		}
	})
}

func contention(t *testing.T, h Harness) {
	runFight(t, open(t, h), []driver.Store{open(t, h), open(t, h)}, 4, 6, func() {})
}

// runFight lets workers of each store lead some terms each, then looks at what is left and at the
// history.
func runFight(t *testing.T, watches driver.Store, stores []driver.Store, workers, terms int, settle func()) {
	t.Helper()
	f := &fight{begun: time.Now()}
	shared := []string{unique(), unique()}
	ctx := soon(t)
	var all sync.WaitGroup
	for i := range workers * len(stores) {
		s := stores[i%len(stores)]
		names := append(slices.Clone(shared), unique()) // its own is free at once, so what is late comes after the release
		f.names = append(f.names, names[2])
		all.Go(func() {
			if err := f.work(ctx, s, fmt.Sprintf("worker-%d", i), names, terms); err != nil {
				t.Errorf("worker %d: %v", i, err)
			}
		})
	}
	all.Wait()
	settle()
	for _, name := range append(f.names, shared...) {
		// At once: a claim that stands now stands until its lease ends, which nobody has closed
		// yet.
		if ln := line(t, watches, name); ln.Holder != nil || len(ln.Waiters) != 0 {
			t.Errorf("line in the end = %+v, want it empty: every claim was released", ln)
		}
	}
	f.close(t)
	settle() // a Close may come twice as well
	if got := len(f.history); got == 0 && !t.Failed() {
		t.Error("nobody ever led")
	}
	if watches.Caps().Token == driver.TokenNone {
		f.number()
	}
	if err := Check(f.history); err != nil {
		t.Error(err)
	}
}

// work leads some terms under a lease of its own, which stays open: closing it would hide what it
// left behind.
func (f *fight) work(ctx context.Context, s driver.Store, who string, names []string, terms int) error {
	l, err := until(ctx, func() (driver.Lease, error) { return s.Grant(ctx, who, longTTL(s)) })
	if err != nil {
		return fmt.Errorf("grant: %w", err)
	}
	f.mu.Lock()
	f.leases = append(f.leases, l)
	f.mu.Unlock()
	for i := range terms {
		c := driver.Claim{Name: names[i%len(names)], ID: unique(), Try: i%4 == 3}
		if err := f.term(ctx, l, who, c); err != nil {
			return fmt.Errorf("term %d: %w", i, err)
		}
	}
	return nil
}

// close closes the leases of all workers.
func (f *fight) close(t *testing.T) {
	t.Helper()
	for _, l := range f.leases {
		if err := untilDone(soon(t), func() error { return l.Close(soon(t)) }); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// term claims, leads and releases, each repeated until its outcome is known.
func (f *fight) term(ctx context.Context, l driver.Lease, who string, c driver.Claim) error {
	unsure := false
	places, err := until(ctx, func() ([]driver.Place, error) {
		places, err := l.Claim(ctx, c)
		unsure = unsure || err != nil && !driver.IsFinal(err)
		return places, err
	})
	// Where one of the tries is unaccounted for, only a release by claim ID keeps it out of the
	// line for good.
	byID := driver.Place{Name: c.Name, ID: c.ID}
	if errors.Is(err, driver.ErrTaken) {
		return untilDone(ctx, func() error { return l.Release(ctx, byID) })
	}
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	held, err := Await(ctx, l, places[0])
	if err != nil {
		return err
	}
	from := time.Since(f.begun)
	if err := untilDone(ctx, func() error { return l.Update(ctx, held, []byte(who)) }); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	f.record(Interval{Name: c.Name, Token: held.Token, Who: who, From: from, To: time.Since(f.begun)})
	if unsure {
		held = byID
	}
	return untilDone(ctx, func() error { return l.Release(ctx, held) })
}

func (f *fight) record(in Interval) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.history = append(f.history, in)
}

// number gives tokens to a history of a store without tokens, so that only overlaps are found in
// it.
func (f *fight) number() {
	slices.SortFunc(f.history, func(a, b Interval) int { return cmp.Compare(a.From, b.From) })
	for i := range f.history {
		f.history[i].Token = uint64(i + 1)
	}
}
