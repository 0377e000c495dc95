package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
)

func init() {
	open := func(ctx context.Context, endpoints []string) (driver.Store, error) {
		return etcdstore.Open(ctx, etcdstore.Config{Endpoints: endpoints})
	}
	ours("primacy", "etcd", open)
	contenders = append(contenders, &Contender{Name: "primacy without history", Store: "etcd", Named: true, Local: true,
		Dial: dialOurs(open, -1)})
}

// ours makes a contender of a store of ours.
func ours(name, store string, open func(context.Context, []string) (driver.Store, error)) {
	contenders = append(contenders,
		&Contender{Name: name, Store: store, Ours: true, Local: true, Dial: dialOurs(open, 0)})
}

// dialOurs returns what dials a store of ours, for sessions with that [primacy.Options].History.
func dialOurs(
	open func(context.Context, []string) (driver.Store, error), history int,
) func(context.Context, []string) (Process, error) {
	return func(ctx context.Context, endpoints []string) (Process, error) {
		s, err := open(ctx, endpoints)
		if err != nil {
			return nil, err
		}
		return &ourProcess{s, history}, nil
	}
}

// ourProcess is ours on any store.
type ourProcess struct {
	store   driver.Store
	history int
}

func (p *ourProcess) Close() { p.store.Close() }

func (p *ourProcess) Session(ctx context.Context, ttl time.Duration) (Session, error) {
	s, err := primacy.NewSession(p.store, &primacy.Options{TTL: ttl, Overrun: primacy.OverrunWait, History: p.history})
	if err != nil {
		return nil, err
	}
	if err := s.Ready(ctx); err != nil {
		s.Close(ctx)
		return nil, err
	}
	return &ourSession{s: s, store: p.store}, nil
}

func (p *ourProcess) MinTTL() time.Duration { return max(300*time.Millisecond, p.store.Caps().MinTTL) }

type ourSession struct {
	s     *primacy.Session
	store driver.Store

	mu    sync.Mutex
	terms []*primacy.Term // won by Campaign
}

// Close resigns what is still led, for a session that closes waits until all work says that it has
// stopped.
func (s *ourSession) Close(ctx context.Context) error {
	s.mu.Lock()
	terms := s.terms
	s.mu.Unlock()
	_ = s.s.Elections(nil).Resign(ctx, terms...) // the close says what could not be
	return s.s.Close(ctx)
}

// Revoke ends the lease on which the session leads.
func (s *ourSession) Revoke(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.terms) == 0 {
		return errors.New("nothing is led")
	}
	return s.store.Revoke(ctx, s.terms[0].Lease())
}

func (s *ourSession) Campaign(ctx context.Context, name string) (Held, error) {
	t, err := s.s.Election(name).Campaign(ctx, nil)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.terms = append(s.terms, t)
	s.mu.Unlock()
	return ourHeld{t}, nil
}

// Stand makes ourSession a Crowd.
func (s *ourSession) Stand(ctx context.Context, names []string, won func(string, Held)) error {
	es := s.s.Elections(nil)
	if err := es.Stand(names...); err != nil {
		return err
	}
	for t, err := range es.Terms(ctx) {
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.terms = append(s.terms, t)
		s.mu.Unlock()
		won(t.Name(), ourHeld{t})
	}
	return nil
}

func (s *ourSession) Lock(name string, o LockOptions) Lock {
	return ourLock{s.s.Mutex(name, &primacy.MutexOptions{Turns: o.Turns})}
}

type ourLock struct{ m *primacy.Mutex }

func (l ourLock) Lock(ctx context.Context) (Held, error) {
	t, err := l.m.Lock(ctx)
	if err != nil {
		return nil, err
	}
	return ourHeld{t}, nil
}

type ourHeld struct{ t *primacy.Term }

func (h ourHeld) Check() error                      { return h.t.Check() }
func (h ourHeld) Token() uint64                     { return uint64(h.t.Token()) }
func (h ourHeld) Release(ctx context.Context) error { return h.t.Resign(ctx) }
