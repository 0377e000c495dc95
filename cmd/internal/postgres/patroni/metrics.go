package patroni

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// Figures are a member's metrics: those of Patroni by its names, and ours. They are made from a
// snapshot at each scrape.
type Figures struct {
	Config
	Member Member
}

// figure is one metric. value is asked at each scrape.
type figure struct {
	name, help string
	kind       prometheus.ValueType
	value      func(v view) float64
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// lsn is a position in the WAL, 0 where it is another role's.
func lsn(is func(view) bool, at func(view) core.LSN) func(view) float64 {
	return func(v view) float64 {
		if !v.running() || !is(v) {
			return 0
		}
		return float64(at(v))
	}
}

func outOfRecovery(v view) bool { return v.Server.Primary }
func inRecovery(v view) bool    { return !v.Server.Primary }

// theirs are Patroni's metrics, with its words.
var theirs = []figure{
	{"patroni_version", "Patroni semver without periods: of the Patroni whose layout this is.", prometheus.GaugeValue,
		func(view) float64 { return padded(Compatible) }},
	{"patroni_postgres_running", "Value is 1 if Postgres is running, 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 { return one(v.running()) }},
	{"patroni_postmaster_start_time", "Epoch seconds since Postgres started.", prometheus.GaugeValue,
		func(v view) float64 {
			if v.details == nil {
				return 0
			}
			return float64(v.details.Started.UnixMicro()) / 1e6
		}},
	{"patroni_primary", "Value is 1 if this node is the leader, 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 { return one(v.leads) }},
	{"patroni_master", "Value is 1 if this node is the leader, 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 { return one(v.leads) }},
	{"patroni_xlog_location", "Current location of the Postgres transaction log, 0 if this node is not the leader.",
		prometheus.CounterValue, lsn(outOfRecovery, view.written)},
	{"patroni_standby_leader", "Value is 1 if this node is the standby_leader, 0 otherwise.", prometheus.GaugeValue,
		func(view) float64 { return 0 }},
	{"patroni_replica", "Value is 1 if this node is a replica, 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 { return one(v.role == roleReplica) }},
	{"patroni_sync_standby", "Value is 1 if this node is a sync standby, 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 { return one(inRecovery(v) && v.votes()) }},
	{"patroni_quorum_standby", "Value is 1 if this node is a quorum standby, 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 { return one(inRecovery(v) && v.votes()) }},
	{"patroni_xlog_received_location", "Current location of the received Postgres transaction log, 0 if this node is " +
		"not a replica.", prometheus.CounterValue, lsn(inRecovery, view.received)},
	{"patroni_xlog_replayed_location", "Current location of the replayed Postgres transaction log, 0 if this node is " +
		"not a replica.", prometheus.CounterValue, lsn(inRecovery, view.replayed)},
	{"patroni_xlog_replayed_timestamp", "Current timestamp of the replayed Postgres transaction log, 0 if null.",
		prometheus.GaugeValue, func(v view) float64 {
			if v.details == nil || v.details.ReplayedAt.IsZero() {
				return 0
			}
			return float64(v.details.ReplayedAt.UnixMicro()) / 1e6
		}},
	{"patroni_xlog_paused", "Value is 1 if the Postgres xlog is paused, 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 { return one(v.details != nil && v.details.Paused) }},
	{"patroni_postgres_streaming", "Value is 1 if Postgres is streaming, 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 { return one(v.running() && inRecovery(v) && v.streaming()) }},
	{"patroni_postgres_server_version", "Version of Postgres (if running), 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 {
			if v.details == nil {
				return 0
			}
			return float64(v.details.Version)
		}},
	{"patroni_cluster_unlocked", "Value is 1 if the cluster is unlocked, 0 if locked.", prometheus.GaugeValue,
		func(v view) float64 { return one(!v.locked()) }},
	{"patroni_postgres_timeline", "Postgres timeline of this node (if running), 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 {
			if !v.running() {
				return 0
			}
			return float64(v.Position.Timeline)
		}},
	{"patroni_dcs_last_seen", "Epoch timestamp when DCS was last contacted successfully by Patroni.",
		prometheus.GaugeValue, func(v view) float64 {
			if v.StoreSeen == 0 {
				return 0
			}
			return float64(v.seen().Unix())
		}},
	{"patroni_pending_restart", "Value is 1 if the node needs a restart, 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 { return one(v.pendingRestart()) }},
	{"patroni_is_paused", "Value is 1 if auto failover is disabled, 0 otherwise.", prometheus.GaugeValue,
		func(v view) float64 { return one(v.paused()) }},
}

// ofRecord is a figure of the cluster's record, 0 where there is none.
func ofRecord(of func(core.Record) int) func(view) float64 {
	return func(v view) float64 {
		if v.Record == nil {
			return 0
		}
		return float64(of(*v.Record))
	}
}

// ours are about what Patroni does not have.
var ours = []figure{
	{"primacy_postgres_voters", "Standbys whose answers a failover may count.", prometheus.GaugeValue,
		ofRecord(func(r core.Record) int { return len(r.Voters) })},
	{"primacy_postgres_seals_needed", "Voters that must have answered before a promotion without the last primary. " +
		"More than there are voters: only the present primary can be promoted.", prometheus.GaugeValue,
		ofRecord(func(r core.Record) int { return r.Needed })},
	{"primacy_postgres_acks_needed", "Standbys that must have flushed a commit; 0: it waits for none.",
		prometheus.GaugeValue, ofRecord(func(r core.Record) int {
			if r.Durability == core.Async {
				return 0
			}
			return r.Acks
		})},
	{"primacy_postgres_sync_waiting_seconds", "How long the longest commit has waited for standbys, on the primary.",
		prometheus.GaugeValue, func(v view) float64 { return v.Server.Waiting.Seconds() }},
	{"primacy_postgres_replay_backlog_bytes", "WAL that this standby has received and not replayed: a promotion " +
		"waits for it.", prometheus.GaugeValue, func(v view) float64 {
		if !v.running() || !inRecovery(v) {
			return 0
		}
		return float64(max(v.received(), v.replayed()) - v.replayed())
	}},
	{"primacy_postgres_seals_total", "How often this member has stopped listening to a primary, for a new term.",
		prometheus.CounterValue, func(v view) float64 { return float64(v.Tally.Seals) }},
	{"primacy_postgres_discarded_bytes_total", "WAL with commits that rewinds of this member have discarded, as far " +
		"as it is kept beside the data directory: 'primacy postgres lost' lists it.", prometheus.CounterValue,
		func(v view) float64 { return float64(v.Discarded) }},
}

// labelled is a metric with one label of its own. values is asked at each scrape.
type labelled struct {
	name, help, label string
	kind              prometheus.ValueType
	values            func(v view) map[string]float64
}

// oursLabelled are those about what Patroni does not have.
var oursLabelled = []labelled{
	{"primacy_postgres_state", "What the member does: 1 for one state, 0 for the others.", "state",
		prometheus.GaugeValue, func(v view) map[string]float64 {
			all := map[string]float64{}
			for _, p := range phases {
				all[string(p)] = one(p == v.Phase)
			}
			return all
		}},
	{"primacy_postgres_failover_seconds", "For how long the cluster had no primary before this member was promoted " +
		"last, since its agent began: from the former primary's last sign of life, and so at most. 0: it was not.",
		"kind", prometheus.GaugeValue, func(v view) map[string]float64 {
			return map[string]float64{
				"switchover": v.Tally.Switchover.Seconds(), "failover": v.Tally.Failover.Seconds(),
			}
		}},
	{"primacy_postgres_rejoins_total", "How often this member has begun to follow a primary, by how its data were " +
		"made fit for that.", "how", prometheus.CounterValue, func(v view) map[string]float64 {
		return map[string]float64{"follow": float64(v.Tally.Follows), "rewind": float64(v.Tally.Rewinds),
			"clone": float64(v.Tally.Clones)}
	}},
	{"primacy_postgres_overridden_setting", "1 for each setting that primacy sets and that is in force from " +
		"elsewhere, such as by ALTER SYSTEM.", "setting", prometheus.GaugeValue, func(v view) map[string]float64 {
		all := map[string]float64{}
		for _, o := range v.Overridden {
			all[o.Name] = 1
		}
		return all
	}},
	{"primacy_postgres_disk_full", "1 for each directory of this member whose file system has less than 64 MiB left.",
		"directory", prometheus.GaugeValue, func(v view) map[string]float64 {
			all := map[string]float64{}
			for _, dir := range v.Full {
				all[dir] = 1
			}
			return all
		}},
}

var phases = []core.Phase{core.PhaseEmpty, core.PhaseStopped, core.PhaseSealed, core.PhaseFollowing,
	core.PhaseRejoining, core.PhaseSurveying, core.PhasePromoting, core.PhaseLeading, core.PhasePaused,
	core.PhaseBroken}

// Describe implements [prometheus.Collector].
func (f Figures) Describe(to chan<- *prometheus.Desc) {
	for _, x := range slices.Concat(theirs, ours) {
		to <- f.desc(x.name, x.help)
	}
	for _, x := range oursLabelled { // also those that have no value now
		to <- f.desc(x.name, x.help, x.label)
	}
}

func (f Figures) desc(name, help string, label ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, label, prometheus.Labels{"scope": f.Scope, "name": f.Name})
}

// Collect implements [prometheus.Collector].
func (f Figures) Collect(to chan<- prometheus.Metric) {
	v := look(f.Member)
	for _, x := range slices.Concat(theirs, ours) {
		to <- metric(f.desc(x.name, x.help), x.kind, x.value(v))
	}
	for _, x := range oursLabelled {
		desc, all := f.desc(x.name, x.help, x.label), map[string]float64{}
		for label, value := range x.values(v) { // two paths may be the same label then
			label = strings.ToValidUTF8(label, "\uFFFD")
			all[label] = max(all[label], value)
		}
		for label, value := range all {
			to <- metric(desc, x.kind, value, label)
		}
	}
}

// metric does not panic whatever the labels are: that would end the agent, and with it its server.
func metric(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) prometheus.Metric {
	m, err := prometheus.NewConstMetric(desc, kind, value, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}

// padded writes 4.1.0 as 40100, as Patroni does.
func padded(version string) (n float64) {
	for part := range strings.SplitSeq(version, ".") {
		var x int
		_, _ = fmt.Sscan(part, &x)
		n = n*100 + float64(x)
	}
	return n
}
