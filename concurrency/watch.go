package concurrency

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// watch ends the session as soon as a claim of it is seen to be gone, which every renewal finds
// too.
func (s *Session) watch() {
	for {
		pause := s.watchClaims()
		if err := s.lookUp(); errors.Is(err, errGone) {
			s.end(lost, "a claim of it was deleted, or its lease revoked")
			return
		} else if err != nil {
			pause = etcdwire.Again
		}
		var due <-chan time.Time
		timer := time.NewTimer(max(pause, time.Millisecond))
		if pause > 0 {
			due = timer.C
		}
		select {
		case <-s.asked:
		case <-due:
		case <-s.over.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// poke wakes watch.
func (s *Session) poke() {
	select {
	case s.asked <- struct{}{}:
	default:
	}
}

// suspect has a key looked at. The hub calls it under its own lock.
func (s *Session) suspect(key string) {
	s.lookMu.Lock()
	s.look[key] = true
	s.lookMu.Unlock()
	s.poke()
}

// watchClaims begins to watch claims that are old enough, and returns in how long the next one
// will be; 0: none.
func (s *Session) watchClaims() (next time.Duration) {
	now := time.Now()
	s.mu.Lock()
	var old []*claim
	for _, c := range s.standing() {
		switch age := now.Sub(c.fresh); {
		case c.unwatch != nil:
		case age >= etcdwire.Settling:
			old = append(old, c)
		case next == 0 || etcdwire.Settling-age < next:
			next = etcdwire.Settling - age
		}
	}
	s.mu.Unlock()
	for _, c := range old {
		stop, _ := s.wire.watch(c.key, "", false, func() { s.suspect(c.key) })
		s.mu.Lock()
		keep := s.claims[c.key] == c && s.state == live
		if keep {
			c.unwatch = stop
		}
		s.mu.Unlock()
		if !keep {
			stop()
			continue
		}
		s.suspect(c.key) // it tells nothing at first if it stood already
	}
	return next
}

// lookUp reads the keys that something happened to.
func (s *Session) lookUp() error {
	s.lookMu.Lock()
	keys := make([]string, 0, len(s.look))
	for k := range s.look {
		keys = append(keys, k)
	}
	clear(s.look)
	s.lookMu.Unlock()
	for part := range slices.Chunk(keys, chunk) {
		if err := s.lookAt(part); err != nil {
			for _, k := range keys {
				s.lookMu.Lock()
				s.look[k] = true
				s.lookMu.Unlock()
			}
			return err
		}
	}
	return nil
}

func (s *Session) lookAt(keys []string) error {
	s.mu.Lock()
	at := s.anchor.id
	var claims []*claim
	for _, k := range keys {
		if c := s.claims[k]; c != nil && c.rev != 0 && !c.leaving {
			claims = append(claims, c)
		}
	}
	s.mu.Unlock()
	s.sweep(keys)
	if len(claims) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.over, 2*etcdwire.CallLimit)
	defer cancel()
	return s.read(ctx, claims, at)
}

// final reports whether asking again would get the same answer.
func final(err error) bool {
	return err != nil && (etcdwire.Final(err) != nil || errors.Is(err, driver.ErrRefused) || errors.Is(err,
		rpctypes.ErrEmptyKey))
}

// missing reports whether err says that there is no such lease.
func missing(err error) bool { return errors.Is(etcdwire.Final(err), driver.ErrGone) }

// denied reports whether err says that the user may not do it.
func denied(err error) bool { return errors.Is(err, rpctypes.ErrPermissionDenied) }

// blame returns the end of ctx where that is why a call failed.
func blame(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !final(err) {
		return ctx.Err()
	}
	return err
}

// waitFor waits for a signal, for over, which may be nil, for d, or for the end of ctx.
func waitFor(ctx context.Context, signal, over <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-signal:
	case <-over:
	case <-t.C:
	case <-ctx.Done():
	}
}
