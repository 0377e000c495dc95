package etcdstore

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

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// answer is one that somebody was given: that his claim holds, or is gone.
type verdictTold struct {
	key   string
	token int64
	gone  bool
}

// court judges each answer by what etcd has committed.
type court struct {
	t    *testing.T
	c    *etcdsim.Cluster
	seed uint64

	mu    sync.Mutex
	told  []verdictTold
	count map[string]int
}

// hear notes an answer. Whoever is told that he holds must find nobody before him now, for nobody
// ever comes to stand there.
func (ct *court) hear(l *lease, p driver.Place, gone bool) {
	key := l.keyOf(p)
	ct.mu.Lock()
	defer ct.mu.Unlock()
	ct.told = append(ct.told, verdictTold{key, int64(p.Token), gone})
	dir := key[:strings.LastIndexByte(key, '/')+1]
	for _, kv := range ct.c.Keys(dir) {
		if !gone && kv.CreateRevision < int64(p.Token) {
			ct.t.Errorf("seed %d: %s was told that it holds with token %d, while %s stands before it with %d",
				ct.seed, key, p.Token, kv.Key, kv.CreateRevision)
		}
		if gone && string(kv.Key) == key && kv.CreateRevision == int64(p.Token) {
			ct.t.Errorf("seed %d: %s was told that it is gone, and it stands with token %d", ct.seed, key, p.Token)
		}
	}
}

func (ct *court) add(what string) {
	ct.mu.Lock()
	defer ct.mu.Unlock()
	ct.count[what]++
}

// life is a claim from its creation to its end.
type life struct{ create, end int64 }

// judge reads the whole history: a claim that was told to hold must have been the first of its
// line while it stood.
func (ct *court) judge(client *clientv3.Client) {
	ct.t.Helper()
	lives := map[string][]life{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	now, err := client.Put(ctx, "primacy/@end", "")
	if err != nil {
		ct.t.Fatal(err)
	}
	history, err := pb.NewWatchClient(client.ActiveConnection()).Watch(ctx) // the client's own Watch hangs in a bubble
	if err == nil {
		err = history.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
			Key: []byte("primacy/"), RangeEnd: []byte("primacy0"), StartRevision: 1}}})
	}
	for over := false; err == nil && !over; {
		var r *pb.WatchResponse
		if r, err = history.Recv(); err != nil {
			break
		}
		for _, e := range r.Events {
			key, all := string(e.Kv.Key), lives[string(e.Kv.Key)]
			switch {
			case e.Type == mvccpb.Event_EventType(1):
				all[len(all)-1].end = e.Kv.ModRevision
			case e.Kv.CreateRevision == e.Kv.ModRevision:
				lives[key] = append(all, life{create: e.Kv.CreateRevision, end: 1 << 62})
			}
		}
		over = len(r.Events) > 0 && r.Events[len(r.Events)-1].Kv.ModRevision >= now.Header.Revision
	}
	if err != nil {
		ct.t.Fatal(err)
	}
	for _, v := range ct.told {
		if !v.gone {
			ct.wasFirst(v, lives)
		}
	}
}

func (ct *court) wasFirst(v verdictTold, lives map[string][]life) {
	dir := v.key[:strings.LastIndexByte(v.key, '/')+1]
	end := int64(0)
	for _, one := range lives[v.key] {
		if one.create == v.token {
			end = one.end
		}
	}
	for key, all := range lives {
		if !strings.HasPrefix(key, dir) {
			continue
		}
		for _, one := range all {
			if one.create < v.token && one.end >= end {
				ct.t.Errorf("seed %d: %s was told that it holds with token %d, which ended at %d; %s stood before it from %d to %d",
					ct.seed, v.key, v.token, end, key, one.create, one.end)
			}
		}
	}
}

// stander is a lease whose owner claims, waits, holds and gives up, over and over.
type stander struct {
	ct    *court
	s     *Store
	rnd   *rand.Rand
	names int
	l     *lease
	n     int
	held  map[string]driver.Place // places that News told to be held, by claim ID; guarded by ct.mu
}

func (st *stander) patient(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func (st *stander) run(over <-chan struct{}, follows bool) {
	for {
		select {
		case <-over:
			return
		default:
		}
		ctx, cancel := st.patient(10 * time.Second)
		l, err := st.s.Grant(ctx, "x", time.Minute)
		cancel()
		if err != nil {
			continue
		}
		st.l = l.(*lease)
		lctx, end := context.WithCancel(context.Background())
		var all sync.WaitGroup
		all.Go(func() { st.renew(lctx) })
		all.Go(func() { st.news(lctx) })
		for range 20 {
			if st.l.over() || !st.stand(over, follows) {
				break
			}
		}
		ctx, cancel = st.patient(20 * time.Second)
		_ = st.l.Close(ctx)
		cancel()
		end()
		all.Wait()
	}
}

func (st *stander) renew(ctx context.Context) {
	for ctx.Err() == nil {
		rctx, cancel := context.WithTimeout(ctx, time.Second)
		_ = st.l.Renew(rctx)
		cancel()
		_ = storeutil.Sleep(ctx, 5*time.Second)
	}
}

func (st *stander) news(ctx context.Context) {
	for ctx.Err() == nil {
		out, err := drivertest.News(ctx, st.l)
		if isGone(err) {
			return
		}
		for _, n := range out {
			switch {
			case n.Held:
				st.ct.hear(st.l, n.Place, false)
				st.ct.mu.Lock()
				st.held[n.Place.ID] = n.Place
				st.ct.count["followed and held"]++
				st.ct.mu.Unlock()
			case n.Gone:
				st.ct.hear(st.l, n.Place, true)
			}
		}
	}
}

// stand is one claim, from its entry to its end. It reports false if the test is over.
func (st *stander) stand(over <-chan struct{}, follows bool) bool {
	select {
	case <-over:
		return false
	default:
	}
	st.n++
	c := driver.Claim{Name: fmt.Sprint("n", st.rnd.IntN(st.names)), ID: fmt.Sprint(st.l.ID(), "-", st.n),
		Seat: []string{"", "1"}[st.rnd.IntN(2)]}
	ctx, cancel := st.patient(3 * time.Second)
	places, err := st.l.Claim(ctx, c)
	cancel()
	p := driver.Place{Name: c.Name, Seat: c.Seat, ID: c.ID}
	if err == nil {
		p = places[0]
		_ = storeutil.Sleep(context.Background(), time.Duration(st.rnd.IntN(3)*st.rnd.IntN(20))*time.Millisecond)
		p = st.await(p, follows)
	}
	if p.Held {
		_ = storeutil.Sleep(context.Background(), time.Duration(st.rnd.IntN(40))*time.Millisecond)
	}
	ctx, cancel = st.patient(20 * time.Second)
	defer cancel()
	if p.Held && st.rnd.IntN(5) == 0 {
		if successor := st.successor(ctx, p); successor != 0 && st.l.Transfer(ctx, p, successor) == nil {
			st.ct.add("handed over")
			return true
		}
	}
	for st.l.Release(ctx, p) != nil && ctx.Err() == nil && !st.l.over() {
		_ = storeutil.Sleep(ctx, 50*time.Millisecond)
	}
	return true
}

// await waits for the turn of p, or gives up after a while.
func (st *stander) await(p driver.Place, follows bool) driver.Place {
	ctx, cancel := st.patient(time.Duration(1+st.rnd.IntN(2000)) * time.Millisecond)
	defer cancel()
	if !follows {
		got, err := drivertest.Await(ctx, st.l, p)
		switch {
		case err == nil:
			st.ct.hear(st.l, got, false)
			st.ct.add("held")
			return got
		case isGone(err) && !st.l.over():
			st.ct.hear(st.l, p, true)
			st.ct.add("gone")
		}
		return p
	}
	p.Held = false
	st.l.Follow(p)
	for ctx.Err() == nil {
		_ = storeutil.Sleep(ctx, 5*time.Millisecond)
		st.ct.mu.Lock()
		got, ok := st.held[p.ID]
		st.ct.mu.Unlock()
		if ok {
			return got
		}
	}
	return p
}

func (st *stander) successor(ctx context.Context, p driver.Place) uint64 {
	ln, err := st.s.Line(ctx, p.Name)
	if err != nil || len(ln.Waiters) == 0 {
		return 0
	}
	return ln.Waiters[st.rnd.IntN(len(ln.Waiters))].Token
}

// trouble does one thing that nobody expects.
func (ct *court) trouble(rnd *rand.Rand, clients int) {
	c := ct.c
	switch rnd.IntN(8) {
	case 0, 1, 2:
		keys := c.Keys("primacy/n")
		if len(keys) > 0 {
			kv := keys[rnd.IntN(len(keys))]
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			_ = c.Delete(ctx, string(kv.Key), kv.CreateRevision)
			cancel()
		}
	case 3, 4:
		c.Reset(rnd.IntN(clients), rnd.IntN(3))
	case 5:
		i := rnd.IntN(3)
		c.Freeze(i)
		time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
		c.Thaw(i)
	case 6:
		c.MoveLeader(rnd.IntN(3))
	case 7:
		client, member := rnd.IntN(clients), rnd.IntN(3)
		c.Hold(client, member, false, true)
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		c.Hold(client, member, false, false)
	}
}

// courtSeeds is how many random histories are judged; AWAIT_SEEDS sets another number.
func courtSeeds(t *testing.T) uint64 {
	n, err := strconv.ParseUint(os.Getenv("AWAIT_SEEDS"), 10, 64)
	if err != nil {
		return 8
	}
	return n
}

// TestSimulatedHeldIsTrue: whatever happens to the streams, the members and the claims, by hand,
// by transfer or by their owners, nobody is told that he holds who did not, and nobody that he is
// gone who stands. Some stores have their prefix watch on and off all the time.
func TestSimulatedHeldIsTrue(t *testing.T) {
	t.Parallel()
	total := map[string]int{}
	for seed := range courtSeeds(t) {
		synctest.Test(t, func(t *testing.T) {
			c := etcdsim.Start(etcdsim.Options{Seed: seed})
			ct := &court{t: t, c: c, seed: seed, count: total}
			rnd := rand.New(rand.NewPCG(seed, 9))
			t.Cleanup(func() {
				c.Heal()
				c.Close()
				synctest.Wait()
			})
			time.Sleep(5 * time.Second)
			over := make(chan struct{})
			var all sync.WaitGroup
			const clients = 4
			standers, names := 8, 1+rnd.IntN(3)
			if seed%4 == 3 {
				standers, names = 30, 1 // longer than a waiter knows
			}
			var stores []*Store
			for i := range clients {
				s, _ := gatedAt(t, c, i, i%3)
				if i%2 == 1 {
					s.wire.Hub.Above, s.wire.Hub.Below = 3, 2
				}
				stores = append(stores, s)
			}
			for i := range standers {
				st := &stander{ct: ct, s: stores[i%clients], rnd: rand.New(rand.NewPCG(seed, uint64(i))),
					names: names, held: map[string]driver.Place{}}
				all.Go(func() { st.run(over, i/clients%2 == 1) })
			}
			end := time.Now().Add(8 * time.Second)
			for time.Now().Before(end) {
				time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
				ct.trouble(rnd, clients)
			}
			c.Heal()
			close(over)
			all.Wait()
			for _, s := range stores {
				s.Close()
			}
			ct.judge(simClient(t, c, 99, c.Endpoints(), grpc.EmptyDialOption{}))
		})
	}
	t.Logf("told: %v", total)
	for _, what := range []string{"held", "followed and held", "gone", "handed over"} {
		if total[what] < 5 {
			t.Errorf("%q happened %d times only: the test proves little", what, total[what])
		}
	}
}
