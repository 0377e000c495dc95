package redisstore

import (
	"context"
	"net"
)

// PlainPushes has the store push as it does on a cluster of Redis 6.2, which knows no channels of a
// slot.
func (s *Store) PlainPushes() { s.publish = "PUBLISH" }

// Through returns a Config whose connections are made by dial.
func (c Config) Through(dial func(ctx context.Context, network, addr string) (net.Conn, error)) Config {
	c.dial = dial
	return c
}
