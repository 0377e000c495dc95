package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// sentinelOptions is how one sentinel is reached. Sentinels have users and passwords of their own.
func (c Config) sentinelOptions(addr string) *redis.Options {
	o := own(&redis.Options{
		Addr: addr, Username: c.SentinelUsername, Password: c.SentinelPassword, TLSConfig: c.TLS,
	}, 1)
	o.ReadTimeout, o.WriteTimeout = dialLimit, dialLimit
	return o
}

// bySentinels finds the primary that the sentinels name.
func (c Config) bySentinels() *finder {
	f := &finder{who: "the sentinels", first: c.Addrs, reach: straight(c.TLS)}
	f.ask = func(ctx context.Context, addr string) (string, []string, error) {
		s := redis.NewSentinelClient(c.sentinelOptions(addr))
		defer s.Close()
		at, err := s.GetMasterAddrByName(ctx, c.Sentinel).Result()
		switch {
		case errors.Is(err, redis.Nil):
			return "", nil, fmt.Errorf("%s knows no primary %q: %w", addr, c.Sentinel, driver.ErrRefused)
		case err != nil:
			return "", nil, fmt.Errorf("%s: %w", addr, err)
		case len(at) < 2:
			return "", nil, fmt.Errorf("%s: an answer without an address", addr)
		}
		return net.JoinHostPort(at[0], at[1]), nil, nil
	}
	return f
}

// listenToSentinels leaves the former primary as soon as a sentinel says that there is a new one.
// At a failover by hand the former lives on for seconds, and whoever stays with it leads beside the
// next.
func (s *server) listenToSentinels(c Config) {
	for _, addr := range c.Addrs {
		s.spawn(func() {
			for s.ctx.Err() == nil {
				s.listenToSentinel(redis.NewSentinelClient(c.sentinelOptions(addr)), c.Sentinel)
				_ = storeutil.Sleep(s.ctx, time.Second)
			}
		})
	}
}

// listenToSentinel listens to one sentinel until the connection is lost.
func (s *server) listenToSentinel(sentinel *redis.SentinelClient, primary string) {
	defer sentinel.Close()
	ps := sentinel.Subscribe(s.ctx)
	s.listenOn(ps, func() error { return ps.Subscribe(s.ctx, "+switch-master") }, func(msg any) error {
		if m, ok := msg.(*redis.Message); ok && strings.HasPrefix(m.Payload, primary+" ") {
			for _, k := range []*link{s.calls, s.renewals} { // at each notice: the other sentinels may be behind
				for !k.leave(k.get()) && s.ctx.Err() == nil {
					_ = storeutil.Sleep(s.ctx, tooSoon)
				}
			}
			s.listener.reconnect()
		}
		return nil
	})
}
