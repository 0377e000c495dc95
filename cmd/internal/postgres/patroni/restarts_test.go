package patroni

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/boottime"
)

// scheduled is a standby whose API is asked for restarts, in the time of the test.
type scheduled struct {
	*testing.T
	*site
	started time.Time // of its postmaster
	mu      sync.Mutex
}

// Snapshot implements [Member]. Whoever wakes by the time of a bubble counts as unordered.
func (s *scheduled) Snapshot() *agent.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown
}

func (s *scheduled) Details() *server.Details {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.details
}

// inBubble runs f with a member whose restarts are carried out.
func inBubble(t *testing.T, f func(s *scheduled)) {
	synctest.Test(t, func(t *testing.T) {
		s := &scheduled{T: t, site: newSite(nil), started: time.Now().Add(-time.Hour)}
		s.API.Member, s.Restarts.Member = s, s
		s.is(func() {})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Restarts.Run(ctx); close(done) }()
		f(s)
		cancel()
		<-done
	})
}

// is changes what the member is, and shows it as it was seen just now.
func (s *scheduled) is(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = seen("pg2", nil)
	s.details = &server.Details{Version: 150018, Received: 1000, Replayed: 1000, Started: s.started,
		At: boottime.Now()}
	change()
}

// later asks for a restart after d, with these filters.
func (s *scheduled) later(d time.Duration, filters string, want int) {
	s.Helper()
	body := `{"schedule":"` + time.Now().Add(d).Format(time.RFC3339Nano) + `"` + filters + `}`
	if code, words := s.asks(http.MethodPost, "/restart", body, here); code != want {
		s.Errorf("a restart in %v %s: %d %s, want %d", d, filters, code, words, want)
	}
}

// after lets so much time go by, and looks what was asked for until then.
func (s *scheduled) after(d time.Duration, want ...string) {
	s.Helper()
	time.Sleep(d) // the time of the bubble
	synctest.Wait()
	s.verbs.mu.Lock()
	defer s.verbs.mu.Unlock()
	if !slices.Equal(s.verbs.asked, want) {
		s.Errorf("asked for %q, want %q", s.verbs.asked, want)
	}
}

func (s *scheduled) kept(want bool) {
	s.Helper()
	_, patroni := s.asks(http.MethodGet, "/patroni", "", here)
	m := &Mirror{Config: s.API.Config}
	key, _ := json.Marshal(m.memberKey(look(s)))
	for what, text := range map[string]string{"/patroni": patroni, "the key": string(key)} {
		if strings.Contains(text, `"scheduled_restart":{`) != want {
			s.Errorf("%s says %s, want a scheduled restart: %v", what, text, want)
		}
	}
}

// TestARestartIsDoneWhenItIsDue, once, and not before.
func TestARestartIsDoneWhenItIsDue(t *testing.T) {
	inBubble(t, func(s *scheduled) {
		s.kept(false)
		s.later(time.Hour, `,"role":"replica","postgres_version":"15.19","timeout":"60s"`, 202)
		s.kept(true)
		s.later(time.Minute, "", 409)
		s.after(time.Hour - time.Millisecond)
		s.after(time.Millisecond, "restart")
		s.kept(false)
		s.after(time.Hour, "restart")
		s.later(time.Minute, "", 202)
		s.after(time.Minute, "restart", "restart")
	})
}

// TestAScheduledRestartIsShownAsPatroniDoes: who reads the member's key finds when and what for.
func TestAScheduledRestartIsShownAsPatroniDoes(t *testing.T) {
	s := newSite(seen("pg2", nil))
	s.details = &server.Details{At: boottime.Now(), Version: 150018,
		Started: time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)}
	if code, words := s.asks(http.MethodPost, "/restart",
		`{"schedule":"2100-01-02T03:04:05.5+01:00","role":"replica","restart_pending":true}`, here); code != 202 {
		t.Fatalf("%d %s", code, words)
	}
	const key = `{"postmaster_start_time":"2030-01-02 03:04:05.000006+00:00","restart_pending":true,"role":"replica",` +
		`"schedule":"2100-01-02T03:04:05.5+01:00"}`
	m := &Mirror{Config: s.API.Config}
	k := m.memberKey(look(s.still))
	if text, _ := json.Marshal(k.ScheduledRestart); string(text) != key {
		t.Errorf("the key says %s, want %s", text, key)
	}
	if text, _ := json.Marshal(s.status(look(s.still)).ScheduledRestart); strings.Contains(string(text), "postmaster") {
		t.Errorf("/patroni says %s", text)
	}
	value, _ := json.Marshal(k)
	s.API.Keys = &table{keys: map[string]string{"/service/orders/members/pg2": string(value)}}
	if _, text := s.asks(http.MethodGet, "/cluster", "", here); !strings.Contains(text, `"scheduled_restart":`+key) {
		t.Errorf("/cluster says %s", text)
	}
}

// TestAScheduledRestartIsDropped where it would not do any more what somebody has asked for.
func TestAScheduledRestartIsDropped(t *testing.T) {
	due := 10 * time.Minute
	for _, x := range []struct {
		name, filters string
		is            func(s *scheduled)
		wait          time.Duration // after it was due
		done          bool
	}{
		{"all is as it was", "", func(*scheduled) {}, 0, true},
		{"the server was restarted meanwhile", "", func(s *scheduled) {
			s.details.Started = s.started.Add(time.Minute)
		}, 0, false},
		{"another role", `,"role":"primary"`, func(*scheduled) {}, 0, false},
		{"that role", `,"role":"replica"`, func(*scheduled) {}, 0, true},
		{"nothing is pending", `,"restart_pending":true`, func(*scheduled) {}, 0, false},
		{"nothing is pending, as a word", `,"restart_pending":"True"`, func(*scheduled) {}, 0, false},
		{"a restart is pending", `,"restart_pending":true`, func(s *scheduled) { s.shown.Pending = "jit" }, 0, true},
		{"a new release", `,"postgres_version":"15.18"`, func(*scheduled) {}, 0, false},
		{"an old release", `,"postgres_version":"15.19"`, func(*scheduled) {}, 0, true},
		{"paused for long", "",
			func(s *scheduled) { s.shown.Record.Paused = &core.Pause{} }, stale + 2*time.Second, false},
		{"down for long", "", func(s *scheduled) { s.details = nil; s.shown.Up = false }, stale + 2*time.Second, false},
		{"nobody leads for long", "", func(s *scheduled) { s.shown.Line.Leader = "" }, stale + 2*time.Second, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			inBubble(t, func(s *scheduled) {
				s.later(due, x.filters, 202)
				s.after(due / 2)
				s.is(func() { x.is(s) })
				want := []string{"restart"}[:map[bool]int{true: 1}[x.done]]
				s.after(due/2+x.wait, want...)
				s.is(func() {})
				s.after(due, want...) // it is not kept for another day
				s.kept(false)
			})
		})
	}
}

// TestAScheduledRestartWaits for what passes: a pause that ends soon, and a server that is heard
// again.
func TestAScheduledRestartWaits(t *testing.T) {
	for name, is := range map[string]func(s *scheduled){
		"a pause":          func(s *scheduled) { s.shown.Record.Paused = &core.Pause{} },
		"nobody leads":     func(s *scheduled) { s.shown.Line.Leader = "" },
		"nothing is known": func(s *scheduled) { s.details = nil },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *scheduled) {
				s.later(time.Minute, "", 202)
				s.is(func() { is(s) })
				s.after(time.Minute + stale/2)
				s.is(func() {})
				s.after(2*time.Second, "restart")
			})
		})
	}
}

// TestScheduledRestartsAreRefusedAndDeleted: in a pause none is taken, and DELETE removes the one
// that is kept.
func TestScheduledRestartsAreRefusedAndDeleted(t *testing.T) {
	inBubble(t, func(s *scheduled) {
		s.is(func() { s.shown.Record.Paused = &core.Pause{} })
		s.later(time.Minute, "", 500)
		s.is(func() {})
		s.later(time.Minute, "", 202)
		for _, want := range []int{200, 404} {
			if code, words := s.asks(http.MethodDelete, "/restart", "", here); code != want {
				t.Errorf("DELETE /restart: %d %s, want %d", code, words, want)
			}
		}
		s.kept(false)
		s.after(time.Hour)
		s.verbs.mu.Lock()
		s.verbs.refuse = errors.New("the store is away")
		s.verbs.mu.Unlock()
		s.later(time.Minute, "", 202)
		s.after(time.Hour, "restart") // once: nobody expects it any more
	})
}

// TestTheTimeoutOfARestart has a unit, as with Patroni: a minute is no second.
func TestTheTimeoutOfARestart(t *testing.T) {
	for text, want := range map[string]time.Duration{`90`: 90 * time.Second, `"90"`: 90 * time.Second,
		`"30s"`: 30 * time.Second, `"1min"`: time.Minute, `"1.5 min"`: 90 * time.Second, `"100ms"`: time.Second / 10,
		`"2h"`: verbLimit, `"1d"`: verbLimit, `null`: 0, `"1m"`: -1, `"5 apples"`: -1, `"0"`: -1, `"-1"`: -1, `""`: -1,
		`"1e400"`: -1, `"1s 2"`: -1} {
		var body map[string]any
		if err := json.Unmarshal([]byte(`{"timeout":`+text+`}`), &body); err != nil {
			t.Fatal(err)
		}
		if r, code, err := parseRestart(body); (err != nil) != (want < 0) || err == nil && r.limit != want ||
			err != nil && code != http.StatusBadRequest {
			t.Errorf("%s: %v, %d %v; want %v", text, r.limit, code, err, want)
		}
	}
}
