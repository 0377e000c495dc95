package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/embedded"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/open"
)

const embeddedScheme = "embedded:"

// noLog takes what go-redis would write to stderr by itself: each error comes back from its call too.
type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(noLog{}) }

// openStore opens the store that --store names and returns what closes it. It gives up after --timeout.
func (a *app) openStore(ctx context.Context) (driver.Store, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if a.store == "" || strings.HasPrefix(a.store, embeddedScheme) {
		return a.openEmbedded(ctx)
	}
	st, err := open.Open(ctx, a.store)
	switch {
	case errors.Is(err, open.ErrURL) && !knownScheme(a.store):
		return nil, nil, fmt.Errorf("--store: %w, or embedded:DIR", err)
	case errors.Is(err, open.ErrURL):
		return nil, nil, fmt.Errorf("--store: %w", err)
	case err != nil:
		return nil, nil, &exitError{exitUnreachable, a.unreachable(ctx, err)}
	}
	a.warn(st)
	return st, func() { _ = st.Close() }, nil
}

// knownScheme reports whether a store URL has one of open's schemes.
func knownScheme(url string) bool {
	scheme, _, _ := strings.Cut(url, "://")
	return open.DefaultPort(scheme) != ""
}

// embeddedDir is the directory of the embedded store that --store names.
func (a *app) embeddedDir() (string, error) {
	switch dir, ok := strings.CutPrefix(a.store, embeddedScheme); {
	case a.store == "":
		return embedded.DefaultDir()
	case !ok:
		return "", fmt.Errorf("--store %q: here it must be embedded:DIR", a.store)
	default:
		if dir = strings.TrimPrefix(dir, "//"); dir == "" {
			return embedded.DefaultDir()
		}
		return filepath.Abs(dir)
	}
}

func (a *app) openEmbedded(ctx context.Context) (driver.Store, func(), error) {
	dir, err := a.embeddedDir()
	if err != nil {
		return nil, nil, err
	}
	node, err := embedded.Open(ctx, dir, embedded.Options{Logger: a.logger()})
	if err != nil {
		return nil, nil, &exitError{exitUnreachable, err}
	}
	st, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{node.Endpoint()}})
	if err != nil {
		_ = node.Close()
		return nil, nil, &exitError{exitUnreachable, a.unreachable(ctx, err)}
	}
	return st, func() { _ = st.Close(); _ = node.Close() }, nil
}

func (a *app) warn(st driver.Store) {
	for _, w := range st.Caps().Warnings {
		a.say("warning: %s", w)
	}
}

// unreachable says how long was tried, where the time given is what ended it.
func (a *app) unreachable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("store unreachable for %v: %w", a.timeout, err)
	}
	return err
}

// openSession opens the store and a session on it. With lease, it is granted now: what is wrong shows before anything starts.
func (a *app) openSession(ctx context.Context, o primacy.Options, lease bool) (*primacy.Session, driver.Store, func(), error) {
	st, closeStore, err := a.openStore(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	o.ID, o.TTL, o.Logger = a.id, a.ttl, a.logger()
	s, err := primacy.NewSession(st, &o)
	if err != nil {
		closeStore()
		return nil, nil, nil, err
	}
	done := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		_ = s.Close(ctx) // if it fails the lease runs out by itself
		closeStore()
	}
	if !lease {
		return s, st, done, nil
	}
	readyCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := s.Ready(readyCtx); err != nil {
		done()
		return nil, nil, nil, &exitError{exitUnreachable, a.unreachable(readyCtx, err)}
	}
	return s, st, done, nil
}
