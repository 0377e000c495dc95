package callbacks

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// TestHistory: what a member shows, and what Patroni would call for it.
func TestHistory(t *testing.T) {
	me := core.Identity{Name: "pg1", Incarnation: "a"}
	record := func(primary string) *core.Record {
		return &core.Record{Primary: core.Identity{Name: primary, Incarnation: "a"}}
	}
	standby := agent.Snapshot{Name: me.Name, State: core.State{Incarnation: me.Incarnation}, PID: 7, Up: true,
		Record: record("pg2")}
	primary := standby
	primary.Server.Primary, primary.Term, primary.Record = true, &primacy.Term{}, record("pg1")
	with := func(s agent.Snapshot, change func(*agent.Snapshot)) agent.Snapshot {
		change(&s)
		return s
	}
	none := func(s *agent.Snapshot) { s.PID, s.Up, s.Server.Primary = 0, false, false }
	again := func(s *agent.Snapshot) { s.PID++ }
	starting := func(s *agent.Snapshot) { s.PID++; s.Up, s.Server.Primary = false, false }
	asked := with(standby, func(s *agent.Snapshot) {
		s.Instructions = &core.Instructions{Members: map[string]core.Task{"pg1": {Seq: 5, What: core.TaskRestart,
			Life: "a"}}}
	})
	done := with(asked, func(s *agent.Snapshot) { s.State.Instructed = 5; s.PID++ })
	paused := with(primary, func(s *agent.Snapshot) {
		s.Term, s.Record = nil, record("pg1")
		s.Record.Paused = &core.Pause{}
	})
	by := func(primary string, s agent.Snapshot) agent.Snapshot { // somebody has promoted it by hand
		s.Server.Primary = true
		s.Record = &core.Record{Primary: core.Identity{Name: primary, Incarnation: "a"}, Paused: s.Record.Paused}
		return s
	}
	type seen = []agent.Snapshot
	for name, x := range map[string]struct {
		seen  seen
		calls string
		end   string
	}{
		"a start": {seen{with(standby, none), with(standby, starting), standby},
			"on_start replica", ""},
		"seen twice":              {seen{standby, standby}, "on_start replica", ""},
		"a primary that is there": {seen{primary}, "on_start primary", ""},
		"a promotion":             {seen{standby, primary}, "on_start replica, on_role_change primary", ""},
		"a stop":                  {seen{standby, with(standby, none)}, "on_start replica, on_stop replica", ""},
		"a demotion": {seen{primary, with(primary, none), with(standby, starting), with(standby, again)},
			"on_start primary, on_stop primary, on_role_change replica", ""},
		"a demotion whose middle was missed": {seen{primary, with(standby, again)},
			"on_start primary, on_stop primary, on_role_change replica", ""},
		"a standby that crashed": {seen{standby, with(standby, again)},
			"on_start replica, on_stop replica, on_start replica", ""},
		"a restart": {seen{standby, asked, with(asked, none), with(done, none), done},
			"on_start replica, on_restart replica", ""},
		"a restart that was missed": {seen{standby, done}, "on_start replica, on_restart replica", ""},
		"a restart long ago": {seen{done, with(done, none), done},
			"on_start replica, on_stop replica, on_start replica", ""},
		"a restart of another life": {seen{standby, with(with(asked, none), func(s *agent.Snapshot) {
			s.State.Incarnation = "b"
		})}, "on_start replica, on_stop replica", ""},
		"an end during a restart":       {seen{asked, with(asked, none)}, "on_start replica", "on_stop replica"},
		"promoted by hand":              {seen{standby, by("pg2", standby)}, "on_start replica", ""},
		"promoted by hand in a pause":   {seen{standby, by("pg2", paused)}, "on_start replica", ""},
		"promoted by hand, and no term": {seen{standby, by("pg1", standby)}, "on_start replica", ""},
		"a pause without the store":     {seen{primary, paused}, "on_start primary", ""},
		"a disk that hangs": {seen{primary, with(primary, func(s *agent.Snapshot) { s.Term = nil })},
			"on_start primary, on_role_change replica", ""},
		"a reload": {seen{standby, with(standby, func(s *agent.Snapshot) { s.Reloads++ })},
			"on_start replica, on_reload replica", ""},
		"a reload before": {seen{with(standby, none), with(standby, func(s *agent.Snapshot) { s.Reloads = 3 })},
			"on_start replica", ""},
	} {
		var h history
		var got []string
		text := func(calls []call) (all []string) {
			for _, c := range calls {
				all = append(all, fmt.Sprintf("%s %s", c.action, c.role))
			}
			return all
		}
		for _, s := range x.seen {
			got = slices.Concat(got, text(h.next(&s)))
		}
		if calls, end := strings.Join(got, ", "), strings.Join(text(h.end()), ", "); calls != x.calls || end != x.end {
			t.Errorf("%s: %q, then %q; want %q, then %q", name, calls, end, x.calls, x.end)
		}
	}
}
