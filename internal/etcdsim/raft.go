package etcdsim

import (
	"time"

	"google.golang.org/grpc"
)

// member is one etcd process. Everything of it is guarded by the cluster's lock.
type member struct {
	c    *Cluster
	i    int
	id   uint64
	rate float64 // of its clock
	srv  *grpc.Server
	lis  *listener

	down   bool
	frozen bool
	inbox  []parked // messages that came while it was frozen

	term    uint64 // raft's; on disk
	leads   bool
	lead    int           // whom it takes for the leader; -1: nobody
	elapsed int           // ticks since it heard from the leader, or since it counted the majority
	wait    int           // ticks after which it stands
	ticked  time.Duration // its clock at the last tick
	ticks   int
	active  map[int]bool // members that answered the leader since it counted last
	pending []*proposal  // the leader's, that no majority holds yet
	queue   []*proposal  // that wait until a leader is known
	have    int          // entries of the log that it holds; on disk
	commit  int          // entries that it knows a majority holds

	st          *state // what it has applied; on disk
	applied     int
	appliedTerm uint64 // of the last entry applied as one: what its answers say
	shot        bool   // it has applied none since it took a snapshot over

	primary bool                    // its lessor counts leases down
	expiry  map[int64]time.Duration // on its clock
	asked   map[int64]time.Duration // when the end of a lease was handed in

	waiters    map[uint64]chan outcome // of proposals made through it
	changed    chan struct{}
	leaderless map[chan struct{}]bool // streams that end when there is no leader for long
	streams    map[*watchStream]bool
}

type proposal struct {
	id    uint64
	req   any
	term  uint64 // in which a leader took it up
	acks  map[int]bool
	woken uint64 // the term of a leader that handed in the end of a lease as it woke up
}

type outcome struct {
	resp  any
	err   error
	early bool   // the answer leaves before the term of its own entry is set
	term  uint64 // that it bears then
}

// live is the member's clockwork.
func (m *member) live() {
	for {
		select {
		case <-time.After(time.Duration(float64(tick) / m.rate)):
		case <-m.c.done:
			return
		}
		m.c.mu.Lock()
		if !m.down && !m.frozen && !m.c.closed {
			m.tick()
		}
		m.c.mu.Unlock()
	}
}

// patience draws how long it waits for a leader: one to two election timeouts.
func (m *member) patience() { m.elapsed, m.wait = 0, electionTick+m.c.rnd.IntN(electionTick) }

func (m *member) tick() {
	m.ticked = m.clock()
	m.ticks++
	if m.ticks%leaseLook == 0 {
		m.look(false)
	}
	m.elapsed++
	if m.leads {
		m.pulse()
		return
	}
	if m.elapsed >= 3*electionTick && m.lead < 0 {
		for stop := range m.leaderless {
			delete(m.leaderless, stop)
			close(stop)
		}
	}
	if m.elapsed >= electionTick && m.lead >= 0 {
		m.lead = -1
		m.note()
	}
	if m.elapsed >= m.wait && m.elapsed%electionTick == m.wait%electionTick {
		m.stand(false)
	}
}

// pulse is a leader's tick: heartbeats, what was not acknowledged yet once more, and each
// election timeout a count of those that answered since the last one. A leader that nobody
// answers gives up only at the second count after it woke up.
func (m *member) pulse() {
	if m.elapsed >= electionTick {
		if m.elapsed = 0; 2*(len(m.active)+1) <= len(m.c.members) {
			m.follow(m.term, -1)
			return
		}
		m.active = map[int]bool{}
	}
	for _, p := range m.pending {
		m.replicate(p)
	}
	m.heartbeat()
}

func (m *member) heartbeat() {
	term, have, commit := m.term, m.have, m.commit
	for _, f := range m.c.members {
		if f == m {
			continue
		}
		m.c.send(m, f, "heartbeat", func() {
			if term < f.term {
				newer := f.term
				m.c.send(f, m, "", func() { m.hear(newer) })
				return
			}
			f.follow(term, m.i)
			f.have = max(f.have, have)
			f.catchUp(min(commit, f.have))
			m.c.send(f, m, "", func() {
				if m.leads && m.term == term {
					m.active[f.i] = true
				}
			})
		})
	}
}

// hear takes over a newer raft term.
func (m *member) hear(term uint64) {
	if term > m.term {
		m.follow(term, -1)
	}
}

// follow makes m a follower of lead, or of nobody yet.
func (m *member) follow(term uint64, lead int) {
	news := m.leads || m.lead != lead || m.term != term
	if m.leads {
		m.leads, m.pending = false, nil
		m.demote()
	}
	m.term, m.lead = term, lead
	m.patience()
	if news {
		m.flush()
		m.note()
	}
}

// stand makes m leader if a majority would have it: members in reach, both ways, that have lost
// their leader and hold no more of the log. Members vote before they raise their term, so a
// member that was cut off disturbs nobody when it comes back. Asked says that the leader itself
// asked it to.
func (m *member) stand(asked bool) bool {
	term, votes := m.term+1, []*member{m}
	for _, p := range m.c.members {
		reach := !p.down && !p.frozen && !m.c.cut[link{m.i, p.i}] && !m.c.cut[link{p.i, m.i}]
		free := asked || !p.leads && (p.lead < 0 || p.elapsed >= electionTick)
		if p != m && reach && free && p.have <= m.have && (!asked || p.term <= m.term) {
			votes, term = append(votes, p), max(term, p.term+1)
		}
	}
	if 2*len(votes) <= len(m.c.members) {
		return false
	}
	for _, p := range votes {
		p.follow(term, -1)
	}
	m.lead = -1
	m.win()
	return true
}

func (m *member) win() {
	m.leads, m.lead, m.active, m.pending = true, m.i, map[int]bool{}, nil
	m.c.stats.Elections++
	m.promote()
	m.note()
	m.c.lastID++
	m.take(&proposal{id: m.c.lastID}) // a leader knows what is committed only when something of its own term is
	m.flush()
	m.heartbeat()
}

// flush hands in what waited until a leader was known.
func (m *member) flush() {
	if m.lead < 0 {
		return
	}
	queue := m.queue
	m.queue = nil
	for _, p := range queue {
		m.submit(p)
	}
}

// submit brings a proposal to the leader, if one is known. It may be lost on the way.
func (m *member) submit(p *proposal) {
	if m.lead < 0 {
		m.queue = append(m.queue, p)
		return
	}
	to := m.c.members[m.lead]
	m.c.send(m, to, "", func() {
		switch {
		case to.leads:
			to.take(p)
		case to.lead >= 0 && to.lead != m.i && to != m:
			to.submit(p) // it is passed on
		}
	})
}

// take is what a leader does with a proposal.
func (m *member) take(p *proposal) {
	p.term, p.acks = m.term, map[int]bool{}
	m.pending = append(m.pending, p)
	m.replicate(p)
	if len(m.c.members) == 1 {
		m.held(p)
	}
}

// replicate sends a proposal to those who have not acknowledged it.
func (m *member) replicate(p *proposal) {
	for _, f := range m.c.members {
		if f == m || p.acks[f.i] {
			continue
		}
		m.c.send(m, f, "", func() {
			if f.term > p.term || m.term != p.term {
				return
			}
			f.follow(p.term, m.i)
			p.acks[f.i] = true
			m.held(p)
		})
	}
}

// held appends a proposal to the log once a majority holds it, and tells the leader. From then on
// every later leader has it.
func (m *member) held(p *proposal) {
	holds := 1
	for i := range p.acks {
		if m.c.members[i].term == p.term {
			holds++
		}
	}
	if 2*holds <= len(m.c.members) || m.wasTaken(p) {
		return
	}
	m.c.log = append(m.c.log, entry{p.id, p.term, p.req})
	at := len(m.c.log)
	m.have = at
	last := m
	for i := range p.acks {
		m.c.members[i].have = at
		last = m.c.members[i]
	}
	if p.woken > 0 && p.woken < p.term {
		m.c.stats.StaleRevokes++
	}
	m.c.send(last, m, "", func() {
		if m.leads && m.term == p.term && m.commit < at {
			m.learn(at)
			m.heartbeat()
		}
	})
}

// wasTaken removes a proposal from those that are pending, and reports whether it was not among
// them.
func (m *member) wasTaken(p *proposal) bool {
	for i, q := range m.pending {
		if p == q {
			m.pending = append(m.pending[:i:i], m.pending[i+1:]...)
			return false
		}
	}
	return true
}

// learn applies the log as far as a majority is known to hold it.
func (m *member) learn(commit int) {
	if commit <= m.commit {
		return
	}
	m.commit = commit
	for m.applied < commit {
		e := m.c.log[m.applied]
		m.applied++
		resp, err := m.st.apply(e.req)
		m.lease(e.req)
		m.publish()
		if w := m.waiters[e.id]; w != nil {
			w <- outcome{resp, err, m.c.rnd.IntN(2) == 0, m.appliedTerm}
			delete(m.waiters, e.id)
		}
		m.appliedTerm, m.shot = e.term, false
	}
	m.note()
}
