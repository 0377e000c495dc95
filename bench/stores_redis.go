package main

import "github.com/primacy-go/primacy/internal/redistest"

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
