// Package health answers load balancers and orchestrators: who leads here, does this process run,
// has the store answered.
//
// Each answer about leadership is made from [primacy.Term.Check] when it is asked for. There is no
// flag: the first answer of a process that was frozen past its deadline is no.
package health

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
)

// Lead is leadership at one instant.
type Lead struct {
	ID    string
	Token primacy.Token
	Until time.Duration // on the boot clock: nobody else leads before that
}

// Of returns the leadership of a term, and false if its right is over at this instant. A nil term
// leads nothing.
func Of(id string, t *primacy.Term) (Lead, bool) {
	if t == nil {
		return Lead{}, false
	}
	until := t.Deadline() // before the check: one that moved in between only moved later
	return Lead{id, t.Token(), until}, t.Check() == nil
}

// Options of a Handler.
type Options struct {
	// Name is the election of /leader and its aliases where the request names none. Empty: then it
	// must.
	Name string
	// Leads says whether this process leads name at this instant; with a token, under that one. It
	// is called at each request and must not answer from memory. See [Of].
	Leads func(name string, token primacy.Token) (Lead, bool)
	// Ready says whether the store has answered and the process is not stopping. It must not depend
	// on leadership.
	Ready func() error
	// Alive says why the process's own loop is wedged; nil if it is not. See [Pulse].
	Alive func() error
	// Metrics answers /metrics; nil: there are none.
	Metrics http.Handler
}

// leaderPaths are names for the same question; all but the first are Patroni's.
var leaderPaths = []string{"/leader", "/primary", "/master", "/read-write"}

// Routes returns the routes, each for GET, HEAD and OPTIONS (HAProxy asks by OPTIONS).
//
//	/leader /leader/NAME   200: this process leads NAME now; 503: not. Also /primary, /master,
//	                       /read-write
//	/replica               200: it does not lead and is ready; 503 otherwise
//	/read-only             200: it is ready, whether or not it leads. Also /readyz, /readiness,
//	                       /health
//	/livez                 200: its loop runs; 503: it is wedged. Also /liveness
//	/metrics
func (o Options) Routes() []Route {
	var routes []Route
	add := func(path string, answer func(r *http.Request, name string) (int, any)) {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			routes = append(routes, Route{method, path, func(w http.ResponseWriter, r *http.Request,
				name string) {
				respond(w, r, name, answer)
			}})
		}
	}
	for _, p := range leaderPaths {
		add(p, o.leader)
		add(p+"/{name...}", o.leader)
	}
	add("/replica", o.replica)
	add("/replica/{name...}", o.replica)
	for _, p := range []string{"/readyz", "/readiness", "/health", "/read-only"} {
		add(p, o.ready)
	}
	for _, p := range []string{"/livez", "/liveness"} {
		add(p, o.alive)
	}
	if o.Metrics != nil {
		serve := func(w http.ResponseWriter, r *http.Request, _ string) { o.Metrics.ServeHTTP(w, r) }
		routes = append(routes, Route{http.MethodGet, "/metrics", serve}, Route{http.MethodHead, "/metrics", serve})
	}
	return routes
}

// Handler returns a handler of the routes alone.
func (o Options) Handler() http.Handler { return NewRouter(o.Routes()...) }

func respond(w http.ResponseWriter, r *http.Request, name string, answer func(*http.Request, string) (int, any)) {
	status, body := answer(r, name)
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodOptions {
		w.Header().Set("Allow", "GET, HEAD, OPTIONS")
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(status)
		return
	}
	if p, bad := body.(Problem); bad {
		Kind{strings.TrimPrefix(p.Type, URN), p.Status, p.Title}.Write(w, "%s", p.Detail)
		return
	}
	WriteJSON(w, status, body)
}

// Answer is the body of an answer about leadership.
type Answer struct {
	Election string        `json:"election"`
	Leads    bool          `json:"leads"`
	ID       string        `json:"id,omitempty"`
	Token    primacy.Token `json:"token,omitzero"`
	*Lease
}

// Lease is for how long a right may be relied on.
type Lease struct {
	// LeaseMS counts from before the request was sent, a tenth less than this machine's clock has:
	// the asker's may be slower.
	LeaseMS int64 `json:"lease_ms"`
	// DeadlineBootNS is the same instant on the boot clock of the boot BootID, for who runs on the
	// same machine.
	DeadlineBootNS string `json:"deadline_boot_ns"`
	BootID         string `json:"boot_id,omitempty"`
}

// LeaseOf returns what is left at this instant of a right that ends at until, on the boot clock.
func LeaseOf(until time.Duration) *Lease {
	left := max(0, until-boottime.Now())
	return &Lease{(left - left/10).Milliseconds(), strconv.FormatInt(until.Nanoseconds(), 10), BootID()}
}

// BootID names this boot of the machine; empty where the system does not tell.
var BootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

func (o Options) which(r *http.Request, name string) (string, primacy.Token, *Problem) {
	q := r.URL.Query()
	if name == "" {
		if name = q.Get("election"); name == "" {
			name = o.Name
		}
	}
	if name == "" {
		p := Invalid.Problem("which election? Ask for /leader/NAME or /leader?election=NAME")
		return "", 0, &p
	}
	if err := primacy.CheckName(name); err != nil {
		p := Invalid.Problem("%v", err)
		return "", 0, &p
	}
	var token primacy.Token
	if s := q.Get("token"); s != "" {
		if err := token.UnmarshalText([]byte(s)); err != nil || token == 0 {
			p := Invalid.Problem("token=%q is not a token: a whole number above 0", s)
			return "", 0, &p
		}
	}
	return name, token, nil
}

func (o Options) leader(r *http.Request, name string) (int, any) {
	name, token, bad := o.which(r, name)
	if bad != nil {
		return bad.Status, *bad
	}
	lead, ok := o.Leads(name, token)
	a := Answer{Election: name}
	if ok {
		a.Lease = LeaseOf(lead.Until)
	}
	if !ok || a.LeaseMS == 0 {
		return http.StatusServiceUnavailable, Answer{Election: name}
	}
	a.Leads, a.ID, a.Token = true, lead.ID, lead.Token
	return http.StatusOK, a
}

func (o Options) replica(r *http.Request, name string) (int, any) {
	name, token, bad := o.which(r, name)
	if bad != nil {
		return bad.Status, *bad
	}
	if status, why := o.ready(r, ""); status != http.StatusOK {
		return status, why
	}
	if lead, ok := o.Leads(name, token); ok {
		return http.StatusServiceUnavailable, Answer{Election: name, Leads: true, ID: lead.ID, Token: lead.Token}
	}
	return http.StatusOK, Answer{Election: name}
}

// State is the body of an answer about the process itself.
type State struct {
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

func (o Options) ready(*http.Request, string) (int, any) { return stateOf(o.Ready) }
func (o Options) alive(*http.Request, string) (int, any) { return stateOf(o.Alive) }

func stateOf(ask func() error) (int, any) {
	if ask != nil {
		if err := ask(); err != nil {
			return http.StatusServiceUnavailable, State{false, strings.ToValidUTF8(err.Error(), "\uFFFD")}
		}
	}
	return http.StatusOK, State{OK: true}
}
