package primacy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// noPush is a store whose news never comes, as when the push is slow.
type noPush struct{ *tapped }

type noPushLease struct{ *tappedLease }

func (s noPush) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.tapped.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return noPushLease{l.(*tappedLease)}, nil
}

func (l noPushLease) News(ctx context.Context) ([]driver.News, error) { return noNews(l, ctx) }

// A leader that has lost its claim and does not know yet finds another one leading. It hands over
// nothing, and says that it was deposed.
func TestTransferByWhoWasDeposedUnheard(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "")
		c.stand("a", b.session("a", noPush{c.tap}, Options{}))
		for _, id := range []string{"b", "c"} {
			c.stand(id, b.session(id, c.tap, Options{}))
		}
		term := c.term("a")
		b.store.Remove("n", uint64(term.Token()))
		synctest.Wait()
		if err := term.Check(); err != nil {
			t.Fatalf("it was told: %v", err)
		}
		err := term.Transfer(c.soon(), "c")
		if ended := (*EndedError)(nil); !errors.Is(err, ErrDeposed) || !errors.As(err, &ended) ||
			strings.Contains(err.Error(), "not known") {
			t.Errorf("got %v, want ErrDeposed", err)
		}
		if n := c.tap.calls.Load(); n != 0 {
			t.Errorf("%d hand-overs of what was lost", n)
		}
		if c.term("b"); c.line() != "bc" {
			t.Errorf("the line is %s", c.line())
		}
		_ = term.Resign(c.soon())
	})
}

// Two Transfers have both looked before either of them acts: the second is not told that its
// successor leads.
func TestTransferIsNotToldOfAnothers(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		c.tap.held.Store(true)
		term := c.term("a")
		first := must[uint64](t)(term.successorToken(c.soon(), "b"))
		second := must[uint64](t)(term.successorToken(c.soon(), "c"))
		term.c.giveUpTo(first, "b")
		term.c.giveUpTo(second, "c")
		if err := term.c.waitFreed(c.soon(), "transfer"); err != nil {
			t.Fatal(err)
		}
		if err := term.handed(c.soon(), "transfer", first); err != nil {
			t.Errorf("the first: %v", err)
		}
		wantEnded(t, term.handed(c.soon(), "transfer", second), ErrTransferred, "", "")
		if c.term("b"); c.line() != "bc" || c.tap.calls.Load() != 1 {
			t.Errorf("the line is %s after %d hand-overs", c.line(), c.tap.calls.Load())
		}
	})
}

// Whoever sends requests without end makes a leader look at a few of them only.
func TestACrowdOfRequestsIsNotKept(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		term := c.term("a")
		open := make(chan struct{})
		var looks atomic.Int64
		c.tap.onLine(func() { looks.Add(1); <-open })
		for i := range 200 {
			c.ask(driver.Request{Token: uint64(term.Token()), By: fmt.Sprint("operator ", i), To: "nobody"})
		}
		close(open)
		synctest.Wait()
		if n := looks.Load(); n < 2 || n > 1+maxHandOverRequests {
			t.Errorf("%d looks for 200 requests that came during the first one, want %d more at most", n,
				maxHandOverRequests)
		}
		c.tap.onLine(nil)
		c.ask(driver.Request{By: "operator", To: "c"}) // it listens again
		wantEnded(t, context.Cause(term.Context()), ErrTransferred, "operator", "")
		_ = term.Resign(c.soon())
		c.term("c")
	})
}

// A request names a session, and its oldest claim would be the successor. Two sessions of one ID:
// the younger one does not take the lead for the older one, which has no priority.
func TestAPriorityIsForItsOwnClaimOnly(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, CampaignOptions{}, 0)
		elder := c.candidate(r, "h", c.tap, CampaignOptions{}, 0)
		c.candidate(r, "h", c.tap, CampaignOptions{Priority: 5}, 0)
		c.after(r, 10*time.Minute, "a")
		elder()
		c.after(r, steadyHere+lateHere+time.Second, "ah")
	})
}

// simulatedLine is a line on an etcd in memory: a holder, and those who stand behind it, the last
// of them the successor. Before the holder's next removal of others' claims something happens,
// once.
type simulatedLine struct {
	t      *testing.T
	c      *etcdsim.Cluster
	leases []driver.Lease
	places []driver.Place
	then   atomic.Pointer[func()]
}

func newSimulatedLine(t *testing.T, seats int) *simulatedLine {
	l := &simulatedLine{t: t, c: etcdsim.Start(etcdsim.Options{Seed: 1})}
	t.Cleanup(func() { l.c.Heal(); l.c.Close(); synctest.Wait() })
	time.Sleep(5 * time.Second)
	for i, n := range []int{1, seats, 1} {
		client := must[*clientv3.Client](t)(
			clientv3.New(clientv3.Config{Endpoints: l.c.Endpoints(), Logger: zap.NewNop(),
				DialOptions: []grpc.DialOption{l.c.Dialer(i), grpc.WithChainUnaryInterceptor(l.intercept)}}))
		t.Cleanup(func() { _ = client.Close() })
		store := must[*etcdstore.Store](t)(etcdstore.New(l.soon(), client, etcdstore.Options{}))
		t.Cleanup(func() { _ = store.Close() })
		lease := must[driver.Lease](t)(store.Grant(l.soon(), fmt.Sprint(i), time.Minute))
		l.leases = append(l.leases, lease)
		for seat := range n {
			l.enter(i, fmt.Sprint(seat))
		}
	}
	return l
}

func (l *simulatedLine) soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	l.t.Cleanup(cancel)
	return ctx
}

func (l *simulatedLine) enter(i int, seat string) {
	p := must[[]driver.Place](l.t)(
		l.leases[i].Claim(l.soon(), driver.Claim{Name: "x", Seat: seat, ID: fmt.Sprint(len(l.places))}))
	l.places = append(l.places, p[0])
}

func (l *simulatedLine) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	do grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Success) > 0 && txn.Success[0].GetRequestTxn() != nil {
		if f := l.then.Swap(nil); f != nil {
			(*f)()
		}
	}
	return do(ctx, method, req, reply, cc, opts...)
}

// byHand deletes the claim with that token.
func (l *simulatedLine) byHand(token uint64) {
	for _, kv := range l.c.Keys("primacy/x/") {
		if uint64(kv.CreateRevision) == token {
			if err := l.c.Delete(l.soon(), string(kv.Key), kv.CreateRevision); err != nil {
				l.t.Error(err)
			}
		}
	}
}

// tokens returns those of the claims that stand, in their order.
func (l *simulatedLine) tokens() (all []uint64) {
	for _, kv := range l.c.Keys("primacy/x/") {
		all = append(all, uint64(kv.CreateRevision))
	}
	slices.Sort(all)
	return all
}

// The line changes between the holder's look at it and what it then does, be that one transaction
// or several. Nobody is removed for a holder or a successor that is gone, and nobody who stands
// behind the successor meanwhile.
func TestTransferOnEtcdInALineThatChanges(t *testing.T) {
	for _, between := range []int{2, 120} {
		for _, tc := range []struct {
			name  string
			then  func(l *simulatedLine, successor driver.Place)
			err   error
			stand func(was []driver.Place) []driver.Place
		}{
			{"the holder goes", func(l *simulatedLine, _ driver.Place) { l.byHand(l.places[0].Token) }, driver.ErrGone,
				func(was []driver.Place) []driver.Place { return was[1:] }},
			{"the successor goes", func(l *simulatedLine, successor driver.Place) {
				l.byHand(successor.Token)
			}, driver.ErrNoSuccessor,
				func(was []driver.Place) []driver.Place { return was[:len(was)-1] }},
			{"one between stands anew, behind the successor", func(l *simulatedLine, _ driver.Place) {
				l.byHand(l.places[1].Token)
				l.enter(1, "0")
			}, nil,
				func(was []driver.Place) []driver.Place { return was[len(was)-1:] }},
		} {
			t.Run(fmt.Sprintf("%s %d", tc.name, between), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newSimulatedLine(t, between)
					was := slices.Clone(l.places)
					successor := was[len(was)-1]
					changes := func() { tc.then(l, successor) }
					l.then.Store(&changes)
					if err := l.leases[0].(driver.Transferer).Transfer(l.soon(), was[0],
						successor.Token); !errors.Is(err, tc.err) {
						t.Errorf("Transfer = %v, want %v", err, tc.err)
					}
					if l.then.Load() != nil {
						t.Fatal("nothing was removed, so this test shows nothing")
					}
					var want []uint64
					for _, p := range append(slices.Clone(tc.stand(was)), l.places[len(was):]...) {
						want = append(want, p.Token)
					}
					if got := l.tokens(); !slices.Equal(got, want) {
						t.Errorf("%d claims stand: %v\nwant %d: %v", len(got), got, len(want), want)
					}
				})
			})
		}
	}
}

// TestTransfersBehindABadNetwork moves a name about in every way at once while calls are lost, late
// and doubled: by the leaders' own will, by request, by priority, and by resigning. At no instant
// do two say yes, tokens grow, and in the end everybody stands once and nobody else.
func TestTransfersBehindABadNetwork(t *testing.T) {
	const ids = "abcde"
	handOvers := 0
	for seed := range uint64(6) {
		bubble(t, func(t *testing.T, b *world) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			c := inLine(t, b, "")
			var nets []drivertest.FaultyStore
			var right [len(ids)]atomic.Pointer[Term]
			var largest Token
			for i, id := range ids {
				net := drivertest.Faulty(c.tap,
					drivertest.Faults{Seed: seed*100 + uint64(i), Delay: 50 * time.Millisecond, Drop: 0.05, Lose: 0.1,
						Late: 0.05, Twice: 0.05, Lag: 3 * time.Second})
				nets = append(nets, net)
				c.roams(net, i, string(id), seed, &right)
			}
			asks := b.session("operator", c.tap, Options{})
			for end := b.clock() + 5*time.Minute; b.clock() < end; time.Sleep(
				time.Duration(rnd.Int64N(int64(500 * time.Millisecond)))) {
				leads := 0
				for i := range right {
					if term := right[i].Load(); term != nil && term.Check() == nil {
						leads++
						if term.Token() < largest {
							t.Errorf("seed %d: token %v leads after %v", seed, term.Token(), largest)
						}
						largest = max(largest, term.Token())
					}
				}
				if leads > 1 {
					t.Fatalf("seed %d: %d lead", seed, leads)
				}
				if rnd.IntN(40) == 0 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, _ = asks.Election("n").Ask(ctx, Request{To: ids[rnd.IntN(len(ids)):][:1], Reason: "seed"})
					cancel()
				}
			}
			for _, net := range nets {
				net.Set(drivertest.Faults{})
			}
			time.Sleep(time.Minute) // also what was late has arrived
			got := c.line()
			// one who has just handed over stands again in a moment
			for tries := 0; len(got) != len(ids) && tries < 100; tries++ {
				time.Sleep(100 * time.Millisecond)
				got = c.line()
			}
			if len(got) != len(ids) {
				t.Errorf("seed %d: in the end the line is %s", seed, got)
			}
			handOvers += int(c.tap.calls.Load())
		})
	}
	if handOvers < 100 {
		t.Errorf("only %d calls of Transfer", handOvers)
	}
}

// roams runs a candidate that stops in its own way each time.
func (c *crowd) roams(net drivertest.FaultyStore, i int, id string, seed uint64, right *[5]atomic.Pointer[Term]) {
	rnd := rand.New(rand.NewPCG(seed, uint64(i)))
	s := c.session(id, net, Options{Overrun: OverrunWait})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.t.Cleanup(func() { cancel(); <-done })
	work := func(ctx context.Context, term *Term) error {
		right[i].Store(term)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(1+rnd.IntN(20)) * time.Second):
			if rnd.IntN(2) == 0 {
				limit, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = term.Transfer(limit, fmt.Sprintf("%c", 'a'+rnd.IntN(5)))
			}
		}
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		return nil
	}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = s.Candidate("n", &CampaignOptions{Priority: i, Steady: 7 * time.Second}).RunOnce(ctx, work)
		}
	}()
}
