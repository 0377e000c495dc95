package etcdstore

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// shareIn has a new session, with a heartbeat, stand for x with so many slots, and keeps it.
func shareIn(t *testing.T, c *etcdsim.Cluster, client, slots int) (*lease, kept, driver.Place) {
	s, _ := gatedAt(t, c, client, client%3)
	l := granted(t, s, "s", short)
	p, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "x", ID: "s", Slots: slots})
	if err != nil {
		t.Fatal(err)
	}
	return l, keep(t, l), p[0]
}

// TestSimulatedCrashOnASemaphore: of two who hold the slots of a semaphore either may fall
// silent: the first in line hears of both.
func TestSimulatedCrashOnASemaphore(t *testing.T) {
	for crashed := range 2 {
		simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
			var ks []kept
			for i := range 2 {
				_, k, _ := shareIn(t, c, i, 2)
				ks = append(ks, k)
			}
			third, _, p := shareIn(t, c, 2, 2)
			fourth, _, q := shareIn(t, c, 3, 2)
			at3, at4 := held(t, third, p), held(t, fourth, q)
			time.Sleep(3 * time.Second)
			if len(at3)+len(at4) > 0 {
				t.Fatal("seed 1: somebody holds beside two who live")
			}
			last := ks[crashed].stop()
			if took := (<-at3).Sub(last); took < short || took > short*3/2 {
				t.Errorf("seed 1: the first in line held %v after holder %d had fallen silent", took, crashed)
			}
			last = ks[1-crashed].stop()
			if took := (<-at4).Sub(last); took < short || took > short*3/2 {
				t.Errorf("seed 1: the next held %v after the other had", took)
			}
		})
	}
}

// TestSimulatedCrashInTheMiddle: who waits in between falls silent, and later who holds: the last
// in line finds both.
func TestSimulatedCrashInTheMiddle(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		_, k, middle, p := pairOf(t, c, short)
		_ = middle.Release(ending(t, 10*time.Second), p)
		_, waits, _ := shareIn(t, c, 2, 0)
		last, _, q := shareIn(t, c, 3, 0)
		at := held(t, last, q)
		time.Sleep(2 * time.Second)
		waits.stop()
		time.Sleep(2 * time.Second)
		if n := len(c.Keys("primacy/x/")); n != 2 || len(at) > 0 {
			t.Errorf("seed 1: %d claims stand, want two, and nobody new holds: %v", n, len(at) == 0)
		}
		silent := k.stop()
		if took := (<-at).Sub(silent); took < short || took > short*3/2 {
			t.Errorf("seed 1: the last one held %v after the holder had fallen silent", took)
		}
	})
}
