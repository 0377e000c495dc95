package sim

import (
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

const (
	us  = int64(time.Microsecond)
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

// World is one simulated run, or one after another: it keeps its memory between runs. It is used by
// one goroutine at a time.
type World struct {
	plan *Plan
	now  int64 // true time since the beginning, in nanoseconds
	rng  rng
	heap []item
	seq  uint64
	free []*event

	live  []*task
	coros []*coro

	nodes  []*node
	store  backend
	timing core.Timing
	judge  judge
	count  Counts
	hash   uint64
	ids    uint64    // claim IDs given out
	tr     *Timeline // nil: nothing is written down
	acted  func(tm *term)
	group  *groupStore // of a plan with a group of shards
	calm   bool        // no faults any more
	quit   bool        // everybody goes home
	stop   bool
	since  int64 // true time from which busy counts events
	busy   int
}

// event is something that will happen. On a host it waits while the host does not run.
type event struct {
	fn    func()
	t     *task
	gen   uint32
	h     *host
	inc   uint32
	timer bool
	due   int64 // of a timer: when it would fire had there been no suspend since susp
	susp  int64
}

type item struct {
	at  int64
	seq uint64
	e   *event
}

// host is a machine with one process on it: a candidate's, or a member of the store.
type host struct {
	w      *World
	name   string
	ppm    int64 // how much faster than true time its clock runs, in millionths
	base   int64 // the clock's reading at since
	since  int64
	inc    uint32 // counts its processes: what belongs to an earlier one never happens
	up     bool
	frozen int64 // the process does not run until then
	slept  int64 // suspended time so far, on its clock
	rough  int64 // the last true instant at which it was disturbed
	queue  []*event
}

// clock reads the boot clock.
func (h *host) clock() int64 {
	d := h.w.now - h.since
	return h.base + d + d*h.ppm/1_000_000
}

// mono reads the clock that timers go by: it stands still in suspend.
func (h *host) mono() int64 { return h.clock() - h.slept }

// setRate changes how fast the clock runs from now on.
func (h *host) setRate(ppm int64) {
	h.base, h.since, h.ppm = h.clock(), h.w.now, ppm
}

// real is how long d on this host's clock takes, rounded up so that a timer never comes early.
func (h *host) real(d int64) int64 {
	return (d*1_000_000+999_999+h.ppm)/(1_000_000+h.ppm) + 1
}

func (h *host) running() bool { return h.up && h.frozen == 0 }

func (w *World) push(at int64, e event) {
	var p *event
	if n := len(w.free); n > 0 {
		p, w.free = w.free[n-1], w.free[:n-1]
	} else {
		p = new(event)
	}
	*p = e
	w.pushItem(at, p)
}

func (w *World) pushItem(at int64, p *event) {
	w.seq++
	w.heap = append(w.heap, item{})
	h := w.heap
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 4
		if h[up].at < at || h[up].at == at { // an equal one that came earlier stays before
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = item{at, w.seq, p}
}

func (a item) before(b item) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (w *World) pop() item {
	h := w.heap
	top := h[0]
	last := h[len(h)-1]
	h[len(h)-1] = item{}
	h = h[:len(h)-1]
	w.heap = h
	if len(h) == 0 {
		return top
	}
	i := 0
	for {
		c := 4*i + 1
		if c >= len(h) {
			break
		}
		for k := c + 1; k < min(c+4, len(h)); k++ {
			if h[k].before(h[c]) {
				c = k
			}
		}
		if !h[c].before(last) {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = last
	return top
}

// after runs fn when d has passed in true time. With a host it waits while that does not run, and
// never happens once that was killed.
func (w *World) after(d int64, h *host, fn func()) {
	e := event{fn: fn, h: h}
	if h != nil {
		e.inc = h.inc
	}
	w.push(w.now+d, e)
}

func (w *World) resumeAt(at int64, t *task) {
	w.push(at, event{t: t, gen: t.gen, h: t.h, inc: t.inc})
}

// timer wakes k when d has passed on the host's monotonic clock.
func (w *World) timer(h *host, d int64, k waker) {
	at := w.now + h.real(d)
	w.push(at, event{t: k.t, gen: k.gen, h: h, inc: h.inc, timer: true, due: at, susp: h.slept})
}

// jitter is how long it takes until a goroutine that could run does run.
func (w *World) jitter(h *host) int64 {
	r := w.rng.next()
	if w.plan.Net.Stall != 0 && r>>44 < uint64(w.plan.Net.Stall) && !w.calm {
		w.count.Stalls++
		d := w.rng.span(ms, 2*w.plan.TTL) // it gets no turn for long
		h.rough = max(h.rough, w.now+d)
		return d
	}
	return int64(r & 0x3fff)
}

// step lets the next event happen. It reports false when there is none before the end.
func (w *World) step(end int64) bool {
	if len(w.heap) == 0 || w.heap[0].at > end {
		return false
	}
	it := w.pop()
	e := it.e
	if w.now = it.at; w.now > w.since+ms {
		w.since, w.busy = w.now, 0
	}
	if w.busy++; w.busy > 100_000 {
		w.judge.fail(RuleSpin, "100000 steps in a millisecond")
	}
	h := e.h
	switch {
	case h != nil && e.inc != h.inc:
	case h != nil && h.frozen != 0:
		h.queue = append(h.queue, e)
		return true
	case e.timer && h.slept > e.susp:
		e.due += h.real(h.slept - e.susp)
		e.susp = h.slept
		w.pushItem(max(w.now, e.due), e)
		return true
	case e.t != nil:
		if e.t.gen == e.gen {
			w.hash = mix(w.hash, uint64(w.now))
			w.count.Events++
			w.resume(e.t)
			w.judge.look()
		}
	case e.fn != nil:
		w.hash = mix(w.hash, uint64(w.now)+1)
		w.count.Events++
		e.fn()
		w.judge.look()
	}
	*e = event{}
	w.free = append(w.free, e)
	return true
}

// freeze stops a host's process until d has passed; asleep stops its timers too. On waking what has
// waited comes in any order.
func (w *World) freeze(h *host, d int64, asleep bool) {
	if h.frozen != 0 || !h.up {
		return
	}
	h.frozen = w.now + d
	before, inc := h.clock(), h.inc
	w.after(d, nil, func() {
		if h.inc != inc {
			return
		}
		if asleep {
			h.slept += h.clock() - before
		}
		h.frozen = 0
		h.rough = max(h.rough, w.now)
		w.flush(h)
	})
}

// flush lets what waited for a host come, in any order.
func (w *World) flush(h *host) {
	q := h.queue
	h.queue = nil
	for i := len(q) - 1; i > 0; i-- {
		j := w.rng.intn(i + 1)
		q[i], q[j] = q[j], q[i]
	}
	for _, e := range q {
		w.pushItem(w.now+int64(w.rng.next()%uint64(ms)), e)
	}
}

// crash kills a host's process.
func (w *World) crash(h *host) {
	if !h.up {
		return
	}
	h.up, h.frozen = false, 0
	h.inc++
	for _, e := range h.queue {
		*e = event{}
		w.free = append(w.free, e)
	}
	h.queue = nil
	w.kill(h)
}

// reset makes the world empty again and keeps its memory.
func (w *World) reset() {
	w.kill(nil)
	for _, it := range w.heap {
		*it.e = event{}
		w.free = append(w.free, it.e)
	}
	w.heap = w.heap[:0]
	w.now, w.seq, w.hash, w.ids, w.since, w.busy = 0, 0, 0, 0, 0, 0
	w.nodes, w.store = nil, nil
	w.calm, w.quit, w.stop = false, false, false
	w.count = Counts{}
}

// Close ends the coroutines that the world keeps.
func (w *World) Close() {
	w.kill(nil)
	for _, c := range w.coros {
		c.stop()
	}
	w.coros = nil
}

// rng is splitmix64: one multiplication a number, and the same everywhere.
type rng struct{ s uint64 }

func (r *rng) next() uint64 {
	r.s += 0x9e3779b97f4a7c15
	z := r.s
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (r *rng) intn(n int) int { return int(r.next() % uint64(n)) }

// span returns a duration from lo up to hi.
func (r *rng) span(lo, hi int64) int64 {
	if hi <= lo {
		return lo
	}
	return lo + int64(r.next()%uint64(hi-lo))
}

// chance is true p times in a million.
func (r *rng) chance(p int64) bool { return p > 0 && int64(r.next()%1_000_000) < p }

func mix(h, v uint64) uint64 {
	h ^= v
	h *= 0xff51afd7ed558ccd
	return h ^ h>>32
}
