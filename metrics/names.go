package metrics

import "github.com/prometheus/client_golang/prometheus"

// family is one metric: what docs/metrics.md, the rules and the dashboard are held to.
type family struct {
	name, kind string // kind: gauge, counter or histogram
	labels     []string
	help       string
	desc       *prometheus.Desc
}

func newFamily(name, kind, help string, labels ...string) *family {
	return &family{name, kind, labels, help, prometheus.NewDesc(name, help, labels, nil)}
}

func (f *family) number(v float64, labels ...string) prometheus.Metric {
	if f.kind == "counter" {
		return prometheus.MustNewConstMetric(f.desc, prometheus.CounterValue, v, labels...)
	}
	return prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, v, labels...)
}

func (f *family) histogram(h *histogram, b *bounds, labels ...string) prometheus.Metric {
	count, buckets := h.snapshot(b)
	return prometheus.MustNewConstHistogram(f.desc, count, h.sum.Seconds(), buckets, labels...)
}

var (
	isLeader = newFamily("primacy_is_leader", "gauge",
		"1 while this process leads the election by its own clock, read at the scrape; 0 while it waits in its queue.", "election")
	termInfo = newFamily("primacy_term_info", "gauge",
		"1 for each term of this process that is not over; gone when it is.", "election", "id", "token")
	leaseRemaining = newFamily("primacy_lease_remaining_seconds", "gauge",
		"Time until this process must not lead any more unless its lease is renewed, 0 once its term is over.", "election")
	leaseTTL = newFamily("primacy_lease_ttl_seconds", "gauge",
		"Time to live of the lease under which this process leads, as the store granted it.", "election")
	renewDuration = newFamily("primacy_renew_duration_seconds", "histogram",
		"How long the renewals took that the store accepted, while this process stood for the election or led it.", "election")
	renewalsTotal = newFamily("primacy_renewals_total", "counter",
		"Renewals of the lease while this process stood for the election or led it; late: without an answer in the time of one attempt.", "election", "result")
	transitions = newFamily("primacy_transitions_total", "counter",
		"Terms of this process that began (to=\"leader\") and that ended (to=\"follower\"), and why.", "election", "to", "reason")
	handoverGap = newFamily("primacy_handover_gap_seconds", "histogram",
		"Time from the end of the term before to the beginning of a term of this process, as the history has it.", "election")
	acquireWait = newFamily("primacy_acquire_wait_seconds", "histogram",
		"How long this process waited for a term that it won.", "election")
	overruns = newFamily("primacy_overruns_total", "counter",
		"Work that was still running though its right to run was over: only a fence keeps it from acting beside the next leader.", "election")
	candidates = newFamily("primacy_candidates", "gauge",
		"The leader and those who wait in the queue, at the last look that an observer had at the store.", "election")
	stopDuration = newFamily("primacy_stop_duration_seconds", "histogram",
		"Time from telling the work of a term to stop until it had; kill: it had to be killed.", "election", "how")
	storeUp = newFamily("primacy_store_up", "gauge",
		"1 if the store accepted the last renewal or grant of a lease, 0 if it did not answer or failed.", "store")
	storeErrors = newFamily("primacy_store_errors_total", "counter",
		"Renewals and grants of a lease that the store failed or did not answer in time.", "store")
	clockJump = newFamily("primacy_clock_jump_seconds_total", "counter",
		"Time for which this process did not run at all, or came late by more than half a second: frozen, suspended, or starved of CPU.")
	buildInfo = newFamily("primacy_build_info", "gauge",
		"1, with the version of Primacy and of Go.", "version", "goversion")
	elections = newFamily("primacy_elections", "gauge",
		"Elections that this process leads, and those it waits for, with series of their own or without.", "state")
	eventsLost = newFamily("primacy_events_lost_total", "counter",
		"What happened to the session and was counted nowhere, because this exporter did not run.")
	cronRuns = newFamily("primacy_cron_runs_total", "counter",
		"Instants of a cron job that this process looked at, by what became of them.", "cronjob", "result")
	historyTerms = newFamily("primacy_history_terms_total", "counter",
		"Terms of the election that ended, of all processes, as the history in the store has them. "+
			"A term counts as unknown if nobody had written its end when the next one began; "+
			"an end that is written later is in History only.", "election", "reason")
	electionPaused = newFamily("primacy_election_paused_seconds", "gauge",
		"For how long an operator has paused the election, at the last look; gone while nobody has.",
		"election")
	healthy = newFamily("primacy_healthy", "gauge",
		"1 if this process is healthy by its own check, 0 if not; gone before the first change, and without a check.",
		"id")
	masterStatus = newFamily("leader_election_master_status", "gauge",
		"What client-go calls primacy_is_leader.", "name")
)

// families are all that a Collector exposes, in the order of docs/metrics.md. masterStatus is there only by option, cronRuns is that of CronRuns.
var families = []*family{
	isLeader, termInfo, leaseRemaining, leaseTTL, renewDuration, renewalsTotal, transitions, handoverGap, acquireWait, overruns,
	candidates, stopDuration, storeUp, storeErrors, clockJump, buildInfo, elections, eventsLost, historyTerms,
	electionPaused, healthy,
}
