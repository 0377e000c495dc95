package etcdsim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// As etcd has them by default.
const (
	tick         = 100 * time.Millisecond // of raft, and the interval of heartbeats
	electionTick = 10                     // ticks without a leader before a member stands
	leaseLook    = 5                      // ticks between two looks at the leases: 500 ms
	requestLimit = 7 * time.Second
	leastTTL     = 2 // seconds
)

// Options is what a cluster is made of.
type Options struct {
	Members int           // 3 if zero
	Seed    uint64        // of everything that is left to chance
	Rates   []float64     // of the members' clocks; 1 for those not named
	Peers   time.Duration // longest way of a message between members; 1 ms if zero
	Clients time.Duration // way of each byte between a client and a member; 200 µs if zero
	TxnOps  int           // operations in one Txn; 128 if zero
	// entries that a leader keeps for those behind: who lacks more catches up by a snapshot;
	// drawn if zero
	Keep int
}

// Cluster is an etcd cluster. Its methods are safe for concurrent use.
type Cluster struct {
	o       Options
	id      uint64
	start   time.Time
	latency time.Duration
	work    sync.WaitGroup

	mu      sync.Mutex
	fills   func(*pb.TxnRequest) bool // see Fill
	late    bool
	thawed  sync.Cond // some member is not frozen any more
	rnd     *rand.Rand
	members []*member
	log     []entry       // what a majority holds, in order
	cut     map[link]bool // ways between members that swallow what is sent
	held    map[way]bool  // ways between clients and members that do
	flows   map[*flow]struct{}
	lastID  uint64 // of a proposal
	stats   Stats
	closed  bool
	done    chan struct{}
}

// Stats counts what happened in a cluster.
type Stats struct {
	Elections    int // won, the first included
	Snapshots    int // by which members caught up that were far behind
	Reads        int // linearizable and serializable, Txns without writes included
	Entries      int // of the log
	Expired      int // leases ended because their time was over
	StaleRevokes int // handed in by a leader that had been deposed, and carried out
	StaleRenewal int // keepalives acknowledged by a leader that had been deposed
}

// link is one way between two members.
type link struct{ from, to int }

// way is one way between a client and a member.
type way struct {
	client, member int
	there          bool // to the member
}

// entry is one entry of the log that a majority holds.
type entry struct {
	id   uint64 // of its proposal
	term uint64
	req  any
}

// Start starts a cluster that has no leader yet. Close ends it, which must happen in the same
// bubble.
func Start(o Options) *Cluster {
	if o.Members == 0 {
		o.Members = 3
	}
	if o.TxnOps == 0 {
		o.TxnOps = mostOps
	}
	if o.Peers == 0 {
		o.Peers = time.Millisecond
	}
	if o.Clients == 0 {
		o.Clients = 200 * time.Microsecond
	}
	c := &Cluster{o: o, start: time.Now(), latency: o.Clients, rnd: rand.New(rand.NewPCG(o.Seed, 7)),
		cut:  map[link]bool{},
		held: map[way]bool{}, flows: map[*flow]struct{}{}, done: make(chan struct{})}
	c.id = c.rnd.Uint64()
	if c.o.Keep == 0 {
		c.o.Keep = keeps[c.rnd.IntN(len(keeps))]
	}
	c.thawed.L = &c.mu
	for i := range o.Members {
		rate := 1.0
		if i < len(o.Rates) {
			rate = o.Rates[i]
		}
		m := &member{c: c, i: i, id: c.rnd.Uint64(), rate: rate, lead: -1, st: newState(), lis: newListener(),
			srv:     newServer(),
			waiters: map[uint64]chan outcome{}, expiry: map[int64]time.Duration{}, asked: map[int64]time.Duration{},
			changed: make(chan struct{}), leaderless: map[chan struct{}]bool{}, streams: map[*watchStream]bool{}}
		m.patience()
		m.register()
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		c.work.Go(func() { _ = m.srv.Serve(m.lis) })
		c.work.Go(m.live)
	}
	return c
}

// newServer takes a ping from each client every 5 s, as etcd does. By gRPC's own rules it would
// close connections that ask so often.
func newServer() *grpc.Server {
	return grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}))
}

// Close ends the cluster and all connections to it, and returns when all its goroutines have ended.
func (c *Cluster) Close() {
	c.mu.Lock()
	c.closed = true
	close(c.done)
	for _, m := range c.members {
		m.frozen = false
		m.note()
	}
	for f := range c.flows {
		f.reset()
		f.to.set(func() { f.to.stoppedR, f.to.stoppedW = false, false })
		f.back.set(func() { f.back.stoppedR, f.back.stoppedW = false, false })
	}
	c.thawed.Broadcast()
	c.mu.Unlock()
	for _, m := range c.members {
		m.srv.Stop()
	}
	c.work.Wait()
}

// Endpoints names the members.
func (c *Cluster) Endpoints() []string {
	var out []string
	for _, m := range c.members {
		out = append(out, m.endpoint())
	}
	return out
}

func (m *member) endpoint() string { return fmt.Sprintf("m%d:2379", m.i) }

func (c *Cluster) member(endpoint string) (int, error) {
	var i int
	if _, err := fmt.Sscanf(strings.TrimPrefix(endpoint, "passthrough:///"), "m%d:2379", &i); err != nil || i < 0 ||
		i >= len(c.members) {
		return 0, fmt.Errorf("etcdsim: no member at %q", endpoint)
	}
	return i, nil
}

// Dialer is Dial for one client, as gRPC wants it.
func (c *Cluster) Dialer(client int) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, endpoint string) (net.Conn, error) {
		return c.Dial(ctx, client, endpoint)
	})
}

// clock is the member's own monotonic clock, which goes on while it is frozen.
func (m *member) clock() time.Duration {
	return time.Duration(float64(time.Since(m.c.start)) * m.rate)
}

// gate waits while the member is frozen. It reports false when the cluster ends or the member is
// down. The caller holds the lock.
func (m *member) gate() bool {
	for m.frozen && !m.c.closed {
		m.c.thawed.Wait()
	}
	return !m.c.closed && !m.down
}

// note wakes whoever waits for the member to learn something. The caller holds the lock.
func (m *member) note() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// until waits for ok, looking whenever the member learns something, but not longer than limit or
// ctx. The caller holds the lock, which is given up meanwhile.
func (m *member) until(ctx context.Context, limit time.Duration, ok func() bool) bool {
	end := time.NewTimer(limit)
	defer end.Stop()
	for {
		if !m.gate() {
			return false
		}
		if ok() {
			return true
		}
		changed := m.changed
		m.c.mu.Unlock()
		live := true
		select {
		case <-changed:
		case <-ctx.Done():
			live = false
		case <-end.C:
			live = false
		}
		m.c.mu.Lock()
		if !live {
			return m.gate() && ok()
		}
	}
}

// send carries a message from one member to another: do runs there, under the lock, unless a cut
// swallows it. It waits before a member that is frozen. Of messages with the same kind only the
// last one waits.
func (c *Cluster) send(from, to *member, kind string, do func()) {
	if from == to {
		do()
		return
	}
	if c.cut[link{from.i, to.i}] {
		return
	}
	time.AfterFunc(time.Duration(c.rnd.Int64N(int64(c.o.Peers)))+c.o.Peers/10, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.closed || to.down || c.cut[link{from.i, to.i}]:
		case to.frozen:
			to.park(kind, do)
		default:
			do()
		}
	})
}

// park keeps a message for a frozen member.
func (m *member) park(kind string, do func()) {
	if kind != "" {
		for i, p := range m.inbox {
			if p.kind == kind {
				m.inbox = append(m.inbox[:i], m.inbox[i+1:]...)
				break
			}
		}
	}
	m.inbox = append(m.inbox, parked{kind, do})
}

type parked struct {
	kind string
	do   func()
}
