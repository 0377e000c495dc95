package main

import (
	"context"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/pgstore"
)

func init() {
	ours("primacy on PostgreSQL", "postgres", func(ctx context.Context, endpoints []string) (driver.Store, error) {
		return pgstore.Open(ctx, pgstore.Config{DSN: endpoints[0]})
	})
}
