package sim

import (
	"sort"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// entry is one WAL record: a commit of a client, or one that a promotion or a shutdown writes.
type entry struct {
	id  int
	tli core.Timeline
}

// wal is a list of records. As id is given out once, and WAL is only copied from its beginning on,
// two of them are equal up to i if they are equal at i.
type wal []entry

func (w wal) lsn() core.LSN { return core.LSN(len(w)) }

func (w wal) position() core.Position {
	if len(w) == 0 {
		return core.Position{}
	}
	return core.Position{Timeline: w[len(w)-1].tli, LSN: w.lsn()}
}

func (w wal) partOf(x wal) bool {
	return len(w) <= len(x) && (len(w) == 0 || w[len(w)-1].id == x[len(w)-1].id)
}

// common returns how far two are equal.
func common(a, b wal) int {
	return sort.Search(min(len(a), len(b)), func(i int) bool { return a[i].id != b[i].id })
}

// disk is what survives a crash.
type disk struct {
	state      core.State
	data       core.DataState
	wal        wal
	flushed    int // of wal; the rest is lost when the power goes
	consistent int // a server whose wal is shorter takes no SQL and cannot be promoted
	conninfo   int // the node to stream from; -1: none
	dir        int // another number: another directory of that name
	shared     knows
}

// cut makes the WAL end at n.
func (d *disk) cut(n int) {
	d.wal = append(wal(nil), d.wal[:n]...) // judges keep what was there
	d.flushed = min(d.flushed, n)
}

// server is one running postmaster with all its processes.
type server struct {
	process
	n        *node
	child    *agent // who started it
	primary  bool
	token    uint64 // the claim's key under which its promotion was ordered; 0: by hand, or none
	stopping bool
	hung     bool
	short    bool          // its recovery waits for a restart
	dying    bool          // killed while it waits for its disk: it ends when that answers
	complete time.Duration // when all local WAL has been read
	ssn      core.Sync     // configured
	ssnGen   int
	ssnOrder uint64
	loaded   core.Sync // by the checkpointer: whether backends wait at all
	loadGen  int
	senders  []*sender
	recv     *receiver
	waiting  []commit

	checkpointed uint64 // the order whose checkpoint is written
}

// commit is one that a client waits for.
type commit struct {
	pos   int // of its record, from 1
	id    int
	since time.Duration
}

// process can be frozen: what reaches it meanwhile waits.
type process struct {
	w      *World
	dead   bool
	frozen bool
	held   []func()
}

func (p *process) do(f func()) {
	switch {
	case p.dead:
	case p.frozen:
		p.held = append(p.held, f)
	default:
		f()
	}
}

func (p *process) later(d time.Duration, f func()) { p.w.after(d, func() { p.do(f) }) }

func (p *process) freeze() { p.frozen = true }

func (p *process) thaw() {
	if !p.frozen {
		return
	}
	p.frozen = false
	held := p.held
	p.held = nil
	for _, f := range held {
		p.later(p.w.between(0, 20*ms), f)
	}
}

// start starts a server as a standby that listens to nobody and acknowledges nothing.
func (n *node) start(by *agent) {
	n.kill()
	n.disk.conninfo = -1
	n.disk.flushed = len(n.disk.wal)
	s := &server{process: process{w: n.w}, n: n, child: by, complete: n.w.now + n.w.delay(0, 200*ms)}
	n.srv = s
	n.w.logf("%s: server started, WAL ends at %v", n.name, n.disk.wal.position())
}

// kill ends the server at once, as SIGQUIT and SIGKILL do.
func (n *node) kill() {
	s := n.srv
	if s == nil {
		return
	}
	n.w.logf("%s: server is gone (primary %v), WAL ends at %v", n.name, s.primary, n.disk.wal.position())
	n.srv = nil
	s.dead = true
	for len(s.senders) > 0 {
		s.senders[0].close()
	}
	if s.recv != nil {
		s.recv.exit()
	}
	n.poke()
}

// insert writes one record.
func (s *server) insert(tli core.Timeline) int {
	d := &s.n.disk
	id := s.w.number()
	d.wal = append(d.wal, entry{id, tli})
	d.flushed = len(d.wal)
	s.grown()
	return id
}

// grown tells the walsenders that there is more WAL.
func (s *server) grown() {
	for _, x := range s.senders {
		x.send()
	}
}

// write is one transaction of a client.
func (s *server) write() {
	if !s.primary || s.stopping || s.hung {
		return
	}
	id := s.insert(s.n.disk.wal.position().Timeline)
	s.w.Stats.Commits++
	c := commit{len(s.n.disk.wal), id, s.w.now}
	if s.loaded.Kind == core.SyncAlone {
		s.w.judge.acked(s, c)
		return
	}
	s.waiting = append(s.waiting, c)
}

// clients write to this node whenever its server is a primary, whoever leads.
func (n *node) clients() {
	if n.srv != nil {
		n.srv.do(n.srv.write)
	}
	n.w.after(n.w.between(n.w.plan.writes/4, n.w.plan.writes), n.clients)
}

// configure sets the SSN. The checkpointer and each walsender load it when they come to it.
func (s *server) configure(ssn core.Sync, order uint64) {
	s.ssn, s.ssnOrder = ssn, order
	s.ssnGen = s.w.number()
	s.later(s.w.delay(0, 10*ms), s.load)
	for _, x := range s.senders {
		x.later(s.w.delay(0, 10*ms), x.load)
	}
}

// load is the checkpointer's: with an empty SSN it lets all go who wait.
func (s *server) load() {
	s.loaded, s.loadGen = s.ssn, s.ssnGen
	s.w.judge.overlap(s)
	if s.loaded.Kind == core.SyncAlone {
		s.release(len(s.n.disk.wal))
	}
	s.n.poke()
}

// proven returns the order whose SSN everybody has loaded.
func (s *server) proven() uint64 {
	if s.loadGen != s.ssnGen {
		return 0
	}
	for _, x := range s.senders {
		if x.loadGen != s.ssnGen {
			return 0
		}
	}
	return s.ssnOrder
}

// release acknowledges all commits up to pos.
func (s *server) release(pos int) {
	for len(s.waiting) > 0 && s.waiting[0].pos <= pos {
		c := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.w.judge.acked(s, c)
	}
}

// promote makes the server a primary.
func (s *server) promote(tli core.Timeline, token uint64) {
	if s.primary {
		return
	}
	if wait := s.complete - s.w.now; wait > 0 {
		s.later(wait, func() { s.promote(tli, token) })
		return
	}
	if len(s.n.disk.wal) < s.n.disk.consistent {
		s.w.logf("%s: FATAL: not consistent", s.n.name)
		s.n.kill()
		return
	}
	if s.recv != nil {
		s.recv.exit()
	}
	s.w.judge.promoted(s, tli, token)
	s.primary, s.token = true, token
	s.insert(tli)
	s.n.poke()
}
