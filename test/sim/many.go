package sim

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// Batch is many seeds.
type Batch struct {
	First   uint64 // the first seed
	Seeds   uint64 // how many; 0: until the context ends
	Store   string // one of Stores, or "all"
	Drift   Drift
	Workers int // 0: GOMAXPROCS
}

// Failure is the smallest seed that broke a promise.
type Failure struct {
	Seed      uint64
	Plan      *Plan
	Violation *Violation
}

// Run plays the seeds on several workers, and stops at the first violation or when ctx ends. It
// returns what was counted and the failure of the smallest failing seed among those that it played,
// nil if none failed. Watch, which may be nil, is called once in a while, by one goroutine at a
// time, with the counts so far.
func (b Batch) Run(ctx context.Context, watch func(Counts)) (Counts, *Failure) {
	h := &hunt{b: b, watch: watch}
	h.next.Store(b.First)
	h.limit.Store(^uint64(0))
	if b.Seeds > 0 {
		h.limit.Store(b.First + b.Seeds)
	}
	workers := b.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { h.work(ctx) })
	}
	wg.Wait()
	return h.total, h.worst
}

// hunt is a batch under way.
type hunt struct {
	b     Batch
	watch func(Counts)
	next  atomic.Uint64
	limit atomic.Uint64 // no seed from here on is played

	mu    sync.Mutex
	total Counts
	worst *Failure
}

func (h *hunt) work(ctx context.Context) {
	w := &World{}
	defer w.Close()
	var mine Counts
	for ctx.Err() == nil {
		seed := h.next.Add(1) - 1
		if seed >= h.limit.Load() {
			break
		}
		p := NewPlan(seed, h.b.Store, h.b.Drift)
		r := w.Run(p, nil)
		mine.Add(&r.Counts)
		if r.Violation != nil {
			h.fail(&Failure{seed, p, r.Violation})
		}
		if mine.Seeds >= 50 {
			h.add(&mine)
			mine = Counts{}
		}
	}
	h.add(&mine)
}

func (h *hunt) add(c *Counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total.Add(c)
	if h.watch != nil {
		h.watch(h.total)
	}
}

// fail keeps the smallest seed: which of the workers is faster must not decide what is reported.
func (h *hunt) fail(f *Failure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.worst == nil || f.Seed < h.worst.Seed {
		h.worst = f
		h.limit.Store(min(h.limit.Load(), f.Seed))
	}
}
