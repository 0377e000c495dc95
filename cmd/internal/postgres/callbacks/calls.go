package callbacks

import (
	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// Action is what a callback is called for, by Patroni's name.
type Action string

// The actions.
const (
	OnStart      Action = "on_start"
	OnStop       Action = "on_stop"
	OnRestart    Action = "on_restart"
	OnReload     Action = "on_reload"
	OnRoleChange Action = "on_role_change"
)

// Actions are all of them.
var Actions = []Action{OnStart, OnStop, OnRestart, OnReload, OnRoleChange}

// The roles that a callback is told. Patroni 3 said "master" for the first.
const (
	rolePrimary = "primary"
	roleReplica = "replica"
)

// call is one callback.
type call struct {
	action Action
	role   string
}

// history is what was seen of the server. Its method next turns what is seen now into calls.
type history struct {
	pid        int    // of the server that is up; 0: none is
	role       string // of that one, or of the last one; empty: there was none
	restarting bool   // that one was ended to be started again
	instructed uint64 // the last task that was done while it was up
	reloads    uint64
}

// next returns what has happened since the last snapshot. A snapshot between may have been missed:
// a server is told from the one before by its process.
func (h *history) next(s *agent.Snapshot) (calls []call) {
	if h.pid != 0 && s.PID != h.pid {
		h.pid = 0
		if h.restarting = restart(s) > h.instructed; !h.restarting {
			calls = append(calls, call{OnStop, h.role})
		}
	}
	if s.PID == 0 || !s.Up {
		return calls
	}
	was, role := h.role, roleOf(s)
	h.role, h.instructed = role, s.State.Instructed
	switch {
	case h.pid != 0:
		if role != was {
			calls = append(calls, call{OnRoleChange, role})
		}
		if s.Reloads != h.reloads {
			calls = append(calls, call{OnReload, role})
		}
	case was == rolePrimary && role == roleReplica: // as Patroni: no on_start
		calls = append(calls, call{OnRoleChange, role})
	case h.restarting:
		calls = append(calls, call{OnRestart, role})
	default:
		calls = append(calls, call{OnStart, role})
	}
	h.pid, h.restarting, h.reloads = s.PID, false, s.Reloads
	return calls
}

// end returns what is left to be told when the member has ended: of a server that was to be started
// again, and was not.
func (h *history) end() []call {
	if !h.restarting {
		return nil
	}
	h.restarting = false
	return []call{{OnStop, h.role}}
}

// restart returns the number of the last restart that a person has asked of this member, done or
// not.
func restart(s *agent.Snapshot) uint64 {
	if s.Instructions == nil {
		return 0
	}
	t := s.Instructions.Members[s.Name]
	if t.What != core.TaskRestart || t.Life != s.State.Incarnation {
		return 0
	}
	return t.Seq
}

// roleOf returns the role of a server that is up. One that was promoted by hand is no primary, and
// will be stopped. Nor is one any more that does not end though its term was given up, for its disk
// hangs: another may be promoted. In a pause a primary goes on without a term.
func roleOf(s *agent.Snapshot) string {
	r := s.Record
	if s.Server.Primary && r != nil && (s.Term != nil || r.Paused != nil) &&
		r.Primary == (core.Identity{Name: s.Name, Incarnation: s.State.Incarnation}) {
		return rolePrimary
	}
	return roleReplica
}
