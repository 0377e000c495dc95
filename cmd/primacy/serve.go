package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/agent"
	"github.com/primacy-go/primacy/cmd/internal/etcdapi"
	"github.com/primacy-go/primacy/cmd/internal/sdnotify"
	"github.com/primacy-go/primacy/driver"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	socket       string
	listen       []string
	healthListen []string
	cert, key    string
	tokenFile    string
	hosts        []string
	uids         []int
	election     string
	clients      int
	streams      int
	clientGo     bool
	compat       string
	etcd         etcdServing
	clientCA     string
	ui           uiServing
}

func serveCommand(a *app) *cobra.Command {
	var o serveOptions
	c := &cobra.Command{
		Use:         "serve",
		Annotations: map[string]string{stays: "yes"},
		Short:       "Serve elections and locks over HTTP to programs in any language",
		Long: `Serve elections and locks over HTTP and JSON, on a unix socket that only you can reach
(docs/serve.md lists all paths):

  curl -N --unix-socket $XDG_RUNTIME_DIR/primacy/primacy.sock -X POST http://localhost/v1/elections/billing/campaign

joins the queue for billing, prints a line of JSON for each event, and resigns when the connection is closed. GET
/leader/billing answers 200 on the machine that leads and 503 elsewhere, for load balancers. On SIGTERM every
client is told to stop and every term is resigned.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return (&server{app: a, serveOptions: o}).run(cmd.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&o.socket, "socket", "",
		"unix socket (default $XDG_RUNTIME_DIR/primacy/primacy.sock or /run/primacy/primacy.sock), or none")
	f.StringArrayVar(&o.listen, "listen", nil,
		"HOST:PORT to listen on too; other than loopback only with --tls-cert, --tls-key, and --token-file or "+
			"--tls-client-ca")
	f.StringArrayVar(&o.healthListen, "health-listen", nil,
		"HOST:PORT for load balancers: /leader, /livez, /readyz and /metrics only, with no token")
	f.StringVar(&o.cert, "tls-cert", "", "certificate for --listen (PEM)")
	f.StringVar(&o.key, "tls-key", "", "its key (PEM)")
	f.StringVar(&o.clientCA, "tls-client-ca", "", "who calls --listen needs a certificate of these authorities (PEM)")
	f.StringVar(&o.tokenFile, "token-file", "", "file with the bearer token that --listen asks for")
	f.StringArrayVar(&o.hosts, "allow-host", nil,
		"host name by which --listen may be called, beside localhost and addresses")
	f.IntSliceVar(&o.uids, "allow-uid", nil, "user ID that may use the socket too")
	f.StringVar(&o.election, "election", "", "the election of GET /leader where a request names none")
	f.IntVar(&o.clients, "max-clients", 1000, "how many campaigns and locks there may be at once on each listener")
	f.IntVar(&o.streams, "max-streams", 1000, "how many event streams there may be at once on each listener")
	f.BoolVar(&o.clientGo, "metrics-compat", false,
		"show leader_election_master_status in /metrics too, client-go's name, for alerts that exist")
	f.StringVar(&o.compat, "compat", "",
		"leader-elector: answer GET / with the leader of --election, as that sidecar did")
	o.etcd.register(f)
	o.ui.register(f)
	return c
}

// server is one `primacy serve`.
type server struct {
	*app
	serveOptions
	agent   *agent.Agent
	secured agent.Secured
	open    []net.Listener // not served yet
	running []*http.Server
	failed  chan error
}

func (s *server) run(ctx context.Context) error {
	o, err := s.options()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	api, err := s.listeners(ctx)
	defer s.closeOpen()
	if err != nil {
		return err
	}
	// Nobody reads signals yet, and the store may not answer for a while.
	opening, opened := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	st, closeStore, err := s.openStore(opening)
	stopped := opening.Err() != nil
	opened()
	if stopped && err != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeStore()
	if stopped {
		return nil
	}
	// two terms of a name could not be told apart by those who hold them
	if caps := st.Caps(); caps.Token == driver.TokenNone {
		return fmt.Errorf("serve: %s has no tokens, by which clients say what they hold: use another store", caps.Store)
	}
	endPage, err := s.openPage(st, &o)
	if err != nil {
		return err
	}
	defer endPage()
	if s.agent, err = agent.New(st, o); err != nil {
		return err
	}
	s.checkFiles()
	s.failed = make(chan error, len(s.open)+len(s.etcd.addrs))
	for _, l := range s.open {
		h := s.agent.Health()
		if api[l] {
			h = s.agent
		}
		s.serve(l, h)
	}
	s.open = nil
	if err := s.serveEtcd(st, o); err != nil {
		return err
	}
	notify, err := sdnotify.New()
	if err != nil {
		s.say("warning: %v", err)
	}
	_ = notify.Tell(sdnotify.Ready, sdnotify.Status("serving elections and locks"))
	return s.until(ctx, signals, notify)
}

// until serves until a signal comes or a listener fails, then stops.
func (s *server) until(ctx context.Context, signals <-chan os.Signal, notify *sdnotify.Notifier) (err error) {
	defer s.watchdog(notify)()
	select {
	case <-signals:
	case <-ctx.Done():
	case err = <-s.failed:
	}
	limit := s.ttl + 10*time.Second // a client may rely on what it was told for a ttl; then the store has to answer
	_ = notify.Tell(sdnotify.Stopping, sdnotify.ExtendTimeout(limit))
	s.say("stopping: every client is told, and every term is resigned; a second signal ends at once, " +
		"and leases then run out by themselves")
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	go func() {
		select {
		case <-signals:
			cancel()
		case <-stop.Done():
		}
	}()
	s.shutDown(stop)
	return err
}

// checkFiles warns where connections within the limits would use up the descriptors of the process:
// then nobody gets in any more, by no listener.
func (s *server) checkFiles() {
	const others = 200 // of the store, among others
	need := uint64((len(s.open)+len(s.etcd.open))*s.secured.Conns + others)
	var have unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &have) == nil && have.Cur < need {
		s.say("warning: this process may open %d files (ulimit -n), and the limits of its listeners come to %d: "+
			"raise the one, or lower --max-clients and --max-streams", have.Cur, need)
	}
}

// watchdog tells the service manager, if it wants to know, that the loop runs.
func (s *server) watchdog(notify *sdnotify.Notifier) (stop func()) {
	every, err := sdnotify.WatchdogEvery()
	if err != nil {
		s.say("warning: %v", err)
	}
	if notify == nil || every == 0 {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(every / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if s.agent.Alive() == nil {
					_ = notify.Tell(sdnotify.Watchdog)
				}
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// shutDown ends streams and locks first, since they keep their connections, then everything else.
func (s *server) shutDown(ctx context.Context) {
	s.agent.Stop()
	s.ui.stop()
	var all sync.WaitGroup
	all.Go(func() { s.closeEtcd(ctx) })
	for _, srv := range s.running {
		all.Go(func() {
			if srv.Shutdown(ctx) != nil {
				_ = srv.Close()
			}
		})
	}
	all.Wait()
	s.agent.Close(ctx)
}

// options checks what was given and returns the agent's.
func (s *server) options() (agent.Options, error) {
	o := agent.Options{Session: primacy.Options{ID: s.id, TTL: s.ttl, Logger: s.logger()}, Name: s.election,
		Hosts: s.hosts, UIDs: s.uids,
		Clients: s.clients, Streams: s.streams, Metrics: figures(s.clientGo),
		Timeout: min(s.timeout, 10*time.Second), Logger: s.logger()}
	if s.clients < 1 {
		return o, fmt.Errorf("--max-clients %d: use 1 or more", s.clients)
	}
	if s.streams < 1 {
		return o, fmt.Errorf("--max-streams %d: use 1 or more", s.streams)
	}
	s.secured.Conns = agent.ConnsFor(s.clients, s.streams)
	if s.ui.on { // tabs take no room from clients
		s.secured.Conns += pageStreams
	}
	switch {
	case s.compat == "":
	case s.compat != "leader-elector":
		return o, fmt.Errorf("--compat %q: the only one there is leader-elector", s.compat)
	case s.election == "":
		return o, errors.New("--compat leader-elector needs --election: whose leader?")
	}
	o.Elector = s.compat != ""
	if s.election != "" {
		if err := primacy.CheckName(s.election); err != nil {
			return o, fmt.Errorf("--election: %w", err)
		}
	}
	var err error
	if s.tokenFile != "" {
		if o.Token, err = agent.LoadToken(s.tokenFile); err != nil {
			return o, fmt.Errorf("--token-file: %w", err)
		}
	}
	if err := s.ui.check(o.Token); err != nil {
		return o, err
	}
	s.secured.Token = o.Token != ""
	switch {
	case (s.cert == "") != (s.key == ""):
		return o, errors.New("give --tls-cert and --tls-key, or neither")
	case s.cert != "":
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return o, fmt.Errorf("--tls-cert: %w", err)
		}
		s.secured.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
			NextProtos: []string{"http/1.1"}}
	}
	return o, s.askForCertificates()
}

// askForCertificates has TLS admit only clients with a certificate, if that was asked for.
func (s *server) askForCertificates() error {
	if s.clientCA == "" {
		return nil
	}
	if s.secured.TLS == nil {
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	}
	text, err := os.ReadFile(s.clientCA)
	if err != nil {
		return fmt.Errorf("--tls-client-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return fmt.Errorf("--tls-client-ca: %s has no certificate (PEM)", s.clientCA)
	}
	s.secured.TLS.ClientAuth, s.secured.TLS.ClientCAs = tls.RequireAndVerifyClientCert, pool
	return nil
}

// listeners opens all sockets, before the store is asked for anything: what is wrong with them
// shows at once. It says which serve the whole API.
func (s *server) listeners(ctx context.Context) (api map[net.Listener]bool, err error) {
	api = map[net.Listener]bool{}
	given, err := sdnotify.Listeners()
	if err != nil {
		return nil, err
	}
	for _, l := range given {
		s.open = append(s.open, l.Listener)
		api[l.Listener] = true
		if err := s.secured.Check(l.Listener); err != nil {
			return nil, err
		}
	}
	if s.socket != "none" && (len(given) == 0 || s.socket != "") {
		path := s.socket
		if path == "" {
			path = agent.DefaultSocket()
		}
		l, err := agent.ListenUnix(path, len(s.uids) > 0)
		if err != nil {
			return nil, err
		}
		s.open = append(s.open, l)
		api[l] = true
	}
	for _, addr := range s.listen {
		l, err := s.secured.ListenTCP(ctx, addr)
		if err != nil {
			return nil, err
		}
		s.open = append(s.open, l)
		api[l] = true
	}
	if err := s.listenEtcd(ctx); err != nil {
		return nil, err
	}
	for _, addr := range s.healthListen {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("--health-listen: %w", err)
		}
		s.open = append(s.open, l)
	}
	if len(s.open)+len(s.etcd.open) == 0 {
		return nil, errors.New("nothing to listen on: --socket none needs --listen, --etcd-api or --health-listen")
	}
	return api, nil
}

func (s *server) closeOpen() {
	for _, l := range s.open {
		_ = l.Close()
	}
}

// serve begins to answer on l.
func (s *server) serve(l net.Listener, h http.Handler) {
	secured, what := s.secured, "serving"
	if h != http.Handler(s.agent) {
		secured, what = agent.Secured{Conns: secured.Conns}, "serving health"
	}
	errors := io.Discard
	if s.verbose {
		errors = s.stderr
	}
	srv, failed := secured.Serve(l, h, log.New(errors, "primacy: ", 0))
	s.running = append(s.running, srv)
	s.say("%s on %s", what, l.Addr())
	if what == "serving" {
		s.sayPage(l.Addr())
	}
	go func() {
		if err := <-failed; err != nil {
			s.failed <- fmt.Errorf("%s: %w", l.Addr(), err)
		}
	}()
}

// etcdServing is the part of `primacy serve` that answers etcd's clients.
type etcdServing struct {
	addrs  []string
	open   []net.Listener
	server *etcdapi.Server
}

func (e *etcdServing) register(f *pflag.FlagSet) {
	f.StringArrayVar(&e.addrs, "etcd-api", nil,
		"HOST:PORT for clients of etcd: election, lock and lease calls, gRPC and JSON; other than loopback only with "+
			"--tls-cert, --tls-key and --token-file")
}

// listenEtcd opens what it is served on. Clients' certificates are not enough there: without a
// token etcdapi serves loopback only, and the whole server would end after it has begun to serve.
func (s *server) listenEtcd(ctx context.Context) error {
	secured := s.secured
	if !secured.Token {
		secured.TLS = nil
	}
	words := strings.NewReplacer("--listen", "--etcd-api", " or --tls-client-ca", "")
	for _, addr := range s.etcd.addrs {
		l, err := secured.ListenTCP(ctx, addr)
		if err != nil {
			return errors.New(words.Replace(err.Error()))
		}
		s.etcd.open = append(s.etcd.open, l)
	}
	if len(s.etcd.addrs) > 0 && len(s.id) > etcdapi.MaxID {
		return fmt.Errorf("--id has %d bytes: with --etcd-api at most %d, since those of its clients are longer",
			len(s.id), etcdapi.MaxID)
	}
	return nil
}

// serveEtcd begins to answer, if that was asked for.
func (s *server) serveEtcd(st driver.Store, o agent.Options) error {
	if len(s.etcd.addrs) == 0 {
		return nil
	}
	var err error
	s.etcd.server, err = etcdapi.New(st, etcdapi.Options{ID: o.Session.ID, Token: o.Token, TLS: s.secured.TLS,
		Hosts: s.hosts, MaxLeases: s.clients, MaxStreams: s.streams, States: s.agent.States(),
		Timeout: o.Timeout, Logger: o.Logger})
	if err != nil {
		return fmt.Errorf("--etcd-api: %w", err)
	}
	if strings.HasPrefix(st.Caps().Store, "etcd") {
		s.say("warning: the store is etcd, which answers these calls itself, under other keys: " +
			"let all clients of a name ask the same of the two")
	}
	for _, l := range s.etcd.open {
		s.say("serving etcd's election, lock and lease calls on %s", l.Addr())
		go func() {
			if err := s.etcd.server.Serve(agent.Limit(l, s.secured.Conns)); err != nil {
				s.failed <- fmt.Errorf("%s: %w", l.Addr(), err)
			}
		}()
	}
	return nil
}

// closeEtcd tells its clients to stop and gives up what they held. What cannot be confirmed in time
// runs out in the store.
func (s *server) closeEtcd(ctx context.Context) {
	if s.etcd.server == nil {
		return
	}
	if err := s.etcd.server.Close(ctx); err != nil {
		s.say("%s", oneLine(err))
	}
}
