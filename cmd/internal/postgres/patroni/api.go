package patroni

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/agent"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
)

// Limits of the API. A client that sends or reads slowly keeps a connection for exchangeTime at
// most, or idleTime between two requests.
const (
	exchangeTime = 10 * time.Second
	idleTime     = time.Minute
	maxConns     = 500
	maxBody      = 1 << 20
)

// API answers Patroni's REST. Its fields are set before the first request.
type API struct {
	Config
	Member  Member
	Keys    Keys
	Verbs   Verbs
	Shared  *config.Config
	Guard   Guard
	Metrics http.Handler // nil: none
	Log     *slog.Logger
}

// Handler returns what answers.
func (a *API) Handler() http.Handler {
	var routes []health.Route
	add := func(method, path string, answer http.HandlerFunc) {
		routes = append(routes, health.Route{Method: method, Path: path,
			Handle: func(w http.ResponseWriter, r *http.Request, _ string) { answer(w, r) }})
	}
	asked := func(path string, answer http.HandlerFunc) {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			add(method, path, answer)
		}
	}
	for _, c := range checks {
		for _, path := range c.paths {
			asked(path, a.check(c))
		}
	}
	asked("/liveness", func(w http.ResponseWriter, r *http.Request) {
		bare(w, r, code(alive(look(a.Member)) == nil))
	})
	asked("/readiness", func(w http.ResponseWriter, r *http.Request) {
		bare(w, r, code(ready(look(a.Member), r.URL.Query()) == nil))
	})
	asked("/patroni", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, http.StatusOK, a.status(look(a.Member)))
	})
	for _, c := range []struct {
		path string
		of   func(cluster) any
	}{{"/cluster", func(c cluster) any { return c.show() }}, {"/history", func(c cluster) any { return c.history() }}} {
		asked(c.path, func(w http.ResponseWriter, r *http.Request) { a.fromStore(w, r, c.of) })
	}
	if a.Metrics != nil {
		add(http.MethodGet, "/metrics", a.Metrics.ServeHTTP)
		add(http.MethodHead, "/metrics", a.Metrics.ServeHTTP)
	}
	routes = append(append(routes, a.configuration()...), a.writes()...)
	routes = append(routes, health.Route{Method: http.MethodGet, Path: "/{name...}", Handle: nowhere},
		health.Route{Method: http.MethodHead, Path: "/{name...}", Handle: nowhere},
		health.Route{Method: http.MethodOptions, Path: "/{name...}", Handle: nowhere})
	return health.NewRouter(routes...)
}

func nowhere(w http.ResponseWriter, r *http.Request, _ string) {
	text(w, http.StatusNotFound, "there is nothing at this path: docs/postgres-failover.md lists what there is")
}

// check answers with a code, and to GET with all that is known.
func (a *API) check(c check) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := look(a.Member)
		q := r.URL.Query()
		yes := c.is(v, q) && (!c.tags || tagged(a.Tags, q))
		answer(w, r, code(yes), a.status(v))
	}
}

// answer writes v, and to HEAD and OPTIONS the code alone.
func answer(w http.ResponseWriter, r *http.Request, code int, v any) {
	if r.Method != http.MethodGet {
		bare(w, r, code)
		return
	}
	health.WriteJSON(w, code, v)
}

func bare(w http.ResponseWriter, r *http.Request, code int) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodOptions {
		w.Header().Set("Allow", "GET, HEAD, OPTIONS")
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(code)
}

// text answers in words, as Patroni does to what is asked for by POST.
func text(w http.ResponseWriter, code int, words string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, words)
}

// fromStore answers with what the keys in the store say.
func (a *API) fromStore(w http.ResponseWriter, r *http.Request, of func(cluster) any) {
	c, err := a.cluster(r.Context())
	if err != nil {
		a.unreachable(w, err)
		return
	}
	answer(w, r, http.StatusOK, of(c))
}

func (a *API) unreachable(w http.ResponseWriter, err error) {
	a.Log.Warn("a request of Patroni's API was not answered", "err", err)
	text(w, http.StatusServiceUnavailable, "the store does not answer: "+err.Error())
}

// storeLimit is how long the store may take to answer a request.
const storeLimit = 5 * time.Second

func (a *API) cluster(ctx context.Context) (cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	return readCluster(ctx, a.Keys, a.Config)
}

// Serve answers on l until ctx ends.
func (a *API) Serve(ctx context.Context, l net.Listener) {
	own := agent.Limit(l, maxConns)
	if t := a.Guard.TLS; t != nil {
		own = tls.NewListener(own, t)
	}
	s := &http.Server{Handler: a.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: exchangeTime,
		WriteTimeout: exchangeTime, IdleTimeout: idleTime, MaxHeaderBytes: 1 << 14,
		ErrorLog:    log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(own); ctx.Err() == nil {
		a.Log.Error("Patroni's API is gone", "err", err)
	}
}

// object reads the body of a request: a JSON object, or nothing.
func object(w http.ResponseWriter, r *http.Request) (map[string]any, bool) {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.UseNumber()
	var o map[string]any
	err := d.Decode(&o)
	switch {
	case err == io.EOF:
		return nil, true
	case err != nil || o == nil:
		text(w, http.StatusBadRequest, "give a JSON object")
		return nil, false
	}
	return o, true
}

// oneLine is an error as an answer has it.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
