package sim

import "errors"

// kubePoll is how long a watch is relied upon alone at first; four times as long in the end.
const kubePoll = 15 * sec

// kubeClient is what one process has of the API servers: its requests (k8sstore/api.go, watch.go),
// and what registerstore runs in the background for all its leases, a feed for each line and a
// watch for each lease that somebody waits for the end of.
type kubeClient struct {
	s        *kube
	n        *node
	inc      uint32
	to       int   // which server is asked at present
	watchTo  int   // and which one by watches
	conn     *life // of their connection
	feeds    [2]*kubeFeed
	expiries []*kubeExpiry
	all      []*kubeHandle
	calls    uint64 // counts those that read or write lines
}

func (s *kube) client(n *node) client {
	c := &kubeClient{s: s, n: n, inc: n.inc, to: n.id % 2, watchTo: int(n.inc) % 2, conn: &life{}}
	s.w.spawn(&n.host, c.ping)
	for i := range s.ln {
		c.feeds[i] = &kubeFeed{c: c, name: i}
		s.w.spawn(&n.host, c.feeds[i].run)
	}
	return c
}

// send sends a request. What the server wants to be asked again is asked again until ctx ends.
// Where an earlier try may have been carried out, or may be yet, a refusal is not final.
func (c *kubeClient) send(t *task, ctx *life, kind msgKind, op func(v *apiServer) reply) (r reply, err error) {
	unsure := false
	to, limit := &c.to, 10*sec
	if kind == watching {
		to, limit, ctx = &c.watchTo, forever, ctx.child(&c.n.host, 0)
		c.conn.hooks = append(c.conn.hooks, ctx.cancel)
	}
	for !ctx.over() {
		v := c.s.api[*to]
		r, err = t.call(ctx, limit, c.n, *to, msg{kind: kind}, func() reply { return op(v) })
		switch {
		case errors.Is(err, errRefused) && unsure && !t.w.plan.Broken.FinalAfter503:
			return r, errUnknown
		case errors.Is(err, errUnknown) && t.w.rng.intn(2) == 0:
			*to = 1 - *to // another connection
		}
		if !r.busy {
			return r, err
		}
		unsure = unsure || r.unsure
		t.sleep(ctx, t.w.rng.span(sec/2, sec))
	}
	return reply{}, errUnknown
}

func (c *kubeClient) get(t *task, ctx *life, key kubeKey) (*kubeObject, error) {
	kind := plainCall
	if t.w.plan.Broken.Cached {
		kind = staleRead
	}
	r, err := c.send(t, ctx.child(&c.n.host, 10*sec), kind, func(v *apiServer) reply {
		if kind == staleRead {
			return reply{obj: v.cached(key)}
		}
		return reply{obj: c.s.at[key]}
	})
	return r.obj, err
}

func (c *kubeClient) put(t *task, ctx *life, key kubeKey, known kubeVer, o kubeObject, why cause) (reply, error) {
	return c.send(t, ctx, writing, func(*apiServer) reply {
		if why == displaced && t.w.refuses() { // a claim's
			return reply{err: errRefused}
		}
		return c.s.put(key, known, o, why)
	})
}

// remove deletes a lease that has ended, under that version.
func (c *kubeClient) remove(t *task, ctx *life, id uint64, known kubeVer) {
	key := kubeKey{lease: id}
	_, _ = c.send(t, ctx, writing, func(*apiServer) reply {
		if o := c.s.at[key]; o != nil && o.ver == known {
			c.s.commit(key, nil, stale)
		}
		return reply{}
	})
}

// list says what there is of an object, and from which revision on a watch sees what comes after.
func (c *kubeClient) list(t *task, ctx *life, key kubeKey) (o *kubeObject, from uint64, err error) {
	r, err := c.send(t, ctx, plainCall, func(v *apiServer) reply {
		if !v.w.calm && v.w.now < v.young && v.w.rng.intn(2) == 0 {
			return reply{forgotten: true}
		}
		return reply{obj: c.s.at[key], rev: uint64(len(c.s.hist))}
	})
	if err == nil && r.forgotten && !t.w.plan.Broken.EmptyList {
		err = errUnknown // a list that failed is no empty one
	}
	return r.obj, r.rev, err
}

// watch is k8sstore/watch.go: it waits for a change of one object, or returns early.
func (c *kubeClient) watch(t *task, ctx *life, key kubeKey, known kubeVer) (o *kubeObject, err error) {
	from := known.rv
	for range 2 {
		if from == 0 {
			if o, from, err = c.list(t, ctx, key); err != nil || o.version() != known {
				return o, err
			}
		}
		at := from
		r, err := c.send(t, ctx, watching, func(*apiServer) reply {
			return reply{watch: &kubeWatch{key: key, known: known, from: at}}
		})
		if err != nil || !r.forgotten {
			return r.obj, err
		}
		from = 0
	}
	return nil, errUnknown
}

// changed is registerstore/access.go: it waits until an object has another version, by a watch that
// goes on, and by asking beside it, more rarely with time.
func (c *kubeClient) changed(t *task, ctx *life, key kubeKey, known kubeVer) (*kubeObject, error) {
	got, every := &kubeTold{}, kubePoll
	goes := ctx.child(&c.n.host, 0)
	t.w.spawn(&c.n.host, func(t *task) { c.watchOn(t, goes, key, known, got) })
	for !ctx.over() {
		got.bell.listen(t, ctx, t.w.rng.span(every*4/5, every*6/5))
		if got.yes {
			return got.o, nil
		}
		if t.w.plan.Broken.OneSignal {
			continue
		}
		if o, err := c.get(t, ctx, key); err == nil && o.version() != known {
			goes.cancel()
			return o, nil
		}
		every = min(2*every, 4*kubePoll)
	}
	goes.cancel()
	return nil, errUnknown
}

// kubeTold is what a watch has told.
type kubeTold struct {
	o    *kubeObject
	yes  bool
	bell bell
}

// watchOn watches until it has something to tell. Where the watch fails the object is read.
func (c *kubeClient) watchOn(t *task, ctx *life, key kubeKey, known kubeVer, to *kubeTold) {
	for !ctx.over() {
		o, err := c.watch(t, ctx, key, known)
		if (err != nil || o.version() == known) && t.sleep(ctx, t.w.rng.span(200*ms, 300*ms)) {
			o, err = c.get(t, ctx, key)
		}
		if err == nil && o.version() != known {
			to.o, to.yes = o, true
			to.bell.ring()
			return
		}
	}
}

// ping is what HTTP/2 does for the connection of the watches: where it is not answered they fail.
func (c *kubeClient) ping(t *task) {
	for {
		t.sleep(nil, 3*sec)
		if c.s.reaches(c.n, c.watchTo) {
			continue
		}
		t.sleep(nil, 3*sec)
		was := c.conn
		c.conn, c.watchTo = &life{}, 1-c.watchTo
		was.cancel()
	}
}

func (c *kubeClient) number() uint64 {
	c.calls++
	return c.calls
}

// read reads a line, and tells the feed.
func (c *kubeClient) read(t *task, ctx *life, name int) (*kubeObject, error) {
	call := c.number()
	o, err := c.get(t, ctx, kubeKey{line: name})
	if err == nil && o != nil {
		c.feeds[name].offer(o, call)
	}
	return o, err
}

// step is registerstore/step.go: it changes a line as one step, and returns what the line is then.
// F changes a copy, and says whether it did, or must be written all the same.
func (c *kubeClient) step(
	t *task, ctx *life, name int, why cause, f func(d *kubeDoc) (write bool, err error),
) (*kubeDoc, error) {
	unknown, compares := 0, kubeVer{}
	for !ctx.over() {
		o, err := c.read(t, ctx, name)
		if err != nil {
			return nil, errUnknown
		}
		to := docOf(o).clone()
		write, err := f(to)
		if !write && (unknown == 0 || compares != o.version()) {
			return docOf(o), err
		}
		to.seq++
		call := c.number()
		r, failed := c.put(t, ctx, kubeKey{line: name}, o.version(), kubeObject{doc: to}, why)
		switch {
		case failed == nil && r.ok:
			c.feeds[name].offer(r.obj, call)
			return to, err
		case errors.Is(failed, errRefused) && unknown == 0:
			return nil, errRefused
		case failed != nil:
			if unknown++; unknown == 4 || ctx.over() {
				return nil, errUnknown
			}
			compares = o.version()
		}
		t.sleep(ctx, t.w.rng.span(50*us, 50*ms))
	}
	return nil, errUnknown
}

// purge removes the claims of leases that have ended from a line.
func (c *kubeClient) purge(t *task, ctx *life, name int, over ...uint64) (*kubeDoc, error) {
	return c.step(t, ctx, name, expired, func(d *kubeDoc) (bool, error) { return d.purge(over), nil })
}

// ring wakes all who wait for something in this process.
func (c *kubeClient) ring() {
	for _, h := range c.all {
		h.bell.ring()
		for i := range h.waits {
			h.waits[i].ring()
		}
	}
}

// wanted says whether a lease of this process has a place in the line.
func (c *kubeClient) wanted(name int) bool {
	for _, h := range c.all {
		if !h.dead && h.places[name].id != 0 {
			return true
		}
	}
	return false
}

// kubeFeed is registerstore/feed.go: it reads one line for all of its process who wait for a
// change.
type kubeFeed struct {
	c     *kubeClient
	name  int
	last  *kubeObject // the latest known
	known bool        // it has been read
	since uint64      // calls up to this number may have seen an earlier line of the name
	call  uint64      // the one that has read or written last
	need  bell
}

// offer tells of a line as the call with that number has read or written it, and says whether
// nothing later is known.
func (f *kubeFeed) offer(o *kubeObject, call uint64) bool {
	if call <= f.since && !f.c.s.w.plan.Broken.LateAnswers {
		return false
	}
	if f.known && docOf(f.last).seq >= docOf(o).seq {
		return f.last.version() == o.version()
	}
	f.known, f.last, f.call = true, o, call
	f.c.ring()
	return true
}

func (f *kubeFeed) run(t *task) {
	c, key, old := f.c, kubeKey{line: f.name}, 0
	version, first := kubeVer{}, true
	for {
		if !c.wanted(f.name) {
			f.known, f.last, first, old = false, nil, true, 0
			f.need.listen(t, nil, forever)
			f.since = c.calls
			continue
		}
		var o *kubeObject
		var err error
		call := c.number()
		if first {
			o, err = c.get(t, nil, key)
		} else {
			if f.known {
				version = f.last.version()
			}
			o, err = c.changed(t, nil, key, version)
		}
		if err == nil {
			first, version = false, o.version()
			if old++; f.offer(o, call) {
				old = 0
			}
			if old < 3 || f.wentBack(t, key) {
				continue
			}
		}
		t.sleep(nil, t.w.rng.span(200*ms, 300*ms))
	}
}

// wentBack is asked where the line was older again and again than what is known of it: what a read
// finds that begins after that was known is the latest.
func (f *kubeFeed) wentBack(t *task, key kubeKey) bool {
	last, call := f.last, f.c.number()
	o, err := f.c.get(t, nil, key)
	if err != nil || t.w.plan.Broken.Numbers || f.offer(o, call) || f.last != last {
		return false
	}
	f.last, f.since, f.call = o, call, call
	f.c.ring()
	return true
}

// kubeExpiry is registerstore/expiry.go: it watches one lease, and ends it when it has been silent
// for 1.12 of its ttl since the receipt of the version that it has then.
type kubeExpiry struct {
	c        *kubeClient
	id       uint64
	ttl      int64
	rank     int64
	known    kubeVer
	received int64 // on the clock of timers
	read     bool
	over     bool
	users    int
	life     *life
}

// expiry returns the watch of a lease, which is begun where there is none.
func (c *kubeClient) expiry(id uint64, rank int) *kubeExpiry {
	for _, v := range c.expiries {
		if v.id == id && v.users > 0 {
			v.rank = min(v.rank, int64(rank))
			return v
		}
	}
	v := &kubeExpiry{c: c, id: id, ttl: c.s.find(id).ttl, rank: int64(rank), life: &life{}}
	c.expiries = append(c.expiries, v)
	c.s.w.spawn(&c.n.host, v.run)
	return v
}

func (v *kubeExpiry) leave() {
	if v.users--; v.users > 0 {
		return
	}
	v.life.cancel()
	for i, x := range v.c.expiries {
		if x == v {
			v.c.expiries = append(v.c.expiries[:i], v.c.expiries[i+1:]...)
			return
		}
	}
}

func (v *kubeExpiry) run(t *task) {
	key := kubeKey{lease: v.id}
	get := func() (*kubeObject, error) { return v.c.get(t, v.life, key) }
	o, err := v.look(get)
	for !v.life.over() {
		switch {
		case err != nil:
			t.sleep(v.life, t.w.rng.span(200*ms, 300*ms))
			o, err = v.look(get)
		case o.over():
			v.over = true
			v.c.ring()
			return
		default:
			o, err = v.await(t, key, o)
		}
	}
}

// look reads the lease, and counts from after the receipt where it has another version.
func (v *kubeExpiry) look(read func() (*kubeObject, error)) (*kubeObject, error) {
	asked := v.c.n.mono()
	o, err := read()
	if err != nil {
		return nil, err
	}
	if !v.read || v.known != o.version() {
		v.read, v.known, v.received = true, o.version(), v.c.n.mono()
		if v.c.s.w.plan.Broken.Hasty {
			v.received = asked
		}
	}
	return o, nil
}

// await waits for another version, and ends a lease that is silent for too long.
func (v *kubeExpiry) await(t *task, key kubeKey, o *kubeObject) (*kubeObject, error) {
	n, silence := v.c.n, v.ttl*112/100
	since := v.received
	left := silence + silence/100*v.rank - (n.mono() - since)
	waits := v.life.child(&n.host, max(1, left))
	now, err := v.look(func() (*kubeObject, error) { return v.c.changed(t, waits, key, o.ver) })
	if err == nil || v.life.over() || n.mono()-since < silence {
		return now, err
	}
	over := *o
	over.beat.over = true
	r, err := v.c.put(t, v.life.child(&n.host, 10*sec), key, o.ver, over, expired)
	if err == nil && r.ok {
		t.w.count.Strikes++
		c, id, ver := v.c, v.id, r.obj.ver
		t.w.spawn(&n.host, func(t *task) { c.cleanUp(t, nil, id, ver) })
		return r.obj, nil
	}
	t.sleep(v.life, t.w.rng.span(0, sec/4)) // it may have happened, or happen yet
	return v.look(func() (*kubeObject, error) { return v.c.get(t, v.life, key) })
}

// cleanUp removes a lease that has ended from the lines, and then itself.
func (c *kubeClient) cleanUp(t *task, ctx *life, id uint64, ver kubeVer) bool {
	for name := range c.s.ln {
		if _, err := c.purge(t, ctx, name, id); err != nil {
			return false
		}
	}
	c.remove(t, ctx, id, ver)
	return true
}
