package concurrency

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/core"
)

// calledBy reports whether the caller is called, at some remove, by a function whose name ends so.
func calledBy(name string) bool {
	pcs := make([]uintptr, 30)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, name) {
			return true
		}
		if !more {
			return false
		}
	}
}

// TestTryLockLeavesNoGhost: TryLock finds that another Mutex of its session waits, and before it
// returns that one has given up. Whoever is last deletes the key.
func TestTryLockLeavesNoGhost(t *testing.T) {
	t.Parallel()
	srv := SharedServer(t)
	c, err := v3.New(v3.Config{Endpoints: []string{srv.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	holder, err := NewSession(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := NewMutex(holder, "g").Lock(ctx); err != nil {
		t.Fatal(err)
	}

	waiting, giveUp := context.WithCancel(ctx)
	waited := make(chan error, 1)
	var came atomic.Bool
	var c2 *claim
	var at atomic.Pointer[Session]
	clock := func() core.Time {
		// enter looks at the clock last, when it has counted its caller.
		if s := at.Load(); s != nil && calledBy("TryLock") {
			s.claims.mu.Lock()
			counted := c2 != nil && c2.users == 2
			s.claims.mu.Unlock()
			if counted && came.CompareAndSwap(false, true) {
				giveUp()
				<-waited
			}
		}
		return boottime.Now()
	}
	made, err := newSession(c, clock, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { waited <- NewMutex(made, "g").Lock(waiting) }()
	for {
		made.claims.mu.Lock()
		for _, w := range made.claims.by {
			if w.users == 1 {
				c2 = w
			}
		}
		made.claims.mu.Unlock()
		if c2 != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	tryer := NewMutex(made, "g")
	at.Store(made)
	if err := tryer.TryLock(ctx); err != ErrLocked {
		t.Errorf("TryLock = %v", err)
	}
	if !came.Load() {
		t.Fatal("the other one did not give up meanwhile")
	}
	n := int64(0)
	for range 200 {
		r, err := c.Get(ctx, "g/", v3.WithPrefix(), v3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		if n = r.Count; n == 1 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d keys stand, want the holder's only", n)
}

// A Mutex has found that it holds, and another one of its session has given the key up before it
// says so: nobody would tell the first that it holds no more.
func TestALockThatWasGivenUpBeforeItIsToldIsNotHeld(t *testing.T) {
	t.Parallel()
	for _, givenUp := range []bool{false, true} {
		s := idle(nil)
		s.soft.Store(int64(boottime.Now() + time.Hour))
		c := &claim{key: "k", rev: 3, users: 2}
		s.claims.by["k"] = c
		p := &place{s: s, lock: true}
		p.take(c)
		c.givenUp = givenUp
		if err := p.ended(c, nil, nil); (err != nil) != givenUp || err != nil && !errors.Is(err, ErrSessionExpired) {
			t.Errorf("given up %v: %v", givenUp, err)
		}
		if _, token := p.get(); (token == 3) == givenUp {
			t.Errorf("given up %v: token %d", givenUp, token)
		}
	}
}
