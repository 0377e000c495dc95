//go:build linux

package torture

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// storeTTL is the ttl of candidates in short runs on stores.
const storeTTL = 3 * time.Second

// stores are the ways to set up a store in which TestRunOnStores injects faults into leaders.
// TestRun has etcd.
func stores() []*storeUnder {
	return []*storeUnder{onPostgres(), onPostgresPair(), onRedis(), onRedisPair(), onQuorum(), onZooKeeper(),
		onEnsemble(), onKubernetes()}
}

// chosen are the stores that TORTURE_STORE names, or all.
func chosen(t testing.TB) (some []*storeUnder) {
	names := os.Getenv("TORTURE_STORE")
	if names == "" {
		return stores()
	}
	all := append(stores(), onEtcd())
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(all, func(u *storeUnder) bool { return u.name == name })
		if i < 0 {
			var known []string
			for _, u := range all {
				known = append(known, u.name)
			}
			t.Fatalf("TORTURE_STORE=%q: want some of %s", names, strings.Join(known, ","))
		}
		some = append(some, all[i])
	}
	return some
}

// atOnce is how many stores a short run has, at one time, for it has other tests beside it.
const atOnce = 2

// TestRunOnStores is TestRun on every other store, with the faults of its servers. They run beside
// each other, since most of it is waiting. The short run has three faults on each, and leaves out
// those that need several servers of one store.
func TestRunOnStores(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	n, short := knob(t, "TORTURE_ROUNDS", 1), os.Getenv("TORTURE_ROUNDS") == ""
	seed := newSeed(t)
	t.Logf("TORTURE_SEED=%d", seed)
	var all sync.WaitGroup
	some := chosen(t)
	turn := make(chan struct{}, len(some))
	if short && os.Getenv("TORTURE_STORE") == "" {
		turn = make(chan struct{}, atOnce)
		some = slices.DeleteFunc(some, func(u *storeUnder) bool { return u.long })
		// Each run of the tests has two of them, and each fault of a server is in the stores' own
		// tests besides.
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(some), func(i, k int) { some[i], some[k] = some[k], some[i] })
		some = some[:atOnce]
	}
	for _, under := range some {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			t.Run(under.name, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 0))
				a := newRun(t, under, 3, rng)
				row := plan(rng, n, a.faults())
				if short {
					row = a.few()
				}
				begin := time.Now()
				tale := a.rounds(row)
				text := fmt.Sprintf("%s: %d faults in %v, ttl %v: %d terms, %d acts, overlaps %v, longest time "+
					"without a leader %v", under.name, len(row),
					time.Since(begin).Round(time.Second), a.ttl, tale.terms, tale.acts, len(tale.overlaps),
					tale.longest.Round(time.Millisecond))
				t.Log(text)
				if !short {
					fmt.Fprintln(os.Stderr, "torture:", text)
				}
				a.positiveControl()
				a.down()
			})
		})
	}
	all.Wait()
}

// few are the faults of a short run: one of a candidate, and two that the servers can have.
func (a *run) few() (row []checkedFault) {
	hit := []string{"freeze supervisor", "blackhole"}[a.rng.IntN(2)]
	for _, f := range a.faults() {
		if f.name == hit && !a.long { // the stores of these have the fault in their cheaper form
			row = append(row, f)
		}
	}
	for _, i := range a.rng.Perm(len(a.store.troubles))[:2] {
		row = append(row, a.store.troubles[i].checked())
	}
	a.rng.Shuffle(len(row), func(i, k int) { row[i], row[k] = row[k], row[i] })
	return row
}
