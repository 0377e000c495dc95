package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redisstore"
)

// holdUp is a connection that fails in the writing of the first call that has mark in it, and lets
// it arrive when late is closed.
type holdUp struct {
	net.Conn
	mark    string
	done    *atomic.Bool
	late    chan struct{}
	arrived chan struct{}
}

func (h *holdUp) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte(h.mark)) || h.done.Swap(true) {
		return h.Conn.Write(b)
	}
	call := bytes.Clone(b)
	go func() {
		<-h.late
		_, _ = h.Conn.Write(call)
		_, _ = h.Conn.Read(make([]byte, 1000))
		close(h.arrived)
	}()
	return 0, io.EOF
}

func (h *holdUp) Close() error { return nil }

// A Claim with Try fails with its connection, and arrives later than whatever comes after. If the
// store repeated it by itself, its "taken" would be final, and nobody would ever give up what the
// late one enters.
func TestATryIsNotRepeatedInSilence(t *testing.T) {
	t.Parallel()
	t.Run("one server", func(t *testing.T) { aTryNotRepeated(t, redistest.Start(t, redistest.Options{}), false) })
	t.Run("cluster", func(t *testing.T) { aTryNotRepeated(t, redistest.StartCluster(t, 1, 0, redistest.Options{})[0], true) })
}

func aTryNotRepeated(t *testing.T, srv *redistest.Server, cluster bool) {
	h := holdUp{mark: "the-try", done: new(atomic.Bool), late: make(chan struct{}), arrived: make(chan struct{})}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		c, err := net.Dial(network, srv.Addr())
		own := h
		own.Conn = c
		return &own, err
	}
	c := redisstore.Config{Addrs: []string{srv.Addr()}, Cluster: cluster}
	s := openAt(t, c.Through(dial))
	defer s.Close()
	near := openAt(t, c)
	t.Cleanup(func() { near.Close() })
	first, l := grant(t, near, time.Minute), grant(t, s, time.Minute)
	p := enter(t, first, "n", "1")
	_, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "the-try", Try: true})
	if err == nil || errors.Is(err, driver.ErrTaken) {
		t.Errorf("a try whose connection broke = %v, want it unknown", err)
	}
	if !errors.Is(err, driver.ErrTaken) { // then the caller gives it up
		if err := l.Release(t.Context(), driver.Place{Name: "n", ID: "the-try"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	close(h.late)
	<-h.arrived
	if ln, err := s.Line(t.Context(), "n"); err != nil || ln.Holder != nil {
		t.Errorf("the line = %+v, %v, want it empty: a claim stands for nobody", ln.Holder, err)
	}
}

// unread is a connection that does not read the answer to the first call that has mark in it, until
// read is closed.
type unread struct {
	net.Conn
	mark string
	done *atomic.Bool
	sent chan struct{} // closed when that call was written
	read chan struct{}
	mine atomic.Bool
}

func (u *unread) Write(b []byte) (int, error) {
	n, err := u.Conn.Write(b)
	if bytes.Contains(b, []byte(u.mark)) && !u.done.Swap(true) {
		u.mine.Store(true)
		close(u.sent)
	}
	return n, err
}

func (u *unread) Read(b []byte) (int, error) {
	n, err := u.Conn.Read(b)
	if u.mine.Load() {
		<-u.read
	}
	return n, err
}

// withUnread opens a store whose connections are unread, with a lease.
func withUnread(t *testing.T, mark string) (s *redisstore.Store, l driver.Lease, sent, read chan struct{}) {
	t.Helper()
	srv := redistest.Start(t, redistest.Options{})
	done, sent, read := new(atomic.Bool), make(chan struct{}), make(chan struct{})
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := net.Dial(network, addr)
		return &unread{Conn: c, mark: mark, done: done, sent: sent, read: read}, err
	}
	s = openAt(t, redisstore.Config{Addrs: []string{srv.Addr()}}.Through(dial))
	t.Cleanup(func() { s.Close() })
	return s, grant(t, s, time.Minute), sent, read
}

// A Try was answered "taken", so the lease forgot its claim. An earlier try, of unknown outcome to
// its caller, begins while the claim ID is given up: after the server has answered the Release,
// before its caller has read that.
func TestAClaimThatBeginsWhileItIsGivenUpDoesNotEnter(t *testing.T) {
	t.Parallel()
	s, l, sent, read := withUnread(t, "the-claim")
	released := make(chan error, 1)
	go func() { released <- l.Release(t.Context(), driver.Place{Name: "n", ID: "the-claim"}) }()
	<-sent
	_, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "the-claim", Try: true})
	if !errors.Is(err, driver.ErrGone) {
		t.Errorf("a Claim of an ID that is given up = %v, want driver.ErrGone", err)
	}
	close(read)
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	if ln, err := s.Line(t.Context(), "n"); err != nil || ln.Holder != nil {
		t.Errorf("the line = %+v, %v, want it empty: a claim stands for nobody", ln.Holder, err)
	}
}

// A Claim is repeated while its place is handed over, which then fails: it finds its place.
func TestAClaimThatIsRepeatedDuringATransferFindsItsPlace(t *testing.T) {
	t.Parallel()
	_, l, sent, read := withUnread(t, "987654321")
	p := enter(t, l, "n", "the-claim")
	answer := make(chan error, 1)
	go func() { answer <- l.(driver.Transferer).Transfer(t.Context(), p, 987654321) }()
	<-sent
	again, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: p.ID})
	if err != nil || !again[0].Held || again[0].Token != p.Token {
		t.Errorf("the repeated Claim = %+v, %v, want the place %+v", again, err, p)
	}
	close(read)
	if err := <-answer; !errors.Is(err, driver.ErrNoSuccessor) {
		t.Errorf("Transfer = %v", err)
	}
}

// Names, IDs and values may be anything.
func TestOddNames(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s := store(t, srv.Addr())
	l, other := grant(t, s, time.Minute), grant(t, s, time.Minute)
	names := []string{"\x00", "a}b{c", "{}", "server", "lease:" + l.ID(), "s:n", "1e300", "9007199254740993", "\xff\xfe", "%d %s", "a b\nc", "*", "0",
		strings.Repeat("\xff", 100), strings.Repeat("x", 100_000)}
	for _, name := range names {
		id := func(k string) string { return "1 -1 9007199254740993 \n\x00" + name[:min(len(name), 50)] + k }
		value := []byte("\x00\xff" + name)
		p, err := l.Claim(t.Context(), driver.Claim{Name: name, Seat: "Seat9", ID: id("a"), Value: value})
		if err != nil || !p[0].Held {
			t.Fatalf("Claim of %.40q = %+v, %v", name, p, err)
		}
		q, err := other.Claim(t.Context(), driver.Claim{Name: name, ID: id("b")})
		if err != nil || q[0].Held {
			t.Fatalf("the second Claim of %.40q = %+v, %v", name, q, err)
		}
		if ln, err := s.Line(t.Context(), name); err != nil || ln.Holder == nil || !bytes.Equal(ln.Holder.Value, value) || len(ln.Waiters) != 1 {
			t.Errorf("the line of %.40q = %+v, %v", name, ln.Holder, err)
		}
		if all, err := s.Lines(t.Context(), name); err != nil || len(all) != 1 || all[0].Name != name {
			t.Errorf("Lines of %.40q = %d, %v", name, len(all), err)
		}
		if err := l.Update(t.Context(), p[0], nil); err != nil {
			t.Errorf("Update of %.40q = %v", name, err)
		}
		p[0].Record, p[0].Journal = &driver.Record{Key: "1", Value: value[:min(len(value), driver.MaxRecord)]}, name
		if err := l.Release(t.Context(), p[0]); err != nil {
			t.Fatal(err)
		}
		held, err := drivertest.Await(soon(t), other, q[0])
		if err != nil || held.Token <= p[0].Token {
			t.Fatalf("Wait for %.40q = %+v, %v", name, held, err)
		}
		if all, err := s.Records(t.Context(), name, "", 9); err != nil || len(all) != 1 || !bytes.Equal(all[0].Value, p[0].Record.Value) {
			t.Errorf("the journal of %.40q has %d records, %v", name, len(all), err)
		}
		if err := other.Release(t.Context(), q[0]); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	if all, err := s.Lines(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("%d lines are left, %v", len(all), err)
	}
}

// Caps say what can make two leaders on the server as it is.
func TestBestEffort(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	has := func(replicas int, want string) {
		t.Helper()
		s := openAt(t, redisstore.Config{Addrs: []string{srv.Addr()}, Replicas: replicas})
		defer s.Close()
		if got := s.Caps().BestEffort; got != want {
			t.Errorf("BestEffort with Replicas %d = %q, want %q", replicas, got, want)
		}
	}
	has(0, "")
	srv.Do("CONFIG", "SET", "maxmemory", "100mb")
	has(0, "")
	srv.Do("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	has(0, "keys that Redis evicts")
	redistest.Start(t, redistest.Options{Replica: srv}).Synced()
	has(0, "a failover whose former primary lives on, or keys that Redis evicts")
	has(1, "keys that Redis evicts")
	srv.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	redistest.Start(t, redistest.Options{Replica: srv}).Synced()
	has(1, "a failover whose former primary lives on")
	has(2, "")
}
