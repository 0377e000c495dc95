package etcdapi

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	epb "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
)

func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", limit, what)
		}
	}
}

// TestAKeepaliveIsAnsweredOnlyWhileTheClaimStandsForTheTTL cuts a server off from its store:
// whoever counts its ttl from the last answer is done before another leads.
func TestAKeepaliveIsAnsweredOnlyWhileTheClaimStandsForTheTTL(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{})
	faulty := drivertest.Faulty(store, drivertest.Faults{})
	_, addrA := serve(t, faulty, Options{Timeout: time.Second})
	_, addrB := serve(t, store, Options{})
	a, b := newClient(t, addrA, nil), newClient(t, addrB, nil)
	const ttl = 5 * time.Second // a busy machine keeps it alive
	lease := a.once(5)
	k := a.win(lease, "cut", "a")
	stream, err := a.LeaseKeepAlive(a.ctx(2 * time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var last time.Time // the client believes in its lease for a ttl from here
	beats, zero := 0, false
	go func() {
		for stream.Send(&pb.LeaseKeepAliveRequest{ID: lease}) == nil {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			mu.Lock()
			if zero = zero || r.TTL == 0; !zero {
				last = time.Now()
				beats++
			}
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
		}
	}()
	count := func() int { mu.Lock(); defer mu.Unlock(); return beats }
	eventually(t, time.Minute, "keepalives for longer than the ttl", func() bool { return count() > 110 })
	faulty.Hang(true)
	defer faulty.Hang(false)
	won := make(chan time.Time, 1)
	go func() {
		b.win(b.grant(5), "cut", "b")
		won <- time.Now()
	}()
	at := <-won
	mu.Lock()
	if at.Before(last.Add(ttl)) {
		t.Errorf("b won %v before a's client had to give up", last.Add(ttl).Sub(at))
	}
	mu.Unlock()
	eventually(t, time.Minute, "ttl 0", func() bool { mu.Lock(); defer mu.Unlock(); return zero })
	// It is known to be over, or the store would have to say whether another process holds it:
	// within our own time limit.
	if _, err := a.Proclaim(context.Background(),
		&epb.ProclaimRequest{Leader: k}); status.Code(err) != codes.Unavailable &&
		told(err) != "Unknown: election: not leader" {
		t.Errorf("proclaim: %v", err)
	}
	if got := b.leader("cut"); got != "b" {
		t.Errorf("%s leads", got)
	}
	if _, err := a.Leader(context.Background(),
		&epb.LeaderRequest{Name: []byte("cut")}); status.Code(err) != codes.Unavailable {
		t.Errorf("leader of a store that does not answer: %v", err)
	}
}

// TestWhatIsLostEndsTheLease removes a claim by hand.
func TestWhatIsLostEndsTheLease(t *testing.T) {
	t.Parallel()
	c, store := ours(t)
	a := c.once(20)
	k, other := c.win(a, "x", "1"), c.win(a, "y", "1")
	store.Remove("x", uint64(k.Rev))
	eventually(t, time.Minute, "ttl 0", func() bool { return c.beat(a) == 0 })
	if got := c.leader("y"); got != "1" {
		t.Errorf("y was given up while the client may believe in it: %s", got)
	}
	if _, err := c.try(a, "z", "", time.Minute); status.Code(err) != codes.NotFound {
		t.Errorf("campaign under a lease that is over: %v", err)
	}
	if err := c.proclaim(other, "2"); err != nil {
		t.Errorf("proclaim while it is held: %v", err)
	}
	if err := c.resign(other); err != nil {
		t.Error(err)
	}
	eventually(t, time.Minute, "the lease is gone with the last it held", func() bool {
		all, _ := c.LeaseLeases(c.ctx(time.Minute), &pb.LeaseLeasesRequest{})
		return len(all.GetLeases()) == 0
	})
}

// TestWhoIsAskedToResignIsTold asks a client of etcd to give up, as `primacy resign` does.
func TestWhoIsAskedToResignIsTold(t *testing.T) {
	t.Parallel()
	c, store := ours(t)
	s, err := primacy.NewSession(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := c.once(4)
	answered := time.Now()
	k := c.win(a, "x", "1")
	ctx := c.ctx(time.Minute)
	if token, err := s.Election("x").Ask(ctx, primacy.Request{Reason: "maintenance"}); err != nil ||
		int64(token) != k.Rev {
		t.Fatal(token, err)
	}
	eventually(t, time.Minute, "ttl 0", func() bool { return c.beat(a) == 0 })
	term, err := s.Election("x").Campaign(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(answered); took < 4*time.Second-100*time.Millisecond {
		t.Errorf("the next led after %v, while the client could believe in its ttl of 4s", took)
	}
	if int64(term.Token()) <= k.Rev {
		t.Errorf("token %d after %d", term.Token(), k.Rev)
	}
	if a, err := c.Leader(ctx, &epb.LeaderRequest{Name: []byte("x")}); err != nil ||
		a.Kv.CreateRevision != int64(term.Token()) {
		t.Errorf("leader: %v, %v", a, err)
	}
	if err := term.Resign(ctx); err != nil {
		t.Error(err)
	}
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestWhatAnotherProcessHoldsIsNotSaidToBeGone asks a server for what a client of another one
// holds.
func TestWhatAnotherProcessHoldsIsNotSaidToBeGone(t *testing.T) {
	t.Parallel()
	a, store := ours(t)
	_, addr := serve(t, store, Options{ID: "second"})
	b := newClient(t, addr, nil)
	k := a.win(a.grant(5), "x", "1")
	if b.leader("x") != "1" {
		t.Error("the other does not see the leader")
	}
	seen, err := b.Leader(b.ctx(time.Minute), &epb.LeaderRequest{Name: []byte("x")})
	if err != nil || string(seen.Kv.Key) != string(k.Key) || seen.Kv.Lease != k.Lease ||
		seen.Kv.CreateRevision != k.Rev {
		t.Errorf("the other sees %v, %v; want %v", seen, err, k)
	}
	for what, err := range map[string]error{"proclaim": b.proclaim(k, "2"), "resign": b.resign(k),
		"unlock": b.unlock(string(k.Key))} {
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "ask there") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := a.resign(k); err != nil {
		t.Error(err)
	}
	if err := b.resign(k); err != nil {
		t.Errorf("resign of what is gone: %v", err)
	}
}

// TestWhatCannotBeAskedForIsRefused has arguments that etcd would take and we cannot.
func TestWhatCannotBeAskedForIsRefused(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{})
	_, addr := serve(t, store, Options{MaxLeases: 2, MaxStreams: 1})
	c := newClient(t, addr, nil)
	a := c.grant(5)
	for name, value := range map[string]string{"": "", "a\x00b": "", "\xff": "", strings.Repeat("n", 256): "",
		"v": strings.Repeat("v", 4097)} {
		if _, err := c.try(a, name, value, time.Minute); status.Code(err) != codes.InvalidArgument {
			t.Errorf("campaign for %.20q with %d bytes: %v", name, len(value), err)
		}
		if _, err := c.Leader(c.ctx(time.Minute), &epb.LeaderRequest{Name: []byte(name)}); value == "" &&
			status.Code(err) != codes.InvalidArgument {
			t.Errorf("leader of %.20q: %v", name, err)
		}
	}
	stream, err := c.Observe(c.ctx(time.Minute), &epb.LeaderRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("observe without a name: %v", err)
	}
	ctx, end := context.WithCancel(c.ctx(time.Minute))
	if stream, err = c.Observe(ctx, &epb.LeaderRequest{Name: []byte("n")}); err != nil {
		t.Fatal(err)
	}
	c.win(a, "n", "v")
	if _, err := stream.Recv(); err != nil {
		t.Errorf("observe: %v", err)
	}
	second := func() error {
		stream, err := c.Observe(c.ctx(time.Minute), &epb.LeaderRequest{Name: []byte("n")})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if err := second(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "--max-streams") {
		t.Errorf("a second observer of one: %v", err)
	}
	end()
	for began := time.Now(); second() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("an observer that has gone makes no room")
		}
	}
	c.grant(5)
	if _, err := c.LeaseGrant(c.ctx(time.Minute),
		&pb.LeaseGrantRequest{TTL: 5}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a third lease of two: %v", err)
	}
	kv := pb.NewKVClient(mustDial(t, addr))
	if _, err := kv.Range(c.ctx(time.Minute),
		&pb.RangeRequest{Key: []byte("x")}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a read of a key: %v", err)
	}
}

// TestManyClients has clients campaign, give up, resign, revoke and fall silent, on two servers.
// Never do two hold a name, and nothing is left in the line.
func TestManyClients(t *testing.T) {
	t.Parallel()
	a, store := ours(t)
	_, addr := serve(t, store, Options{ID: "second"})
	b := newClient(t, addr, nil)
	var mu sync.Mutex
	holder, tokens := "", int64(0)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			c := []*client{a, b}[i%2]
			for n := range 12 {
				lease := c.once(30)
				me := fmt.Sprintf("%d/%d", i, n)
				k, err := c.try(lease, "many", me, time.Duration(rand.IntN(200))*time.Millisecond)
				if err == nil {
					mu.Lock()
					if holder != "" || k.Rev <= tokens {
						t.Errorf("%s holds under %d; %q held under %d", me, k.Rev, holder, tokens)
					}
					holder, tokens = me, k.Rev
					mu.Unlock()
					time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
					mu.Lock()
					holder = ""
					mu.Unlock()
				}
				if err == nil && n%2 == 0 {
					err = c.resign(k)
				}
				if code := status.Code(err); code != codes.OK && code != codes.DeadlineExceeded {
					t.Errorf("%s: %v", me, err)
				}
				if _, err := c.LeaseRevoke(context.Background(), &pb.LeaseRevokeRequest{ID: lease}); err != nil {
					t.Errorf("%s: revoke: %v", me, err)
				}
			}
		})
	}
	all.Wait()
	eventually(t, time.Minute, "an empty line", func() bool {
		line, err := store.Line(context.Background(), "many")
		return err == nil && line.Holder == nil && len(line.Waiters) == 0
	})
}

// TestACallThatWasGivenUpDoesNotHurtTheNext has a lease ask again for what it has just given up
// waiting for. On etcd itself the key of the first call can be deleted under the second ("mutex:
// session is expired").
func TestACallThatWasGivenUpDoesNotHurtTheNext(t *testing.T) {
	t.Parallel()
	c, _ := ours(t)
	a, b := c.once(60), c.once(60)
	for range 20 {
		key, err := c.lock(a, "n", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.lock(b, "n", 5*time.Millisecond); err == nil {
			t.Fatal("two hold it")
		}
		next := make(chan error, 1)
		go func() {
			key, err := c.lock(b, "n", time.Minute)
			if err == nil {
				err = c.unlock(key)
			}
			next <- err
		}()
		time.Sleep(time.Millisecond)
		if err := c.unlock(key); err != nil {
			t.Fatal(err)
		}
		if err := <-next; err != nil {
			t.Fatal(err)
		}
	}
}
