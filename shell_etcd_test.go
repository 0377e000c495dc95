package primacy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// TestSimulatedCluster runs the whole library, with the real etcd client, on a cluster of three members in memory, in fake time:
// three machines stand for two names while members and machines are frozen, cut off, crashed and slowed, etcd's leader changes, and
// an operator deletes keys. The judge below says what must hold. Clock rates of machines and members stay within the drift bound.
//
// ETCD_SEEDS is how many seeds to run (default 30), ETCD_SEED the first. A seed fixes the schedule of faults, but not which
// goroutine goes first in one instant of fake time: a failure may need several runs of its seed to show again.
func TestSimulatedCluster(t *testing.T) {
	first, n := numberIn(t, "ETCD_SEED", 1), numberIn(t, "ETCD_SEEDS", 30)
	if os.Getenv("MUTATION") != "" {
		n = max(n, 150)
	}
	var sum tally
	for seed := first; seed < first+n && !t.Failed(); seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { sum.add(newRig(t, uint64(seed), false).run(25)) })
		})
	}
	t.Logf("%v", &sum)
}

// A change of etcd's leader costs no term: the leader is moved, restarted or frozen for a second and a half, and nothing else happens.
func TestAPlainChangeOfEtcdsLeaderCostsNoTerm(t *testing.T) {
	var sum tally
	for seed := range 12 {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { sum.add(newRig(t, uint64(seed+1), true).run(12)) })
		})
	}
	t.Logf("%v", &sum)
	if sum.lost > 0 || sum.stats.Elections < 3*12 {
		t.Errorf("%d of %d terms were lost in %d changes of etcd's leader, want none, in 36 changes at least", sum.lost, sum.terms, sum.stats.Elections-12)
	}
}

// tally counts over all seeds.
type tally struct {
	runs, terms, lost, faults int
	stats                     etcdsim.Stats
}

func (s *tally) add(o tally) {
	s.runs++
	s.terms += o.terms
	s.lost += o.lost
	s.faults += o.faults
	s.stats.Elections += o.stats.Elections
	s.stats.StaleRenewal += o.stats.StaleRenewal
	s.stats.StaleRevokes += o.stats.StaleRevokes
}

func (s *tally) String() string {
	return fmt.Sprintf("%d runs, %d faults, %d terms, %d of them lost before their work was done; etcd: %d leaders elected, %d keepalives acknowledged and %d leases ended by deposed ones",
		s.runs, s.faults, s.terms, s.lost, s.stats.Elections, s.stats.StaleRenewal, s.stats.StaleRevokes)
}

// numberIn reads a number from the environment.
func numberIn(t *testing.T, key string, or int) int {
	s := os.Getenv(key)
	if s == "" {
		return or
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return n
}

// within draws a time of less than most.
func within(rnd *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rnd.Int64N(int64(most)))
}

// rig is the cluster, three machines, and what the judge knows of them.
type rig struct {
	t     *testing.T
	seed  uint64
	calm  bool // nothing but changes of etcd's leader
	rnd   *rand.Rand
	c     *etcdsim.Cluster
	now   func() time.Duration
	names []string
	nodes []*node
	stop  chan struct{} // closed when the faults are over
	done  sync.WaitGroup
	tally tally

	mu      sync.Mutex
	reigns  map[string][]*rule
	excused map[string]map[uint64]bool // tokens that an operator took away, by name
	lines   []string
	bad     int
}

// node is a process with its clock, its store and its session.
type node struct {
	i      int
	clock  *rateClock
	client *clientv3.Client
	store  *etcdstore.Store
	sess   *Session
}

// rateClock is a boot clock with a rate. While the machine is suspended its processes do not run, but it goes on.
type rateClock struct {
	mu    sync.Mutex
	real  func() time.Duration
	rate  float64
	ahead time.Duration
}

func (c *rateClock) now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(float64(c.real())*c.rate) + c.ahead
}

// jump is what a process sees of a suspend that its timers slept through.
func (c *rateClock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

func newRig(t *testing.T, seed uint64, calm bool) *rig {
	r := &rig{t: t, seed: seed, calm: calm, rnd: rand.New(rand.NewPCG(seed, 17)), names: []string{"x", "y"}, stop: make(chan struct{}),
		reigns: map[string][]*rule{}, excused: map[string]map[uint64]bool{}}
	start := time.Now()
	r.now = func() time.Duration { return time.Since(start) + time.Hour }
	// A slow machine and a fast member differ by less than the bound of 10 %: 0.955 ÷ 1.05 is 0.91.
	rate := func() float64 { return []float64{0.955, 1, 1.05}[r.rnd.IntN(3)] }
	r.c = etcdsim.Start(etcdsim.Options{Seed: seed, Rates: []float64{rate(), rate(), rate()}, Peers: []time.Duration{time.Millisecond, 20 * time.Millisecond}[r.rnd.IntN(2)]})
	time.Sleep(5 * time.Second) // until it has a leader
	own := r.rnd.IntN(2) == 0   // each machine knows one member only
	for i := range 3 {
		m := &node{i: i, clock: &rateClock{real: r.now, rate: rate()}}
		eps := r.c.Endpoints()
		eps = append(eps[i:], eps[:i]...)
		if own && !calm {
			eps = eps[:1]
		}
		r.open(m, eps)
		r.nodes = append(r.nodes, m)
	}
	r.logf("each machine knows one member only: %v", own && !calm)
	return r
}

func (r *rig) open(m *node, endpoints []string) {
	var err error
	m.client, err = clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(),
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 3 * time.Second, DialOptions: []grpc.DialOption{r.c.Dialer(m.i)}})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if m.store, err = etcdstore.New(ctx, m.client, etcdstore.Options{}); err != nil {
		r.t.Fatal(err)
	}
	o := Options{ID: fmt.Sprintf("n%d", m.i), TTL: 10 * time.Second, Overrun: OverrunWait, Logger: r.logger(m.i)}
	if m.sess, err = newSession(m.store, o, m.clock.now); err != nil {
		r.t.Fatal(err)
	}
}

// run plays n faults and judges what came of them.
func (r *rig) run(n int) tally {
	quit := make(chan struct{})
	go r.poll(quit)
	for _, m := range r.nodes {
		for _, name := range r.names {
			seed := r.rnd.Uint64()
			r.done.Go(func() { r.stand(m, name, rand.New(rand.NewPCG(seed, 3))) })
		}
	}
	for range n {
		time.Sleep(within(r.rnd, 5*time.Second))
		r.tally.faults++
		if r.calm {
			r.changeLeader()
		} else {
			r.fault()
		}
	}
	time.Sleep(15 * time.Second) // faults end by themselves
	r.logf("the faults are over")
	r.c.Heal()
	close(r.stop)
	r.done.Wait()
	r.end()
	close(quit)
	r.report()
	return r.tally
}

// stand campaigns for name and leads, again and again; once the faults are over it must lead once more.
func (r *rig) stand(m *node, name string, rnd *rand.Rand) {
	for {
		last := false
		limit := 60 * time.Second
		if rnd.IntN(3) == 0 && !r.calm {
			limit = within(rnd, 4*time.Second) // given up in the line, or with an answer under way
		}
		select {
		case <-r.stop:
			last, limit = true, 150*time.Second
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		term, err := m.sess.Election(name).Campaign(ctx, []byte("v"))
		cancel()
		if err == nil {
			r.lead(m, term, rnd, last)
		} else if last {
			r.failf("n%d still waits for %s %v after the last fault: %v", m.i, name, limit, err)
		}
		if last {
			return
		}
		time.Sleep(within(rnd, 500*time.Millisecond))
	}
}

// lead works under a term and resigns it.
func (r *rig) lead(m *node, term *Term, rnd *rand.Rand, last bool) {
	w := r.won(m, term)
	d := within(rnd, 20*time.Second)
	if last {
		d = within(rnd, 3*time.Second)
	}
	select {
	case <-term.Context().Done():
		r.logf("n%d loses %s (token %d): %v", m.i, term.Name(), term.Token(), context.Cause(term.Context()))
		w.lost = true
		// The right lasts until the deadline: who resigns before it hides one that comes too late.
		for rnd.IntN(4) > 0 && term.Check() == nil {
			time.Sleep(20 * time.Millisecond)
		}
	case <-time.After(d):
	}
	r.stopped(w)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_ = term.Resign(ctx)
}

// end closes everything and looks at what is left.
func (r *rig) end() {
	time.Sleep(3 * time.Second) // releases that were under way
	for _, kv := range r.c.Keys("primacy/") {
		if !strings.HasPrefix(string(kv.Key), "primacy/@session/") {
			r.failf("a claim is left with nobody behind it: %s, token %d", kv.Key, kv.CreateRevision)
		}
	}
	for _, m := range r.nodes {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		if err := m.sess.Close(ctx); err != nil {
			r.failf("n%d: close: %v", m.i, err)
		}
		cancel()
	}
	time.Sleep(40 * time.Second) // leases that were left to run out
	for _, kv := range r.c.Keys("primacy/") {
		r.failf("a key is left after everything was closed: %s", kv.Key)
	}
	for _, m := range r.nodes {
		_ = m.store.Close()
		_ = m.client.Close()
	}
	time.Sleep(5 * time.Second)
	r.tally.stats = r.c.Stats()
	r.c.Close()
}
