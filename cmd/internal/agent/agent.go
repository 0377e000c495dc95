// Package agent is the sidecar's API: elections and locks over HTTP and JSON for programs in any
// language.
//
// What leads is a process that is not this one. So a term is given up only when its client has said
// that it stopped, or closed the connection that the term is bound to and that it had called its
// own, or when all the time that it was told it may rely on has passed: see holding.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/fanout"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/telemetry"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/metrics"
)

// Options of an Agent.
type Options struct {
	// Session is that of every client, but for its ID and where it asks for another ttl. ID is this
	// server's own.
	Session primacy.Options
	// Name is the election of /leader where the request names none.
	Name string
	// Token is what requests from other than unix sockets must bear; empty: none.
	Token string
	// Hosts are the names by which this server may be called, beside localhost and addresses.
	Hosts []string
	// UIDs may use the unix socket, beside this process's own and root.
	UIDs []int
	// Clients is how many campaigns and locks, and Streams how many event streams there may be at
	// once on each listener. Default 1000 each.
	Clients, Streams int
	// Timeout is for a store that does not answer a request. Default 5 s.
	Timeout time.Duration
	// Elector answers GET / with {"name":"ID"}, who leads Name, as the leader-elector sidecar of
	// Kubernetes did.
	Elector bool
	// Page answers what is below [PagePath], after [Guard.Reaches] and without a token: it asks for
	// that itself. Nil: there is none.
	Page http.Handler
	// Metrics of /metrics.
	Metrics metrics.Options
	Logger  *slog.Logger
}

// Agent answers the API. It holds terms for its clients.
type Agent struct {
	store     driver.Store
	own       *primacy.Session
	o         Options
	guard     Guard
	clients   *clients
	held      holdings
	states    *fanout.Hub[primacy.State] // for all readers of events
	places    *fanout.Hub[places]        // for all who wait
	router    *health.Router
	pulse     *health.Pulse
	ready     atomic.Bool   // the store has answered
	stopped   chan struct{} // closed when it begins to stop
	stop      func()
	figures   *telemetry.Telemetry
	cancel    context.CancelFunc // ends the agent's own goroutines
	locks     sync.WaitGroup     // kept without a connection
	elsewhere door               // of requests that came by no listener of ours
}

// New returns an agent on a store, which stays the caller's to close after Close. It does no I/O,
// but asks the store in the background until it has answered once.
func New(st driver.Store, o Options) (*Agent, error) {
	if o.Clients == 0 {
		o.Clients = 1000
	}
	if o.Streams == 0 {
		o.Streams = 1000
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	o.Session.Overrun = primacy.OverrunWait // no work runs in this process
	own, err := primacy.NewSession(st, &o.Session)
	if err != nil {
		return nil, err
	}
	o.Session.ID = own.ID()
	if o.Session.TTL == 0 {
		o.Session.TTL = primacy.DefaultTTL
	}
	a := &Agent{
		store: st, own: own, o: o, guard: Guard{o.Token, o.Hosts, o.UIDs},
		clients: newClients(st, o.Session), stopped: make(chan struct{}),
		states: fanout.States(own), places: placesOf(own),
	}
	a.elsewhere.addr = "this server"
	a.stop = sync.OnceFunc(func() { close(a.stopped) })
	if a.figures, err = telemetry.New(own, telemetry.Options{Options: o.Metrics}); err != nil {
		return nil, err
	}
	a.clients.onSession = a.figures.Session.Add
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	a.pulse = health.NewPulse(ctx, o.Session.TTL, func() { a.held.leads("", 0); a.clients.touch(); a.own.Terms() })
	go a.greet(ctx)
	a.router = health.NewRouter(slices.Concat(a.healthRoutes(), a.routes())...)
	return a, nil
}

// Session returns the agent's own session: it reads, asks, and holds the locks of clients without
// an id.
func (a *Agent) Session() *primacy.Session { return a.own }

// States tells readers who leads: one observer a name serves them all.
func (a *Agent) States() *fanout.Hub[primacy.State] { return a.states }

// Health returns what load balancers and orchestrators ask, without the rest of the API.
func (a *Agent) Health() http.Handler { return health.NewRouter(a.healthRoutes()...) }

func (a *Agent) healthRoutes() []health.Route {
	routes := a.health().Routes()
	if a.o.Elector {
		routes = append(routes, health.Route{Method: http.MethodGet, Path: "/", Handle: a.elector})
	}
	return routes
}

// elector answers GET / as the leader-elector sidecar did, but from the store as it is now, not
// from what was once heard.
func (a *Agent) elector(w http.ResponseWriter, r *http.Request, _ string) {
	ctx, cancel := a.limited(r)
	defer cancel()
	l, err := a.own.Election(a.o.Name).Leader(ctx)
	if err != nil && !errors.Is(err, primacy.ErrNoLeader) {
		fail(w, err)
		return
	}
	health.WriteJSON(w, http.StatusOK, map[string]string{"name": l.ID})
}

func (a *Agent) health() health.Options {
	return health.Options{Name: a.o.Name, Leads: a.held.leads, Ready: a.isReady, Alive: a.pulse.Alive,
		Metrics: a.figures.Handler()}
}

func (a *Agent) isReady() error {
	select {
	case <-a.stopped:
		return errStopping
	default:
	}
	if !a.ready.Load() {
		return errors.New("the store has not answered yet")
	}
	return nil
}

// greet asks the store until it has answered.
func (a *Agent) greet(ctx context.Context) {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, a.o.Timeout)
		_, err := a.store.Line(try, "@ready")
		cancel()
		if err == nil {
			a.ready.Store(true)
			return
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// routes are the API's, but for health's.
func (a *Agent) routes() []health.Route {
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	return []health.Route{
		{Method: get, Path: "/v1/elections", Handle: a.list},
		{Method: get, Path: "/v1/elections/{name}", Handle: a.state},
		{Method: get, Path: "/v1/elections/{name}/events", Handle: a.events},
		{Method: get, Path: "/v1/elections/{name}/history", Handle: a.history},
		{Method: post, Path: "/v1/elections/{name}/campaign", Handle: a.campaign},
		{Method: post, Path: "/v1/elections/{name}/renew", Handle: a.renew(false)},
		{Method: post, Path: "/v1/elections/{name}/resign", Handle: a.resign},
		{Method: post, Path: "/v1/elections/{name}/proclaim", Handle: a.proclaim},
		{Method: post, Path: "/v1/elections/{name}/transfer", Handle: a.transfer},
		{Method: post, Path: "/v1/locks/{name}", Handle: a.lock},
		{Method: post, Path: "/v1/locks/{name}/renew", Handle: a.renew(true)},
		{Method: del, Path: "/v1/locks/{name}", Handle: a.unlock},
		{Method: post, Path: "/v1/fence/{name}", Handle: a.fence},
		{Method: get, Path: "/v1/cron", Handle: a.cronJobs},
		{Method: get, Path: "/v1/cron/{name}", Handle: a.cronJob},
		{Method: get, Path: "/openapi.json", Handle: openAPI},
	}
}

// PagePath is what the paths of the page begin with.
const PagePath = "/ui/"

// ServeHTTP answers the API, after it has looked at who asks.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if a.o.Page != nil && strings.HasPrefix(r.URL.Path, PagePath) {
		if a.guard.Reaches(w, r) {
			a.o.Page.ServeHTTP(w, r)
		}
		return
	}
	if a.guard.admits(w, r) {
		a.router.ServeHTTP(w, r)
	}
}

// limited returns a context for one question to the store.
func (a *Agent) limited(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), a.o.Timeout)
}

// admit counts a client that stays. It answers where there are too many of its kind at the door by
// which it came, or the server is stopping.
func (a *Agent) admit(w http.ResponseWriter, r *http.Request, kind perDoor) (out func(), ok bool) {
	if a.hasStopped() {
		stopping.Write(w, "ask another one, or again in a moment")
		return nil, false
	}
	d := &a.elsewhere
	if c := connOf(r); c != nil && c.door != nil {
		d = c.door
	}
	n, most := kind.of(d), kind.most(a.o)
	if n.Add(1) > int64(most) {
		n.Add(-1)
		tooMany.Write(w, "%d %s are open on %s, as many as %s allows: end some, or start the server with a larger %s",
			most, kind.what, d.addr, kind.flag, kind.flag)
		return nil, false
	}
	return sync.OnceFunc(func() { n.Add(-1) }), true
}

func (a *Agent) log(what string, args ...any) {
	if a.o.Logger != nil {
		a.o.Logger.Info(what, args...)
	}
}

// Stop has every client told that it must stop; nothing new is begun. Who waits is sent away.
func (a *Agent) Stop() { a.stop() }

func (a *Agent) hasStopped() bool {
	select {
	case <-a.stopped:
		return true
	default:
		return false
	}
}

// Close stops, waits until each term has been resigned (at the latest when the time that its client
// was told has passed), and ends the leases. When ctx ends before that, what is left runs out by
// itself.
func (a *Agent) Close(ctx context.Context) {
	a.stop()
	all := make(chan struct{})
	go func() { a.locks.Wait(); close(all) }()
	select {
	case <-all:
	case <-ctx.Done():
	}
	a.clients.close(ctx)
	a.states.Close()
	a.places.Close()
	a.figures.Close()
	_ = a.own.Close(ctx)
	a.cancel()
}

// Alive says why the agent's own loop is wedged, nil if it is not.
func (a *Agent) Alive() error { return a.pulse.Alive() }
