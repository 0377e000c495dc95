package shards

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// crowd is a group whose members are all in this process, each with a session and a connection of
// its own, on a real etcd.
type crowd struct {
	*testing.T
	etcd    *etcdtest.Server
	ttl     time.Duration
	moves   int                            // Options.Moves
	owners  []atomic.Pointer[primacy.Term] // of each shard: the term of whose handler has begun last
	moved   atomic.Int32
	doubles atomic.Int32
	members []*crowdMember
}

type crowdMember struct {
	session *primacy.Session
	link    *etcdtest.Proxy
	owns    atomic.Int32
	stop    context.CancelFunc
	done    chan error
}

func (c *crowd) join(log bool) *crowdMember {
	c.Helper()
	m := &crowdMember{link: etcdtest.NewProxy(c, c.etcd.Addr()), done: make(chan error, 1)}
	store, err := etcdstore.Open(c.Context(), etcdstore.Config{Endpoints: []string{m.link.Addr()}})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { store.Close() })
	id := fmt.Sprintf("m%02d", len(c.members))
	// On a machine with too little time for all a handler may outlive its right.
	so := &primacy.Options{ID: id, TTL: c.ttl, Overrun: primacy.OverrunWait}
	if m.session, err = primacy.NewSession(store, so); err != nil {
		c.Fatal(err)
	}
	o := &Options{Moves: c.moves}
	if log {
		o.Logger = slog.New(slog.NewTextHandler(c.Output(), nil)).With("member", m.session.ID())
	}
	g, err := New(m.session, "crowd", len(c.owners), o)
	if err != nil {
		c.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	c.members = append(c.members, m)
	go func() { m.done <- g.Run(ctx, func(ctx context.Context, s *Shard) error { return c.own(ctx, m, s) }) }()
	return m
}

func (c *crowd) own(ctx context.Context, m *crowdMember, s *Shard) error {
	last := c.owners[s.Number].Swap(s.Term)
	if s.Term.Check() == nil && last != nil && last.Check() == nil && s.Term.Check() == nil {
		c.doubles.Add(1) // as last was asked both were told yes, for none is told yes again
	}
	m.owns.Add(1)
	<-ctx.Done()
	if primacy.ReasonOf(context.Cause(ctx)) == primacy.Transferred {
		c.moved.Add(1)
	}
	m.owns.Add(-1)
	c.owners[s.Number].CompareAndSwap(s.Term, nil)
	return ctx.Err()
}

// even waits until each shard has an owner and the loads of these members differ by at most one. It
// returns how long that took.
func (c *crowd) even(what string, members ...*crowdMember) time.Duration {
	c.Helper()
	began := time.Now()
	for {
		sum, low, high := 0, len(c.owners), 0
		for _, m := range members {
			n := int(m.owns.Load())
			sum, low, high = sum+n, min(low, n), max(high, n)
		}
		took := time.Since(began)
		if sum == len(c.owners) && high-low <= 1 {
			return took
		}
		if took > 2*time.Minute {
			c.Fatalf("after %s: %d of %d shards are owned, loads %d to %d", what, sum, len(c.owners), low, high)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestACrowdOnEtcd has many members share many shards on a real etcd: they start, one joins, one
// leaves, one is cut off. It reports how long each took, and fails if a shard had two owners. The
// figures of docs/shards.md are of SHARDS_CROWD=1024x50.
func TestACrowdOnEtcd(t *testing.T) {
	shards, members, ttl, moves := 64, 4, 2*time.Second, 8
	if text := os.Getenv("SHARDS_CROWD"); text != "" {
		if n, err := fmt.Sscanf(text, "%dx%d", &shards, &members); n != 2 || err != nil {
			t.Fatalf("SHARDS_CROWD=%q: want SHARDSxMEMBERS, such as 1024x50", text)
		}
		ttl, moves = primacy.DefaultTTL, 0
	}
	c := &crowd{T: t, etcd: etcdtest.Start(t, etcdtest.Options{}), ttl: ttl, moves: moves,
		owners: make([]atomic.Pointer[primacy.Term], shards)}
	for range members {
		c.join(false)
	}
	started := c.even("the start", c.members...)
	t.Logf("%d shards, %d members: all owned and even %v after the start, %d moves", shards, members,
		started.Round(time.Millisecond), c.moved.Swap(0))
	time.Sleep(time.Second)

	c.join(true)
	joined := c.even("a join", c.members...)
	t.Logf("a join: even after %v, %d moves", joined.Round(time.Millisecond), c.moved.Swap(0))
	time.Sleep(time.Second)

	leaver := c.members[1]
	began := time.Now()
	leaver.stop()
	if err := <-leaver.done; err != nil {
		t.Error(err)
	}
	left := time.Since(began)
	rest := append(append([]*crowdMember{}, c.members[:1]...), c.members[2:]...)
	c.even("a leave", rest...)
	t.Logf("a leave: Run returned after %v, %d moves", left.Round(time.Millisecond), c.moved.Swap(0))

	before := make([]uint64, len(rest))
	for i, m := range rest {
		before[i] = m.session.Stats().Renewals
	}
	time.Sleep(2 * time.Second)
	most := uint64(0)
	for i, m := range rest {
		most = max(most, m.session.Stats().Renewals-before[i])
	}
	t.Logf("in 2 s a session with %d shards made %d renewals at most, with a TTL of %v", shards/members, most, c.ttl)
	if every := uint64(2 * time.Second / (ttl / 5)); most > every+2 {
		t.Errorf("%d renewals in 2 s: more than one heartbeat a process", most)
	}

	dead := rest[len(rest)-2]
	dead.link.Hold(etcdtest.Up, etcdtest.Down)
	rest = append(append([]*crowdMember{}, rest[:len(rest)-2]...), rest[len(rest)-1])
	crashed := c.even("a crash", rest...)
	t.Logf("a crash: all owned and even after %v, the TTL is %v; %d moves", crashed.Round(time.Millisecond), c.ttl,
		c.moved.Swap(0))
	dead.link.Heal()

	var all sync.WaitGroup
	for _, m := range append(rest, dead) {
		m.stop()
		all.Go(func() {
			if err := <-m.done; err != nil {
				t.Error(err)
			}
			_ = m.session.Close(context.Background())
		})
	}
	began = time.Now()
	all.Wait()
	t.Logf("all left within %v", time.Since(began).Round(time.Millisecond))
	if n := c.doubles.Load(); n > 0 {
		t.Errorf("%d times a shard had two owners", n)
	}
}
