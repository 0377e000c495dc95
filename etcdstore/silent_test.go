package etcdstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/safety"
	"github.com/primacy-go/primacy/internal/servertest"
)

// TestEveryCallEndsWithItsContext: packets vanish and connections stay open; no call may outlive
// its context by more than a moment, whether its connection was used before or is just being
// made.
func TestEveryCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	proxy := etcdtest.NewProxy(t, srv.Addr())
	s := open(t, proxy.Addr())
	held := claim(t, grant(t, s, "other", time.Minute), "taken")
	type call struct {
		name string
		do   func(ctx context.Context, l driver.Lease, p driver.Place) error
	}
	calls := []call{
		{"Grant", func(ctx context.Context, _ driver.Lease, _ driver.Place) error {
			_, err := s.Grant(ctx, "x", time.Minute)
			return err
		}},
		{"Line", func(ctx context.Context, _ driver.Lease, p driver.Place) error {
			_, err := s.Line(ctx, p.Name)
			return err
		}},
		{"Next", func(ctx context.Context, _ driver.Lease, p driver.Place) error {
			_, err := s.Next(ctx, p.Name, 1)
			return err
		}},
		{"Lines", func(ctx context.Context, _ driver.Lease, _ driver.Place) error {
			_, err := s.Lines(ctx, "")
			return err
		}},
		{"Ask", func(ctx context.Context, _ driver.Lease, p driver.Place) error {
			return s.Ask(ctx, p.Name, driver.Request{Token: p.Token})
		}},
		{"Renew", func(ctx context.Context, l driver.Lease, _ driver.Place) error { return l.Renew(ctx) }},
		{"Claim", func(ctx context.Context, l driver.Lease, _ driver.Place) error {
			_, err := l.Claim(ctx, driver.Claim{Name: "new", ID: rand.Text()})
			return err
		}},
		{"Wait", func(ctx context.Context, l driver.Lease, p driver.Place) error {
			_, err := drivertest.Await(ctx, l,
				p)
			return err
		}},
		{"Update", func(ctx context.Context, l driver.Lease, p driver.Place) error { return l.Update(ctx, p, nil) }},
		{"Release", func(ctx context.Context, l driver.Lease, p driver.Place) error { return l.Release(ctx, p) }},
		{"News", func(ctx context.Context, l driver.Lease, _ driver.Place) error { _, err := l.News(ctx); return err }},
		{"Close", func(ctx context.Context, l driver.Lease, _ driver.Place) error { return l.Close(ctx) }},
	}
	for _, c := range calls {
		l := grant(t, s, "x", time.Minute)
		p := claim(t, l, "silent")
		if c.name == "Wait" {
			p = claim(t, l, held.Name)
		}
		// The first is on a connection that has served, the second on what the ring has dialled
		// meanwhile.
		proxy.Hold()
		for range 2 {
			err := promptly(t, c.name, 300*time.Millisecond, func(ctx context.Context) error { return c.do(ctx, l, p) })
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s = %v, want the end of its context", c.name, err)
			}
		}
		proxy.Heal()
		eventually(t, "the lease to be closed", time.Minute, func() bool {
			return l.Close(within(t,
				time.Second)) == nil
		})
	}
}

// promptly runs do under a context that ends after limit, and wants it back soon after that.
func promptly(t *testing.T, what string, limit time.Duration, do func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	begun := time.Now()
	err := do(ctx)
	if took := time.Since(begun); took > limit+2*time.Second { // so much a busy machine may take
		t.Errorf("%s returned after %v, its context ended after %v", what, took, limit)
	}
	return err
}

// TestOpenObeysItsContext: nobody answers, in each of the ways one can be silent.
func TestOpenObeysItsContext(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, c := range []etcdstore.Config{
		{Endpoints: []string{ln.Addr().String()}},
		{Endpoints: []string{closed.Addr().String()}},
		{Endpoints: []string{ln.Addr().String()}, Username: "u", Password: "p"},
		{Endpoints: []string{closed.Addr().String()}, Username: "u", Password: "p"},
	} {
		err := promptly(t, "Open", 500*time.Millisecond, func(ctx context.Context) error {
			_, err := etcdstore.Open(ctx, c)
			return err
		})
		if err == nil || errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), c.Endpoints[0]) {
			t.Errorf("Open = %v, want an error that names %s", err, c.Endpoints[0])
		}
	}
	if _, err := etcdstore.Open(soon(t), etcdstore.Config{}); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("Open without endpoints = %v, want ErrRefused", err)
	}
}

// TestCompactionHurtsNobody: watches idle while the store's history is compacted and the
// connection is lost. Etcd's own waiters fail there, or leave a ghost.
func TestCompactionHurtsNobody(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	proxy := etcdtest.NewProxy(t, srv.Addr())
	s := open(t, proxy.Addr())
	c := plainClient(t, srv.Endpoint())
	first, second := grant(t, s, "a", time.Minute), grant(t, s, "b", time.Minute)
	p := claim(t, first, "old")
	turn := waiting(t, second, claim(t, second, "old"))
	now := line(t, s, "old").Revision
	next := make(chan error, 1)
	go func() {
		ln, err := s.Next(soon(t), "old", now)
		if err == nil && ln.Revision <= now {
			err = errors.New("Next returned an older line")
		}
		next <- err
	}()
	time.Sleep(300 * time.Millisecond) // so that the watches stand; were they late, the test would be easier
	for range 3 {
		var rev int64
		for range 5 {
			resp, err := c.Put(soon(t), "unrelated", "x")
			if err != nil {
				t.Fatal(err)
			}
			rev = resp.Header.Revision
		}
		if _, err := c.Compact(soon(t), rev, clientv3.WithCompactPhysical()); err != nil {
			t.Fatal(err)
		}
		proxy.Cut()
		proxy.Heal()
	}
	select {
	case err := <-turn:
		t.Fatalf("Wait returned while another holds: %v", err)
	default:
	}
	eventually(t, "the release", time.Minute, func() bool { return first.Release(soon(t), p) == nil })
	if err := receive(t, "Wait", turn, 8*time.Second); err != nil {
		t.Error(err)
	}
	if err := receive(t, "Next", next, 8*time.Second); err != nil {
		t.Error(err)
	}
	// A revision that is compacted away counts as changed, or at least answers.
	if _, err := s.Next(soon(t), "old", 2); err != nil {
		t.Errorf("Next after a compacted revision: %v", err)
	}
}

// TestADeletedKeyIsNewsAtOnce: an operator deletes the claim, then the session's record. It is news
// within a second of the moment in which a watch of our own sees it; the poll comes after 4 s.
func TestADeletedKeyIsNewsAtOnce(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := open(t, srv.Addr())
	c := plainClient(t, srv.Endpoint())
	l := grant(t, s, "a", time.Minute)
	p, kept := claim(t, l, "deleted"), claim(t, l, "kept")
	type told struct {
		news []driver.News
		err  error
	}
	got := make(chan told, 1)
	follow := func() {
		n, err := l.News(soon(t))
		got <- told{n, err}
	}
	seen := c.Watch(soon(t), "primacy/deleted/"+l.ID(), clientv3.WithCreatedNotify())
	<-seen // it stands
	go follow()
	eventually(t, "the record and both claims are watched", time.Minute, func() bool {
		return srv.Metric(t, "etcd_debugging_mvcc_watcher_total") >= 4
	})
	stalls := safety.WatchStalls(5 * time.Millisecond)
	removeByHand(t, c, p.Token)
	<-seen
	begun := time.Now()
	n := <-got
	took := time.Since(begun)
	if _, stood := stalls(); took > time.Second+stood {
		t.Errorf("the news came after %v, and this machine stood still for %v", took, stood)
	}
	if n.err != nil || len(n.news) != 1 || !n.news[0].Gone || n.news[0].Place.Token != p.Token {
		t.Fatalf("News = %+v, %v, want that token %d is gone", n.news, n.err, p.Token)
	}
	go follow()
	if _, err := c.Delete(soon(t), "primacy/@session/"+l.ID()); err != nil {
		t.Fatal(err)
	}
	if n := <-got; !errors.Is(n.err, driver.ErrGone) {
		t.Fatalf("News after the record was deleted = %+v, %v, want ErrGone", n.news, n.err)
	}
	if err := l.Renew(soon(t)); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew = %v, want ErrGone", err)
	}
	// The other claim stands on until the lease has run out: its holder may not have heard of it
	// yet.
	if line(t, s, kept.Name).Holder == nil {
		t.Error("the other claim went before its lease had run out")
	}
}

// TestManyWaitsAreTakenOver: a lease with many claims ends, and whoever stood second in each line
// holds it soon after.
func TestManyWaitsAreTakenOver(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := etcdstore.New(soon(t), client, etcdstore.Options{Prefix: "many/"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	holder, waiter := grant(t, s, "a", time.Minute), grant(t, s, "b", time.Minute)
	const n = 300
	var turns []<-chan error
	var places []driver.Place
	for range n {
		name := rand.Text()
		places = append(places, claim(t, holder, name))
		turns = append(turns, waiting(t, waiter, claim(t, waiter, name)))
	}
	if err := holder.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for i, turn := range turns {
		if err := receive(t, places[i].Name, turn, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d waits taken over in %v", n, time.Since(begun))
}

// TestMembersOfAnotherClusterAreNotBelieved: endpoints of two clusters in one list would make two
// leaders.
func TestMembersOfAnotherClusterAreNotBelieved(t *testing.T) {
	t.Parallel()
	one, other := etcdtest.Start(t, etcdtest.Options{}), etcdtest.Start(t, etcdtest.Options{})
	s := open(t, one.Addr(), other.Addr())
	l := grant(t, s, "a", time.Minute)
	one.Kill()
	for what, err := range map[string]error{
		"Claim": func() error {
			_, err := l.Claim(soon(t), driver.Claim{Name: "x", ID: rand.Text()})
			return err
		}(),
		"Grant": func() error { _, err := s.Grant(soon(t), "b", time.Minute); return err }(),
		"Line":  func() error { _, err := s.Line(soon(t), "x"); return err }(),
		"Renew": func() error { return l.Renew(soon(t)) }(),
	} {
		if err == nil || errors.Is(err, driver.ErrGone) {
			t.Errorf("%s at another cluster = %v, want an error that is not final", what, err)
		}
	}
	if ln := line(t, open(t, other.Addr()), "x"); ln.Holder != nil {
		t.Errorf("a claim entered another cluster: %+v", ln)
	}
}
