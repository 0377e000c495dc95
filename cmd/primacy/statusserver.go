package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/telemetry"
	"github.com/primacy-go/primacy/metrics"
)

// figures says what /metrics shows of a session: who stands in its lines too, read at each scrape interval that is usual.
func figures(clientGo bool) metrics.Options {
	return metrics.Options{ClientGo: clientGo, Version: version, LookEvery: 15 * time.Second}
}

// serveStatus answers at --status, and returns what ends it.
func (r *runner) serveStatus(alive func() error) (end func(), err error) {
	if r.statusAt == "" {
		return func() {}, nil
	}
	l, err := listenStatus(r.statusAt)
	if err != nil {
		return nil, fmt.Errorf("--status %s: %w", clean(r.statusAt), err)
	}
	figures, err := telemetry.New(r.session, telemetry.Options{Options: figures(false)})
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	o := health.Options{Name: r.name, Alive: alive, Ready: r.ready, Metrics: figures.Handler(),
		Leads: func(name string, token primacy.Token) (health.Lead, bool) {
			t := r.current.Load()
			if t == nil || name != r.name || token != 0 && token != t.Token() {
				return health.Lead{}, false
			}
			return health.Of(r.session.ID(), t)
		}}
	s := &http.Server{Handler: o.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.Serve(l) }()
	return func() { _ = s.Close(); figures.Close() }, nil
}

// ready says that the store has answered, which it had before this was served, and that we are not on our way out. Whether we lead is no part of it.
func (r *runner) ready() error {
	if r.ending.Load() || r.leaving.Load() {
		return errors.New("this process is stopping")
	}
	return nil
}

// listenStatus listens at HOST:PORT or unix:PATH. A socket that a killed process left behind is replaced.
func listenStatus(at string) (net.Listener, error) {
	path, ok := strings.CutPrefix(at, "unix:")
	if path == "" { // the system would make up a name
		return nil, errors.New("give HOST:PORT, or unix:PATH")
	}
	if !ok {
		if _, _, err := net.SplitHostPort(at); err != nil {
			return nil, errors.New("give HOST:PORT, or unix:PATH")
		}
		return net.Listen("tcp", at)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		d := net.Dialer{Timeout: time.Second}
		switch c, err := d.DialContext(context.Background(), "unix", path); {
		case err == nil:
			c.Close()
			return nil, errors.New("another process answers there")
		case errors.Is(err, syscall.ECONNREFUSED): // nobody listens. Any other error is no proof of that: a process that is frozen has a full queue
			_ = os.Remove(path)
		}
	}
	return net.Listen("unix", path)
}
