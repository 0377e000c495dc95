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
	Store   string // "plain", "etcd" or "all"
	Drift   Drift
	Workers int // 0: GOMAXPROCS
}

// Failure is the smallest seed that broke a promise.
type Failure struct {
	Seed      uint64
	Plan      *Plan
	Violation *Violation
}

// Run plays the seeds on several workers, and stops at the first violation or when ctx ends. It returns what was counted and the
// failure of the smallest failing seed among those that it played, nil if none failed. Watch, which may be nil, is called once in a while,
// by one goroutine at a time, with the counts so far.
func (b Batch) Run(ctx context.Context, watch func(Counts)) (Counts, *Failure) {
	var (
		mu    sync.Mutex
		total Counts
		worst *Failure
		next  atomic.Uint64
		limit atomic.Uint64 // no seed from here on is played
		wg    sync.WaitGroup
	)
	next.Store(b.First)
	limit.Store(^uint64(0))
	if b.Seeds > 0 {
		limit.Store(b.First + b.Seeds)
	}
	workers := b.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	for range workers {
		wg.Go(func() {
			w := &World{}
			defer w.Close()
			var mine Counts
			flush := func() {
				mu.Lock()
				defer mu.Unlock()
				total.Add(&mine)
				mine = Counts{}
				if watch != nil {
					watch(total)
				}
			}
			defer flush()
			for ctx.Err() == nil {
				seed := next.Add(1) - 1
				if seed >= limit.Load() {
					return
				}
				p := NewPlan(seed, b.Store, b.Drift)
				r := w.Run(p, nil)
				mine.Add(&r.Counts)
				if r.Violation != nil {
					mu.Lock()
					if worst == nil || seed < worst.Seed {
						worst = &Failure{seed, p, r.Violation}
						limit.Store(min(limit.Load(), seed))
					}
					mu.Unlock()
				}
				if mine.Seeds >= 50 {
					flush()
				}
			}
		})
	}
	wg.Wait()
	return total, worst
}
