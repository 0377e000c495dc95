package sim

import (
	"os"
	"testing"
	"time"
)

func TestSmoke(t *testing.T) {
	w := &World{}
	defer w.Close()
	var c Counts
	t0 := time.Now()
	n := uint64(20000)
	for s := uint64(1); s <= n; s++ {
		r := w.Run(NewPlan(s, os.Getenv("STORE"), Within), nil)
		c.Terms += r.Counts.Terms
		c.Events += r.Counts.Events
		c.Virtual += r.Counts.Virtual
		c.Stale += r.Counts.Stale
		c.Acts += r.Counts.Acts
		c.Refused += r.Counts.Refused
		c.HandOvers += r.Counts.HandOvers
		if r.Violation != nil {
			tr := &Timeline{}
			r2 := w.Run(NewPlan(s, os.Getenv("STORE"), Within), tr)
			t.Log(r2.Hash == r.Hash)
			tr.Print(os.Stdout, 1000)
			t.Fatalf("seed %d: %v", s, r.Violation)
		}
	}
	t.Logf("%+v %v seeds/s; events/seed %d virtual/seed %v", c, float64(n)/time.Since(t0).Seconds(), c.Events/n, span(c.Virtual/int64(n)))
}
