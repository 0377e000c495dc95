package patroni

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
)

const election = "postgres/orders"

// still is a member that shows what it is told to.
type still struct {
	shown   *agent.Snapshot
	details *server.Details
}

func (s *still) Snapshot() *agent.Snapshot    { return s.shown }
func (s *still) Details() *server.Details     { return s.details }
func (s *still) Reload(context.Context) error { return nil }

// verbs counts what is asked of them, and refuses what it is told to.
type verbs struct {
	mu     sync.Mutex
	asked  []string
	refuse error
	done   chan string // gets each, if it is there
}

func (v *verbs) do(what string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked = append(v.asked, what)
	if v.done != nil {
		v.done <- what
	}
	return v.refuse
}

func (v *verbs) Switchover(_ context.Context, from, to string) (string, error) {
	if from != "pg1" && from != "" { // who leads in these tests
		return "", v.do("switchover from " + from)
	}
	return "pg2", v.do("switchover " + to)
}
func (v *verbs) Pause(context.Context) error   { return v.do("pause") }
func (v *verbs) Resume(context.Context) error  { return v.do("resume") }
func (v *verbs) Restart(context.Context) error { return v.do("restart") }
func (v *verbs) Reinit(context.Context) error  { return v.do("reinit") }

// leads wins the election for a member.
func leads(t *testing.T, st driver.Store, name string) *primacy.Term {
	t.Helper()
	s, err := primacy.NewSession(st, &primacy.Options{ID: name, TTL: 20 * time.Second,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	term, err := s.Election(election).Campaign(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = term.Resign(ctx)
		_ = s.Close(ctx)
	})
	return term
}

func resign(t *testing.T, term *primacy.Term) {
	t.Helper()
	if err := term.Resign(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// seen is a member of a cluster that is well, as it was seen just now: the primary if it has a
// term.
func seen(name string, term *primacy.Term) *agent.Snapshot {
	primary, pg2 := core.Identity{Name: "pg1", Incarnation: "a"}, core.Identity{Name: "pg2", Incarnation: "b"}
	s := &agent.Snapshot{At: boottime.Now(), Cluster: "orders", Name: name, Phase: core.PhaseFollowing,
		State: core.State{Incarnation: "b", SystemID: "77"}, Term: term,
		Line: &core.Line{Token: 7, Leader: "pg1"}, Up: true, Looked: boottime.Now(), StoreSeen: boottime.Now(),
		Server: core.Server{Running: true, Follows: true, Data: core.DataReady,
			Reached: core.Position{Timeline: 3, LSN: 900}},
		Position: core.Position{Timeline: 3, LSN: 1000}, LastLSN: 1000, MaxLag: 1 << 20,
		TTL: 3 * time.Second, LoopWait: time.Second,
		Record: &core.Record{Seq: 4, SystemID: "77", Primary: primary, Timeline: 3, Voters: []core.Identity{pg2},
			Acks: 1, Needed: 1, Durability: core.Quorum, Lineage: []core.Fork{{Timeline: 1}, {Timeline: 3, From: 800}},
			History: []core.Promoted{{Token: 7, Member: "pg1", Timeline: 3, From: 800, Ground: "born by initdb"}}},
		Runs: func() bool { return true }}
	if term != nil {
		s.Phase, s.State.Incarnation = core.PhaseLeading, "a"
		s.Server = core.Server{Running: true, Primary: true, Data: core.DataReady, LSN: 1000, Timeline: 3,
			Senders: []core.Sender{{Identity: pg2, Flushed: 990}}}
	}
	return s
}

// site is an API, and how it is asked.
type site struct {
	*API
	*still
	verbs *verbs
}

func newSite(shown *agent.Snapshot) *site {
	m, v := &still{shown: shown}, &verbs{}
	c, log := of("pg1"), slog.New(slog.DiscardHandler)
	c.Restarts = &Restarts{Member: m, Verbs: v, Log: log}
	return &site{still: m, verbs: v, API: &API{Config: c, Member: m, Verbs: v, Log: log}}
}

func of(name string) Config {
	return Config{Dir: "/service/orders/", Scope: "orders", Name: name, Address: "10.0.0.1:5432",
		URL: "http://10.0.0.1:8008/patroni", Tags: map[string]any{"nosync": true}}
}

// asks makes a request that comes from that address.
func (s *site) asks(method, path, body, from string, header ...string) (int, string) {
	r := httptest.NewRequest(method, "http://127.0.0.1:8008"+path, strings.NewReader(body))
	r.RemoteAddr = from
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

const here = "127.0.0.1:50000"

func (s *site) code(path string) int {
	c, _ := s.asks(http.MethodGet, path, "", here)
	return c
}
