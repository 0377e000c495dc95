package redisstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// serverInfo is what a server says of itself.
type serverInfo struct {
	name, version string
	major, minor  int
	role          string
	replicas      int
	cluster       bool
	settings      map[string]string // nil: this user may not read them
}

// identify asks the server what it is, waits for one that is silent, and fills in Caps. found says
// that others were asked for the primary's address. They may lag behind a failover and name a
// replica: then they are asked again.
func (s *Store) identify(ctx context.Context, found bool) error {
	for {
		srv, err := s.info(ctx)
		if err == nil && (!found || srv.role == "master" || ctx.Err() != nil) {
			return s.accept(srv)
		}
		if err != nil && (final(err) != nil || ctx.Err() != nil || errors.Is(err, syscall.ECONNREFUSED) ||
			certificate(err) || !timeout(err)) {
			return s.wrap(ctx, "open", err)
		}
		s.calls.leave(s.calls.get())
		_ = storeutil.Sleep(ctx, 50*time.Millisecond)
	}
}

// info reads INFO and the settings that matter. It waits for a server that loads its data.
func (s *Store) info(ctx context.Context) (srv serverInfo, err error) {
	type result struct {
		srv serverInfo
		err error
	}
	done := make(chan result, 1)
	go func() {
		srv, err := about(ctx, s.calls.get())
		done <- result{srv, err}
	}()
	select {
	case r := <-done:
		return r.srv, r.err
	case <-ctx.Done():
		return srv, ctx.Err()
	}
}

// about asks one server what it is.
func about(ctx context.Context, client *redis.Client) (srv serverInfo, err error) {
	info := ""
	for _, section := range []string{"server", "replication", "cluster"} {
		text, err := client.Info(ctx, section).Result()
		for redis.HasErrorPrefix(err, "LOADING") && ctx.Err() == nil {
			_ = storeutil.Sleep(ctx, 50*time.Millisecond)
			text, err = client.Info(ctx, section).Result()
		}
		if err != nil {
			return srv, err
		}
		info += text + "\n"
	}
	get := func(name string) string {
		m := regexp.MustCompile(`(?m)^` + name + `:(.*?)\r?$`).FindStringSubmatch(info)
		if m == nil {
			return ""
		}
		return m[1]
	}
	srv = serverInfo{name: "Redis", version: get("redis_version"), role: get("role")}
	srv.cluster = get("cluster_enabled") == "1"
	if v := get("valkey_version"); v != "" {
		srv.name, srv.version = "Valkey", v
	}
	parts := strings.SplitN(srv.version+"..", ".", 3)
	srv.major, _ = strconv.Atoi(parts[0])
	srv.minor, _ = strconv.Atoi(parts[1])
	srv.replicas, _ = strconv.Atoi(get("connected_slaves"))
	for _, name := range []string{"maxmemory", "maxmemory-policy", "appendonly", "appendfsync"} {
		got, err := client.ConfigGet(ctx, name).Result()
		if err != nil {
			if ctx.Err() != nil {
				return srv, err
			}
			srv.settings = nil
			break
		}
		if srv.settings == nil {
			srv.settings = map[string]string{}
		}
		srv.settings[name] = got[name]
	}
	return srv, nil
}

// refused says why a server cannot keep the promises, nil if it can.
func (s *Store) refused(srv serverInfo) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("redis %s: %s: %w", s.names, fmt.Sprintf(format, args...), driver.ErrRefused)
	}
	switch {
	case srv.major < 6 || srv.major == 6 && srv.minor < 2:
		return refuse("the server is %s %s, and 6.2 is needed", srv.name, srv.version)
	case srv.role != "master":
		return refuse("the server is a replica: give the address of the primary, " +
			"or of the sentinels with the primary's name")
	case srv.cluster && !s.cluster:
		return refuse("the server is in cluster mode: say so")
	}
	return nil
}

// accept fills in Caps, for a server that is not refused.
func (s *Store) accept(srv serverInfo) error {
	if err := s.refused(srv); err != nil {
		return err
	}
	s.publish = "PUBLISH"
	if srv.cluster && srv.major >= 7 {
		s.publish = "SPUBLISH"
	}
	s.caps = driver.Caps{
		Store: srv.name + " " + srv.version, FIFO: true, Token: driver.TokenUntilLoss, Push: true, SharedRenewal: true,
		Shared: true, AtomicBatch: true, Linearizable: true, BestEffort: s.bestEffort(srv),
		MinTTL: minTTL, MaxTTL: maxTTL, Warnings: s.warnings(srv),
	}
	return nil
}

// bestEffort says what can make two leaders on this server; see [driver.Caps].
func (s *Store) bestEffort(srv serverInfo) string {
	var all []string
	if srv.replicas > s.replicas {
		all = append(all, "a failover whose former primary lives on")
	}
	policy := srv.settings["maxmemory-policy"]
	if policy != "" && policy != "noeviction" && srv.settings["maxmemory"] != "0" {
		all = append(all, "keys that Redis evicts")
	}
	return strings.Join(all, ", or ")
}

// warnings says, for people, what the server cannot promise as it is set up.
func (s *Store) warnings(srv serverInfo) (all []string) {
	for _, f := range s.judged(srv) {
		if f.Level != driver.Fine {
			all = append(all, f.Found)
		}
	}
	return all
}
