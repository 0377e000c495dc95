package sim

// kube is two API servers of Kubernetes on one etcd, and the rules of packages registerstore and
// k8sstore. A name's line is the value of one object, a process's lease that of another. A write
// names the uid and the resourceVersion of what it replaces. Reads and writes go through etcd;
// watches are served by each server from a cache of its own, which may lag, forget, or stand still.
// Nothing here has a clock.
type kube struct {
	*plain // who was granted what, and the lines as the judge sees them
	at     map[kubeKey]*kubeObject
	hist   []kubeChange // that of revision n at n-1
	uids   uint64
	api    [2]*apiServer
	silent int64             // true time until which etcd answers no API server
	deaf   map[kubeKey]int64 // true time from which a watch of an object may go deaf again
}

// kubeKey names an object: the lease of that number, or with 0 a line.
type kubeKey struct {
	lease uint64
	line  int
}

// kubeVer is a version of an object; the zero value says that it is not there.
type kubeVer struct{ uid, rv uint64 }

// kubeObject is never changed.
type kubeObject struct {
	ver  kubeVer
	doc  *kubeDoc // of a line
	beat kubeBeat // of a lease
}

type kubeBeat struct {
	n    uint64 // counts renewals
	over bool
}

type kubeChange struct {
	key kubeKey
	o   *kubeObject // nil: it was deleted
}

func (o *kubeObject) version() kubeVer {
	if o == nil {
		return kubeVer{}
	}
	return o.ver
}

// over says that a lease has ended. One that is not there has.
func (o *kubeObject) over() bool { return o == nil || o.beat.over }

func planKube(p *Plan, r *rng) {
	p.pester(r, Pause, Suspend, CutBoth, Aimed, LeaderBoth, LeaderCut, StoreDown, Delete)
}

func newKube(w *World) *kube {
	s := &kube{plain: newPlain(w), at: map[kubeKey]*kubeObject{}, deaf: map[kubeKey]int64{}}
	for i := range s.api {
		s.api[i] = &apiServer{k: s, host: host{w: w, name: [...]string{"api1", "api2"}[i], up: true}}
	}
	return s
}

func (s *kube) servers() int { return len(s.api) }

// recovery is what a wait needs that relied on a watch or a read that a fault has swallowed.
func (s *kube) recovery() int64 { return 4*kubePoll*6/5 + 10*sec }

// hears is how long the news of a change may need: a watch may have gone deaf on a connection that
// lives. One that is dead is noticed after 6 s, and a read that was lost on it after 10 s.
func (s *kube) hears() int64 {
	if n := s.w.plan.Net; n.Deaf+n.Loss+n.Late == 0 {
		return 25 * sec
	}
	return 4*kubePoll*6/5 + 25*sec
}

// reaches says whether the connection between a machine and a server would answer.
func (s *kube) reaches(n *node, server int) bool {
	v := s.api[server]
	return v.running() && max(n.cut.in[server], n.cut.out[server]) <= s.w.now
}

// leases counts what stands. What its process left behind when it was killed is for the sweep.
func (s *kube) leases() (n int) {
	for _, l := range s.all {
		if l.beat != 0 && s.w.now-l.ends <= 2*l.ttl {
			n++
		}
	}
	return n
}

// idle says that a claim is left to whoever stands behind it next, or to the sweep.
func (s *kube) idle(e *entry) bool {
	l := s.find(e.sess)
	return l.beat == 0 || s.w.now-l.ends > 2*l.ttl
}

// commit makes o what there is under key. O is nil where that is deleted.
func (s *kube) commit(key kubeKey, o *kubeObject, why cause) {
	var now kubeObject
	if o != nil {
		now = *o
		now.ver = kubeVer{uid: s.at[key].version().uid, rv: uint64(len(s.hist)) + 1}
		if now.ver.uid == 0 {
			s.uids++
			now.ver.uid = s.uids
		}
		o = &now
	}
	s.at[key] = o
	s.hist = append(s.hist, kubeChange{key, o})
	if key.lease == 0 {
		s.commitLine(s.ln[key.line], now.doc, why)
	} else {
		s.commitLease(key.lease, o, why)
	}
	for _, v := range s.api {
		s.w.after(s.w.rng.span(0, s.w.plan.Net.Base), &v.host, v.advance)
	}
}

// commitLine has the judge see what a write has made of a line.
func (s *kube) commitLine(ln *line, now *kubeDoc, why cause) {
	for i := len(ln.entries) - 1; i >= 0; i-- {
		if e := ln.entries[i]; now.find(e.sess, place{id: e.claim, token: e.token}) < 0 {
			ln.remove(e, why)
		}
	}
	if now == nil {
		return
	}
	for _, c := range now.claims {
		if ln.of(c.sess) == nil {
			l := s.find(c.sess)
			ln.enter(&entry{owner: l.owner, inc: l.inc, sess: c.sess, claim: c.id, token: c.token, lease: c.sess})
		}
	}
}

func (s *kube) commitLease(id uint64, o *kubeObject, why cause) {
	l := s.find(id)
	if why == ended && o.over() {
		s.w.judge.closes(l.owner, l.inc, id)
	}
	if l.beat = 0; !o.over() {
		l.beat, l.ends = 1, s.w.now
	}
}

// put writes an object that has still the version known, or makes it where that is the zero value.
// An update of what is not there makes it too, but for the uid that it names.
func (s *kube) put(key kubeKey, known kubeVer, o kubeObject, why cause) reply {
	now, b := s.at[key], s.w.plan.Broken
	switch {
	case known == kubeVer{}:
		if now != nil {
			return reply{}
		}
	case now == nil && b.NoUID:
	case now == nil || now.ver != known && !(b.Blind && key.lease != 0 && o.beat.over && why == expired):
		return reply{}
	}
	s.commit(key, &o, why)
	return reply{ok: true, obj: s.at[key]}
}

// apiServer is one server. Its host has the process, not the clock.
type apiServer struct {
	host
	k       *kube
	seen    uint64 // its cache has all changes up to this revision
	oldest  uint64 // and has forgotten those before
	apart   int64  // true time until which it does not reach etcd
	still   int64  // true time until which its cache stands still
	young   int64  // true time until which it has just started
	watches []*kubeWatch
}

// kubeWatch waits for a change of one object.
type kubeWatch struct {
	key     kubeKey
	known   kubeVer
	from    uint64 // the revision that it has seen
	respond func(reply)
}

// cacheKeeps is how many changes a cache remembers.
const cacheKeeps = 64

// advance has the cache take in what has changed, and serves watches.
func (v *apiServer) advance() {
	w := v.w
	if until := max(v.apart, v.still); w.now < until {
		w.after(until-w.now, &v.host, v.advance)
		return
	}
	v.seen = uint64(len(v.k.hist))
	v.oldest = max(v.oldest, v.seen-min(v.seen, cacheKeeps))
	rest := v.watches[:0]
	for _, q := range v.watches {
		if !v.serve(q) {
			rest = append(rest, q)
		}
	}
	v.watches = rest
}

// serve tells a watch what has changed, and reports whether that is its end.
func (v *apiServer) serve(q *kubeWatch) bool {
	if q.from < v.oldest {
		q.respond(reply{forgotten: true})
		return true
	}
	for q.from < v.seen {
		c := v.k.hist[q.from]
		q.from++
		if c.key == q.key && c.o.version() != q.known {
			q.respond(reply{ok: true, obj: c.o})
			return true
		}
	}
	return false
}

// watch begins one. It may be cut early, or go deaf.
func (v *apiServer) watch(q *kubeWatch) {
	w := v.w
	if v.serve(q) {
		return
	}
	v.watches = append(v.watches, q)
	switch {
	case q.from > v.seen: // another server knows more
		w.after(3*sec, &v.host, func() { v.cut(q, q.from > v.seen) })
	case w.calm:
	case w.now >= v.k.deaf[q.key] && w.rng.chance(w.plan.Net.Deaf):
		v.k.deaf[q.key] = w.now + 60*sec // or nobody could say when its owner must have heard
		q.respond = func(reply) { w.count.Lost++ }
	case w.rng.chance(50_000):
		w.after(w.rng.span(0, 5*sec), &v.host, func() { v.cut(q, true) })
	}
}

// cut ends a watch that waits yet.
func (v *apiServer) cut(q *kubeWatch, really bool) {
	for i, x := range v.watches {
		if x == q && really {
			v.watches = append(v.watches[:i], v.watches[i+1:]...)
			q.respond(reply{err: errUnknown})
			return
		}
	}
}

// cached is an object as the cache has it.
func (v *apiServer) cached(key kubeKey) *kubeObject {
	for i := v.seen; i > 0; i-- {
		if c := v.k.hist[i-1]; c.key == key {
			return c.o
		}
	}
	return nil
}

func (s *kube) receive(server int, m msg, op func() reply, respond func(reply)) {
	v := s.api[server]
	if !v.up {
		s.w.count.Lost++
		return
	}
	s.w.after(0, &v.host, func() { v.carryOut(m, op, respond) })
}

// carryOut asks etcd, which may take its time, or refuses to.
func (v *apiServer) carryOut(m msg, op func() reply, respond func(reply)) {
	w := v.w
	switch {
	case m.kind == watching:
		q := op().watch
		q.respond = respond
		v.watch(q)
		return
	case m.kind == staleRead:
		respond(op())
		return
	case w.calm:
	case w.rng.chance(15_000): // 429: nothing was done
		respond(reply{busy: true})
		return
	case w.rng.chance(15_000): //nolint:gocritic // drawn anew: 503 of a proxy, which may have sent it on
		respond(reply{busy: true, unsure: true})
		if w.rng.intn(2) == 0 {
			w.after(w.rng.span(0, w.plan.TTL), nil, func() { op() })
		}
		return
	}
	wait := max(0, v.apart-w.now, v.k.silent-w.now)
	if wait > 0 && w.rng.intn(2) == 0 {
		w.count.Lost++
		return
	}
	if m.kind == writing && !w.calm && w.rng.chance(10_000) {
		wait += w.rng.span(0, 2*w.plan.TTL)
	}
	if wait == 0 {
		respond(op())
		return
	}
	w.count.Late++
	w.after(wait, &v.host, func() { respond(op()) })
}

// fault restarts a server, freezes it, cuts it off from etcd or has its cache stand still; or etcd
// is without a leader for a while.
func (s *kube) fault(f Fault) {
	w, v := s.w, s.api[(uint64(f.Arg)>>4+uint64(f.Node))%uint64(len(s.api))]
	switch f.Kind {
	case StoreDown:
		if !v.up {
			return
		}
		w.crash(&v.host)
		for _, q := range v.watches {
			q.respond(reply{err: errUnknown}) // its connection is reset
		}
		v.watches = nil
		w.after(min(f.For, 3*sec), nil, func() {
			v.up, v.seen = true, uint64(len(s.hist))
			v.oldest, v.young = v.seen, w.now+5*sec
		})
	case LeaderPause:
		s.silent = max(s.silent, w.now+min(f.For, 3*sec))
	case LeaderCut:
		v.apart = max(v.apart, w.now+f.For)
	case LeaderBoth:
		v.still = max(v.still, w.now+f.For)
	case MemberPause:
		w.freeze(&v.host, f.For, false)
	}
}

func (s *kube) heal() {
	for _, v := range s.api {
		v.apart, v.still = 0, 0
		s.w.after(0, &v.host, v.advance)
	}
	s.silent = 0
}

// operator has somebody remove a claim or end a lease, by the program or by kubectl: then the
// object is deleted, written as it is, or put back to what it was.
func (s *kube) operator(f Fault) {
	name, how, at := int(f.Node)%len(s.ln), int(uint64(f.Arg)>>8%4), int(uint64(f.Arg)>>16%64)
	ln, key := s.ln[name], kubeKey{line: name}
	if len(ln.entries) == 0 || s.at[key] == nil {
		return
	}
	e := ln.entries[at%len(ln.entries)]
	now := *s.at[key]
	if f.Kind == Revoke {
		s.revoke(e, how)
		return
	}
	switch how {
	case 0:
		s.w.judge.excuse(e.sess, name)
		d := now.doc.clone()
		d.depose(d.find(e.sess, place{id: e.claim, token: e.token}))
		d.seq++
		s.commit(key, &kubeObject{doc: d}, byHand)
	case 1:
		s.putBack(ln, nil)
	case 2:
		if before := s.before(key); before != nil {
			s.putBack(ln, before)
		}
	default:
		s.commit(key, &kubeObject{doc: now.doc}, byHand)
	}
}

// before is an earlier state of a line in which nobody stands who does not now, and not all do:
// who has given his claim up would not know of it any more.
func (s *kube) before(key kubeKey) *kubeDoc {
	now := s.at[key].doc
	for i := len(s.hist) - 1; i >= 0; i-- {
		c := s.hist[i]
		if c.key != key {
			continue
		}
		if c.o == nil {
			return nil
		}
		missing := false
		for _, x := range c.o.doc.claims {
			missing = missing || now.find(x.sess, place{id: x.id, token: x.token}) < 0
		}
		if !missing && len(c.o.doc.claims) < len(now.claims) {
			return c.o.doc
		}
	}
	return nil
}

// putBack makes a line what it was, or deletes it: its tokens begin anew, and who has a place that
// is not there any more is told so, later.
func (s *kube) putBack(ln *line, d *kubeDoc) {
	for _, e := range ln.entries {
		if d.find(e.sess, place{id: e.claim, token: e.token}) < 0 {
			s.w.judge.excuse(e.sess, ln.name)
		}
	}
	key := kubeKey{line: ln.name}
	s.w.judge.tokensBeginAnew(ln.name)
	if s.commit(key, nil, byHand); d != nil {
		s.commit(key, &kubeObject{doc: d}, byHand)
	}
}

// revoke does something to the lease of a claim.
func (s *kube) revoke(e *entry, how int) {
	key := kubeKey{lease: e.sess}
	o := s.at[key]
	if o.over() {
		return
	}
	s.w.judge.excuse(e.sess, -1)
	switch how {
	case 0:
		s.commit(key, &kubeObject{beat: kubeBeat{n: o.beat.n, over: true}}, byHand)
	case 1:
		s.commit(key, nil, byHand)
	case 2: // deleted, and put back
		s.commit(key, nil, byHand)
		s.commit(key, &kubeObject{beat: o.beat}, byHand)
	default:
		s.commit(key, &kubeObject{beat: o.beat}, byHand)
	}
}
