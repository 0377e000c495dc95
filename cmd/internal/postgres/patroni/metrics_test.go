package patroni

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/memstore"
)

// TestMetrics: by Patroni's names and ours, what a snapshot says now. A path that is no text ends
// nothing.
func TestMetrics(t *testing.T) {
	term := leads(t, memstore.New(memstore.Options{}), "pg1")
	m := &still{shown: seen("pg1", term)}
	m.shown.Server.Waiting = 1500 * time.Millisecond
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(Figures{of("pg1"), m})
	want := func(name, value string) {
		t.Helper()
		metrics, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range metrics {
			if f.GetName() != name {
				continue
			}
			line := f.GetMetric()[0].String()
			if !strings.Contains(line, "value:"+value+"}") || !strings.Contains(line, `value:"orders"`) {
				t.Errorf("%s is %s, want %s", name, line, value)
			}
			return
		}
		t.Errorf("there is no %s", name)
	}
	for name, value := range map[string]string{"patroni_primary": "1", "patroni_master": "1", "patroni_replica": "0",
		"patroni_postgres_running": "1", "patroni_xlog_location": "1000", "patroni_xlog_replayed_location": "0",
		"patroni_postgres_timeline": "3", "patroni_cluster_unlocked": "0", "patroni_is_paused": "0",
		"patroni_version": "40100", "patroni_sync_standby": "0", "primacy_postgres_voters": "1",
		"primacy_postgres_acks_needed": "1", "primacy_postgres_seals_needed": "1",
		"primacy_postgres_sync_waiting_seconds": "1.5"} {
		want(name, value)
	}
	if n := testutil.CollectAndCount(Figures{of("pg1"), m}, "primacy_postgres_state"); n != len(phases) {
		t.Errorf("%d states", n)
	}
	m.shown.Tally = agent.Tally{Seals: 4, Follows: 1, Rewinds: 2, Clones: 3, Switchover: 300 * time.Millisecond,
		Failover: 3500 * time.Millisecond}
	m.shown.Discarded = 512
	want("primacy_postgres_seals_total", "4")
	want("primacy_postgres_discarded_bytes_total", "512")
	labelled := func(name, kind string, lines ...string) {
		t.Helper()
		want := ""
		for _, x := range oursLabelled {
			if x.name == name && len(lines) > 0 {
				want = "# HELP " + name + " " + x.help + "\n# TYPE " + name + " " + kind + "\n"
			}
		}
		for _, l := range lines {
			want += name + strings.Replace(l, "...", `name="pg1",scope="orders"`, 1) + "\n"
		}
		if err := testutil.GatherAndCompare(r, strings.NewReader(want), name); err != nil {
			t.Error(err)
		}
	}
	labelled("primacy_postgres_failover_seconds", "gauge", `{kind="failover",...} 3.5`,
		`{kind="switchover",...} 0.3`)
	labelled("primacy_postgres_rejoins_total", "counter", `{how="clone",...} 3`, `{how="follow",...} 1`,
		`{how="rewind",...} 2`)
	labelled("primacy_postgres_overridden_setting", "gauge")
	m.shown.Overridden = []server.Override{{Name: "work_mem", Source: "postgresql.auto.conf:3"}}
	labelled("primacy_postgres_overridden_setting", "gauge", `{...,setting="work_mem"} 1`)
	labelled("primacy_postgres_disk_full", "gauge")
	m.shown.Full = []string{"/data", "/wal"}
	labelled("primacy_postgres_disk_full", "gauge", `{directory="/data",...} 1`, `{directory="/wal",...} 1`)
	m.shown.Overridden = nil
	labelled("primacy_postgres_overridden_setting", "gauge")
	m.shown.Full = []string{"/mnt/donn\xe9es", "/mnt/donn\xeaes"} // as Latin-1 writes them
	labelled("primacy_postgres_disk_full", "gauge", "{directory=\"/mnt/donn\uFFFDes\",...} 1")
	resign(t, term)
	want("patroni_primary", "0")
	m.shown = seen("pg2", nil)
	m.details = &server.Details{At: boottime.Now(), Received: 1000, Replayed: 900, Version: 150018}
	m.shown.Pending = "max_connections"
	for name, value := range map[string]string{"patroni_primary": "0", "patroni_replica": "1",
		"patroni_sync_standby":           "1",
		"patroni_xlog_received_location": "1000", "patroni_xlog_replayed_location": "900",
		"patroni_pending_restart":         "1",
		"patroni_postgres_server_version": "150018", "patroni_postgres_streaming": "1",
		"primacy_postgres_replay_backlog_bytes": "100"} {
		want(name, value)
	}
}
