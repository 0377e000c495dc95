package primacy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// metered is a store that counts calls and places, and can keep Claims waiting.
type metered struct {
	driver.Store
	claims, claimed, releases atomic.Int32
	hold                      atomic.Pointer[chan struct{}]
}

type meteredLease struct {
	driver.Lease
	s *metered
}

func (s *metered) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &meteredLease{l, s}, nil
}

func (l *meteredLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	l.s.claims.Add(1)
	l.s.claimed.Add(int32(len(claims)))
	places, err := l.Lease.Claim(ctx, claims...)
	if hold := l.s.hold.Load(); hold != nil {
		<-*hold
	}
	return places, err
}

func (l *meteredLease) Release(ctx context.Context, places ...driver.Place) error {
	l.s.releases.Add(1)
	return l.Lease.Release(ctx, places...)
}

func TestANameThatIsWithdrawnWhileItsClaimIsUnderWayIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		slow := &metered{Store: b.store}
		s := b.session("a", slow, Options{})
		hold := make(chan struct{})
		slow.hold.Store(&hold)
		es := s.Elections(nil)
		_ = es.Stand("n", "m", "o")
		synctest.Wait()
		es.Withdraw("n", "m")
		_ = es.Stand("m")
		synctest.Wait()
		slow.hold.Store(nil)
		close(hold)
		won, _, _ := collect(t, es, 2)
		for _, term := range won {
			if term.Name() == "n" || term.Check() != nil {
				t.Errorf("%s: %v", term.Name(), term.Check())
			}
		}
		nothingTold(t, es)
		b.emptyLines("n")
	})
}

func TestManyElectionsTravelTogether(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		// Calls take a while: otherwise it is the scheduler's choice how much has come together
		// when the next one leaves.
		s := &metered{Store: drivertest.Faulty(b.store, drivertest.Faults{Delay: time.Millisecond})}
		names := manyNames(5120)
		es := b.session("a", s, Options{}).Elections(nil)
		_ = es.Stand(names...)
		terms, _, _ := collect(t, es, len(names))
		_ = es.Resign(context.Background(), terms...)
		// Each call has at most 512; the first ones leave with what is there.
		if c, r := s.claims.Load(), s.releases.Load(); c > 40 || r > 40 || s.claimed.Load() != 5120 {
			t.Errorf("%d calls entered and %d gave up %d names (%d entered)", c, r, len(names), s.claimed.Load())
		}
	})
}

func TestAStoreThatDoesNotAnswerIsNotHammeredByMany(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := &metered{Store: drivertest.Faulty(b.store, drivertest.Faults{Delay: time.Millisecond})}
		es := b.session("a", s, Options{}).Elections(nil)
		_ = es.Stand("first")
		collect(t, es, 1)
		net := s.Store.(drivertest.FaultyStore)
		net.Set(drivertest.Faults{Delay: time.Millisecond, Lose: 1})
		before := s.claims.Load()
		_ = es.Stand(manyNames(100)...)
		time.Sleep(4 * time.Second) // less than a lease
		if n := s.claims.Load() - before; n > 2000 || n < 10 {
			t.Errorf("%d calls in 4 s of silence, for 100 names with some 10 tries each", n)
		}
		net.Set(drivertest.Faults{})
		if won, _, _ := collect(t, es, 100); won[0].Check() != nil {
			t.Error(won[0].Check())
		}
	})
}

func TestTenThousandLinesPushNoWarningOut(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var mu sync.Mutex
		lines := map[string]int{}
		stuck := make(chan struct{})
		s := b.session("a", b.store,
			Options{Logger: slog.New(gated{enabled: func() { <-stuck }, lines: func(msg string) {
				mu.Lock()
				defer mu.Unlock()
				lines[msg]++
			}})})
		es := s.Elections(nil)
		_ = es.Stand(manyNames(10_000)...)
		collect(t, es, 10_000)
		time.Sleep(2 * time.Second)
		b.store.Expire("shard/00000")
		time.Sleep(2 * time.Second)
		close(stuck)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if lines["lease ending"] != 1 || lines["elections"] < 2 || lines["elected"] > logQueueSize {
			t.Errorf("logged %v; want the end of the lease, and figures of what was won and ended", lines)
		}
	})
}

// Many goroutines stand, withdraw, resign and iterate; in the end nothing is left.
func TestElectionsUsedByMany(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		names := manyNames(20)
		var all sync.WaitGroup
		for i := range 3 {
			s := b.session(fmt.Sprint(i), b.store, Options{})
			es := s.Elections(nil)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			var users sync.WaitGroup
			for range 3 {
				users.Go(func() {
					for term, err := range es.Terms(ctx) {
						if err == nil {
							time.Sleep(10 * time.Millisecond)
							_ = term.Resign(context.Background())
							_ = es.Stand(term.Name())
						}
					}
				})
			}
			for j := range 8 {
				users.Go(func() {
					for k := 0; ctx.Err() == nil; k++ {
						_ = es.Stand(names[(j+k)%len(names)])
						time.Sleep(time.Duration(j) * time.Millisecond)
						es.Withdraw(names[(j+2*k)%len(names)])
						time.Sleep(300 * time.Millisecond)
					}
				})
			}
			all.Go(func() {
				users.Wait()
				cancel()
				time.Sleep(time.Duration(i+1) * time.Minute) // one at a time
				if err := es.Close(context.Background()); err != nil {
					t.Error(err)
				}
				synctest.Wait() // those who worked for it have gone home
				es.mu.Lock()
				defer es.mu.Unlock()
				if es.pending != 0 || len(es.names) != 0 || es.pool.running != 0 {
					t.Errorf("%d open, names %v, %d workers", es.pending, es.names, es.pool.running)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		b.emptyLines(names...)
	})
}

func TestCloseOfElectionsThatIsGivenUpGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("a", net, Options{})
		other := b.session("b", b.store, Options{})
		holder := b.lead(other, "n")
		es := s.Elections(nil)
		_ = es.Stand("n")
		synctest.Wait()
		net.Hang(true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := es.Close(ctx); !errors.Is(err, ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		net.Hang(false)
		time.Sleep(5 * time.Second)
		if line, _ := b.store.Line(context.Background(), "n"); len(line.Waiters) > 0 || holder.Check() != nil {
			t.Errorf("%+v", line)
		}
	})
}

func TestElectionsOfATermAskedBeforeItWasYielded(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, second := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		es1, es2 := first.Elections(nil), second.Elections(nil)
		_ = es1.Stand("n")
		synctest.Wait()
		_ = es2.Stand("n")
		synctest.Wait()
		asked, err := second.Election("n").Ask(context.Background(), Request{Reason: "my turn"})
		if err != nil {
			t.Fatal(err)
		}
		won, _, _ := collect(t, es2, 1)
		if won[0].Check() != nil || won[0].Token() <= asked {
			t.Errorf("%v, token %d after %d", won[0].Check(), won[0].Token(), asked)
		}
		_ = es2.Resign(context.Background(), won...)
		if again, _, _ := collect(t, es1, 1); again[0].Check() != nil { // it stood again, behind
			t.Error(again[0].Check())
		}
	})
}

func TestARefusedNameIsToldAndHurtsNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", unwilling{b.store, "shard/00333"}, Options{})
		es := s.Elections(nil)
		names := manyNames(1000)
		_ = es.Stand(names...)
		won, _, refused := collect(t, es, len(names))
		var bad *NotInLineError
		if len(refused) != 1 || !errors.As(refused[0], &bad) || bad.Name != "shard/00333" ||
			!errors.Is(bad, ErrRefused) {
			t.Errorf("refused %v, want shard/00333 for good", refused)
		}
		if len(won) != len(names)-1 {
			t.Errorf("%d names were won", len(won))
		}
		for _, bad := range []string{"", string(make([]byte, 300))} {
			if err := es.Stand("fine", bad); !errors.Is(err, ErrInvalid) {
				t.Errorf("Stand for %q: %v", bad, err)
			}
		}
		b.emptyLines("fine")
		if err := s.Elections(
			&ElectionsOptions{Value: make([]byte, MaxValue+1)}).Stand("n"); !errors.Is(err, ErrInvalid) {
			t.Errorf("a value too large: %v", err)
		}
	})
}

// unwilling is a store that will not have one name, and forgets the whole call for it.
type unwilling struct {
	driver.Store
	name string
}

type unwillingLease struct {
	driver.Lease
	name string
}

func (s unwilling) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return &unwillingLease{l, s.name}, err
}

func (l *unwillingLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if slices.ContainsFunc(claims, func(c driver.Claim) bool { return c.Name == l.name }) {
		return nil, fmt.Errorf("no permission: %w", driver.ErrRefused)
	}
	return l.Lease.Claim(ctx, claims...)
}

func TestManyElectionsBehindABadNetwork(t *testing.T) {
	for seed := range uint64(8) {
		bubble(t, func(t *testing.T, b *world) {
			bad := drivertest.Faults{Seed: seed, Delay: 200 * time.Millisecond, Drop: .1, Lose: .2, Late: .15,
				Twice: .15, Lag: 3 * time.Second}
			names := manyNames(300)
			nets := []drivertest.FaultyStore{drivertest.Faulty(b.store, bad), drivertest.Faulty(b.store, bad)}
			leads := map[string]*Term{}
			for round := range 4 {
				s := b.session(fmt.Sprint(round), nets[round%2], Options{})
				es := s.Elections(nil)
				_ = es.Stand(names...)
				time.Sleep(5 * time.Second)
				for _, term := range leads {
					go term.Resign(context.Background())
				}
				next := map[string]*Term{}
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
				for term, err := range es.Terms(ctx) {
					if errors.Is(err, ErrExpired) { // no renewal came through in a whole TTL: so bad is the network
						_ = term.Resign(ctx)
						delete(next, term.Name())
						err = es.Stand(term.Name())
						if err == nil {
							continue
						}
					}
					if err != nil {
						t.Fatalf("%v: %v", term, err)
					}
					old := leads[term.Name()]
					if old != nil && (old.Check() == nil || old.Token() >= term.Token()) || next[term.Name()] != nil {
						t.Fatalf("%s: token %d leads after %v", term.Name(), term.Token(), old)
					}
					if next[term.Name()] = term; len(next) == len(names) {
						break
					}
				}
				cancel()
				if len(next) < len(names) {
					t.Fatalf("seed %d, round %d: %d of %d names were won", seed, round, len(next), len(names))
				}
				leads = next
			}
			for _, term := range leads {
				go term.Resign(context.Background())
			}
			time.Sleep(time.Minute)
			b.emptyLines(names...)
		})
	}
}

// However many elections, the goroutines are as many as for one.
func TestManyElectionsCostNoGoroutines(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, second := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		names := manyNames(10_000)
		es1, es2 := first.Elections(nil), second.Elections(nil)
		before := runtime.NumGoroutine()
		_, _ = es1.Stand(names...), es2.Stand(names...)
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 6 { // two leases with two each
			t.Errorf("%d goroutines for %d elections held and as many that wait", n, len(names))
		}
		won := 0
		for _, es := range []*Elections{es1, es2} {
			for _, a := range es.names {
				if a.phase == leads || a.phase == yielded {
					won++
				}
			}
		}
		if won != len(names) {
			t.Errorf("%d of %d are led", won, len(names))
		}
	})
}

// onEtcd returns a session on a server.
func onEtcd(tb testing.TB, srv *etcdtest.Server, id string) *Session {
	tb.Helper()
	return onEtcdFor(tb, srv, id, 20*time.Second)
}

func onEtcdFor(tb testing.TB, srv *etcdtest.Server, id string, ttl time.Duration) *Session {
	tb.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		tb.Fatal(err)
	}
	store, err := etcdstore.New(context.Background(), client, etcdstore.Options{Prefix: "many/"})
	if err != nil {
		tb.Fatal(err)
	}
	s, err := NewSession(store, &Options{ID: id, TTL: ttl})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
		_ = store.Close()
		_ = client.Close()
	})
	return s
}

// One process stands second in 10,000 elections on etcd, on a fixed number of goroutines and
// watches, and takes them all over.
func TestManyElectionsOnEtcd(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 2000
	}
	srv := etcdtest.Start(t, etcdtest.Options{})
	names := manyNames(n)
	first := onEtcd(t, srv, "a")
	es1 := first.Elections(nil)
	_ = es1.Stand(names...)
	held := takeTerms(es1, n)
	tokens := map[string]Token{}
	for _, term := range held {
		tokens[term.Name()] = term.Token()
	}
	awaitRecords(t, first) // each has a goroutine while it is written
	goroutines, watches := runtime.NumGoroutine(), srv.Metric(t, "etcd_debugging_mvcc_watcher_total")
	second := onEtcd(t, srv, "b")
	es2 := second.Elections(nil)
	_ = es2.Stand(names...)
	for deadline := time.Now().Add(time.Minute); phases(second)[core.Waiting] < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d stand", phases(second)[core.Waiting], n)
		}
	}
	time.Sleep(time.Second) // watches are opened
	if more := runtime.NumGoroutine() - goroutines; more > 40 {
		t.Errorf("%d more goroutines while it stands second", more)
	}
	if more := srv.Metric(t, "etcd_debugging_mvcc_watcher_total") - watches; more > 3 {
		t.Errorf("%v more watches while it stands second", more)
	}
	if err := es1.Resign(context.Background(), held...); err != nil {
		t.Fatal(err)
	}
	for _, term := range takeTerms(es2, n) {
		if term.Check() != nil || term.Token() <= tokens[term.Name()] {
			t.Fatalf("%s: %v, token %d after %d", term.Name(), term.Check(), term.Token(), tokens[term.Name()])
		}
	}
	if leases := first.Stats().Leases + second.Stats().Leases; leases != 2 {
		t.Errorf("%d leases, want 2", leases)
	}
}

// awaitRecords waits until a session has written the records that are due. It is for sessions that
// leave no signs of life.
func awaitRecords(t *testing.T, s *Session) {
	t.Helper()
	w := s.history
	w.mu.Lock()
	written := w.written
	w.mu.Unlock()
	if written == nil {
		return
	}
	select {
	case <-written:
	case <-time.After(5 * time.Minute):
		t.Fatal("the records were not written within five minutes")
	}
}

// BenchmarkOnEtcd is what 10,000 elections cost one process on a real server.
func BenchmarkOnEtcd(b *testing.B) {
	const n = 10_000
	srv := etcdtest.Start(b, etcdtest.Options{})
	names := manyNames(n)
	first, second := onEtcd(b, srv, "a"), onEtcd(b, srv, "b")
	if err := first.Ready(context.Background()); err != nil {
		b.Fatal(err)
	}
	if err := second.Ready(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.Run("win-and-take-over", func(b *testing.B) {
		for b.Loop() {
			es1, es2 := first.Elections(nil), second.Elections(nil)
			began := time.Now()
			_ = es1.Stand(names...)
			held := takeTerms(es1, n)
			won := time.Now()
			_ = es2.Stand(names...)
			for phases(second)[core.Waiting] < n {
				time.Sleep(10 * time.Millisecond)
			}
			stood := time.Now()
			time.Sleep(time.Second)
			gone := time.Now()
			_ = es1.Resign(context.Background(), held...)
			resigned := time.Now()
			next := takeTerms(es2, n)
			b.ReportMetric(won.Sub(began).Seconds(), "s/win")
			b.ReportMetric(stood.Sub(won).Seconds(), "s/stand-second")
			b.ReportMetric(resigned.Sub(gone).Seconds(), "s/resign")
			b.ReportMetric(time.Since(gone).Seconds(), "s/resign-to-last-won")
			_ = es2.Resign(context.Background(), next...)
		}
	})
	for _, callers := range []int{64, 256} {
		b.Run("campaign-"+strconv.Itoa(callers), func(b *testing.B) {
			for b.Loop() {
				began := time.Now()
				held := campaignAll(first, names, callers)
				b.ReportMetric(time.Since(began).Seconds(), "s/win")
				_ = first.Elections(nil).Resign(context.Background(), held...)
			}
		})
	}
}

// A store that does not answer for so many claims in time is asked for half as many, down to one.
// What it has refused says nothing about how many it can do.
func TestACallThatIsNotAnsweredMakesTheNextOneSmaller(t *testing.T) {
	es := outside(t).Elections(nil)
	for _, c := range []struct {
		n    int
		err  error
		want int
	}{
		{maxTogether, context.DeadlineExceeded, maxTogether / 2},
		{maxTogether / 2, driver.ErrRefused, maxTogether / 2},
		{5, context.DeadlineExceeded, 2},
		{2, context.DeadlineExceeded, 1},
		{1, context.DeadlineExceeded, 1},
		{1, nil, 2},
		{maxTogether, nil, maxTogether},
	} {
		if es.learn(c.n, c.err); es.pool.limit != c.want {
			t.Errorf("after a call for %d claims that ended with %v: %d, want %d", c.n, c.err, es.pool.limit, c.want)
		}
	}
}
