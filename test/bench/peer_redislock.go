package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// bsm/redislock: who waits asks again after a while, which its user chooses. Its README has 100 ms;
// with 1 ms it passes the lock on as fast as it can, and asks the server all the time.
func init() {
	contenders = append(contenders,
		&Contender{Name: "redislock 1ms", Store: "redis", Local: true, Dial: dialRedislock(time.Millisecond)},
		&Contender{Name: "redislock", Store: "redis", Local: true, Dial: dialRedislock(100 * time.Millisecond)})
}

type redislockProcess struct {
	client *redis.Client
	locks  *redislock.Client
	retry  time.Duration
}

func dialRedislock(retry time.Duration) func(context.Context, []string) (Process, error) {
	return func(ctx context.Context, endpoints []string) (Process, error) {
		c := redis.NewClient(&redis.Options{Addr: endpoints[0]})
		if err := c.Ping(ctx).Err(); err != nil {
			c.Close()
			return nil, err
		}
		return &redislockProcess{c, redislock.New(c), retry}, nil
	}
}

func (p *redislockProcess) Close() { p.client.Close() }

func (p *redislockProcess) MinTTL() time.Duration { return 300 * time.Millisecond }

func (p *redislockProcess) Session(_ context.Context, ttl time.Duration) (Session, error) {
	return newPlain(ttl, p.take), nil
}

// take waits as long as ctx allows, which has to have a deadline: else the library waits for no
// longer than the ttl.
func (p *redislockProcess) take(ctx context.Context, name string, ttl time.Duration) (Held, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, sliceLimit)
		defer cancel()
	}
	l, err := p.locks.Obtain(ctx, "bench/"+name, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(p.retry)})
	if err != nil {
		return nil, err
	}
	h := &redislockHeld{l: l, ttl: ttl}
	h.end.set(time.Now().Add(ttl)) // the library keeps no time and does not say when its last try began: this is what its users write
	return h, nil
}

type redislockHeld struct {
	l   *redislock.Lock
	ttl time.Duration
	end until
}

func (h *redislockHeld) Check() error  { return h.end.check() }
func (h *redislockHeld) Token() uint64 { return 0 }

func (h *redislockHeld) Renew(ctx context.Context) error {
	begin := time.Now()
	err := h.l.Refresh(ctx, h.ttl, nil)
	if err == nil {
		h.end.set(begin.Add(h.ttl))
	}
	return err
}

func (h *redislockHeld) Release(ctx context.Context) error { return h.l.Release(ctx) }
