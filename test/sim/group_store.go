package sim

import (
	"errors"
	"strconv"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/shardsim"
)

// groupStore is a plain store with what a group of shards needs besides: values of claims, a
// journal, requests to holders, hand-overs; and reads that may show an earlier state.
type groupStore struct {
	*plain
	judge   groupJudge
	journal []driver.Record    // the latest first
	readers [maxNodes]groupEar // who follows the group's line
	past    [3]primacy.State   // what it was before
	changes uint64             // of the group's line: its revision
	moving  int                // moves in the plan that stands in it
	plan    shardsim.Record    // and what that says
	paused  int64              // moves are paused until then
}

type groupEar struct {
	inc  uint32
	bell *bell
}

// groupReply is what a server answers about a group.
type groupReply struct {
	lines   []primacy.State
	journal []driver.Record
}

func newGroupStore(w *World) backend {
	s := &groupStore{plain: newPlain(w)}
	s.judge.s = s
	w.group = s
	for _, ln := range s.ln {
		ln.changed = func() { s.changed(ln) }
	}
	return s
}

// recovery is how long shards may be without an owner besides: members that gave a shard up avoid
// it for some seconds, and those of a member that is restarted wait for it.
func (s *groupStore) recovery() int64 { return s.w.plan.Group.Grace + 20*sec }

func (s *groupStore) heal() { s.recover() }

// changed is told of each change of a line.
func (s *groupStore) changed(ln *line) {
	s.judge.changed()
	if ln.name != 0 {
		return
	}
	s.moving, s.plan = 0, shardsim.Record{}
	if len(ln.entries) > 0 {
		e := ln.entries[0]
		s.plan = e.record()
		s.moving = len(s.plan.Moving)
		s.judge.announced(e, s.plan)
	}
	s.changes++
	copy(s.past[1:], s.past[:])
	s.past[0] = s.state(0)
	for i := range s.readers {
		if r := s.readers[i]; r.bell != nil && r.inc == s.w.nodes[i].inc {
			s.w.signal(s.w.nodes[i], 0, r.bell)
		}
	}
}

// shows returns what observers see of a claim: what a leader proclaims hides its own value.
func (e *entry) shows() []byte {
	if e.said != nil && e.line.entries[0] == e {
		return e.said
	}
	return e.value
}

// record reads what a member announces.
func (e *entry) record() shardsim.Record {
	b := e.shows()
	if len(b) == 0 {
		return shardsim.Record{}
	}
	if len(e.read) == 0 || &e.read[0] != &b[0] {
		e.read = b
		e.rec, _ = shardsim.Read(b)
	}
	return e.rec
}

// state is a line as observers see it.
func (s *groupStore) state(name int) primacy.State {
	st := primacy.State{Name: shardNames[name]}
	if name == 0 {
		st.Revision = s.changes
	}
	for i, e := range s.ln[name].entries {
		x := primacy.Entry{ID: e.owner.name, Token: primacy.Token(e.token), Held: i == 0, Value: e.shows(),
			Lease: strconv.FormatUint(e.sess, 10)}
		if i == 0 {
			st.Leader = &x
		} else {
			st.Waiting = append(st.Waiting, x)
		}
	}
	return st
}

// readLine reads one line.
func (c *plainClient) readLine(t *task, ctx *life, name int) (primacy.State, error) {
	r, err := c.ask(t, ctx, sec, localRead, func() reply {
		return reply{group: &groupReply{lines: []primacy.State{c.p.w.group.state(name)}}}
	})
	if err != nil {
		return primacy.State{}, err
	}
	return r.group.lines[0], nil
}

// follow reads the group's line, and has b rung when it changes. Once in a while the answer is what
// the line was before.
func (c *plainClient) follow(t *task, ctx *life, b *bell) (primacy.State, error) {
	w := c.p.w
	back := 0
	if !w.calm && w.rng.chance(w.plan.Group.Stale) {
		back = w.rng.intn(len(w.group.past))
	}
	r, err := c.ask(t, ctx, sec, localRead, func() reply {
		s := w.group
		s.readers[c.n.id] = groupEar{c.inc, b}
		st := s.past[back]
		if back == 0 {
			st = s.state(0)
		}
		return reply{group: &groupReply{lines: []primacy.State{st}}}
	})
	if err != nil {
		return primacy.State{}, err
	}
	if back > 0 {
		w.count.Staled++
	}
	return r.group.lines[0], nil
}

// readShards reads the lines of all shards at one instant.
func (c *plainClient) readShards(t *task, ctx *life) ([]primacy.State, error) {
	r, err := c.ask(t, ctx, sec, localRead, func() reply {
		g := &groupReply{}
		for name := 1; name < len(c.p.ln); name++ {
			if len(c.p.ln[name].entries) > 0 {
				g.lines = append(g.lines, c.p.w.group.state(name))
			}
		}
		return reply{group: g}
	})
	if err != nil {
		return nil, err
	}
	return r.group.lines, nil
}

// records reads the group's journal.
func (c *plainClient) records(t *task, ctx *life) ([]driver.Record, error) {
	r, err := c.ask(t, ctx, sec, localRead, func() reply {
		return reply{group: &groupReply{journal: c.p.w.group.journal}}
	})
	if err != nil {
		return nil, err
	}
	return r.group.journal, nil
}

// append writes a record, once: one with a key that is there changes nothing. Keys are in order.
func (c *plainClient) append(t *task, ctx *life, rec driver.Record, told func()) error {
	_, err := c.ask(t, ctx, sec, plainCall, func() reply {
		s := c.p.w.group
		at := 0
		for at < len(s.journal) && s.journal[at].Key > rec.Key {
			at++
		}
		if at == len(s.journal) || s.journal[at].Key != rec.Key {
			next := append([]driver.Record{}, s.journal[:at]...)
			s.journal = append(append(next, rec), s.journal[at:]...)
			if told != nil {
				told()
			}
		}
		return reply{}
	})
	return err
}

// restate replaces the value of this lease's claim in the group's line, or with proclaim what its
// leader announces. A request that was overtaken by a later one changes nothing.
func (h *plainHandle) restate(t *task, ctx *life, value []byte, proclaim bool) error {
	h.said++
	no := h.said
	_, err := h.do(t, ctx, func(l *plainLease) reply {
		e := l.p.ln[0].of(l.id)
		if e == nil || proclaim && e.line.entries[0] != e {
			return reply{err: errGone}
		}
		if no < l.said {
			return reply{}
		}
		l.said = no
		if proclaim {
			e.said = value
		} else {
			e.value, e.said = value, nil
		}
		e.line.touched()
		return reply{}
	})
	return err
}

// request brings a wish to the owner of a shard, if it owns it under that token. It may be lost.
func (c *plainClient) request(t *task, ctx *life, a shardsim.Ask) error {
	w := c.p.w
	_, err := c.ask(t, ctx, 2*sec, plainCall, func() reply {
		ln := c.p.ln[1+a.Shard]
		if len(ln.entries) == 0 || ln.entries[0].token != uint64(a.Owner) && !w.plan.Broken.AnyTerm {
			return reply{err: errGone}
		}
		n := ln.entries[0].owner
		inc := n.inc
		w.send(n.cut.in[0], &n.host, true, func() {
			if g := n.sess.group; inc == n.inc && g != nil {
				w.spawn(&n.host, func(t *task) { g.asked(t, a) })
			}
		})
		return reply{}
	})
	return err
}

var errNoSuccessor = errors.New("no successor")

// transfer hands p over to the claim with the token successor, in one step. Those between lose
// their places first.
func (h *plainHandle) transfer(t *task, ctx *life, p place, successor uint64) error {
	_, err := h.do(t, ctx, func(l *plainLease) reply {
		e, r := l.p.look(l.id, p)
		if e == nil || !r.held {
			return reply{err: errGone}
		}
		ln, at := e.line, 0
		for i, x := range ln.entries {
			if x.token == successor {
				at = i
			}
		}
		if at == 0 {
			return reply{err: errNoSuccessor}
		}
		j := &l.p.w.group.judge
		j.begin()
		for range at - 1 {
			x := ln.entries[1]
			l.p.rev++
			ln.remove(x, passed)
			if of := l.p.find(x.sess); of != nil {
				of.spent = append(of.spent, x.claim)
				of.ring()
			}
		}
		l.release(p)
		j.moved(ln)
		return reply{}
	})
	if (err == nil || errors.Is(err, errGone)) && h.slots[p.name].id == p.id {
		h.slots[p.name] = place{}
	}
	return err
}
