package patroni

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// mirrored is the mirror of one member, in a real etcd.
type mirrored struct {
	*testing.T
	*Mirror
	*still
	verbs *verbs
}

func etcdOf(t *testing.T, at string) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: []string{at}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mirrorOf(t *testing.T, st *etcdstore.Store, name string) *mirrored {
	m, v := &still{}, &verbs{done: make(chan string, 9)}
	out := &mirrored{T: t, still: m, verbs: v}
	out.Mirror = &Mirror{Config: of(name), Member: m, Store: st, Keys: st.Raw(), Election: election, Verbs: v,
		Log: slog.New(slog.DiscardHandler)}
	return out
}

// once has the mirror brought up to date.
func (m *mirrored) once() {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), 20*time.Second)
	defer cancel()
	if err := m.Mirror.once(ctx, look(m.still)); err != nil {
		m.Error(err)
	}
}

func (m *mirrored) keys() cluster {
	m.Helper()
	c, err := readCluster(m.Context(), m.Keys, m.Config)
	if err != nil {
		m.Fatal(err)
	}
	return c
}

// put writes a key as patronictl does.
func (m *mirrored) put(name, value string) {
	m.Helper()
	if ok, err := m.Keys.WriteBeside(m.Context(), "", 0, etcdstore.BesideWrite{Key: m.Dir + name,
		Value: []byte(value)}); !ok || err != nil {
		m.Fatal(ok, err)
	}
}

// TestMirror: the keys of a cluster while its primary leads, and that leader is gone when the term
// is, whoever is late.
func TestMirror(t *testing.T) {
	t.Parallel()
	at := etcdtest.Start(t, etcdtest.Options{}).Addr()
	st, other := etcdOf(t, at), etcdOf(t, at)
	one, two := mirrorOf(t, st, "pg1"), mirrorOf(t, other, "pg2")
	term := leads(t, st, "pg1")
	one.shown, two.shown = seen("pg1", term), seen("pg2", nil)
	one.once()
	two.once()
	c := one.keys()
	for key, want := range map[string]string{"leader": "pg1", "initialize": "077",
		"status":  `{"optime":1000,"slots":{"pg2":990}}`,
		"sync":    `{"leader":"pg1","sync_standby":"pg2","quorum":0}`,
		"history": `[[1,800,"born by initdb","","pg1"]]`} {
		if got := c.value(key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	for key, want := range map[string]string{
		"members/pg1": `{"conn_url":"postgres://10.0.0.1:5432/postgres","api_url":"http://10.0.0.1:8008/patroni",` +
			`"state":"running",` +
			`"role":"primary","version":"4.1.0","tags":{"nosync":true},"xlog_location":1000,"timeline":3}`,
		"members/pg2": `{"conn_url":"postgres://10.0.0.1:5432/postgres","api_url":"http://10.0.0.1:8008/patroni",` +
			`"state":"running",` +
			`"role":"replica","version":"4.1.0","tags":{"nosync":true},"xlog_location":1000,"receive_lsn":1000,` +
			`"replay_lsn":900,` +
			`"replication_state":"streaming","timeline":3}`} {
		if got := c.value(key); got != want {
			t.Errorf("%s is\n%s, want\n%s", key, got, want)
		}
	}

	// The term is over, and the mirror of its holder has not noticed yet.
	late := *one.Mirror
	resign(t, term)
	one.once()
	if is := one.keys().value("leader"); is != "" {
		t.Errorf("after the term leader is %s", is)
	}
	next := leads(t, other, "pg2")
	two.shown = seen("pg2", next)
	two.once()
	if err := late.lead(t.Context(), c, view{Snapshot: seen("pg1", term), leads: true}); err != nil {
		t.Error(err)
	}
	if is := two.keys().value("leader"); is != "pg2" {
		t.Errorf("a write under the former term has made %q the leader", is)
	}
	one.once()
	if is := two.keys().value("leader"); is != "pg2" {
		t.Errorf("the former leader has taken the key of the next away: %q", is)
	}

	// The agent is gone, and its guardian ends the lease: nobody removes the key.
	if err := other.Revoke(t.Context(), next.Lease()); err != nil {
		t.Fatal(err)
	}
	if is := one.keys().value("leader"); is != "" {
		t.Errorf("leader outlives the lease of the term: %q", is)
	}
	if err := two.Mirror.lease.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if is := one.keys().value("members/pg2"); is != "" {
		t.Errorf("the key of a member outlives its lease: %q", is)
	}
	two.shown = seen("pg2", nil)
	if two.once(); one.keys().value("members/pg2") == "" {
		t.Error("a member whose lease ended has no key any more")
	}
}

// TestLeaderNamesNobodyBetweenTwo: also where the former primary's mirror was too slow to remove
// the key. A vip-manager that reads of both at once gives the address to two.
func TestLeaderNamesNobodyBetweenTwo(t *testing.T) {
	t.Parallel()
	at := etcdtest.Start(t, etcdtest.Options{}).Addr()
	st := etcdOf(t, at)
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{at}, DialTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	m := mirrorOf(t, st, "pg2")
	m.put("leader", "pg1")
	m.shown = seen("pg2", leads(t, st, "pg2"))
	is, err := cli.Get(t.Context(), m.Dir+"leader")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	events := cli.Watch(ctx, m.Dir+"leader", clientv3.WithRev(is.Header.Revision+1))
	began := time.Now()
	m.once()
	took := time.Since(began)
	var got []string
	for len(got) < 2 {
		resp, ok := <-events
		if !ok {
			break
		}
		for _, e := range resp.Events {
			got = append(got, string(e.Kv.Value))
		}
	}
	if !slices.Equal(got, []string{"", "pg2"}) || took < apart {
		t.Errorf("after pg1 leader is %q, within %v", got, took)
	}
	m.once()
	if is := m.keys().value("leader"); is != "pg2" {
		t.Errorf("then leader is %q", is)
	}
}

// TestAnotherClustersKeysAreLeftAlone: a Patroni keeps a cluster of the same name there.
func TestAnotherClustersKeysAreLeftAlone(t *testing.T) {
	t.Parallel()
	st := etcdOf(t, etcdtest.Start(t, etcdtest.Options{}).Addr())
	m := mirrorOf(t, st, "pg1")
	m.shown = seen("pg1", leads(t, st, "pg1"))
	m.put("initialize", "4711")
	m.put("leader", "theirs")
	m.once()
	if c := m.keys(); len(c.keys) != 2 || c.value("leader") != "theirs" {
		t.Errorf("got %v", c.keys)
	}
}

// TestRequests: what a tool writes into the key failover is done once, with the checks, or dropped;
// the key goes first.
func TestRequests(t *testing.T) {
	t.Parallel()
	st := etcdOf(t, etcdtest.Start(t, etcdtest.Options{}).Addr())
	m := mirrorOf(t, st, "pg1")
	term := leads(t, st, "pg1")
	later, past := time.Now().Add(time.Hour).Format(time.RFC3339), time.Now().Add(-time.Hour).Format(time.RFC3339)
	for _, x := range []struct {
		name, value string
		phase       core.Phase
		asked       string
		stays       bool
	}{
		{"a switchover", `{"leader":"pg1","member":"pg2"}`, core.PhaseLeading, "switchover pg2", false},
		{"to anybody", `{"leader":"pg1"}`, core.PhaseLeading, "switchover ", false},
		{"a failover", `{"member":"pg2"}`, core.PhaseLeading, "switchover pg2", false},
		{"in the old form", `pg1:pg2`, core.PhaseLeading, "switchover pg2", false},
		{"of another leader", `{"leader":"pg3","member":"pg2"}`, core.PhaseLeading, "", false},
		{"to who leads", `{"member":"pg1"}`, core.PhaseLeading, "", false},
		{"nothing", `{}`, core.PhaseLeading, "", true},
		{"what is no request", `{"leader":`, core.PhaseLeading, "", false},
		{"for later", `{"leader":"pg1","scheduled_at":"` + later + `"}`, core.PhaseLeading, "", true},
		{"for when nobody led", `{"leader":"pg1","scheduled_at":"` + past + `"}`, core.PhaseLeading, "", false},
		{"for no time", `{"leader":"pg1","scheduled_at":"soon"}`, core.PhaseLeading, "", false},
		{"without a primary", `{"member":"pg2"}`, core.PhaseSurveying, "", false},
		{"in a promotion", `{"member":"pg2"}`, core.PhasePromoting, "", true},
	} {
		m.shown, m.verbs.asked = seen("pg1", term), nil
		m.shown.Phase, m.shown.Server.Primary = x.phase, x.phase == core.PhaseLeading
		m.put("failover", x.value)
		m.once()
		if x.asked != "" {
			if got := <-m.verbs.done; got != x.asked {
				t.Errorf("%s: asked for %q, want %q", x.name, got, x.asked)
			}
		}
		if is := m.keys().value("failover"); (is != "") != x.stays {
			t.Errorf("%s: the key is %q", x.name, is)
		}
		m.once()
		if len(m.verbs.done) > 0 || x.asked == "" && len(m.verbs.asked) > 0 {
			t.Errorf("%s: asked for %q", x.name, m.verbs.asked)
		}
	}
}

// TestHistory: a line says when if it came while somebody looked, and keeps that.
func TestHistory(t *testing.T) {
	r := *seen("pg1", nil).Record
	r.Timeline = 5
	r.Lineage = append(r.Lineage, core.Fork{Timeline: 5, From: 900})
	r.History = append(r.History, core.Promoted{Token: 9, Member: "pg2", Timeline: 5, From: 900, Ground: "asked"})
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	before := cluster{keys: map[string]etcdstore.BesideKey{"history": {Value: []byte(
		`[[1,800,"born by initdb","2025-01-01T00:00:00+00:00","pg1"]]`)}}}
	text, _ := json.Marshal(historyKey(r, before, at))
	const want = `[[1,800,"born by initdb","2025-01-01T00:00:00+00:00","pg1"],` +
		`[3,900,"asked","2026-01-02T03:04:05.000006+00:00","pg2"]]`
	if string(text) != want {
		t.Errorf("got %s, want %s", text, want)
	}
	text, _ = json.Marshal(historyKey(r, cluster{}, at))
	if strings.Contains(string(text), "2026") {
		t.Errorf("the time of a promotion that nobody saw: %s", text)
	}
}

// TestHistoryKeepsWhatPatroniHasWritten: the record of a cluster that was adopted begins with one
// timeline, and forgets who was promoted long ago. What was there of them stays as it is.
func TestHistoryKeepsWhatPatroniHasWritten(t *testing.T) {
	r := *seen("pg1", nil).Record
	r.Timeline, r.History = 9, nil
	r.Lineage = []core.Fork{{Timeline: 5, From: 700}, {Timeline: 7, From: 900},
		{Timeline: 9, From: 18446744073709551000}}
	const is = `[[2,400,"no recovery target specified","2025-01-01T00:00:00+00:00","db1"],` +
		`[3,18446744073709551001,"x"],[5,900,"asked","2025-02-01T00:00:00+00:00","pg2"],` +
		`[7,18446744073709551000,"born by initdb","","pg1"]]`
	before := cluster{keys: map[string]etcdstore.BesideKey{"history": {Value: []byte(is)}}}
	if text, _ := json.Marshal(historyKey(r, before, time.Now())); string(text) != is {
		t.Errorf("got %s, want %s", text, is)
	}
	r.History = []core.Promoted{{Member: "pg3", Timeline: 9, Ground: "it has all"}}
	want := strings.Replace(is, `"born by initdb","","pg1"`, `"it has all","","pg3"`, 1)
	if text, _ := json.Marshal(historyKey(r, before, time.Now())); string(text) != want {
		t.Errorf("got %s, want %s", text, want)
	}
}
