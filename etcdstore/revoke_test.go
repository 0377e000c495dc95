package etcdstore_test

import (
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// revoke is Revoke tried as the guardian of a dead process does.
func revoke(t *testing.T, s *etcdstore.Store, lease string) {
	t.Helper()
	for range 20 {
		err := s.Revoke(within(t, 5*time.Second), lease)
		if err == nil {
			return
		}
		if errors.Is(err, driver.ErrRefused) {
			t.Fatalf("Revoke: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("Revoke never had an answer")
}

// keysOf returns what stands of a lease: its record, what is below it, and its claims.
func keysOf(c *etcdsim.Cluster, lease string) (keys []string) {
	for _, kv := range c.Keys("primacy/") {
		if strings.Contains(string(kv.Key), "/"+lease) {
			keys = append(keys, string(kv.Key))
		}
	}
	return keys
}

// TestSimulatedRevokeOfASessionThatHasMoved: the record is on a new lease, the claims are still
// on the old one, and its process is gone.
func TestSimulatedRevokeOfASessionThatHasMoved(t *testing.T) {
	t.Parallel()
	caught := 0
	for seed := range uint64(10) {
		inCluster(t, seed, 10*time.Millisecond, func(t *testing.T, c *etcdsim.Cluster) {
			s, by := simStore(t, c, 0), simStore(t, c, 1)
			defer s.Close()
			defer by.Close()
			l, other := grant(t, s, "a", 5*time.Minute), grant(t, by, "b", 5*time.Minute)
			for range 130 { // more than fit in one Txn
				claim(t, l, rand.Text())
			}
			_, err := l.Claim(soon(t), driver.Claim{Name: "readers", Slots: driver.Unlimited, ID: rand.Text()},
				driver.Claim{Name: "x", Seat: "2", ID: rand.Text()})
			if err != nil {
				t.Fatal(err)
			}
			turn := waiting(t, other, claim(t, other, "x"))
			untilRenewed(t, l)
			for range 1 + seed%2 { // once or twice
				old := record(c, l)
				moveLeader(c)
				time.Sleep(time.Second)
				done := make(chan error, 1)
				go func() { done <- l.Renew(within(t, 3*time.Second)) }()
				for record(c, l) == old {
					time.Sleep(100 * time.Microsecond)
				}
				for m := range c.Endpoints() {
					c.Hold(0, m, true, true) // the claims do not follow
				}
				<-done
				for m := range c.Endpoints() {
					c.Reset(0, m) // nor later
					c.Hold(0, m, true, false)
				}
			}
			for _, kv := range c.Keys("primacy/") {
				if strings.HasSuffix(string(kv.Key), "/"+l.ID()) && kv.Lease != record(c, l) {
					caught++
				}
			}
			revoke(t, by, l.ID())
			if err := receive(t, "Wait of the next", turn, 5*time.Second); err != nil {
				t.Error(err)
			}
			if left := keysOf(c, l.ID()); len(left) > 0 {
				t.Errorf("seed %d: %d keys are left, such as %q", seed+1, len(left), left[0])
			}
			if h := line(t, by, "x").Holder; h == nil || h.Lease != other.ID() {
				t.Errorf("holder = %+v, want the other session", h)
			}
		})
	}
	if caught == 0 {
		t.Error("every move was finished: the test shows nothing")
	}
}

// record returns the etcd lease that a session's record is on, 0 if there is no record.
func record(c *etcdsim.Cluster, l driver.Lease) int64 {
	for _, kv := range c.Keys("primacy/@session/" + l.ID()) {
		if strings.HasSuffix(string(kv.Key), l.ID()) {
			return kv.Lease
		}
	}
	return 0
}

// TestSimulatedRevokeBesideASessionThatMoves: the session lives, moves, claims and gives up,
// while it is revoked. In the end nothing of it stands, and nothing comes.
func TestSimulatedRevokeBesideASessionThatMoves(t *testing.T) {
	t.Parallel()
	moved := 0
	for seed := range uint64(60) {
		inCluster(t, seed, 4*time.Millisecond, func(t *testing.T, c *etcdsim.Cluster) {
			rng := mathrand.New(mathrand.NewPCG(seed, 1))
			s, by := simStore(t, c, 0), simStore(t, c, 1)
			defer s.Close()
			defer by.Close()
			l := grant(t, s, "a", 5*time.Minute)
			for range 20 {
				claim(t, l, rand.Text())
			}
			untilRenewed(t, l)
			moveLeader(c)
			time.Sleep(time.Second)
			old := record(c, l)
			stop := make(chan struct{})
			defer func() { close(stop); time.Sleep(10 * time.Second) }()
			over := func() bool {
				select {
				case <-stop:
					return true
				default:
					return false
				}
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for !over() && !errors.Is(l.Renew(within(t, time.Second)), driver.ErrGone) {
					time.Sleep(time.Millisecond)
				}
			}()
			go func() {
				for n := 0; !over(); n++ {
					p, err := l.Claim(within(t, time.Second), driver.Claim{Name: rand.Text(), ID: rand.Text()})
					if errors.Is(err, driver.ErrGone) {
						return
					}
					if err == nil && n%2 == 0 {
						_ = l.Release(within(t, time.Second), p...)
					}
				}
			}()
			time.Sleep(time.Duration(rng.IntN(25_000)) * time.Microsecond)
			before := record(c, l)
			last := make(chan int64, 1) // what the record was on just before it went
			go func() {
				seen := before
				for now := seen; now != 0 && !over(); now = record(c, l) {
					seen = now
					time.Sleep(50 * time.Microsecond)
				}
				last <- seen
			}()
			revoke(t, by, l.ID())
			if record(c, l) != 0 {
				t.Fatalf("seed %d: the record stands", seed+1)
			}
			if was := <-last; before == old && was != old {
				moved++
			}
			<-ended
			time.Sleep(20 * time.Second)
			if left := keysOf(c, l.ID()); len(left) > 0 {
				t.Errorf("seed %d: %d keys are left, such as %q", seed+1, len(left), left[0])
			}
		})
	}
	t.Logf("in %d of 60 rounds the session moved while it was revoked", moved)
	if moved == 0 {
		t.Error("no session moved while it was revoked: the test shows nothing")
	}
}

// TestRevokeEndsNothingElse: an ID that is none is refused, and leases of others stay.
func TestRevokeEndsNothingElse(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s, c := open(t, srv.Endpoint()), plainClient(t, srv.Endpoint())
	l, other := grant(t, s, "a", time.Minute), grant(t, s, "b", time.Minute)
	claim(t, l, "x")
	for _, id := range []string{"", "0", "-1", "x", "0x1f", "00" + l.ID(), strings.ToUpper(l.ID()) + "A", l.ID() +
		"/ask", " " + l.ID(), strings.Repeat("f", 16), strings.Repeat("7", 99)} {
		err := s.Revoke(soon(t), id)
		if !errors.Is(err, driver.ErrRefused) {
			t.Errorf("Revoke(%q) = %v, want ErrRefused", id, err)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("Revoke(%q) = %q, want one line", id, err)
		}
	}
	foreign, err := c.Grant(soon(t), 60)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Revoke(soon(t), etcdstore.Hex(int64(foreign.ID))); err != nil {
		t.Errorf("Revoke of a lease that is no session's: %v", err)
	}
	if left, err := c.TimeToLive(soon(t), foreign.ID); err != nil || left.TTL <= 0 {
		t.Errorf("another program's lease has %+v left, %v", left, err)
	}
	if err := s.Revoke(soon(t), l.ID()); err != nil {
		t.Fatal(err)
	}
	if err := other.Renew(soon(t)); err != nil {
		t.Errorf("Renew of the other session: %v", err)
	}
	// A record that was written by hand, without a lease: it never ends by itself.
	if _, err := c.Put(soon(t), "primacy/@session/"+other.ID(), "{}"); err != nil {
		t.Fatal(err)
	}
	p := claim(t, grant(t, s, "c", time.Minute), "y")
	if err := s.Revoke(soon(t), other.ID()); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Get(soon(t), "primacy/@session/"+other.ID()); err != nil || len(got.Kvs) != 0 {
		t.Errorf("the record stands: %v, %v", got, err)
	}
	if h := line(t, s, "y").Holder; h == nil || h.Token != p.Token {
		t.Errorf("holder of y = %+v, want %+v", h, p)
	}
}

// TestSimulatedRemoveClaim: it removes the claim of that token alone. No claim has the token 0,
// which stands for "not known" elsewhere.
func TestSimulatedRemoveClaim(t *testing.T) {
	inCluster(t, 1, 0, func(t *testing.T, c *etcdsim.Cluster) {
		s := simStore(t, c, 0)
		defer s.Close()
		first, second := claim(t, grant(t, s, "a", time.Minute), "x"), claim(t, grant(t, s, "b", time.Minute), "x")
		if err := s.RemoveClaim(soon(t), "x", 0); err != nil || len(c.Keys("primacy/x/")) != 2 {
			t.Errorf("seed 1: RemoveClaim(0) = %v, and %d claims stand, want both", err, len(c.Keys("primacy/x/")))
		}
		if err := s.RemoveClaim(soon(t), "x", first.Token); err != nil {
			t.Fatal(err)
		}
		if kvs := c.Keys("primacy/x/"); len(kvs) != 1 || uint64(kvs[0].CreateRevision) != second.Token {
			t.Errorf("seed 1: %v stand, want token %d alone", kvs, second.Token)
		}
	})
}
