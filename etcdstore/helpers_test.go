package etcdstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/etcdstore"
)

// TestMain lets more tests run beside each other than there are processors: those on real servers
// wait most of the time.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// open is openAt with a store that is closed at the end of the test.
func open(t testing.TB, endpoints ...string) *etcdstore.Store {
	t.Helper()
	s := openAt(t, etcdstore.Config{Endpoints: endpoints})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// soon returns a context for what must not hang.
func soon(t testing.TB) context.Context {
	return within(t, time.Minute)
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func grant(t testing.TB, s driver.Store, owner string, ttl time.Duration) driver.Lease {
	t.Helper()
	l, err := s.Grant(soon(t), owner, ttl)
	if err != nil {
		t.Fatalf("Grant: %v", err)
	}
	return l
}

func claim(t testing.TB, l driver.Lease, name string) driver.Place {
	t.Helper()
	p, err := l.Claim(soon(t), driver.Claim{Name: name, ID: rand.Text(), Value: []byte("v")})
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return p[0]
}

func release(t testing.TB, l driver.Lease, p driver.Place) {
	t.Helper()
	if err := l.Release(soon(t), p); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func line(t testing.TB, s driver.Store, name string) driver.Line {
	t.Helper()
	ln, err := s.Line(soon(t), name)
	if err != nil {
		t.Fatalf("Line: %v", err)
	}
	return ln
}

// waiting runs Wait and returns where its result arrives.
func waiting(t testing.TB, l driver.Lease, p driver.Place) <-chan error {
	done := make(chan error, 1)
	ctx := within(t, time.Minute)
	go func() {
		got, err := drivertest.Await(ctx, l, p)
		if err == nil && (!got.Held || got.Token != p.Token) {
			err = errors.New("Wait returned another place, or one not held")
		}
		done <- err
	}()
	return done
}

// eventually polls until ok.
func eventually(t testing.TB, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not within %v", what, limit)
}

// receive waits for a result.
func receive(t testing.TB, what string, c <-chan error, limit time.Duration) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(limit):
		t.Fatalf("%s: nothing within %v", what, limit)
		return nil
	}
}

// raftIndex returns how many entries of raft's log a member has applied.
func raftIndex(t testing.TB, endpoint string) uint64 {
	t.Helper()
	st, err := plainClient(t, endpoint).Status(soon(t), endpoint)
	if err != nil {
		t.Fatalf("status: %v", err)
	}
	return st.RaftAppliedIndex
}
