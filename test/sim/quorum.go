package sim

// quorum is a set of servers that know nothing of each other, of which a majority decides: Redlock,
// with the rules of package redlockstore. A claim is a key on each server, which expires on that
// server's clock. There is no line and no token: what stands for the token here is a number of the
// simulation's.
type quorum struct {
	w  *World
	v  [3]*keeper
	ln []*line // for the judge: nobody stands in them
}

// keeper is one server.
type keeper struct {
	host
	began int64 // on its clock
	keys  [2]key
	spent map[uint64]bool // attempts that were given up
}

// key is what a server has under a name.
type key struct {
	attempt uint64 // 0: nothing
	ends    int64  // on the server's clock
}

func planQuorum(p *Plan, r *rng) {
	p.NoToken = true
	p.Loses = r.intn(4) != 0
	p.pester(r, StoreDown, StoreDown, StoreDown, MemberPause, Aimed)
}

func newQuorum(w *World) *quorum {
	q := &quorum{w: w}
	for i := range q.v {
		q.v[i] = &keeper{began: -1000 * sec, spent: map[uint64]bool{}}
		q.v[i].host = host{w: w, name: [...]string{"s1", "s2", "s3"}[i], ppm: w.plan.StoreRates[i], up: true}
	}
	for i := range w.plan.Names {
		q.ln = append(q.ln, &line{w: w, name: i})
	}
	return q
}

func (q *quorum) servers() int    { return len(q.v) }
func (q *quorum) lines() []*line  { return q.ln }
func (q *quorum) operator(Fault)  {}
func (q *quorum) heal()           {}
func (q *quorum) recovery() int64 { return 0 }

func (q *quorum) leases() (n int) {
	for _, v := range q.v {
		for i := range v.keys {
			if v.keys[i].attempt != 0 && v.clock() < v.keys[i].ends {
				n++
			}
		}
	}
	return n
}

func (q *quorum) receive(server int, _ msg, op func() reply, respond func(reply)) {
	v := q.v[server]
	if !v.up {
		q.w.count.Lost++
		return
	}
	q.w.after(0, &v.host, func() { respond(op()) })
}

// fault restarts a server, with or without what it knew, or freezes it.
func (q *quorum) fault(f Fault) {
	v := q.v[(uint64(f.Arg)+uint64(f.Node))%uint64(len(q.v))]
	switch f.Kind {
	case StoreRate:
		v.setRate(f.Arg)
	case StoreDown:
		if !v.up {
			return
		}
		q.w.crash(&v.host)
		q.w.after(min(f.For, 3*sec), nil, func() {
			v.up, v.began = true, v.clock()
			if q.w.plan.Loses {
				v.keys, v.spent = [2]key{}, map[uint64]bool{}
			}
		})
	default:
		q.w.freeze(&v.host, f.For, false)
	}
}

// state answers for a key: whether it is the attempt's, and whether the server counts. One that may
// have lost its memory does not, for a ttl.
func (v *keeper) state(name int, attempt uint64) reply {
	k := &v.keys[name]
	if k.attempt != 0 && v.clock() >= k.ends {
		*k = key{}
	}
	counts := v.clock()-v.began >= v.w.plan.TTL || v.w.plan.Broken.NoGuard
	return reply{held: k.attempt == attempt, stands: k.attempt != 0, ok: counts}
}

func (v *keeper) enter(name int, attempt uint64) reply {
	if r := v.state(name, attempt); !r.stands && !v.spent[attempt] {
		v.keys[name] = key{attempt, v.clock() + v.w.plan.TTL}
	}
	return v.extend(name, attempt)
}

func (v *keeper) extend(name int, attempt uint64) reply {
	r := v.state(name, attempt)
	if r.held {
		v.keys[name].ends = max(v.keys[name].ends, v.clock()+v.w.plan.TTL)
	}
	return r
}

func (v *keeper) leave(name int, attempt uint64) reply {
	v.spent[attempt] = true
	if v.state(name, attempt).held {
		v.w.judge.leaves(&entry{line: v.w.store.lines()[name], token: attempt}, released)
		v.keys[name] = key{}
	}
	return reply{}
}
