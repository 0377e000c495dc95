package sim

import (
	"slices"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// sender is a walsender: one standby's connection at the server that it streams from.
type sender struct {
	process
	s       *server
	to      core.Identity // the standby's application_name
	recv    *receiver
	loaded  core.Sync // its own view of the SSN
	loadGen int
	flushed int // the standby's last reply; -1: none yet
	sending bool
}

// receiver is a walreceiver.
type receiver struct {
	process
	s       *server // whose process it is
	from    *node
	sender  *sender // nil: connecting
	writing bool
}

func (x *sender) close() {
	if x.dead {
		return
	}
	x.dead = true
	x.s.senders = slices.DeleteFunc(x.s.senders, func(y *sender) bool { return y == x })
	if r := x.recv; !r.dead {
		d := x.w.between(0, 5*ms)
		if !x.w.linked(x.s.n, r.s.n) || !x.s.n.on {
			d = x.w.between(500*ms, 3000*ms) // wal_receiver_timeout
		}
		r.later(d, r.exit)
	}
	x.s.n.poke()
}

// load reads the SSN that is configured.
func (x *sender) load() {
	x.loaded, x.loadGen = x.s.ssn, x.s.ssnGen
	x.s.w.judge.overlap(x.s)
	x.release()
	x.s.n.poke()
}

// send gives the standby what there is, after a while.
func (x *sender) send() {
	if x.sending {
		return
	}
	x.sending = true
	x.later(x.w.delay(ms/4, 2*ms), func() { x.s.do(x.sent) })
}

func (x *sender) sent() {
	x.sending = false
	if x.dead {
		return
	}
	if !x.w.linked(x.s.n, x.recv.s.n) { // TCP sends again
		x.later(x.w.between(100*ms, 400*ms), x.send)
		return
	}
	from := x.s.n.disk
	upto := from.flushed
	r := x.recv
	x.w.after(x.w.delay(ms/4, 2*ms), func() { r.do(func() { r.s.do(func() { r.got(from.wal[:upto:upto]) }) }) })
}

// got writes WAL that came, and flushes it a little later.
func (r *receiver) got(w wal) {
	d := &r.s.n.disk
	if r.dead || len(w) <= len(d.wal) || !d.wal.partOf(w) {
		return
	}
	d.wal = append(d.wal, w[len(d.wal):]...)
	r.s.n.byHand = r.s.n.byHand || r.from.byHand
	if r.w.broken.Early {
		r.reply(len(d.wal))
	}
	if !r.writing {
		r.writing = true
		r.later(r.w.delay(ms/4, 3*ms), func() { r.s.do(r.flush) })
	}
}

func (r *receiver) flush() {
	r.writing = false
	if r.dead {
		return
	}
	r.s.n.disk.flushed = len(r.s.n.disk.wal)
	r.s.grown()
	r.reply(r.s.n.disk.flushed)
	r.s.n.poke()
}

// reply tells the walsender what is flushed. It may be in flight for long.
func (r *receiver) reply(pos int) {
	x := r.sender
	r.w.after(r.w.delay(ms/4, 2*ms), func() { x.arrive(r.s.n, pos) })
}

func (x *sender) arrive(from *node, pos int) {
	if x.dead {
		return
	}
	if !x.w.linked(x.s.n, from) {
		x.w.after(x.w.between(100*ms, 400*ms), func() { x.arrive(from, pos) })
		return
	}
	x.do(func() {
		x.s.do(func() {
			if x.dead {
				return
			}
			x.flushed = max(x.flushed, pos)
			x.release()
			if x.flushed < x.s.n.disk.flushed {
				x.send()
			}
		})
	})
}

// release is SyncRepReleaseWaiters: a walsender counts those whose own view of the SSN names them,
// and needs as many as its own view says.
func (x *sender) release() {
	if !x.s.primary || !slices.Contains(x.loaded.Names, x.to.String()) {
		return
	}
	var at []int
	for _, y := range x.s.senders {
		if y.flushed >= 0 && slices.Contains(y.loaded.Names, y.to.String()) {
			at = append(at, y.flushed)
		}
	}
	k := x.loaded.Acks
	if k == 0 || len(at) < k {
		return
	}
	slices.Sort(at)
	x.s.release(at[len(at)-k])
}

// exit ends a walreceiver: it flushes what it has, and sends no reply.
func (r *receiver) exit() {
	if r.dead {
		return
	}
	r.dead = true
	s := r.s
	if s.recv == r {
		s.recv = nil
	}
	s.n.disk.flushed = len(s.n.disk.wal)
	if x := r.sender; x != nil {
		// The walsender learns it when the connection is closed, or after a time without replies.
		d := r.w.delay(0, 5*ms)
		if !r.w.linked(x.s.n, s.n) || !s.n.on {
			d = r.w.between(500*ms, 5000*ms)
		}
		r.w.after(d, func() { x.do(func() { x.s.do(x.close) }) })
	}
	if !s.dead {
		s.grown()
		s.connect()
		s.n.poke()
	}
}

// connect is the startup process: it starts a walreceiver where primary_conninfo names somebody.
func (s *server) connect() {
	s.later(s.w.delay(5*ms, 100*ms), func() {
		d := s.n.disk
		if s.primary || s.stopping || s.recv != nil || d.conninfo < 0 {
			return
		}
		r := &receiver{process: process{w: s.w}, s: s, from: s.w.nodes[d.conninfo]}
		s.recv = r
		r.later(s.w.delay(ms, 5*ms), func() { s.do(r.connected) })
	})
}

// connected begins to stream, if there is a server whose WAL goes on where the standby's ends.
func (r *receiver) connected() {
	if r.dead {
		return
	}
	to := r.from.srv
	if to == nil || to.frozen || to.stopping || to.serves(r.s.n) || !r.w.linked(r.from, r.s.n) ||
		!r.s.n.disk.wal.partOf(r.from.disk.wal) {
		r.later(r.w.between(5*ms, 200*ms), r.exit)
		return
	}
	x := &sender{process: process{w: r.w}, s: to, to: r.s.n.identity(), recv: r, flushed: -1}
	x.loaded, x.loadGen = to.ssn, to.ssnGen
	to.senders = append(to.senders, x)
	r.sender = x
	r.w.judge.overlap(to)
	r.reply(r.s.n.disk.flushed)
	x.send()
	r.s.n.poke()
	to.n.poke()
}

// serves says whether there is a walsender for that standby already. It holds the standby's slot,
// so that one standby is never counted twice.
func (s *server) serves(n *node) bool {
	return slices.ContainsFunc(s.senders, func(x *sender) bool { return x.to.Name == n.name })
}

// disconnect has the walreceiver end, because primary_conninfo has changed.
func (s *server) disconnect() {
	if r := s.recv; r != nil {
		r.later(s.w.delay(ms, 5*ms), func() { s.do(r.exit) })
	} else {
		s.connect()
	}
}
