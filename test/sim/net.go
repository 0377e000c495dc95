package sim

import "errors"

// What a call on the store ends with. Everything but errGone and errRefused leaves the outcome
// unknown.
var (
	errGone    = errors.New("gone")
	errUnknown = errors.New("unknown outcome")
	errRefused = errors.New("refused")
)

// reply is what a server answers; each verb uses some of it.
type reply struct {
	err    error
	ok     bool
	epoch  uint64 // history of a server
	id     uint64
	rev    uint64
	mod    uint64
	ttl    int64
	held   bool
	stands bool
	ahead  []ahead   // leases before a place
	claims [2]uint64 // claim IDs, by name
	mask   uint16    // a bit for each name

	group     *groupReply
	obj       *kubeObject
	watch     *kubeWatch
	busy      bool // it is to be asked again
	unsure    bool // and what was asked may be carried out all the same
	forgotten bool // it does not know any more what was before
}

// backend is a simulated store: servers that candidates' machines send messages to.
type backend interface {
	servers() int
	// receive brings a request to a server. Respond may be called once, later, or never.
	receive(server int, m msg, op func() reply, respond func(reply))
	client(n *node) client
	lines() []*line
	leases() int
	// fault carries out a fault that concerns the store.
	fault(f Fault)
	// operator removes things by hand.
	operator(f Fault)
	// heal ends all faults.
	heal()
	// recovery is how long after a fault of its own the store may need until it answers everybody
	// again.
	recovery() int64
}

// client is a store as one process uses it.
type client interface {
	grant(t *task, c *life) (storeLease, error)
}

// storeLease is driver.Lease as the simulation needs it.
type storeLease interface {
	id() uint64
	ttl() int64
	renew(t *task, c *life) error
	claim(t *task, c *life, name int, id uint64) (place, error)
	wait(t *task, c *life, p place) (place, error)
	release(t *task, c *life, p place) error
	news(t *task, c *life) ([]place, error)
	close(t *task, c *life) error
}

type place struct {
	name  int
	id    uint64
	token uint64
	held  bool
}

// msg is what a server sees of a request before it carries it out.
type msg struct {
	kind msgKind
	sess uint64 // whose it is, where the server has to know
	conn uint64 // the connection it comes over, where that matters
}

// msgKind says how a server treats a request.
type msgKind uint8

const (
	plainCall  msgKind = iota // read or write that goes through the store's log
	keepalive                 // answered by whoever believes that it leads
	localRead                 // answered by the server asked, once it knows all that is decided
	staleRead                 // answered by the server asked from what it knows
	newSession                // opens a session
	comeBack                  // a session goes on over a new connection
	writing                   // through the store's log, like plainCall
	watching                  // answered when something has changed
)

// link is one direction of the way between a machine and a server: it swallows everything until
// then.
type links struct{ out, in [4]int64 }

// send brings fn over one link, perhaps late, twice or never.
func (w *World) send(cut int64, to *host, twice bool, fn func()) {
	if w.now < cut {
		w.count.Cut++
		return
	}
	n := &w.plan.Net
	r := w.rng.next()
	if !w.calm && int64(r&0xfffff) < n.Loss {
		w.count.Lost++
		return
	}
	w.after(w.delay(), to, fn)
	if twice && !w.calm && int64(r>>20&0xfffff) < n.Dup {
		w.count.Doubled++
		w.after(w.delay(), to, fn)
	}
}

// delay is how long a message takes. They overtake each other.
func (w *World) delay() int64 {
	n := &w.plan.Net
	r := w.rng.next()
	if !w.calm && int64(r&0xfffff) < n.Late {
		w.count.Late++
		return int64((r >> 20) % uint64(2*w.plan.TTL))
	}
	return n.Base/2 + int64((r>>20)%uint64(n.Base))
}

// flight is a call that somebody waits for.
type flight struct {
	done bool
	rep  reply
	k    waker
}

// call sends a request to a server and waits for the answer, until c ends or limit has passed.
// Given up, it may still be carried out.
func (t *task) call(c *life, limit int64, n *node, server int, m msg, op func() reply) (reply, error) {
	if c.over() {
		return reply{}, errUnknown
	}
	w, f := t.w, &flight{}
	// A request to one of several servers arrives once: their protocols see to that.
	w.send(n.cut.out[server], nil, w.store.servers() == 1, func() {
		w.store.receive(server, m, op, func(r reply) {
			inc := n.inc
			w.send(n.cut.in[server], &n.host, true, func() {
				if !f.done && inc == n.inc {
					f.done, f.rep = true, r
					f.k.wake()
				}
			})
		})
	})
	f.k = t.arm()
	t.wait(c, f.k, limit)
	if !f.done {
		f.done = true
		return reply{}, errUnknown
	}
	return f.rep, f.rep.err
}

// signal rings a client's bell. It may be lost, and nobody notices.
func (w *World) signal(n *node, server int, b *bell) {
	if !w.calm && w.rng.chance(w.plan.Net.Deaf) {
		w.count.Lost++
		return
	}
	w.send(n.cut.in[server], &n.host, true, b.ring)
}

// refuses says that the store will not have a claim at the moment: no permission, too much load.
func (w *World) refuses() bool {
	if w.calm || !w.rng.chance(w.plan.Net.Refuse) {
		return false
	}
	w.count.Refusals++
	return true
}
