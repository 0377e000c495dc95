//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/redlockstore"
)

// plain opens a store whose keys are those of redsync and redislock, over these servers.
func plain(t *testing.T, servers []*redistest.Server) *redlockstore.Store {
	t.Helper()
	c := redlockstore.Config{Plain: true, Guard: -1}
	for _, s := range servers {
		c.Addrs = append(c.Addrs, s.Addr())
	}
	store, err := redlockstore.Open(soon(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// plainSession is a session of this library on plain keys.
func plainSession(t *testing.T, servers []*redistest.Server, id string) *primacy.Session {
	t.Helper()
	s, err := primacy.NewSession(plain(t, servers), &primacy.Options{ID: id, TTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(soon(t)) })
	return s
}

// redsyncOver is a redsync over the same servers.
func redsyncOver(servers []*redistest.Server) *redsync.Redsync {
	var pools []redis.Pool
	for _, s := range servers {
		pools = append(pools, goredis.NewPool(s.Client()))
	}
	return redsync.New(pools...)
}

// locker takes a lock and returns what gives it back, or nil if it is taken.
type locker func(ctx context.Context) (unlock func() error, err error)

func byUs(s *primacy.Session, key string, wait bool) locker {
	return func(ctx context.Context) (func() error, error) {
		lock := s.Mutex(key, nil).TryLock
		if wait {
			lock = s.Mutex(key, nil).Lock
		}
		term, err := lock(ctx)
		if errors.Is(err, primacy.ErrHeld) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return func() error {
			if err := term.Check(); err != nil {
				return fmt.Errorf("lost while held: %w", err)
			}
			return term.Resign(ctx)
		}, nil
	}
}

func byRedsync(r *redsync.Redsync, key string) locker {
	return func(ctx context.Context) (func() error, error) {
		m := r.NewMutex(key, redsync.WithExpiry(30*time.Second), redsync.WithTries(1))
		var taken *redsync.ErrTaken
		err := m.LockContext(ctx)
		if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return func() error {
			if ok, err := m.UnlockContext(ctx); !ok || err != nil {
				return fmt.Errorf("redsync unlock: %v, %w", ok, err)
			}
			return nil
		}, nil
	}
}

func byRedislock(s *redistest.Server, key string) locker {
	c := redislock.New(s.Client())
	return func(ctx context.Context) (func() error, error) {
		l, err := c.Obtain(ctx, key, 30*time.Second, nil)
		if errors.Is(err, redislock.ErrNotObtained) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(ctx) }, nil
	}
}

// TestRedsyncAndRedislockOnTheSameKey lets the libraries fight with ours for one key, on one server
// and over three. Never two hold.
func TestRedsyncAndRedislockOnTheSameKey(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const key = "jobs/billing {1}"
			var servers []*redistest.Server
			for range n {
				servers = append(servers, redistest.Start(t, redistest.Options{}))
			}
			r := redsyncOver(servers)
			all := map[string]locker{
				"ours":          byUs(plainSession(t, servers, "a"), key, true),
				"ours too":      byUs(plainSession(t, servers, "b"), key, false),
				"redsync":       byRedsync(r, key),
				"redsync too":   byRedsync(r, key),
				"redislock":     byRedislock(servers[0], key),
				"redislock 2nd": byRedislock(servers[0], key),
			}
			if n > 1 { // redislock knows one server only
				delete(all, "redislock")
				delete(all, "redislock 2nd")
			}
			won := fight(t, all)
			for who := range all {
				if won[who] == 0 {
					t.Errorf("%s never held: %v", who, won)
				}
			}
			t.Log(won)
			for _, s := range servers {
				if left := s.Do("EXISTS", key); left != int64(0) {
					t.Error("the key stands in the end")
				}
			}
		})
	}
}

// fight runs everybody for three seconds, and on a busy machine until each has held, and returns
// how often each has.
func fight(t *testing.T, all map[string]locker) map[string]int {
	var holders atomic.Int32
	var mu sync.Mutex
	var crowd sync.WaitGroup
	won, begun := map[string]int{}, time.Now()
	goesOn := func() bool {
		mu.Lock()
		defer mu.Unlock()
		took := time.Since(begun)
		return took < 3*time.Second || took < limit && len(won) < len(all)
	}
	for who, lock := range all {
		crowd.Go(func() {
			for goesOn() {
				unlock, err := lock(soon(t))
				if err != nil {
					t.Errorf("%s: %v", who, err)
					return
				}
				if unlock == nil {
					time.Sleep(2 * time.Millisecond)
					continue
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%s holds beside %d others", who, n-1)
				}
				time.Sleep(time.Millisecond)
				holders.Add(-1)
				if err := unlock(); err != nil {
					t.Errorf("%s: %v", who, err)
				}
				mu.Lock()
				won[who]++
				mu.Unlock()
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	crowd.Wait()
	return won
}

// TestPlainKeysOfOthersAreShown: who holds through another library, or not by a lock at all.
func TestPlainKeysOfOthersAreShown(t *testing.T) {
	servertest.Long(t, "race-program")
	servers := []*redistest.Server{redistest.Start(t, redistest.Options{})}
	s := plainSession(t, servers, "a")
	m := redsyncOver(servers).NewMutex("theirs", redsync.WithExpiry(time.Minute))
	if err := m.Lock(); err != nil {
		t.Fatal(err)
	}
	servers[0].Do("HSET", "hash", "f", "v")
	servers[0].Do("SET", "eternal", "x")
	store := plain(t, servers)
	for _, name := range []string{"theirs", "hash", "eternal"} {
		ln, err := store.Line(soon(t), name)
		if err != nil || ln.Holder == nil || ln.Holder.Note == "" || ln.Holder.Lease != "" {
			t.Errorf("Line of %s = %+v, %v, want a holder without a lease, and a note", name, ln, err)
			continue
		}
		t.Log(name, ":", ln.Holder.Note)
		if _, err := s.Mutex(name, nil).TryLock(soon(t)); !errors.Is(err, primacy.ErrHeld) {
			t.Errorf("TryLock of %s = %v, want ErrHeld", name, err)
		}
	}
	if ok, err := m.Extend(); !ok || err != nil {
		t.Errorf("their Extend after our try: %v, %v", ok, err)
	}
	if ok, err := m.Unlock(); !ok || err != nil {
		t.Errorf("their Unlock after our try: %v, %v", ok, err)
	}
	term, err := s.Mutex("theirs", nil).TryLock(soon(t))
	if err != nil {
		t.Fatalf("TryLock of what they gave back: %v", err)
	}
	if err := m.TryLock(); err == nil {
		t.Error("redsync locks what we hold")
	}
	if _, err := redislock.Obtain(soon(t), servers[0].Client(), "theirs", time.Second, nil); !errors.Is(err,
		redislock.ErrNotObtained) {
		t.Errorf("redislock on what we hold: %v", err)
	}
	if err := term.Check(); err != nil {
		t.Error(err)
	}
	if err := term.Resign(soon(t)); err != nil {
		t.Error(err)
	}
}
