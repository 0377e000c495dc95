package sim

// mirror is a server with a replica, as Redis and PostgreSQL have it: a plain store that may
// forget. A restart loses what was not on disk, a failover what the replica had not got, and the
// clock of the server that takes over is another one. What the two do about it is in redis.go and
// postgres.go.
type mirror struct {
	*plain
	hist   []content // what it was after each step, for as long as that may come back
	mark   marker
	life   uint64 // which process serves, or which history it goes on with
	since  int64  // on its clock: when that began
	aside  int64  // true time until which a former primary lives on beside it
	side   int    // and keeps every other machine
	nextID uint64
	line   uint64 // counts failovers: PostgreSQL's timeline
	other  bool   // the second of the two machines serves
}

// Mirror is what a plan says of a server with a replica. All durations are in nanoseconds.
type Mirror struct {
	Lag    int64 // what a replica lacks at most
	Loses  int64 // what a restart loses at most
	Empty  bool  // a restart loses everything
	Skew   int64 // by which the replica's clock differs
	Young  bool  // the server has just started when the run begins
	Beside bool  // a former primary lives on, answers some machines, and nothing it does is on the replica
	Wait   bool  // it acknowledges only what its replica has
	Mixed  bool  // the sessions of every other machine have a quarter of the ttl
	// claims that have just come to hold are lost in a failover, and who holds is cut off; one
	// machine alone has the whole ttl
	Ambush bool
}

// content is all that a server knows.
type content struct {
	at     int64
	rev    uint64
	lines  [2][]*entry
	leases []kept
	mark   marker
}

type kept struct {
	l     *plainLease
	ends  int64
	spent []uint64
	era   uint64
}

// marker is what guards a store that may forget; see redis.go.
type marker struct {
	set   bool
	life  uint64 // under which the data was written
	epoch uint64
	since int64 // on the server's clock
	calm  int64
	most  int64     // the largest ttl granted or renewed in this period and the one before
	mc    int64     // and in this one
	prev  int64     // and in the one before
	mt    int64     // which began then
	upTo  [2]uint64 // tokens that hold, by name
}

func newMirror(w *World) *mirror {
	s := &mirror{plain: newPlain(w), life: 1, since: -1000 * sec}
	if w.plan.Mirror.Young {
		s.since = 0
	}
	s.hist = append(s.hist, s.now())
	return s
}

// servers are the present primary and a former one.
func (s *mirror) servers() int {
	if s.w.plan.Mirror.Beside {
		return 2
	}
	return 1
}

func (s *mirror) recovery() int64 { return 3*s.w.plan.TTL + 3*sec }

// receive carries a request out. A former primary has nobody to confirm what it does: it
// acknowledges nothing, or what it should not.
func (s *mirror) receive(server int, rq msg, op func() reply, respond func(reply)) {
	switch {
	case server == 1:
		if rq.kind == keepalive && !s.w.plan.Mirror.Wait {
			respond(reply{epoch: rq.conn, ok: true})
		}
	case s.w.now < s.host.frozen:
		s.w.count.Lost++
	default:
		r := op()
		s.remember()
		respond(r)
	}
}

// server is whom a machine takes for the primary.
func (s *mirror) serverOf(n *node) int {
	if s.w.now < s.aside && n.id%2 == s.side {
		return 1
	}
	return 0
}

// remember notes what the server knows now.
func (s *mirror) remember() {
	m := &s.w.plan.Mirror
	long := max(m.Lag, m.Loses)
	if long == 0 {
		return
	}
	drop := 0
	for drop+1 < len(s.hist) && s.hist[drop+1].at <= s.w.now-long {
		drop++
	}
	s.hist = append(s.hist[drop:], s.now())
}

func (s *mirror) now() content {
	c := content{at: s.w.now, rev: s.rev, mark: s.mark}
	for i, ln := range s.ln {
		c.lines[i] = append([]*entry(nil), ln.entries...)
	}
	for _, l := range s.all {
		c.leases = append(c.leases, kept{l, l.ends, append([]uint64(nil), l.spent...), l.era})
	}
	return c
}

// as is what the server knew so long ago.
func (s *mirror) as(ago int64) content {
	if ago == 0 {
		return s.now()
	}
	for i := len(s.hist) - 1; i >= 0; i-- {
		if s.hist[i].at <= s.w.now-ago {
			return s.hist[i]
		}
	}
	return s.hist[0]
}

// become forgets what is not in c, and knows again what was undone since.
func (s *mirror) become(c content) {
	for _, ln := range s.ln {
		for _, e := range ln.entries {
			e.gone = true
		}
	}
	for _, l := range s.all {
		l.over = true
	}
	s.all, s.rev, s.mark = nil, c.rev, c.mark
	for _, k := range c.leases {
		k.l.over, k.l.ends, k.l.spent, k.l.era = false, k.ends, append([]uint64(nil), k.spent...), k.era
		s.all = append(s.all, k.l)
	}
	for i, ln := range s.ln {
		ln.entries = append([]*entry(nil), c.lines[i]...)
		for _, e := range ln.entries {
			e.gone, e.orphan = false, 0
		}
		s.w.judge.forgets(ln)
		if len(ln.entries) > 0 {
			s.w.judge.heads(ln.entries[0])
		}
	}
}

// fault restarts the server, or has the replica take its place.
func (s *mirror) fault(f Fault) {
	m, w := &s.w.plan.Mirror, s.w
	down := min(f.For, 3*sec)
	switch f.Kind {
	case StoreRate:
		s.host.setRate(f.Arg)
	case MemberPause:
		s.host.frozen = max(s.host.frozen, w.now+f.For)
	case StoreDown:
		c := content{}
		if !m.Empty {
			c = s.as(w.rng.span(0, m.Loses+1))
		}
		s.restart(c, down, 0)
	case LeaderPause, LeaderCut, LeaderBoth:
		c := s.as(w.rng.span(0, m.Lag+1))
		if m.Beside {
			s.aside, s.side = w.now+f.For, int(f.Arg>>3&1)
		}
		s.takeOver(c, w.rng.span(0, down+1))
	}
}

// restart has a server begin with c, once it was down for a while, by a clock that differs by skew.
func (s *mirror) restart(c content, down, skew int64) {
	w := s.w
	w.say(nil, news, "store: another server process begins in %v with what was known at %v, by a clock that "+
		"differs by %v", span(down), span(c.at), span(skew))
	s.life++
	s.host.frozen = max(s.host.frozen, w.now+down)
	s.host.base += skew
	s.become(c)
	s.since = s.host.clock() + down
	s.hist = append(s.hist[:0], s.now())
	for _, l := range s.all {
		l.arm()
	}
}

// ambush has the replica take over as it was before a claim entered that has just come to hold,
// once its owner knows that it does. He hears no more.
func (s *mirror) ambush(e *entry) {
	w, n, inc := s.w, e.owner, e.inc
	entered := w.now - s.host.real(s.host.clock()-int64(e.token/64)*ms) - ms
	if w.calm || w.now-entered > s.w.plan.Mirror.Lag-500*ms {
		return
	}
	// at most where only the period before knows of its lease
	if s.as(w.now-entered).mark.mc == w.plan.TTL && w.rng.intn(10) > 0 {
		return
	}
	w.after(w.rng.span(20*ms, 500*ms), nil, func() {
		if w.calm || n.inc != inc || e.gone || w.now < s.host.frozen {
			return
		}
		w.say(&n.host, news, "FAULT cut off for %v, and its claim is lost in a failover", span(2*w.plan.TTL))
		for i := range s.servers() {
			w.sever(n, i, Fault{Kind: CutBoth, For: 2 * w.plan.TTL})
		}
		s.takeOver(s.as(w.now-entered), 0)
	})
}

// takeOver has the other machine go on with c.
func (s *mirror) takeOver(c content, down int64) {
	skew := s.w.plan.Mirror.Skew
	if s.other {
		skew = -skew
	}
	s.other = !s.other
	s.line++
	s.restart(c, down, skew)
}

func (s *mirror) heal() { s.aside = 0 }
