package main

import (
	"context"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/redisstore"
)

func init() {
	ours("primacy on Redis", "redis", func(ctx context.Context, endpoints []string) (driver.Store, error) {
		return redisstore.Open(ctx, redisstore.Config{Addrs: endpoints})
	})
}
