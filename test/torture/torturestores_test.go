//go:build linux

package torture

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestTortureOnStores is TestTorture and TestLockHistories at once on every other store, with the
// troubles of its servers: a line of `primacy run` and library processes, and processes that
// contend for locks. Leaders are asked to hand over where the store can. One without tokens has no
// locks but mutexes.
func TestTortureOnStores(t *testing.T) {
	if os.Getenv("TORTURE_FOR") == "" && os.Getenv("TORTURE_STORE") == "" && !testing.Short() {
		t.Skip("a run of its own: make stores; each fault of it is in TestRunOnStores too")
	}
	t.Parallel()
	d, seed := forHow(t, "TORTURE_FOR", 6*time.Second), newSeed(t)
	t.Logf("TORTURE_SEED=%d TORTURE_FOR=%v", seed, d)
	var all sync.WaitGroup
	stores := chosen(t)
	processors := make(chan struct{}, runtime.NumCPU()) // with more stores than that no lease is renewed in time
	for _, under := range stores {
		if d < time.Minute && under.long && os.Getenv("TORTURE_STORE") == "" {
			continue
		}
		torture := func() {
			t.Run(under.name, func(t *testing.T) { tortureOn(t, under, seed, d, len(stores) == 1) })
		}
		if testing.Short() { // beside the tests of other packages: one after the other
			torture()
		} else {
			all.Go(func() {
				processors <- struct{}{}
				defer func() { <-processors }()
				torture()
			})
		}
	}
	all.Wait()
}

// tortureOn tortures one store. Alone on the machine, and for five minutes, it also demands that
// the faults met enough holders to show something; beside others a lock is waited for too long for
// that.
func tortureOn(t *testing.T, under *storeUnder, seed uint64, d time.Duration, alone bool) {
	s, short := emptyTorture(t, seed, under.ttl), d < time.Minute
	s.store, s.spare, s.rates = under.start(t), under.spare, under.timed
	processes, loops, kinds, row := 5, 4, lockKinds, s.store.lanes(short)
	if short {
		processes, loops = 3, 2
	}
	if under.noTokens {
		kinds = []string{kindBare}
	} else {
		s.asker = s.store.session(t, s.ttl)
		row = append(row, s.store.transfers())
	}
	candidates := s.addLine("torture", []string{kindRun, kindPrimacy, kindRun, kindPrimacy, kindPrimacy}[:processes]...)
	locks := s.addLocks("locks", processes, strings.Join(kinds, ","), loops, "primacy")
	s.runLocks(row, d, locks, kinds)
	v, err := judge(candidates)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + s.table([]*verdict{v}, under.name))
	s.expect(v, false)
	s.expectLocks(locks, kinds, !alone || d < 5*time.Minute) // several lines share the faults
	s.expectNobody("torture")
	if !short {
		fmt.Fprintf(os.Stderr, "torture: %s: %d faults of %d kinds in %v, %d terms, %d overlaps, %d writes "+
			"acknowledged, %d lost\n", under.name, len(s.injected),
			len(s.kinds()), d, len(v.terms), len(v.overlaps), v.acknowledged, v.lost)
	}
	if t.Failed() {
		t.Logf("this run: TORTURE_SEED=%d TORTURE_STORE=%s", seed, under.name)
		s.keep()
	}
}

// lanes are the faults of processes and links, and those of the store's servers.
func (i *installed) lanes(short bool) []lane {
	row := lockLanes(short)
	for n := range row {
		switch row[n].name {
		case "members":
			row[n].kinds, row[n].most = nil, 8*time.Second
			for _, tr := range i.troubles {
				row[n].kinds = append(row[n].kinds, tr.fault())
			}
		case "processes":
			row[n].kinds = append(row[n].kinds, aimed("frozen with a write on its way")...)
		}
	}
	return row
}

// transfers are the hand-overs of transferLane but for what only etcd has.
func (i *installed) transfers() lane {
	la := transferLane()
	la.kinds = slices.DeleteFunc(la.kinds, func(h fault) bool { return strings.Contains(h.name, "etcd") })
	return la
}

// fault is the trouble as the long torture has it.
func (tr trouble) fault() fault {
	return fault{tr.name, false, func(_ *torture, l *line, rng *rand.Rand) (string, error) {
		end := tr.begin(rng)
		time.Sleep(between(rng, 0, l.ttl*3/2))
		end()
		return "", nil
	}}
}
