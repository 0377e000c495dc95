package etcdstore

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// onDisk starts a server whose data the test can change while it is down.
func onDisk(t *testing.T) (srv *etcdtest.Server, data string) {
	data = filepath.Join(t.TempDir(), "data")
	return etcdtest.Start(t, etcdtest.Options{DataDir: func(int) string { return data }}), data
}

// put replaces the data of a server that is down; with an empty from it begins anew.
func put(t *testing.T, data, from string) {
	t.Helper()
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if from == "" {
		return
	}
	copyAll(t, from, data)
}

func copyAll(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %s", out)
	}
}

// grantedAgain grants as a session does that has lost its lease: until it has another.
func grantedAgain(t *testing.T, s *Store) (err error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err = s.Grant(ending(t, 5*time.Second), "a", 10*time.Second); err == nil {
			return nil
		}
	}
	return err
}

// TestAnEtcdThatBeganAnewGrantsLeases: its data is lost, and with the same flags it is the same
// cluster again. Its raft terms begin anew, below one that this process has seen.
func TestAnEtcdThatBeganAnewGrantsLeases(t *testing.T) {
	t.Parallel()
	srv, data := onDisk(t)
	for range 3 { // each start is a new raft term
		srv.Kill()
		srv.Restart()
	}
	s, _, _ := gated(t, srv.Endpoint(), srv.Endpoint())
	l := granted(t, s, "a", 10*time.Second)
	known := s.wire.Term()
	srv.Kill()
	put(t, data, "")
	srv.Restart()
	if err := renewedOnce(t, l); !errors.Is(err, driver.ErrGone) {
		t.Fatalf("Renew = %v, want ErrGone: etcd has lost the lease", err)
	}
	if err := grantedAgain(t, s); err != nil {
		t.Errorf("a process that knew raft term %d gets no lease any more: %v", known, err)
	}
}

// TestARestoredEtcdEndsTheSession: etcd is put back to a backup of before the session's last move,
// in the same raft term as before. The lease that the session renews is not there, and its claim is
// on one that nobody renews: whoever is next leads when that one ends.
func TestARestoredEtcdEndsTheSession(t *testing.T) {
	t.Parallel()
	srv, data := onDisk(t)
	s, _, _ := gated(t, srv.Endpoint(), srv.Endpoint())
	l := granted(t, s, "a", 10*time.Second)
	claimed(t, l, "x")
	if err := renewedOnce(t, l); err != nil {
		t.Fatal(err)
	}
	first := l.attachment().lease
	srv.Kill()
	copyAll(t, data, data+".bak")
	srv.Restart()
	if err := renewedOnce(t, l); err != nil || l.attachment().lease == first {
		t.Fatalf("Renew = %v on lease %x, want the session on another than %x", err, l.attachment().lease, first)
	}
	srv.Kill()
	put(t, data, data+".bak")
	srv.Restart()
	if err := renewedOnce(t, l); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew = %v, though etcd does not know the lease that it renewed", err)
	}
	if err := grantedAgain(t, s); err != nil {
		t.Errorf("Grant: %v", err)
	}
}

// TestSimulatedSessionInAnOlderEtcd: the session knows a later state of its record, or another one
// of the same revision, and a lease that is not there. Whatever it asks first tells it that it has
// ended, and soon: what it was about to do would never fit.
func TestSimulatedSessionInAnOlderEtcd(t *testing.T) {
	ofClaim := func(_ driver.Place, err error) error { return err }
	for _, c := range []struct {
		what  string
		later int64 // revisions
		ask   func(ctx context.Context, l *lease, p driver.Place) error
	}{
		{"Renew", 5, func(ctx context.Context, l *lease, _ driver.Place) error { return l.Renew(ctx) }},
		{"Renew", 0, func(ctx context.Context, l *lease, _ driver.Place) error { return l.Renew(ctx) }},
		{"Claim", 5, func(ctx context.Context, l *lease, _ driver.Place) error {
			return ofClaim(l.claim(ctx, driver.Claim{Name: "y", ID: "y-1"}))
		}},
		{"Exchange", 5, func(ctx context.Context, l *lease, p driver.Place) error {
			return ofClaim(l.Exchange(ctx, p, reentry("2", "2")))
		}},
		{"the move of the record", 5, func(ctx context.Context, l *lease, _ driver.Place) error {
			return l.moveRecord(ctx)
		}},
		{"the move of claims", 5, func(ctx context.Context, l *lease, _ driver.Place) error {
			l.session.mu.Lock()
			l.attached.claimsMoved = false
			l.session.mu.Unlock()
			return l.moveClaims(ctx)
		}},
	} {
		simulated(t, func(t *testing.T, cluster *etcdsim.Cluster) {
			s, g := gatedAt(t, cluster, 0, 0)
			l := granted(t, s, "a", 10*time.Second)
			p := claimed(t, l, "x")
			if err := renewedOnce(t, l); err != nil {
				t.Fatal(err)
			}
			l.session.mu.Lock()
			l.attached.lease, l.attached.recordMod = l.attached.lease+1, l.attached.recordMod+c.later
			l.session.mu.Unlock()
			before := g.calls.Load()
			err := c.ask(ending(t, 10*time.Second), l, p)
			over := isGone(err) && l.over() || errors.Is(err, errRecord)
			if n := g.calls.Load() - before; !over || n > 20 {
				t.Errorf("seed 1: %s, %d revisions behind: %v after %d requests, want the session to be over",
					c.what, c.later, err, n)
			}
		})
	}
}
