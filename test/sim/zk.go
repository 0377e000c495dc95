package sim

// ensemble is a store like ZooKeeper: three members, a log that a majority agrees on, and sessions
// that only the member that leads counts, by its clock and beside the log. What is simulated is
// what makes a renewal hard to believe: a follower answers reads from what it knows, for some ticks
// after it was cut off; it tells the leader which sessions it has heard of only in its answers to
// the leader's pings, every half tick; a leader that was frozen ends sessions as it wakes, before
// it reads what has come meanwhile; a new leader gives every session its full timeout. The claims,
// and what is decided, are those of a plain store.
type ensemble struct {
	*plain
	m       [3]*peer
	epoch   uint64
	zxid    uint64
	leader  int    // of the newest epoch
	open    []*txn // proposed, and neither carried out nor dropped
	applied int    // how many have been carried out
	closed  map[uint64]int
	nextID  uint64
	making  uint64 // the session that is being carried out
	alarm   bool
}

// Ensemble is what a plan says of a ZooKeeper and of its client. All durations are in nanoseconds.
type Ensemble struct {
	Tick    int64
	Sync    int64 // after which a leader and a follower that do not hear each other part
	Session int64 // the session timeout
	Pace    int64 // between an answered write and the next
	Chain   int   // an answer proves the touch of the write so many before
}

// zkDrift is by how many per cent the clocks of client and leader may differ.
const zkDrift = 10

func planEnsemble(p *Plan, r *rng) {
	z := &p.ZK
	z.Tick = [...]int64{200 * ms, sec, 2 * sec}[r.intn(3)]
	z.Sync = [...]int64{5 * z.Tick, 2 * p.TTL}[r.intn(2)]
	z.Pace = z.Tick/2*(100+zkDrift)/100 + 100*ms
	z.Chain = 2
	p.timeout()
	p.pester(r, LeaderPause, LeaderCut, MemberPause, MemberPause)
}

// timeout sets the session timeout that the ttl and the writes' pace ask for: a renewal may stand
// on a write so old.
func (p *Plan) timeout() {
	z := &p.ZK
	back := int64(z.Chain+1)*(z.Pace+6*p.Net.Base) + 200*ms
	z.Session = p.TTL + back*(100+zkDrift)/100
}

// misfit is what a broken client would ask for.
func (p *Plan) misfit() {
	switch {
	case p.Broken.Short:
		p.ZK.Chain = 1
		p.timeout()
	case p.Broken.Hurry:
		p.ZK.Session += 2 * p.ZK.Pace
	case p.Broken.NoWait:
		p.Mirror.Wait = false
	case p.Broken.Async:
		p.Mirror.Lag = 2 * sec
	case p.Broken.FinalAfter503:
		p.Net.Refuse = 500_000
	case p.Broken.OneWrite:
		p.ZK.Session = p.TTL
	}
}

// peer is a member.
type peer struct {
	host
	e       *ensemble
	i       int
	epoch   uint64
	cut     int64 // from its peers, until then
	leads   bool
	follows *wire  // nil: it leads, or looks for a leader
	trap    int64  // for how long it will be cut off, once it has answered a write
	conn    uint64 // counts how often it has closed all its clients' connections
	last    uint64
	applied int
	table   *[]uint64 // a follower's: sessions heard of since the last ping
	heard   int64     // on its clock: from its leader
	wires   []*wire   // a leader's
	track   []tracked // a leader's
}

// tracked is a session as a leader counts it.
type tracked struct {
	sess    uint64
	ends    int64 // on the leader's clock
	owner   int   // the member that its client talks to
	closing bool
	touched int64 // true time, for the judge
}

// txn is a write in the log.
type txn struct {
	zxid uint64
	sess uint64
	has  [3]bool // who has logged it
	done bool    // a majority has
	op   func() reply
	from *peer
	tell func(reply)
}

func newEnsemble(w *World) *ensemble {
	e := &ensemble{plain: newPlain(w), epoch: 1, closed: map[uint64]int{}}
	for i := range e.m {
		m := &peer{e: e, i: i, epoch: 1, table: new([]uint64)}
		m.host = host{w: w, name: [...]string{"z1", "z2", "z3"}[i], ppm: w.plan.StoreRates[i], up: true}
		e.m[i] = m
	}
	e.gone = func(id uint64) { e.closed[id] = e.applied }
	e.lead(e.m[0])
	for _, m := range e.m {
		if m != e.m[0] {
			e.join(m)
		}
		m.arm()
	}
	return e
}

func (e *ensemble) servers() int { return len(e.m) }

func (e *ensemble) recovery() int64 {
	return 2*e.w.plan.ZK.Sync + 2*e.w.plan.ZK.Session
}

// reaches says that a member runs and is not cut off from its peers.
func (m *peer) reaches() bool { return m.running() && m.w.now >= m.cut }

func (m *peer) looking() bool { return m.up && !m.leads && m.follows == nil }

// receive brings a request to a member. A frozen one gets it when it wakes up.
func (e *ensemble) receive(server int, rq msg, op func() reply, respond func(reply)) {
	m := e.m[server]
	if !m.up {
		e.w.count.Lost++
		return
	}
	e.w.after(0, &m.host, func() { m.serve(rq, op, respond) })
}

func (m *peer) serve(rq msg, op func() reply, respond func(reply)) {
	if m.looking() {
		return // it refuses connections
	}
	if (rq.kind == plainCall || rq.kind == localRead || rq.kind == staleRead) && rq.conn != m.conn {
		return
	}
	switch rq.kind {
	case staleRead:
		m.touch(rq.sess, func() { respond(op()) })
	case localRead:
		m.touch(rq.sess, func() { m.read(op, respond, 20) })
	case newSession:
		m.toLeader(func(l *peer) { l.open(m, op, respond) })
	case comeBack:
		m.toLeader(func(l *peer) { l.revalidate(m, rq.sess, respond) })
	default:
		m.touch(rq.sess, func() {
			m.toLeader(func(l *peer) {
				if l.admits(rq.sess, m.i) {
					l.propose(m, rq.sess, op, respond)
				}
			})
		})
	}
}

// touch notes that a session was heard of, then goes on. A thread that puts it into the table while
// that is being sent puts it nowhere.
func (m *peer) touch(sess uint64, then func()) {
	table := m.table
	late := m.w.jitter(&m.host)
	if m.w.rng.chance(100_000) {
		late = m.w.rng.span(0, 10*ms)
	}
	m.w.after(late, &m.host, func() {
		if m.leads {
			m.count(sess)
		} else {
			*table = append(*table, sess)
		}
		then()
	})
}

// toLeader does something at the leader, as a message of the member's, or nothing where it has
// none.
func (m *peer) toLeader(do func(l *peer)) {
	switch {
	case m.leads:
		do(m)
	case m.follows != nil:
		x := m.follows
		x.send(&x.up, x.boss, func() { do(x.boss) })
	}
}

// read answers once the member has carried out what is decided: an older view of a line shows a
// place later than it is, never sooner.
func (m *peer) read(op func() reply, respond func(reply), tries int) {
	if m.applied == m.e.applied {
		respond(op())
	} else if tries > 0 {
		m.w.after(50*ms, &m.host, func() { m.read(op, respond, tries-1) })
	}
}

// knows says that a session stands, as far as the member has heard.
func (m *peer) knows(sess uint64) bool {
	at, gone := m.e.closed[sess]
	return !gone || m.applied < at
}

func (e *ensemble) heal() {
	for _, m := range e.m {
		m.cut, m.trap = 0, 0
	}
	e.check()
}

// fault carries out what happens to members.
func (e *ensemble) fault(f Fault) {
	m := e.m[(uint64(f.Arg)+uint64(f.Node))%uint64(len(e.m))]
	if f.Kind == LeaderPause || f.Kind == LeaderCut || f.Kind == LeaderBoth || f.Kind == StoreDown && f.Arg&64 == 0 {
		m = e.m[e.leader]
	}
	if f.Arg&512 == 0 {
		e.island(m, f.For)
	}
	switch f.Kind {
	case StoreDown:
		e.restart(m, min(f.For, 3*sec))
	case MemberPause:
		switch f.Arg >> 7 & 3 {
		case 0:
			m.cut = max(m.cut, e.w.now+f.For)
			return
		case 1:
			m.trap = f.For
			return
		}
		e.w.freeze(&m.host, f.For, false)
	case LeaderPause:
		e.w.freeze(&m.host, f.For, false)
	case LeaderCut:
		m.cut = max(m.cut, e.w.now+f.For)
	case LeaderBoth:
		m.cut = max(m.cut, e.w.now+f.For+e.w.rng.span(0, 3*sec))
		e.w.freeze(&m.host, f.For, false)
	case StoreRate:
		m.setRate(f.Arg)
	}
}

// island cuts the clients of a member off from all others: they stand behind one switch.
func (e *ensemble) island(m *peer, d int64) {
	for _, n := range e.w.nodes {
		if !n.up || n.sess.lease == nil || n.sess.lease.dl.(*zkHandle).at != m.i {
			continue
		}
		for i := range e.m {
			if i != m.i {
				e.w.sever(n, i, Fault{Kind: CutBoth, For: d})
			}
		}
	}
}

// restart kills a member and starts it again, with its log.
func (e *ensemble) restart(m *peer, d int64) {
	if !m.up {
		return
	}
	e.w.crash(&m.host)
	m.resign()
	e.w.after(d, nil, func() {
		m.up = true
		m.arm()
	})
}
