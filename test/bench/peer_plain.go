package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// plain is a session of a library that has locks and no more: nothing keeps it alive, and who
// campaigns takes a lock and renews it himself, as the library's users do.
type plain struct {
	ttl  time.Duration
	take func(ctx context.Context, name string, ttl time.Duration) (Held, error)

	mu     sync.Mutex
	closed bool
	kept   map[*keptLock]struct{}
}

// renewable is what a plain library's lock is where it does not renew itself.
type renewable interface {
	Held
	Renew(ctx context.Context) error
}

func newPlain(ttl time.Duration, take func(context.Context, string, time.Duration) (Held, error)) *plain {
	return &plain{ttl: ttl, take: take, kept: map[*keptLock]struct{}{}}
}

type plainLock struct {
	s    *plain
	name string
}

func (s *plain) Lock(name string, _ LockOptions) Lock { return plainLock{s, name} }

func (l plainLock) Lock(ctx context.Context) (Held, error) { return l.s.take(ctx, l.name, l.s.ttl) }

// Campaign locks, and renews each third of the ttl until the lock is released.
func (s *plain) Campaign(ctx context.Context, name string) (Held, error) {
	h, err := s.take(ctx, name, s.ttl)
	if err != nil {
		return nil, err
	}
	k := &keptLock{Held: h, s: s, done: make(chan struct{})}
	k.ctx, k.stop = context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		k.stop()
	}
	s.kept[k] = struct{}{}
	go k.renew()
	return k, nil
}

// Close releases what is still led.
func (s *plain) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	var all []*keptLock
	for k := range s.kept {
		all = append(all, k)
	}
	s.mu.Unlock()
	errs := make([]error, len(all))
	var each sync.WaitGroup
	for i, k := range all {
		each.Go(func() { errs[i] = k.Release(ctx) })
	}
	each.Wait()
	return errors.Join(errs...)
}

func (s *plain) Revoke(context.Context) error {
	return errors.New("this library's store has no leases that could be ended")
}

// keptLock is a lock that is kept alive.
type keptLock struct {
	Held
	s    *plain
	ctx  context.Context
	stop context.CancelFunc
	done chan struct{}
	lost atomic.Pointer[error]
}

func (k *keptLock) renew() {
	defer close(k.done)
	r, ok := k.Held.(renewable)
	if !ok {
		return
	}
	for sleep(k.ctx, k.s.ttl/3) == nil {
		if err := r.Renew(k.ctx); err != nil && k.ctx.Err() == nil {
			k.lost.Store(&err)
			return
		}
	}
}

func (k *keptLock) Check() error {
	if err := k.lost.Load(); err != nil {
		return *err
	}
	return k.Held.Check()
}

func (k *keptLock) Release(ctx context.Context) error {
	k.stop()
	<-k.done
	k.s.mu.Lock()
	delete(k.s.kept, k)
	k.s.mu.Unlock()
	return k.Held.Release(ctx)
}

var errExpired = errors.New("the lock's time is over")

// until is the end of a lock's time, on this process's clock.
type until struct{ at atomic.Int64 }

var clockStart = time.Now()

func (u *until) set(t time.Time) { u.at.Store(int64(t.Sub(clockStart))) }

func (u *until) check() error {
	if int64(time.Since(clockStart)) >= u.at.Load() {
		return errExpired
	}
	return nil
}
