package etcdstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// TestSimulatedNoLostWakeUp: the wide watch comes and goes, and streams break, all the time.
// Whose turn has come hears of it well before the timer beside the watch.
func TestSimulatedNoLostWakeUp(t *testing.T) {
	t.Parallel()
	seeds, err := strconv.ParseUint(os.Getenv("LIVE_SEEDS"), 10, 64)
	if err != nil {
		seeds = 3
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			c := etcdsim.Start(etcdsim.Options{Seed: seed})
			t.Cleanup(func() { c.Heal(); c.Close(); synctest.Wait() })
			time.Sleep(5 * time.Second)
			hs, _ := gatedAt(t, c, 0, 0)
			ws, _ := gatedAt(t, c, 1, 1)
			ws.wire.Hub.Above, ws.wire.Hub.Below = 6, 3
			hl, wl := granted(t, hs, "a", 5*time.Minute), granted(t, ws, "b", 5*time.Minute)
			var mu sync.Mutex
			heldAt := map[string]time.Time{}
			nctx := ending(t, 10*time.Minute)
			go func() {
				for nctx.Err() == nil {
					out, err := drivertest.News(nctx, wl)
					if isGone(err) {
						return
					}
					mu.Lock()
					for _, n := range out {
						if n.Held {
							heldAt[n.Place.ID] = time.Now()
						}
						if n.Gone {
							t.Errorf("seed %d: gone: %+v", seed, n.Place)
						}
					}
					mu.Unlock()
				}
			}()
			end := time.Now().Add(2 * time.Minute)
			var all sync.WaitGroup
			turns := 0
			for i := range 10 {
				rnd := rand.New(rand.NewPCG(seed, uint64(i)))
				all.Go(func() {
					name := fmt.Sprint("n", i)
					for n := 0; time.Now().Before(end); n++ {
						id := fmt.Sprint(name, "-", n)
						h, err := hl.Claim(ending(t, 20*time.Second), driver.Claim{Name: name, ID: id})
						if err != nil {
							t.Errorf("seed %d: claim: %v", seed, err)
							return
						}
						var w []driver.Place
						for try := 0; ; try++ {
							if w, err = wl.Claim(ending(t, 20*time.Second), driver.Claim{Name: name, ID: "w" +
								id}); err == nil || try > 20 {
								break
							}
							time.Sleep(50 * time.Millisecond)
						}
						if err != nil {
							t.Errorf("seed %d: claim: %v", seed, err)
							return
						}
						time.Sleep(time.Duration(rnd.IntN(2)*rnd.IntN(300)) * time.Millisecond)
						follows := rnd.IntN(2) == 0
						got := make(chan time.Time, 1)
						if follows {
							wl.Follow(w[0])
						} else {
							go func() {
								if _, err := drivertest.Await(ending(t, time.Minute), wl, w[0]); err != nil {
									t.Errorf("seed %d: wait: %v", seed, err)
								}
								got <- time.Now()
							}()
						}
						time.Sleep(time.Duration(rnd.IntN(2)*rnd.IntN(1500)) * time.Millisecond)
						for hl.Release(ending(t, 20*time.Second), h[0]) != nil {
						}
						gone := time.Now()
						var at time.Time
						if follows {
							for at.IsZero() && time.Since(gone) < time.Minute {
								time.Sleep(10 * time.Millisecond)
								mu.Lock()
								at = heldAt["w"+id]
								mu.Unlock()
							}
						} else {
							at = <-got
						}
						if took := at.Sub(gone); took > 2500*time.Millisecond || at.IsZero() {
							t.Errorf("seed %d: %s follows %v: told %v after its turn came", seed, id, follows, took)
						}
						mu.Lock()
						turns++
						mu.Unlock()
						for wl.Release(ending(t, 20*time.Second), w[0]) != nil {
						}
						if rnd.IntN(4) == 0 {
							time.Sleep(time.Duration(rnd.IntN(12)) * time.Second)
						}
					}
				})
			}
			stop, cancel := context.WithCancel(context.Background())
			rnd := rand.New(rand.NewPCG(seed, 77))
			go func() {
				for stop.Err() == nil {
					_ = storeutil.Sleep(stop, time.Duration(rnd.IntN(4000))*time.Millisecond)
					c.Reset(1, rnd.IntN(3))
				}
			}()
			all.Wait()
			cancel()
			time.Sleep(30 * time.Second)
			t.Logf("seed %d: %d turns, %d awaits and %d watches left", seed, turns, awaitsOf(ws.wire.Hub),
				len(ws.wire.Hub.Watches))
			if awaitsOf(ws.wire.Hub) > 0 {
				t.Errorf("seed %d: %d awaits are left", seed, awaitsOf(ws.wire.Hub))
			}
		})
	}
}
