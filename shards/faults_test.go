package shards

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestGroupsUnderFaults has members come, leave, crash, hang and be cut off at random, in fake
// time. The record of all acts must show no shard with two owners, and once faults stop each shard
// has an owner and loads are even.
//
// SHARDS_SEEDS is how many seeds to run (default 4), SHARDS_SEED the first. A seed fixes what is
// done and when, not which goroutine goes first in one instant of fake time.
func TestGroupsUnderFaults(t *testing.T) {
	number := func(name string, otherwise int) uint64 {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return uint64(n)
		}
		return uint64(otherwise)
	}
	first := number("SHARDS_SEED", 1)
	for seed := first; seed < first+number("SHARDS_SEEDS", 4); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { inWorld(t, 20, func(_ *testing.T, w *world) { w.trouble(seed) }) })
	}
}

// trouble does harm for two minutes.
func (w *world) trouble(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 99))
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
	set := func(m map[string]bool, id string, to bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		m[id] = to
	}
	o := Options{Cooldown: 5 * time.Second, LeaveTimeout: 3 * time.Second}
	var live []string
	var cut time.Time // until then somebody is cut off
	come := func() {
		id := fmt.Sprint("m", len(w.member))
		w.join(id, o)
		live = append(live, id)
	}
	for range 4 {
		come()
	}
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(upTo(4 * time.Second)) {
		at := r.IntN(len(live))
		id := live[at]
		switch k := r.IntN(7); {
		case k == 0 && len(live) < 7:
			come()
		case k == 1 && len(live) > 2:
			w.member[id].stop(nil)
			live = append(live[:at], live[at+1:]...)
		case k == 2: // for longer than its lease, perhaps
			w.store.Partition(id, true)
			d := upTo(12 * time.Second)
			time.AfterFunc(d, func() { w.store.Partition(id, false) })
			if healed := time.Now().Add(d); healed.After(cut) {
				cut = healed
			}
		case k == 3:
			set(w.late, id, true)
			time.AfterFunc(upTo(2*time.Second), func() { set(w.late, id, false) })
		case k == 4 && time.Now().After(cut): // one that is cut off does not hear of it: see docs/guarantees.md
			w.store.Expire(shardName("tenants", r.IntN(20))) // its owner loses its lease, with all it has
		case k == 5:
			w.member[id].g.SetReady(r.IntN(2) == 0)
		default:
			set(w.fails, id, true)
			time.AfterFunc(upTo(3*time.Second), func() { set(w.fails, id, false) })
		}
	}
	time.Sleep(15 * time.Second) // all faults are over
	for _, id := range live {
		w.member[id].g.SetReady(true)
	}
	time.Sleep(3 * time.Minute)
	got := w.owns()
	low, high := w.n, 0
	for _, id := range live {
		low, high = min(low, got[id]), max(high, got[id])
	}
	if got[""] != 0 || high-low > 1 {
		w.t.Errorf("seed %d: three minutes after the last fault the members own %v", seed, got)
	}
	for _, m := range w.member {
		select {
		case <-m.done:
			if m.err != nil {
				w.t.Errorf("seed %d: Run returned %v", seed, m.err)
			}
		default:
		}
	}
}
