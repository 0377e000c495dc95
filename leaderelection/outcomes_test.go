package leaderelection

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A standby of client-go's sees one renewal where there were several within a second, and counts
// from the first of them.
func TestAStandbyOfClientGoDoesNotComeEarly(t *testing.T) {
	for _, at := range []times{
		{2 * time.Second, 1900 * time.Millisecond, 200 * time.Millisecond},
		{3 * time.Second, 2400 * time.Millisecond, 300 * time.Millisecond},
		{8 * time.Second, 7500 * time.Millisecond, 300 * time.Millisecond},
	} {
		var worst time.Duration
		for range 100 {
			inBubble(t, func(w *world) {
				a := w.stand("ours", "a", at, nil)
				w.leads(a)
				b := w.stand("client-go", "b", at, nil)
				time.Sleep(10*time.Second + time.Duration(rand.Int64N(int64(2*time.Second))))
				a.set(func() { a.cut = true })
				w.leads(b)
				time.Sleep(5 * time.Second)
				for _, c := range w.all {
					c.set(func() { c.cut = false })
					c.end()
				}
				worst = max(worst, w.overlap())
			})
		}
		if worst > 0 {
			t.Errorf("with a lease of %v two lead for up to %v", at.lease, worst)
		}
	}
}
