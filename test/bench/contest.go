package main

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// contention is who wants one lock, and how.
type contention struct {
	procs, goroutines int
	turns             int           // the bound on local hand-overs
	forced            bool          // who has released stands again only when another has held
	hold              time.Duration // for how long; 0: no longer than a look at it
	warm, window      time.Duration
}

func crowd(procs, goroutines, turns int) contention {
	return contention{procs: procs, goroutines: goroutines, turns: turns, warm: 300 * time.Millisecond, window: time.Second}
}

// contest is one contention under way.
type contest struct {
	contention
	g         guard
	measuring atomic.Bool
	stop      atomic.Bool
	ended     chan struct{} // closed with stop
	all       atomic.Int64  // holds, from the beginning
	failed    atomic.Pointer[error]
	passed    float64 // holds between the two readings
	cost      reading // between them

	// Of the holder alone, one after the other:
	last   int       // who held last, -1 for nobody
	freed  time.Time // when he began to release
	others int64     // holds that followed another's
	holds  []int64   // by member, while measuring
	pass   []float64 // seconds from a release to the next hold

	wake    []chan struct{} // by member: another has held
	waits   [][]float64     // by member: seconds
	longest []float64
}

// reading is what a meter shows, by what it counts.
type reading map[string]float64

// meter reads what something has cost so far.
type meter func() (reading, error)

// read is what a meter shows, nothing without one.
func (m meter) read() (reading, error) {
	if m == nil {
		return nil, nil
	}
	return m()
}

func (r reading) since(before reading) reading {
	d := reading{}
	for k, v := range r {
		d[k] = v - before[k]
	}
	return d
}

func (k contention) run(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	return k.contend(ctx, e, c, lease, nil)
}

// metered also asks etcd what it cost. The leases are long, so that no renewal is among it.
func (k contention) metered(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	return k.contend(ctx, e, c, e.longLease(), func() (reading, error) {
		n, err := count(e.Cluster)
		return reading{"requests": n.requests(), "stream": n.Stream["Watch"], "proposals": n.Proposals}, err
	})
}

// longLease is the TTL where requests are counted, so that no renewal is among them. ZooKeeper has
// none of that length: there are a few.
func (e *Env) longLease() time.Duration {
	if e.Kind == "zookeeper" {
		return lease
	}
	return 120 * time.Second
}

// contend has all members take the lock again and again. The sample has what the meter counted for
// each hold.
func (k contention) contend(ctx context.Context, e *Env, c *Contender, ttl time.Duration, m meter) (Sample, error) {
	t, err := e.team(ctx, c, k.procs, k.goroutines, ttl)
	if err != nil {
		return nil, err
	}
	defer t.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x := k.contest(len(t.members))
	name, hung := e.Name("lock"), stalls.Load()
	done := make(chan error, 1)
	go func() {
		done <- t.each(func(i int, m *member) error {
			err := x.work(ctx, i, m.session.Lock(name, LockOptions{Turns: k.turns}))
			if err != nil && ctx.Err() == nil {
				x.failed.CompareAndSwap(nil, &err)
			}
			x.stop.Store(true) // also when it fails, or the others would go on for ever
			return err
		})
	}()
	took, err := x.measure(ctx, m)
	hung = stalls.Load() - hung
	if failed := x.finish(cancel, done); failed != nil {
		err = failed
	}
	s := x.sample(took, t)
	s["hung"] = value(float64(hung))
	return s, err
}

func (k contention) contest(members int) *contest {
	x := &contest{contention: k, ended: make(chan struct{}), last: -1, holds: make([]int64, members), waits: make([][]float64, members),
		longest: make([]float64, members)}
	for range members {
		x.wake = append(x.wake, make(chan struct{}, 1))
	}
	return x
}

// finish ends the contest. Who does not get the lock soon, as one who looks again only after a
// lease, is given up.
func (x *contest) finish(cancel context.CancelFunc, done chan error) error {
	x.stop.Store(true)
	close(x.ended)
	select {
	case err := <-done:
		return err
	case <-time.After(3 * time.Second):
	}
	cancel()
	<-done
	if err := x.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// measure lets the contest run warm, then counts for the window, and reads the meter at its start
// and end.
func (x *contest) measure(ctx context.Context, m meter) (time.Duration, error) {
	if err := sleep(ctx, x.warm); err != nil {
		return 0, err
	}
	if err := x.read(m); err != nil {
		return 0, err
	}
	x.measuring.Store(true)
	begin := time.Now()
	err := sleep(ctx, x.window)
	x.measuring.Store(false)
	took := time.Since(begin)
	if err == nil {
		err = x.read(m)
	}
	return took, err
}

// read reads the meter, and notes how often the lock had been passed on at that moment.
func (x *contest) read(m meter) error {
	if m == nil {
		return nil
	}
	first := x.all.Load()
	now, err := m()
	x.passed = float64(first+x.all.Load())/2 - x.passed
	x.cost = now.since(x.cost)
	return err
}

func (x *contest) work(ctx context.Context, i int, l Lock) error {
	for !x.stop.Load() {
		begin := time.Now()
		h, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		now := time.Now()
		if err := x.g.enter(h); err != nil {
			return err
		}
		x.note(i, now, now.Sub(begin).Seconds())
		if x.hold > 0 {
			time.Sleep(x.hold)
		}
		x.freed = time.Now()
		x.g.leave()
		if err := h.Release(ctx); err != nil {
			return err
		}
		if x.forced && !x.another(i) {
			return nil
		}
	}
	return nil
}

// another waits until another has held, or the contest ends.
func (x *contest) another(i int) bool {
	select {
	case <-x.wake[i]:
		return true
	case <-x.ended:
		return false
	}
}

// note is called by the holder, so what is the holder's needs no lock of its own.
func (x *contest) note(i int, now time.Time, wait float64) {
	x.all.Add(1)
	last := x.last
	x.last = i
	if last == i || last < 0 {
		last = -1
	} else if x.forced {
		x.wake[last] <- struct{}{}
	}
	if !x.measuring.Load() {
		return
	}
	x.holds[i]++
	if last >= 0 {
		x.others++
		if len(x.pass) < 100_000 {
			x.pass = append(x.pass, now.Sub(x.freed).Seconds())
		}
	}
	x.longest[i] = max(x.longest[i], wait)
	if len(x.waits[i]) < 100_000 {
		x.waits[i] = append(x.waits[i], wait)
	}
}

func (x *contest) sample(took time.Duration, t *team) Sample {
	all, byProc := int64(0), make([]int64, len(t.procs))
	for i, n := range x.holds {
		all += n
		byProc[t.members[i].proc] += n
	}
	s := Sample{"rate": value(float64(all) / took.Seconds()), "others": value(float64(x.others) / took.Seconds()),
		"share": value(share(byProc)), "fair": value(share(x.holds)),
		"longest": value(slices.Max(x.longest)), "wait": times(slices.Concat(x.waits...)), "pass": times(x.pass)}
	for k, v := range x.cost {
		s[k] = value(v / math.Max(1, x.passed))
	}
	return s
}

// share returns the least as a part of the most.
func share(n []int64) float64 {
	if most := slices.Max(n); most > 0 {
		return float64(slices.Min(n)) / float64(most)
	}
	return 0
}
