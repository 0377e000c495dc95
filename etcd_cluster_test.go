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

// TestSimulatedCluster runs the whole library, with the real etcd client, on a cluster of three
// members in memory, in fake time: three machines stand for two names while members and machines
// are frozen, cut off, crashed and slowed, etcd's leader changes, and an operator deletes keys. The
// judge below says what must hold. Clock rates of machines and members stay within the drift bound.
//
// ETCD_SEEDS is how many seeds to run (default 8), ETCD_SEED the first. A seed fixes the schedule
// of faults, but not which goroutine goes first in one instant of fake time, nor how long the
// pauses between tries are: a failure may need several runs of its seed to show again. What the
// seeds have to show is not in every run of any seed either, so that more are played until it is.
func TestSimulatedCluster(t *testing.T) {
	first, n := numberIn(t, "ETCD_SEED", 1), numberIn(t, "ETCD_SEEDS", 8)
	if os.Getenv("MUTATION") != "" {
		n = max(n, 60)
	}
	var sum tally
	shown := func() bool {
		return n < 8 || min(sum.stats.StaleRenewal, sum.stats.StaleRevokes, sum.stats.Snapshots, sum.moves) > 0
	}
	playSeeds(t, first, n, shown, func(t *testing.T, seed int) { sum.add(newRig(t, uint64(seed), false).run(4)) })
	t.Logf("%v", &sum)
	if !t.Failed() && !shown() {
		t.Error("some fault never struck: this test shows less than it should")
	}
}

// TestSimulatedClusterOfHeartbeats is the same with sessions whose ttl is shorter than etcd's own:
// who waits right behind a session ends it. Two leaders are as impossible as ever; terms are lost
// more easily.
func TestSimulatedClusterOfHeartbeats(t *testing.T) {
	ttls := []time.Duration{300 * time.Millisecond, 500 * time.Millisecond, time.Second, 1900 * time.Millisecond}
	first, n := numberIn(t, "ETCD_SEED", 1), numberIn(t, "ETCD_SEEDS", 6)
	var sum tally
	shown := func() bool { return n < 6 || min(sum.stats.StaleRevokes, sum.moves, sum.lost) > 0 }
	playSeeds(t, first, n, shown, func(t *testing.T, seed int) {
		sum.add(newRigOf(t, uint64(seed), false, ttls[seed%len(ttls)]).run(1))
	})
	t.Logf("%v", &sum)
	if !t.Failed() && n >= 6 && sum.terms < 2*sum.lost {
		t.Error("most terms were lost: this test shows less than it should")
	}
	if !t.Failed() && !shown() {
		t.Error("no term was lost, no lease below a heartbeat was moved, or none was ended by a leader that had " +
			"been deposed: this test shows less than it should")
	}
}

// playSeeds plays n seeds, each in fake time, and on until all is shown that they have to show: at
// most ten times as many.
func playSeeds(t *testing.T, first, n int, shown func() bool, play func(t *testing.T, seed int)) {
	for i := 0; !t.Failed() && (i < n || i < 10*n && !shown()); i++ {
		t.Run(strconv.Itoa(first+i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { play(t, first+i) })
		})
	}
}

// A change of etcd's leader costs no term: the leader is moved, restarted or frozen for a second
// and a half, and nothing else happens.
func TestAPlainChangeOfEtcdsLeaderCostsNoTerm(t *testing.T) {
	const n = 4
	var sum tally
	for seed := range n {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { sum.add(newRig(t, uint64(seed+1), true).run(3)) })
		})
	}
	t.Logf("%v", &sum)
	if sum.lost > 0 || sum.stats.Elections < 10*n {
		t.Errorf("%d of %d terms were lost in %d changes of etcd's leader, want none, in %d changes at least", sum.lost,
			sum.terms, sum.stats.Elections-n, 9*n)
	}
}

// tally counts over all seeds.
type tally struct {
	runs, terms, lost, faults int
	renewals, moves           int // accepted; after which the session was on another lease of etcd
	stats                     etcdsim.Stats
}

func (s *tally) add(o tally) {
	s.runs++
	s.terms += o.terms
	s.lost += o.lost
	s.faults += o.faults
	s.renewals += o.renewals
	s.moves += o.moves
	s.stats.Elections += o.stats.Elections
	s.stats.Snapshots += o.stats.Snapshots
	s.stats.StaleRenewal += o.stats.StaleRenewal
	s.stats.StaleRevokes += o.stats.StaleRevokes
}

func (s *tally) String() string {
	return fmt.Sprintf("%d runs, %d faults, %d terms, %d of them lost before their work was done, "+
		"%d renewals accepted, %d of them with a move; etcd: %d leaders elected, %d snapshots sent, "+
		"%d keepalives acknowledged and %d leases ended by deposed ones",
		s.runs, s.faults, s.terms, s.lost, s.renewals, s.moves, s.stats.Elections, s.stats.Snapshots,
		s.stats.StaleRenewal, s.stats.StaleRevokes)
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
	t             *testing.T
	seed          uint64
	onlyElections bool // nothing but changes of etcd's leader
	ttl           time.Duration
	rnd           *rand.Rand
	c             *etcdsim.Cluster
	now           func() time.Duration
	names         []string
	nodes         []*node
	own           bool // each machine knows one member only
	tally         tally

	mu    sync.Mutex
	terms map[string][]*ledTerm
	hands map[string][]*hand // what operators did, by the session in keys
	lines []string
	bad   int
}

// node is a process with its clock, its store and its session.
type node struct {
	i      int
	clock  *rateClock
	client *clientv3.Client
	store  *etcdstore.Store
	sess   *Session
}

// rateClock is a boot clock with a rate. While the machine is suspended its processes do not run,
// but it goes on.
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

func newRig(t *testing.T, seed uint64, onlyElections bool) *rig {
	return newRigOf(t, seed, onlyElections, 10*time.Second)
}

func newRigOf(t *testing.T, seed uint64, onlyElections bool, ttl time.Duration) *rig {
	r := &rig{t: t, seed: seed, onlyElections: onlyElections, ttl: ttl, rnd: rand.New(rand.NewPCG(seed, 17)),
		names: []string{"x", "y"},
		terms: map[string][]*ledTerm{}, hands: map[string][]*hand{}}
	start := time.Now()
	r.now = func() time.Duration { return time.Since(start) + time.Hour }
	// A slow machine and a fast member differ by less than the bound of 10 %: 0.955 ÷ 1.05 is 0.91.
	rate := func() float64 { return []float64{0.955, 1, 1.05}[r.rnd.IntN(3)] }
	r.c = etcdsim.Start(etcdsim.Options{Seed: seed, Rates: []float64{rate(), rate(), rate()},
		Peers: []time.Duration{time.Millisecond, 20 * time.Millisecond}[r.rnd.IntN(2)]})
	time.Sleep(5 * time.Second) // until it has a leader
	r.own = r.rnd.IntN(2) == 0 && !onlyElections
	for i := range 3 {
		m := &node{i: i, clock: &rateClock{real: r.now, rate: rate()}}
		eps := r.c.Endpoints()
		eps = append(eps[i:], eps[:i]...)
		if r.own {
			eps = eps[:1]
		}
		r.open(m, eps)
		r.nodes = append(r.nodes, m)
	}
	r.logf("each machine knows one member only: %v", r.own)
	return r
}

func (r *rig) open(m *node, endpoints []string) {
	var err error
	m.client, err = clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(),
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{r.c.Dialer(m.i)}})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if m.store, err = etcdstore.New(ctx, m.client, etcdstore.Options{}); err != nil {
		r.t.Fatal(err)
	}
	o := Options{ID: fmt.Sprintf("n%d", m.i), TTL: r.ttl, Overrun: OverrunWait, Logger: r.logger(m.i)}
	if r.ttl < time.Second {
		o.RenewAttempt = r.ttl * 3 / 10 // a member that is far from the others takes longer than a tenth
	}
	if m.sess, err = newSession(&judged{m.store, r, m}, o, m.clock.now); err != nil {
		r.t.Fatal(err)
	}
}

// run plays some rounds and judges what came of them. In each the machines stand while things go
// wrong; then all is well again, most of them must lead once more, and when nobody stands nothing
// may be left in the line.
func (r *rig) run(rounds int) tally {
	quit := make(chan struct{})
	go r.poll(quit)
	for range rounds {
		r.round()
	}
	r.end()
	close(quit)
	r.report()
	return r.tally
}

func (r *rig) round() {
	stop := make(chan struct{})
	var done sync.WaitGroup
	for _, m := range r.nodes {
		for _, name := range r.names {
			a := &contender{r, m, name, rand.New(rand.NewPCG(r.rnd.Uint64(), 3)), stop}
			done.Go(a.run)
		}
	}
	switch theme := r.rnd.IntN(4); {
	case r.onlyElections:
		for range 4 {
			r.changeLeader()
		}
	case theme == 0:
		for range 8 {
			time.Sleep(within(r.rnd, 4*time.Second))
			r.fault()
		}
	case theme == 1:
		r.deposed()
		r.deposed()
	case theme == 2:
		r.woken()
		r.woken()
	case theme == 3:
		r.stragglers()
	}
	time.Sleep(within(r.rnd, 15*time.Second)) // some faults end by themselves, some here
	r.logf("the faults are over")
	r.c.Heal()
	r.healed()
	close(stop)
	done.Wait()
	time.Sleep(5 * time.Second) // releases that were under way
	if r.ttl < 2*time.Second {
		time.Sleep(10 * time.Second) // the lease below a heartbeat that stopped with nobody behind it
	}
	for _, kv := range r.c.Keys("primacy/") {
		if !strings.HasPrefix(string(kv.Key), "primacy/@") {
			r.failf("a claim is left with nobody behind it: %s, token %d", kv.Key, kv.CreateRevision)
		}
	}
}

// contender stands for a name on a machine, for a round.
type contender struct {
	*rig
	m    *node
	name string
	rnd  *rand.Rand
	stop chan struct{} // the faults are over
}

// run campaigns and leads, again and again; once the faults are over it must lead once more, or has
// gone before.
func (a *contender) run() {
	out := a.rnd.IntN(4) == 0 && !a.onlyElections
	for {
		last, limit := false, 60*time.Second
		if a.rnd.IntN(2) == 0 && !a.onlyElections {
			limit = within(a.rnd, 4*time.Second) // given up in the line, or with an answer under way
		}
		select {
		case <-a.stop:
			last, limit = true, 150*time.Second
			if out {
				return
			}
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		term, err := a.m.sess.Election(a.name).Campaign(ctx, &CampaignOptions{Value: []byte("v")})
		cancel()
		if err == nil {
			a.lead(term, last)
		} else if last {
			a.failf("n%d still waits for %s %v after the last fault: %v", a.m.i, a.name, limit, err)
		}
		if last {
			return
		}
		time.Sleep(within(a.rnd, time.Second))
	}
}

// lead works under a term and resigns it.
func (a *contender) lead(term *Term, last bool) {
	w := a.won(a.m, term)
	d := within(a.rnd, 25*time.Second)
	if last {
		d = within(a.rnd, 3*time.Second)
		if a.rnd.IntN(4) == 0 && !a.onlyElections {
			a.takeAway(term)
		}
	}
	select {
	case <-term.Context().Done():
		a.lost(w)
		// The right lasts until the deadline: who resigns before it hides one that comes too late.
		for a.rnd.IntN(4) > 0 && term.Check() == nil {
			time.Sleep(20 * time.Millisecond)
		}
	case <-time.After(d):
	}
	a.stopped(w)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_ = term.Resign(ctx)
}

// takeAway deletes the claim of a term by hand while all is well: the term must end soon.
func (a *contender) takeAway(term *Term) {
	for _, kv := range a.c.Keys("primacy/" + a.name + "/") {
		if kv.CreateRevision != int64(term.Token()) {
			continue
		}
		done := a.byHand(kv, tookClaim)
		if err := a.c.Delete(context.Background(), string(kv.Key), kv.CreateRevision); err != nil {
			a.failf("by hand: delete %s: %v", kv.Key, err)
			return
		}
		done()
		select {
		case <-term.Context().Done():
		case <-time.After(7 * time.Second): // a push, or at worst the poll beside it
			a.failf("n%d was not told within 7 s that its claim on %s was deleted", a.m.i, a.name)
		}
	}
}

// end closes everything and looks at what is left.
func (r *rig) end() {
	for _, m := range r.nodes {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		if err := m.sess.Close(ctx); err != nil {
			r.failf("n%d: close: %v", m.i, err)
		}
		cancel()
	}
	time.Sleep(40 * time.Second) // leases that were left to run out
	for _, kv := range r.c.Keys("primacy/") {
		if record, found := strings.CutPrefix(string(kv.Key), "primacy/@journal/terms%2F"); found {
			r.judgeRecord(record, kv.Value)
			continue
		}
		if strings.HasPrefix(string(kv.Key), "primacy/@journal/alive%2F") {
			continue
		}
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

// handOverLimit is how long a hand-over takes at most where nothing is amiss. Polls beside the
// watches, which are for watches that have died, take 4 s at least.
const handOverLimit = 500 * time.Millisecond

// TestAHandOverOnEtcdWaitsForNoPoll: where nothing goes wrong, the next in line leads at once after
// a resignation, and when a claim is deleted by hand its holder hears of it at once too.
func TestAHandOverOnEtcdWaitsForNoPoll(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(strconv.Itoa(int(seed+1)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, seed+1, true)
				r.handOvers(16)
				r.end()
				r.report()
			})
		})
	}
}

// leading is a term and whose it is.
type leading struct {
	m    *node
	term *Term
}

func (r *rig) handOvers(n int) {
	won := make(chan leading, len(r.nodes))
	ctx, cancel := context.WithCancel(context.Background())
	campaign := func(m *node) {
		term, err := m.sess.Election("x").Campaign(ctx, nil)
		if err == nil {
			won <- leading{m, term}
		} else if ctx.Err() == nil {
			r.failf("n%d: Campaign: %v", m.i, err)
		}
	}
	for _, m := range r.nodes {
		go campaign(m)
		time.Sleep(time.Second)
	}
	now := <-won
	for i := range n {
		time.Sleep(within(r.rnd, 3*time.Second))
		begun := r.now()
		if i%4 == 3 {
			r.deleteClaim(now.term)
			<-now.term.Context().Done()
			r.fast("its claim was deleted: n%d heard of it", now.m, begun)
		}
		if err := now.term.Resign(context.Background()); err != nil && i%4 != 3 {
			r.failf("n%d: Resign: %v", now.m.i, err)
		}
		next := <-won
		r.fast("the line moved up: n%d led", next.m, begun)
		go campaign(now.m)
		now = next
	}
	cancel()
	_ = now.term.Resign(context.Background())
	time.Sleep(time.Second)
}

// deleteClaim deletes the claim of a term by hand.
func (r *rig) deleteClaim(term *Term) {
	for _, kv := range r.c.Keys("primacy/" + term.Name() + "/") {
		if kv.CreateRevision != int64(term.Token()) {
			continue
		}
		done := r.byHand(kv, tookClaim)
		if err := r.c.Delete(context.Background(), string(kv.Key), kv.CreateRevision); err != nil {
			r.failf("by hand: delete %s: %v", kv.Key, err)
		}
		done()
	}
}

func (r *rig) fast(what string, m *node, begun time.Duration) {
	if took := r.now() - begun; took > handOverLimit {
		r.failf(what+" after %v, want %v at most", m.i, took, handOverLimit)
	}
}
