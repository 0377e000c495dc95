package sim

import "iter"

// A task stands for one goroutine of a simulated process. It is written as plain sequential code
// and runs on a coroutine, so that exactly one of them runs at a time and the world decides which.
// Where it waits it parks; a waker resumes it through the event heap.
type task struct {
	w   *World
	h   *host
	inc uint32
	co  *coro
	gen uint32 // what a waker must match: each wait has its own number
	pos int    // in World.live
}

// coro is a coroutine that runs one task after another. Starting one costs more than a whole
// renewal, so they are kept.
type coro struct {
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	fn    func(*task)
	t     *task
	abort bool
}

// aborted unwinds a task whose process was killed, or whose run is over.
type aborted struct{}

func newCoro() *coro {
	c := &coro{}
	c.next, c.stop = iter.Pull(func(yield func(struct{}) bool) {
		c.yield = yield
		for {
			c.run()
			if !yield(struct{}{}) {
				return
			}
		}
	})
	return c
}

func (c *coro) run() {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(aborted); !ok {
				panic(r)
			}
		}
		c.fn = nil
	}()
	if c.fn != nil && !c.abort {
		c.fn(c.t)
	}
}

// spawn starts a goroutine on a host; it begins a moment later, as goroutines do.
func (w *World) spawn(h *host, fn func(*task)) {
	var c *coro
	if n := len(w.coros); n > 0 {
		c, w.coros = w.coros[n-1], w.coros[:n-1]
	} else {
		c = newCoro()
	}
	t := &task{w: w, h: h, inc: h.inc, co: c, pos: len(w.live)}
	c.fn, c.t, c.abort = fn, t, false
	w.live = append(w.live, t)
	w.resumeAt(w.now+w.jitter(h), t)
}

// resume runs t until it parks or ends.
func (w *World) resume(t *task) {
	t.gen++
	c := t.co
	c.next()
	if c.fn == nil {
		w.retire(t)
	}
}

// retire takes a task that has ended off the list.
func (w *World) retire(t *task) {
	last := w.live[len(w.live)-1]
	w.live[t.pos], last.pos = last, t.pos
	w.live = w.live[:len(w.live)-1]
	t.gen++
	w.coros = append(w.coros, t.co)
	t.co = nil
}

// kill unwinds every task of a host, or of all with nil.
func (w *World) kill(h *host) {
	for i := len(w.live) - 1; i >= 0; i-- {
		if t := w.live[i]; h == nil || t.h == h {
			t.co.abort = true
			t.co.next()
			w.retire(t)
		}
	}
}

func (t *task) park() {
	t.co.yield(struct{}{})
	if t.co.abort {
		panic(aborted{})
	}
}

// waker resumes one particular wait of a task; used later it does nothing.
type waker struct {
	t   *task
	gen uint32
}

func (t *task) arm() waker {
	t.gen++
	return waker{t, t.gen}
}

func (k waker) stale() bool { return k.t == nil || k.t.gen != k.gen }

func (k waker) wake() {
	if k.stale() {
		return
	}
	k.t.gen++
	k.t.w.resumeAt(k.t.w.now+k.t.w.jitter(k.t.h), k.t)
}

// life is a context: it ends when cancelled, with its parent, or when its time on the host's
// monotonic clock has come.
type life struct {
	parent *life
	h      *host
	until  int64 // 0: no limit of its own
	done   bool
	subs   []waker
	hooks  []func()
}

func (c *life) child(h *host, limit int64) *life {
	n := &life{parent: c, h: h}
	if limit > 0 {
		n.until = h.mono() + limit
	}
	return n
}

func (c *life) over() bool {
	for p := c; p != nil; p = p.parent {
		if p.done || p.until != 0 && p.h.mono() >= p.until {
			return true
		}
	}
	return false
}

// left is how long the context lasts at most, at most d.
func (c *life) left(d int64) int64 {
	for p := c; p != nil; p = p.parent {
		if p.until != 0 {
			d = min(d, p.until-p.h.mono())
		}
	}
	return max(d, 0)
}

func (c *life) add(k waker) {
	for p := c; p != nil; p = p.parent {
		if len(p.subs) >= 32 {
			keep := p.subs[:0]
			for _, s := range p.subs {
				if !s.stale() {
					keep = append(keep, s)
				}
			}
			p.subs = keep
		}
		p.subs = append(p.subs, k)
	}
}

func (c *life) cancel() {
	if c.done {
		return
	}
	c.done = true
	for _, k := range c.subs {
		k.wake()
	}
	c.subs = nil
	for _, f := range c.hooks {
		f()
	}
	c.hooks = nil
}

const forever = int64(1) << 60

// wait parks until k is woken, c ends, or d has passed on the host's clock. The caller looks at
// what it waited for.
func (t *task) wait(c *life, k waker, d int64) {
	if c != nil {
		if c.over() {
			return
		}
		c.add(k)
		d = c.left(d)
	}
	if d < 1000*sec {
		t.w.timer(t.h, d, k)
	}
	t.park()
}

// sleep reports whether the whole time has passed without c ending.
func (t *task) sleep(c *life, d int64) bool {
	if c.over() {
		return false
	}
	t.wait(c, t.arm(), d)
	return !c.over()
}

// gate is a lock for tasks.
type gate struct {
	held bool
	q    []waker
}

func (g *gate) lock(t *task, c *life) bool {
	for g.held {
		if c.over() {
			return false
		}
		k := t.arm()
		g.q = append(g.q, k)
		t.wait(c, k, forever)
	}
	g.held = true
	return true
}

func (g *gate) unlock() {
	g.held = false
	q := g.q
	g.q = nil
	for _, k := range q {
		k.wake()
	}
}

// bell is a signal that waits for whoever listens: rung before, it is heard at once.
type bell struct {
	rung bool
	k    waker
}

func (b *bell) ring() {
	b.rung = true
	b.k.wake()
}

// listen waits for the bell, until c ends or d has passed.
func (b *bell) listen(t *task, c *life, d int64) {
	if !b.rung {
		b.k = t.arm()
		t.wait(c, b.k, d)
	}
	b.rung = false
}
