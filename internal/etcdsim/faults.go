package etcdsim

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Leader returns the member that leads in the newest raft term, -1 if none does.
func (c *Cluster) Leader() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	best := -1
	for _, m := range c.members {
		if m.leads && !m.down && (best < 0 || m.term > c.members[best].term) {
			best = m.i
		}
	}
	return best
}

// Fill has members say that there is no space to those Txns for which full reports true; nil:
// there is space again. Late: they are carried out all the same, as etcd does where it finds that
// it is full only as it applies them.
func (c *Cluster) Fill(late bool, full func(*pb.TxnRequest) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fills, c.late = full, late
}

func (c *Cluster) full(r *pb.TxnRequest) (full, late bool) {
	c.mu.Lock()
	fills, late := c.fills, c.late
	c.mu.Unlock()
	return fills != nil && fills(r), late
}

// Stats returns what has been counted.
func (c *Cluster) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Entries = len(c.log)
	return c.stats
}

// Connections returns how many connections to members are not closed on both sides.
func (c *Cluster) Connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.flows)
}

// Freeze stops a member as SIGSTOP does: its clock goes on, its connections stay open, and what
// is sent to it waits.
func (c *Cluster) Freeze(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members[i].frozen = true
	c.refresh()
}

// Thaw lets a frozen member go on. Whether it looks at its leases first, or at what it was sent,
// is left to chance.
func (c *Cluster) Thaw(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[i]
	if !m.frozen {
		return
	}
	m.frozen = false
	m.ticked = m.clock() // the ticker is due at once
	if m.leads && c.rnd.IntN(2) == 0 {
		m.look(true)
	}
	inbox := m.inbox
	m.inbox = nil
	// They came over several connections, so in no order: what it was asked to write is passed on
	// if it hears first that it was deposed.
	c.rnd.Shuffle(len(inbox), func(i, j int) { inbox[i], inbox[j] = inbox[j], inbox[i] })
	for _, p := range inbox {
		p.do()
	}
	m.flush()
	c.thawed.Broadcast()
	c.refresh()
}

// Crash ends a member. It keeps what is on its disk; all its connections are reset.
func (c *Cluster) Crash(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[i]
	m.down, m.frozen, m.inbox, m.queue, m.lead = true, false, nil, nil, -1
	if m.shot {
		m.appliedTerm = 0 // its disk has no entries to apply once more
	}
	if m.leads {
		m.leads, m.pending = false, nil
		m.demote()
	}
	c.thawed.Broadcast()
	m.note()
	for f := range c.flows {
		if f.member == i {
			f.reset()
		}
	}
	c.refresh()
}

// Restart starts a member that crashed.
func (c *Cluster) Restart(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[i]
	m.down = false
	m.patience()
}

// Cut has messages from one member to another vanish, or heals that way.
func (c *Cluster) Cut(from, to int, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut[link{from, to}] = on
}

// Isolate cuts a member off from all others, both ways, or heals that.
func (c *Cluster) Isolate(i int, on bool) {
	for j := range c.members {
		c.Cut(i, j, on)
		c.Cut(j, i, on)
	}
}

// Hold has what a client sends to a member (there) or a member to a client vanish. It arrives
// when the way is healed.
func (c *Cluster) Hold(client, member int, there, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[way{client, member, there}] = on
	c.refresh()
}

// Slow sets how long each byte of a client's open connections takes from now on.
func (c *Cluster) Slow(client int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.flows {
		if f.client == client {
			f.to.set(func() { f.to.delay = d })
			f.back.set(func() { f.back.delay = d })
		}
	}
}

// Reset breaks a client's connections to a member.
func (c *Cluster) Reset(client, member int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.flows {
		if f.client == client && f.member == member {
			f.reset()
		}
	}
}

// Heal ends every fault: members run, and all ways are open. Connections that are slow stay so
// until they are made anew.
func (c *Cluster) Heal() {
	c.mu.Lock()
	clear(c.cut)
	clear(c.held)
	for _, m := range c.members {
		if m.down {
			m.down = false
			m.patience()
		}
	}
	c.refresh()
	c.mu.Unlock()
	for i := range c.members {
		c.Thaw(i)
	}
}

// refresh gives all connections the state they should have. The caller holds the lock.
func (c *Cluster) refresh() {
	for f := range c.flows {
		c.applyTo(f)
	}
}

// MoveLeader makes another member leader in order, as etcdctl move-leader does. It reports
// whether that could be done.
func (c *Cluster) MoveLeader(to int) bool {
	from := c.Leader()
	c.mu.Lock()
	defer c.mu.Unlock()
	if from < 0 || from == to {
		return false
	}
	m, lead := c.members[to], c.members[from]
	return lead.leads && !lead.frozen && !m.down && !m.frozen && m.have == len(c.log) && m.lead == from && m.stand(true)
}

// Keys returns what stands under prefix by the newest state of any member.
func (c *Cluster) Keys(prefix string) []*mvccpb.KeyValue {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest().st.standing(prefix)
}

func (c *Cluster) newest() *member {
	best := c.members[0]
	for _, m := range c.members {
		if m.applied > best.applied {
			best = m
		}
	}
	return best
}

// Delete removes a key of that create revision, as an operator would, and Revoke ends a lease.
// They wait until it is done, at most until ctx ends; it may still be done later then.
func (c *Cluster) Delete(ctx context.Context, key string, create int64) error {
	there := &pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_CREATE, Key: []byte(key),
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: create}}
	del := &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}
	gone := &pb.RequestOp{Request: del}
	return c.operate(ctx, &pb.TxnRequest{Compare: []*pb.Compare{there}, Success: []*pb.RequestOp{gone}})
}

// Revoke is described at Delete.
func (c *Cluster) Revoke(ctx context.Context, lease int64) error {
	return c.operate(ctx, &pb.LeaseRevokeRequest{ID: lease})
}

// Compact forgets the history before a revision.
func (c *Cluster) Compact(ctx context.Context, rev int64) error {
	return c.operate(ctx, &pb.CompactionRequest{Revision: rev})
}

func (c *Cluster) operate(ctx context.Context, req any) error {
	at := max(c.Leader(), 0)
	_, _, err := c.members[at].propose(ctx, req)
	return err
}
