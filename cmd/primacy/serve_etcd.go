package main

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy/cmd/internal/agent"
	"github.com/primacy-go/primacy/cmd/internal/etcdapi"
	"github.com/primacy-go/primacy/driver"
)

// etcdServing is the part of `primacy serve` that answers etcd's clients.
type etcdServing struct {
	addrs  []string
	server *etcdapi.Server
}

func (e *etcdServing) register(f *pflag.FlagSet) {
	f.StringArrayVar(&e.addrs, "etcd-api", nil, "HOST:PORT for clients of etcd: its election, lock and lease calls, as gRPC and as JSON; guarded as --listen")
}

// serveEtcd begins to answer, if that was asked for.
func (s *server) serveEtcd(ctx context.Context, st driver.Store, o agent.Options) error {
	if len(s.etcd.addrs) == 0 {
		return nil
	}
	var open []net.Listener
	done := func(err error) error {
		for _, l := range open {
			_ = l.Close()
		}
		return fmt.Errorf("--etcd-api: %w", err)
	}
	for _, addr := range s.etcd.addrs {
		l, err := s.secured.ListenTCP(ctx, addr)
		if err != nil {
			return done(err)
		}
		open = append(open, l)
	}
	id := o.Session.ID
	if len(id) > etcdapi.MaxID {
		return done(fmt.Errorf("--id has %d bytes: with --etcd-api at most %d, its clients' have more", len(id), etcdapi.MaxID))
	}
	var err error
	s.etcd.server, err = etcdapi.New(st, etcdapi.Options{ID: id, Token: o.Token, TLS: s.secured.TLS, Hosts: s.hosts, MaxLeases: s.clients,
		Timeout: o.Timeout, Logger: o.Logger})
	if err != nil {
		return done(err)
	}
	if strings.HasPrefix(st.Caps().Store, "etcd") {
		s.say("warning: the store is etcd, which answers these calls itself, under other keys: let all clients of a name ask the same of the two")
	}
	for _, l := range open {
		s.say("serving etcd's election, lock and lease calls on %s", l.Addr())
		go func() {
			if err := s.etcd.server.Serve(l); err != nil {
				s.failed <- fmt.Errorf("%s: %w", l.Addr(), err)
			}
		}()
	}
	return nil
}

// closeEtcd tells its clients to stop and gives up what they held. What cannot be confirmed in time runs out in the store.
func (s *server) closeEtcd(ctx context.Context) {
	if s.etcd.server == nil {
		return
	}
	if err := s.etcd.server.Close(ctx); err != nil {
		s.say("%s", oneLine(err))
	}
}
