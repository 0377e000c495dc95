package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// go-redsync/redsync on one server: who waits asks again after a while. By default that is 50 to
// 250 ms; with 1 ms it passes the lock on as fast as it can, and asks the server all the time.
func init() {
	contenders = append(contenders,
		&Contender{Name: "redsync 1ms", Store: "redis", Local: true, Dial: dialRedsync(redsync.WithRetryDelay(time.Millisecond))},
		&Contender{Name: "redsync", Store: "redis", Local: true, Dial: dialRedsync()})
}

type redsyncProcess struct {
	client  *redis.Client
	rs      *redsync.Redsync
	options []redsync.Option
}

func dialRedsync(o ...redsync.Option) func(context.Context, []string) (Process, error) {
	return func(ctx context.Context, endpoints []string) (Process, error) {
		c := redis.NewClient(&redis.Options{Addr: endpoints[0]})
		if err := c.Ping(ctx).Err(); err != nil {
			c.Close()
			return nil, err
		}
		return &redsyncProcess{c, redsync.New(goredis.NewPool(c)), o}, nil
	}
}

func (p *redsyncProcess) Close() { p.client.Close() }

func (p *redsyncProcess) MinTTL() time.Duration { return 300 * time.Millisecond }

func (p *redsyncProcess) Session(_ context.Context, ttl time.Duration) (Session, error) {
	return newPlain(ttl, p.take), nil
}

// take waits as long as ctx allows: 32 tries, the default, are not what a lock means that others
// hold for long.
func (p *redsyncProcess) take(ctx context.Context, name string, ttl time.Duration) (Held, error) {
	o := append([]redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt32)}, p.options...)
	h := &redsyncHeld{m: p.rs.NewMutex("bench/"+name, o...)}
	if err := h.m.LockContext(ctx); err != nil {
		return nil, err
	}
	h.end.set(h.m.Until())
	return h, nil
}

type redsyncHeld struct {
	m   *redsync.Mutex
	end until
}

func (h *redsyncHeld) Check() error  { return h.end.check() }
func (h *redsyncHeld) Token() uint64 { return 0 }

func (h *redsyncHeld) Renew(ctx context.Context) error {
	if ok, err := h.m.ExtendContext(ctx); err != nil || !ok {
		return errors.Join(err, errors.New("not extended"))
	}
	h.end.set(h.m.Until())
	return nil
}

func (h *redsyncHeld) Release(ctx context.Context) error {
	ok, err := h.m.UnlockContext(ctx)
	if err == nil && !ok {
		err = errors.New("it was not locked any more")
	}
	return err
}
