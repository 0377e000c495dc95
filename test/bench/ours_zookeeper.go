package main

import (
	"context"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/zkstore"
)

func init() {
	ours("primacy on ZooKeeper", "zookeeper", func(ctx context.Context, endpoints []string) (driver.Store, error) {
		return zkstore.Open(ctx, zkstore.Config{Servers: endpoints})
	})
}
