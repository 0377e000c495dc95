package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidis' rueidislock: who waits is woken by the invalidations of client-side caching. With one
// key and without its own invalidations, as its README has it for one server, it is fastest; its
// default is three keys on the same server.
//
// Under load it is known to stop for good on a free lock (its wake-up is lost and there is no timer
// beside it). A call that has not returned after stallLimit is given up and made again, and
// counted.
func init() {
	contenders = append(contenders,
		&Contender{Name: "rueidislock", Store: "redis", Local: true, Dial: dialRueidislock(1, true)},
		&Contender{Name: "rueidislock majority 2", Store: "redis", Local: true, Dial: dialRueidislock(2, false)})
}

// stallLimit is how long a call may take that is known to hang.
const stallLimit = 2 * time.Second

// stalls counts the calls that were given up after stallLimit.
var stalls atomic.Int64

type rueidislockProcess struct {
	option rueidislock.LockerOption
}

// dialRueidislock does not connect yet: its locker has one validity for all, so each session has a
// locker, and a connection, of its own.
func dialRueidislock(majority int32, noloop bool) func(context.Context, []string) (Process, error) {
	return func(_ context.Context, endpoints []string) (Process, error) {
		return &rueidislockProcess{rueidislock.LockerOption{KeyPrefix: "bench", KeyMajority: majority, NoLoopTracking: noloop,
			ClientOption: rueidis.ClientOption{InitAddress: endpoints[:1]}}}, nil
	}
}

func (p *rueidislockProcess) Close() {}

func (p *rueidislockProcess) MinTTL() time.Duration { return 300 * time.Millisecond }

func (p *rueidislockProcess) Session(_ context.Context, ttl time.Duration) (Session, error) {
	o := p.option
	o.KeyValidity = ttl
	l, err := rueidislock.NewLocker(o)
	if err != nil {
		return nil, err
	}
	s := &rueidislockSession{locker: l}
	s.plain = newPlain(ttl, s.take)
	return s, nil
}

type rueidislockSession struct {
	*plain
	locker rueidislock.Locker
}

func (s *rueidislockSession) Close(ctx context.Context) error {
	err := s.plain.Close(ctx)
	s.locker.Close()
	return err
}

func (s *rueidislockSession) take(ctx context.Context, name string, _ time.Duration) (Held, error) {
	for {
		h, err := s.try(ctx, name)
		if err == nil || ctx.Err() != nil {
			return h, err
		}
		stalls.Add(1)
	}
}

// try waits for the lock as long as ctx and stallLimit allow. The lock's context must not end with
// either: that would release it. Nor may it have a deadline, for that would shorten the lock.
func (s *rueidislockSession) try(ctx context.Context, name string) (Held, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, cancel)
	timer := time.AfterFunc(stallLimit, cancel)
	held, release, err := s.locker.WithContext(own, name)
	if err != nil {
		unhook()
		timer.Stop()
		cancel()
		return nil, err
	}
	if !unhook() || !timer.Stop() {
		release()
		cancel()
		return nil, context.Canceled
	}
	return &rueidislockHeld{held, release, cancel}, nil
}

type rueidislockHeld struct {
	ctx     context.Context
	release context.CancelFunc
	cancel  context.CancelFunc
}

func (h *rueidislockHeld) Check() error  { return h.ctx.Err() }
func (h *rueidislockHeld) Token() uint64 { return 0 }

// Release returns when the keys are deleted.
func (h *rueidislockHeld) Release(context.Context) error {
	h.release()
	h.cancel()
	return nil
}
