package main

import (
	"context"
	"errors"
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
	open   []net.Listener
	server *etcdapi.Server
}

func (e *etcdServing) register(f *pflag.FlagSet) {
	f.StringArrayVar(&e.addrs, "etcd-api", nil, "HOST:PORT for clients of etcd: election, lock and lease calls, gRPC and JSON; guarded as --listen")
}

// listenEtcd opens what it is served on.
func (s *server) listenEtcd(ctx context.Context) error {
	for _, addr := range s.etcd.addrs {
		l, err := s.secured.ListenTCP(ctx, addr)
		if err != nil {
			return errors.New(strings.ReplaceAll(err.Error(), "--listen", "--etcd-api"))
		}
		s.etcd.open = append(s.etcd.open, l)
	}
	if len(s.etcd.addrs) > 0 && len(s.id) > etcdapi.MaxID {
		return fmt.Errorf("--id has %d bytes: with --etcd-api at most %d, since those of its clients are longer", len(s.id), etcdapi.MaxID)
	}
	return nil
}

// serveEtcd begins to answer, if that was asked for.
func (s *server) serveEtcd(st driver.Store, o agent.Options) error {
	if len(s.etcd.addrs) == 0 {
		return nil
	}
	var err error
	s.etcd.server, err = etcdapi.New(st, etcdapi.Options{ID: o.Session.ID, Token: o.Token, TLS: s.secured.TLS, Hosts: s.hosts, MaxLeases: s.clients,
		Timeout: o.Timeout, Logger: o.Logger})
	if err != nil {
		return fmt.Errorf("--etcd-api: %w", err)
	}
	if strings.HasPrefix(st.Caps().Store, "etcd") {
		s.say("warning: the store is etcd, which answers these calls itself, under other keys: let all clients of a name ask the same of the two")
	}
	for _, l := range s.etcd.open {
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
