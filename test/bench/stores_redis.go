package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/internal/redistest"
)

func init() { redis.SetLogger(silent{}) }

// silent has go-redis not tell of each connection that the end of a proxy or of a server closes.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func startRedis(fsync bool) func(*Env, EnvOptions) (servers, error) {
	return func(e *Env, _ EnvOptions) (servers, error) {
		text, o := "Redis "+version("redis-server", "redis-cli")+" without persistence", redistest.Options{}
		if fsync {
			text, o.Persist = "Redis "+version("redis-server", "redis-cli")+", appendfsync always", "always"
		}
		s := redistest.Start(e.box, o)
		return servers{text: text, addrs: []string{s.Addr()}, at: verbatim, frame: respFrame}, nil
	}
}
