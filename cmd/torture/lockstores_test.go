//go:build linux

package torture

import (
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLockHistoriesOnStores is TestLockHistories on every other store, with the troubles of its servers. One without tokens has no locks but mutexes.
func TestLockHistoriesOnStores(t *testing.T) {
	t.Parallel()
	d, seed := forHow(t, "LOCKS_FOR", 10*time.Second), newSeed(t)
	short := d < time.Minute
	t.Logf("TORTURE_SEED=%d LOCKS_FOR=%v", seed, d)
	var all sync.WaitGroup
	for _, under := range chosen(t) {
		if short && under.long && os.Getenv("TORTURE_STORE") == "" {
			continue
		}
		all.Go(func() {
			t.Run(under.name, func(t *testing.T) { locksOn(t, under, seed, d, short) })
		})
	}
	all.Wait()
}

func locksOn(t *testing.T, under *storeUnder, seed uint64, d time.Duration, short bool) {
	s := bareStage(t, seed, under.ttl)
	s.store = under.start(t)
	processes, loops := 6, 4
	if short {
		processes, loops = 3, 2
	}
	kinds := lockKinds
	if under.noTokens {
		kinds = []string{kindBare}
	}
	l := s.addLocks("locks", processes, strings.Join(kinds, ","), loops, "primacy")
	s.runLocks(s.store.lanes(short), d)
	s.expectLocks(l, kinds, short)
	if t.Failed() {
		t.Logf("this run: TORTURE_SEED=%d TORTURE_STORE=%s", seed, under.name)
		s.keep()
	}
}

// lanes are the faults of processes and links, and those of the store's servers.
func (i *installed) lanes(short bool) []lane {
	row := lockLanes(short)
	for n := range row {
		if row[n].name == "members" {
			row[n].kinds, row[n].most = nil, 8*time.Second
			for _, tr := range i.troubles {
				row[n].kinds = append(row[n].kinds, tr.harm())
			}
		}
	}
	return row
}

// harm is the trouble as the long torture has it.
func (tr trouble) harm() harm {
	return harm{tr.name, false, func(_ *stage, l *line, rng *rand.Rand) (string, error) {
		end := tr.begin(rng)
		time.Sleep(between(rng, 0, l.ttl*3/2))
		end()
		return "", nil
	}}
}
