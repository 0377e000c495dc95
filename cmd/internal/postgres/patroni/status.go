package patroni

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/boottime"
)

// Compatible is the version of Patroni whose keys and answers these are. Tools read it.
const Compatible = "4.1.0"

// Member is what is shown. *agent.Agent is one.
type Member interface {
	Snapshot() *agent.Snapshot // nil: it has not begun
	Details() *server.Details  // nil: not known
	Reload(ctx context.Context) error
}

// Patroni's words for what a server does.
const (
	stateRunning  = "running"
	stateStarting = "starting"
	stateStopped  = "stopped"
	stateInitdb   = "initializing new cluster"
	stateCreating = "creating replica"
	stateFailed   = "start failed"
	stateUnknown  = "unknown"
)

const (
	rolePrimary = "primary"
	roleReplica = "replica"
	// A server that is out of recovery, without the right to be.
	roleDemoted = "demoted"
)

// view is a snapshot with what Patroni would say of it.
type view struct {
	*agent.Snapshot
	details     *server.Details // nil: not known, or too old
	leads       bool
	state, role string
}

// look reads a member. Leadership is asked of the clock, now.
func look(m Member) view {
	s := m.Snapshot()
	if s == nil {
		s = &agent.Snapshot{Runs: func() bool { return false }}
	}
	v := view{Snapshot: s, leads: s.Leads(), role: roleReplica}
	if d := m.Details(); d != nil && boottime.Now()-d.At < s.LoopWait+3*time.Second && d.Primary == s.Server.Primary {
		v.details = d
	}
	if v.state = v.stateOf(); v.running() {
		switch {
		case v.leads || s.Server.Primary && v.paused():
			v.role = rolePrimary
		case s.Server.Primary:
			v.role = roleDemoted
		}
	}
	return v
}

func (v view) running() bool { return v.state == stateRunning }
func (v view) paused() bool  { return v.Record != nil && v.Record.Paused != nil }

func (v view) stateOf() string {
	task := v.Task()
	reinit := task != nil && task.What == core.TaskReinit
	switch {
	case v.Server.Running && v.Runs():
		switch {
		case reinit: // who waits for the end of it must not take the old data for the new
			return stateCreating
		case !v.Up:
			return stateStarting
		case !v.Fresh() || v.Server.Hung:
			return stateUnknown
		}
		return stateRunning
	case v.Phase == core.PhaseBroken:
		return stateFailed
	case reinit, v.Phase == core.PhaseEmpty, v.Phase == core.PhaseRejoining, v.Server.Data != core.DataReady:
		if v.Record == nil {
			return stateInitdb
		}
		return stateCreating
	}
	return stateStopped
}

// votes says whether commits wait for this member.
func (v view) votes() bool {
	return v.Record != nil && v.Record.Durability != core.Async && slices.Contains(v.Record.Voters,
		core.Identity{Name: v.Name, Incarnation: v.State.Incarnation})
}

// store says whether the store has answered lately.
func (v view) store() bool {
	return v.StoreSeen != 0 && boottime.Now()-v.StoreSeen < max(v.TTL, 3*v.LoopWait)
}

// received and replayed are where the WAL of a standby ends.
func (v view) received() core.LSN {
	if v.details != nil && v.details.Received != 0 {
		return v.details.Received
	}
	return max(v.Position.LSN, v.replayed())
}

func (v view) replayed() core.LSN {
	if v.details != nil {
		return max(v.details.Replayed, v.Server.Reached.LSN)
	}
	return v.Server.Reached.LSN
}

// written is where the WAL of a primary ends.
func (v view) written() core.LSN { return max(v.Server.LSN, v.Position.LSN) }

// primaryEnd is where the primary's WAL ended when this standby last heard of it.
func (v view) primaryEnd() core.LSN {
	if v.details != nil {
		return max(v.LastLSN, v.details.PrimaryEnd)
	}
	return v.LastLSN
}

// streaming says whether WAL comes in.
func (v view) streaming() bool { return v.Server.Follows || v.details != nil && v.details.Streams }

// replication is that in Patroni's word, empty where none does.
func (v view) replication() string {
	if v.streaming() {
		return "streaming"
	}
	return ""
}

func (v view) pendingRestart() bool { return v.Pending != "" }

// seen is when the store last answered, by the wall clock.
func (v view) seen() time.Time {
	if v.StoreSeen == 0 {
		return time.Time{}
	}
	return time.Now().Add(v.StoreSeen - boottime.Now())
}

// stamp writes a time as Patroni does.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000000-07:00") }

// xlog is where a server's WAL is.
type xlog struct {
	Location   *core64 `json:"location,omitempty"` // of a primary
	Received   *core64 `json:"received_location,omitempty"`
	Replayed   *core64 `json:"replayed_location,omitempty"`
	ReplayedAt *string `json:"replayed_timestamp,omitempty"`
	Paused     *bool   `json:"paused,omitempty"`
}

// core64 is an LSN as Patroni writes it: a number.
type core64 uint64

func number(l core.LSN) *core64 { n := core64(l); return &n }

// status is the body of most answers, by the names of Patroni.
type status struct {
	State            string                 `json:"state"`
	Started          string                 `json:"postmaster_start_time,omitempty"`
	Role             string                 `json:"role"`
	ServerVersion    int                    `json:"server_version,omitempty"`
	Xlog             *xlog                  `json:"xlog,omitempty"`
	SyncStandby      bool                   `json:"sync_standby,omitempty"`
	QuorumStandby    bool                   `json:"quorum_standby,omitempty"`
	Timeline         core.Timeline          `json:"timeline,omitempty"`
	ReplicationState string                 `json:"replication_state,omitempty"`
	Replication      []server.SenderDetails `json:"replication,omitempty"`
	Unlocked         bool                   `json:"cluster_unlocked,omitempty"`
	Pause            bool                   `json:"pause,omitempty"`
	LastSeen         int64                  `json:"dcs_last_seen"`
	Tags             map[string]any         `json:"tags,omitempty"`
	SystemID         string                 `json:"database_system_identifier,omitempty"`
	PendingRestart   bool                   `json:"pending_restart,omitempty"`
	ScheduledRestart map[string]any         `json:"scheduled_restart,omitempty"`
	Patroni          identity               `json:"patroni"`
	// What Patroni does not have: in words, why a member does no more.
	Why string `json:"primacy_why,omitempty"`
}

type identity struct {
	Version string `json:"version"`
	Scope   string `json:"scope"`
	Name    string `json:"name"`
}

// status says how the member is.
func (c Config) status(v view) status {
	s := status{State: v.state, Role: v.role, Timeline: v.Position.Timeline, Tags: c.Tags, Pause: v.paused(),
		Unlocked: !v.locked(), SystemID: v.State.SystemID, PendingRestart: v.pendingRestart(), Why: v.Why,
		Patroni: identity{Compatible, c.Scope, c.Name}, ScheduledRestart: c.Restarts.shown()}
	delete(s.ScheduledRestart, "postmaster_start_time") // the key alone has it
	if seen := v.seen(); !seen.IsZero() {
		s.LastSeen = seen.Unix()
	}
	if !v.running() {
		return s
	}
	if v.details != nil {
		s.Started, s.ServerVersion, s.Replication = stamp(v.details.Started), v.details.Version, v.details.Senders
	}
	if v.Server.Primary {
		s.Xlog = &xlog{Location: number(v.written())}
		return s
	}
	s.Xlog = &xlog{Received: number(v.received()), Replayed: number(v.replayed())}
	if v.details != nil {
		s.Xlog.Paused = &v.details.Paused
		if at := v.details.ReplayedAt; !at.IsZero() {
			text := stamp(at)
			s.Xlog.ReplayedAt = &text
		}
	}
	s.SyncStandby, s.QuorumStandby = v.votes(), v.votes()
	s.ReplicationState = v.replication()
	return s
}

// locked says whether somebody leads, as far as is known.
func (v view) locked() bool { return v.store() && v.Line != nil && v.Line.Leader != "" }

// Config is how one member is shown.
type Config struct {
	Dir     string // of the keys in etcd; ends in "/"
	Scope   string // the cluster's name
	Name    string // the member's
	Address string // of its PostgreSQL, HOST:PORT
	URL     string // of its API; empty: it has none
	Tags    map[string]any
	// What is scheduled for this member. Nil in what neither writes nor shows that.
	Restarts *Restarts
}

// connURL is how others reach the member's PostgreSQL.
func (c Config) connURL() string {
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return ""
	}
	return "postgres://" + net.JoinHostPort(host, port) + "/postgres"
}
