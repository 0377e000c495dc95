package patroni

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/memstore"
)

// everyPath is each path that a load balancer may ask.
func everyPath() (all []string) {
	for _, c := range checks {
		all = append(all, c.paths...)
	}
	return append(all, "/readiness")
}

// TestHealthCodes: which paths say 200, to GET, HEAD and OPTIONS.
func TestHealthCodes(t *testing.T) {
	term := leads(t, memstore.New(memstore.Options{}), "pg1")
	primary := []string{"/", "/primary", "/master", "/leader", "/read-write", "/read-only", "/health",
		"/read-only-sync",
		"/read-only-synchronous", "/read-only-quorum", "/readiness"}
	voter := []string{"/replica", "/read-only", "/health", "/sync", "/synchronous", "/quorum", "/read-only-sync",
		"/read-only-synchronous", "/read-only-quorum", "/readiness"}
	async := []string{"/replica", "/read-only", "/health", "/async", "/asynchronous", "/readiness"}
	aMinuteAgo := func(s *agent.Snapshot) { s.Looked -= time.Minute }
	change := func(s *agent.Snapshot, f func(*agent.Snapshot)) *agent.Snapshot { f(s); return s }
	for name, x := range map[string]struct {
		shown *agent.Snapshot
		well  []string
	}{
		"the primary": {seen("pg1", term), primary},
		"a voter":     {seen("pg2", nil), voter},
		"a standby that does not vote": {change(seen("pg2", nil), func(s *agent.Snapshot) {
			s.State.Incarnation = "another life"
		}), async},
		"a standby without a primary": {change(seen("pg2", nil), func(s *agent.Snapshot) {
			s.Server.Follows = false
		}), voter[:len(voter)-1]},
		"a standby that is cut from the store": {change(seen("pg2", nil), func(s *agent.Snapshot) {
			s.StoreSeen -= time.Minute
		}), []string{"/replica", "/read-only", "/health", "/readiness"}},
		"a primary by hand, or whose term is another's": {change(seen("pg1", term), func(s *agent.Snapshot) {
			s.Term = nil
		}), []string{"/health"}},
		"a term, and a server in recovery": {change(seen("pg1", term), func(s *agent.Snapshot) {
			s.Server.Primary = false
		}), []string{"/replica", "/read-only", "/health", "/async", "/asynchronous"}},
		"a server that has just ended": {change(seen("pg1", term), func(s *agent.Snapshot) {
			s.Runs = func() bool { return false }
		}), nil},
		"a server that starts":        {change(seen("pg2", nil), func(s *agent.Snapshot) { s.Up = false }), nil},
		"a primary that hangs":        {change(seen("pg1", term), aMinuteAgo), nil},
		"a standby seen a minute ago": {change(seen("pg2", nil), aMinuteAgo), nil},
		"an agent that has not begun": {nil, nil},
	} {
		s := newSite(x.shown)
		well := map[string]bool{}
		for _, p := range x.well {
			well[p] = true
		}
		for _, p := range everyPath() {
			for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
				got, body := s.asks(method, p, "", here)
				if got != code(well[p]) {
					t.Errorf("%s: %s %s: %d, want %d", name, method, p, got, code(well[p]))
				}
				if method != http.MethodGet && body != "" {
					t.Errorf("%s: %s %s has a body: %s", name, method, p, body)
				}
			}
		}
	}
}

// TestATermThatEndedIsNoPrimary: the snapshot is of before, and the clock decides.
func TestATermThatEndedIsNoPrimary(t *testing.T) {
	term := leads(t, memstore.New(memstore.Options{}), "pg1")
	s := newSite(seen("pg1", term))
	if got := s.code("/primary"); got != http.StatusOK {
		t.Fatalf("the primary: %d", got)
	}
	resign(t, term)
	for _, path := range []string{"/primary", "/master", "/leader", "/read-write", "/read-only", "/replica", "/"} {
		if got := s.code(path); got != http.StatusServiceUnavailable {
			t.Errorf("%s after the term: %d", path, got)
		}
	}
}

// TestLagAndTags are Patroni's: ?lag= is a number of bytes or has a unit, ?tag_NAME= is a tag, and
// ?replication_state= is what the member shows of it.
func TestLagAndTags(t *testing.T) {
	shown := seen("pg2", nil)
	shown.LastLSN, shown.Server.Reached.LSN = 10<<20, 9<<20
	s := newSite(shown)
	for path, want := range map[string]bool{"/replica": true, "/replica?lag=1048576": true, "/replica?lag=1MB": true,
		"/replica?lag=1048575": false, "/replica?lag=1023kB": false, "/replica?lag=0.5MB": false,
		"/replica?lag=1GB":  true,
		"/replica?lag=much": true, "/replica?lag=0": false, "/read-only?lag=0": false, "/sync?lag=0": false,
		"/replica?tag_nosync=true": true, "/replica?tag_nosync=false": false, "/replica?tag_x=1": false,
		"/readiness": true, "/readiness?lag=100": false, "/replica?replication_state=streaming": true,
		"/replica?replication_state=in%20archive%20recovery": false} {
		if got := s.code(path); got != code(want) {
			t.Errorf("%s: %d, want %d", path, got, code(want))
		}
	}
	s.details = &server.Details{At: boottime.Now(), Received: 10 << 20, Replayed: 9 << 20, PrimaryEnd: 12 << 20}
	for path, want := range map[string]bool{"/replica?lag=2MB": false, "/replica?lag=3MB": true,
		"/readiness?lag=2MB&mode=write": true, "/readiness?lag=2MB&mode=apply": false} {
		if got := s.code(path); got != code(want) {
			t.Errorf("%s, with what the walreceiver knows: %d, want %d", path, got, code(want))
		}
	}
	s = newSite(seen("pg2", nil))
	s.shown.Server.Follows = false
	for path, want := range map[string]bool{"/replica": true, "/replica?replication_state=streaming": false,
		"/read-only?replication_state=streaming": false, "/sync?replication_state=streaming": false} {
		if got := s.code(path); got != code(want) {
			t.Errorf("%s of a standby that is cut off: %d, want %d", path, got, code(want))
		}
	}
}

// TestLiveness is about the member's loop, and nothing else.
func TestLiveness(t *testing.T) {
	for name, x := range map[string]struct {
		silent time.Duration
		paused bool
		want   bool
	}{"a loop that runs": {0, false, true}, "a loop that hangs": {time.Minute, false, false},
		"a loop that hangs in a pause": {time.Minute, true, true}} {
		shown := seen("pg2", nil)
		shown.At -= x.silent
		if x.paused {
			shown.Record.Paused = &core.Pause{By: "anna"}
		}
		if got := newSite(shown).code("/liveness"); got != code(x.want) {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// TestStatus is what GET /patroni tells, by the names of Patroni.
func TestStatus(t *testing.T) {
	term := leads(t, memstore.New(memstore.Options{}), "pg1")
	read := func(s *site) (got map[string]any) {
		t.Helper()
		code, body := s.asks(http.MethodGet, "/patroni", "", here)
		if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
			t.Fatalf("%d %s: %v", code, body, err)
		}
		return got
	}
	s := newSite(seen("pg1", term))
	s.details = &server.Details{At: boottime.Now(), Primary: true, Version: 150018, Started: time.Unix(1, 5000).UTC()}
	s.shown.Pending = "max_connections"
	got := read(s)
	for key, want := range map[string]any{"state": "running", "role": "primary", "server_version": 150018.0,
		"timeline": 3.0, "pending_restart": true, "database_system_identifier": "77",
		"postmaster_start_time": "1970-01-01 00:00:01.000005+00:00"} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	if x, _ := got["xlog"].(map[string]any); x["location"] != 1000.0 {
		t.Errorf("xlog is %v", got["xlog"])
	}
	resign(t, term)
	if got := read(s); got["role"] != "demoted" {
		t.Errorf("after the term the role is %v", got["role"])
	}
	got = read(newSite(seen("pg2", nil)))
	if x, _ := got["xlog"].(map[string]any); got["role"] != "replica" || got["sync_standby"] != true ||
		got["replication_state"] != "streaming" || x["replayed_location"] != 900.0 || x["received_location"] != 1000.0 {
		t.Errorf("a standby: %v", got)
	}
	task := seen("pg2", nil)
	task.Instructions = &core.Instructions{Members: map[string]core.Task{
		"pg2": {Seq: 1, What: core.TaskReinit, Life: "b"}}}
	if got := read(newSite(task)); got["state"] != "creating replica" {
		t.Errorf("a member that is to be made anew is %v", got["state"])
	}
}
