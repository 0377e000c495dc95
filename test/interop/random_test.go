//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// tally is what one kind came to in a random run.
type tally struct {
	turns, held, gaveUp, taken, died int
	wait                             time.Duration // the longest, of those that held
}

// TestMixedRun: two of each kind, and readers, contend for one line for 25 s (8 s with -short;
// INTEROP_FOR sets another time), with turns that are given up and programs that are killed. Nobody
// acts beside or before another, each kind gets its share, and nothing is left.
func TestMixedRun(t *testing.T) {
	t.Parallel()
	length := 25 * time.Second
	if testing.Short() {
		length = 8 * time.Second
	}
	if text := os.Getenv("INTEROP_FOR"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("INTEROP_FOR=%q: %v", text, err)
		}
	}
	w := newWorld(t)
	t.Cleanup(func() {
		if t.Failed() {
			w.trace.show(w)
		}
	})
	w.program() // built before the clock runs
	following, stop := context.WithCancel(context.Background())
	defer stop()
	go w.follow(following, limit/2)
	r := &mixed{w: w, tallies: map[string]*tally{}}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(context.Background(), length)
	defer cancel()
	var workers sync.WaitGroup
	more := []kind{ourReader, ourReader, ourLockShared, ourTogether, ourTogether}
	for i, k := range slices.Concat(kinds, kinds, more, tries) {
		id := w.nextID(k)
		stand := k.join(w, id)
		w.trace.note("%s has joined", id)
		rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(i)))
		workers.Go(func() { r.work(k, stand, rng) })
	}
	workers.Wait()
	stop()
	w.close()
	w.empty(limit + shortTTL*time.Second)
	r.report(len(w.judge()))
}

// mixed is a random run.
type mixed struct {
	w   *world
	ctx context.Context

	mu      sync.Mutex
	tallies map[string]*tally
}

// work is a participant that stands again and again.
func (r *mixed) work(k kind, stand stander, rng *rand.Rand) {
	for r.ctx.Err() == nil {
		began := time.Now()
		tn := r.w.begin(k, r.w.nextID(k), stand)
		waited := r.turn(tn, rng)
		ended := waitFor(tn.done, 2*limit)
		r.note(k, func(t *tally) {
			t.turns++
			switch {
			case !ended:
				r.w.Errorf("%s has not ended after %v", tn.id, time.Since(began))
			case errors.Is(tn.err, errTaken):
				t.taken++
			case errors.Is(tn.err, errDied):
				t.died++
			case tn.err != nil:
				r.w.Errorf("%s: %v", tn.id, tn.err)
			case waited < 0:
				t.gaveUp++
			}
			if waited >= 0 {
				t.held++
				t.wait = max(t.wait, waited)
			}
		})
		if !ended || tn.err != nil && !errors.Is(tn.err, errTaken) && !errors.Is(tn.err, errDied) {
			return
		}
		time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
	}
}

// turn sees one turn to where it is told to end, and returns how long it waited, or -1 if it never
// held.
func (r *mixed) turn(tn *turn, rng *rand.Rand) time.Duration {
	began := time.Now()
	kill := tn.kind.isProgram() && tn.kind.dies == leased && rng.IntN(40) == 0
	patience := 2 * limit
	if rng.IntN(8) == 0 {
		patience = time.Duration(rng.IntN(600)) * time.Millisecond
	}
	select {
	case <-tn.held:
	case <-tn.done:
		return -1
	case <-time.After(patience):
		if kill {
			tn.die()
		} else {
			r.w.trace.note("%s is told to give up after %v", tn.id, time.Since(began))
			tn.quit()
		}
		tn.tellLeave() // it may have won at this moment
		return r.wonAtLast(tn, began)
	}
	waited := time.Since(began)
	time.Sleep(time.Duration(rng.IntN(15)) * time.Millisecond)
	if kill {
		tn.die()
	} else {
		tn.tellLeave()
	}
	return waited
}

// wonAtLast says how long one waited that was told to give up, and won all the same; -1 if it did
// not.
func (r *mixed) wonAtLast(tn *turn, began time.Time) time.Duration {
	if !waitFor(tn.done, 2*limit) {
		return -1
	}
	select {
	case <-tn.held:
		return time.Since(began)
	default:
		return -1
	}
}

func waitFor(done <-chan struct{}, limit time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

func (r *mixed) note(k kind, do func(*tally)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tallies[k.name]
	if t == nil {
		t = &tally{}
		r.tallies[k.name] = t
	}
	do(t)
}

// report shows what came of it, and fails the test if a kind that waits never held the line. How
// often it does depends on how long its programs take to start.
func (r *mixed) report(terms int) {
	var b strings.Builder
	held := 0
	for _, name := range slices.Sorted(maps.Keys(r.tallies)) {
		t := r.tallies[name]
		held += t.held
		fmt.Fprintf(&b, "%-24s %5d turns: held %d, gave up %d, taken %d, died %d; longest wait %v\n",
			name, t.turns, t.held, t.gaveUp, t.taken, t.died, t.wait.Round(time.Millisecond))
	}
	for name, t := range r.tallies {
		if t.held == 0 && !strings.Contains(name, "Try") && !testing.Short() { // chance decides in a short run
			r.w.Errorf("%s never held the line, of %d terms", name, held)
		}
	}
	r.w.Logf("%d terms\n%s", held, b.String())
	if terms < held { // a command may have acted, and been told to stop before it said so
		r.w.Errorf("the judge saw %d terms, but %d were had", terms, held)
	}
}
