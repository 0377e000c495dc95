package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

func saying(t *testing.T, id string, token uint64, said agent.Said) primacy.Entry {
	t.Helper()
	value, err := json.Marshal(said)
	if err != nil {
		t.Fatal(err)
	}
	return primacy.Entry{ID: id, Token: primacy.Token(token), Value: value}
}

// TestDescribeCluster: one sentence says what a commit and a failover need, or why nobody is the
// primary.
func TestDescribeCluster(t *testing.T) {
	leader := saying(t, "pg1", 7, agent.Said{Address: "a:1", Phase: core.PhaseLeading, Timeline: 3, LSN: 0x5000})
	behind := saying(t, "pg2", 9, agent.Said{Address: "b:1", Phase: core.PhaseFollowing, Timeline: 3, LSN: 0x4f00,
		Life: "x"})
	surveys := saying(t, "pg1", 7, agent.Said{Phase: core.PhaseSurveying, Why: "waits for pg2 (not there)"})
	voters := []core.Identity{{Name: "pg2", Incarnation: "x"}}
	rec := core.Record{Timeline: 3, Voters: voters, Acks: 1, Needed: 1, Durability: core.Quorum}
	alone := core.Record{Timeline: 3, Acks: 1, Needed: 1, Durability: core.Available}
	first := core.Record{Timeline: 3, Acks: 1, Needed: 1, Durability: core.Quorum}
	fresh := core.Record{Timeline: 3, Voters: voters, Acks: 1, Needed: 2, Durability: core.Quorum}
	async := core.Record{Timeline: 3, Voters: voters, Acks: 1, Needed: 1, Durability: core.Async}
	for _, test := range []struct {
		name, want string
		leader     *primacy.Entry
		rec        *core.Record
	}{
		{"well", "a commit needs pg2; a failover needs the answer of pg2, or of pg1.", &leader, &rec},
		{"alone", "it goes on alone, and nobody else can be promoted.", &leader, &alone},
		{"first", "no standby votes yet: commits wait.", &leader, &first},
		{"just promoted", "until they have caught up only pg1 can be the primary.", &leader, &fresh},
		{"async", "a failover may lose the last ones (async).", &leader, &async},
		{"nobody leads", "no member runs, or each that runs is broken (its log says why).", nil, &rec},
		{"surveying", "pg1 leads under token 7, and is surveying; waits for pg2 (not there).", &surveys, &rec},
	} {
		j := describeCluster("orders", primacy.State{Leader: test.leader, Waiting: []primacy.Entry{behind}}, test.rec)
		if !strings.HasSuffix(j.Text, test.want) {
			t.Errorf("%s: got %q, want it to end in %q", test.name, j.Text, test.want)
		}
		if wantPrimary := test.leader == &leader; (j.Primary == "pg1") != wantPrimary {
			t.Errorf("%s: got the primary %q", test.name, j.Primary)
		}
	}
	var out bytes.Buffer
	others := []primacy.Entry{behind,
		saying(t, "pg3", 10, agent.Said{Phase: core.PhaseFollowing, NoSync: true, Leaving: true,
			Overridden: "work_mem (postgresql.auto.conf:3), fsync (postgresql.conf:9), " +
				"synchronous_standby_names (changed)"}),
		saying(t, "pg4", 11, agent.Said{Phase: core.PhaseFollowing, NoSync: true, Full: "/data, /wal"})}
	if err := describeCluster("orders", primacy.State{Leader: &leader, Waiting: others}, &rec).
		write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"pg1     a:1      primary  leading    3         -      -",
		"pg2     b:1      standby  following  3         256 B  yes",
		"pg3     -        standby  following  -         -      no (reinit)",
		"pg4     -        standby  following  -         -      no (nosync)",
		"pg3: work_mem is set past primacy, in postgresql.auto.conf:3: on its server psql " +
			"-c 'ALTER SYSTEM RESET work_mem' -c 'SELECT pg_reload_conf()'\n",
		"pg3: fsync is set past primacy, in postgresql.conf:9: take it out there",
		"pg3: synchronous_standby_names is not as primacy has set it any more: " +
			"'primacy postgres restart pg3' sets it again\n",
		"pg4: the disk is full, or nearly so: less than 64 MiB are free for /data\n",
		"pg4: the disk is full, or nearly so: less than 64 MiB are free for /wal\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant a line %q", out.String(), want)
		}
	}
}

// fileOfAMember is the least that a file must say; all is in one directory.
func fileOfAMember(dir, store string) string {
	return fmt.Sprintf(`store = "%s"
cluster = "c"
name = "pg1"
[server]
data = "%[2]s/data"
bin = "%[2]s/bin"
listen = "127.0.0.1:1"
socket = "%[2]s"
replication = {user = "r", passfile = "%[2]s/pass"}
`, store, dir)
}

// TestPostgresMistakes: each is one line with what to do.
func TestPostgresMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pg.toml")
	if err := os.WriteFile(file, []byte(fileOfAMember("/x", "etcd://h")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, want string }{
		{"postgres", "primacy: postgres: give -f FILE"},
		{"postgres -f /nosuch/pg.toml", "primacy: open /nosuch/pg.toml: no such file or directory"},
		{"postgres list", "primacy: postgres: give -f FILE, or --cluster NAME and --store"},
		{"postgres swithover", `primacy: unknown command "swithover" for "primacy postgres"`},
		{"postgres config", "primacy: postgres config: give show, set or edit"},
		{"postgres config shwo -f pg.toml", `primacy: unknown command "shwo" for "primacy postgres config"`},
		{"postgres -f @ --ttl 5s", "primacy: --ttl: leave it out: with -f the file counts, and `ttl` in @ says it"},
		{"postgres -f @ --id x", "primacy: --id: leave it out: with -f the file counts, and `name` in @ says it"},
		{"postgres list -f @ --store etcd://h", "primacy: --store: leave it out: with -f the file counts"},
		{"postgres check -f @ --ttl=5s", "primacy: --ttl: leave it out: with -f the file counts"},
		{"postgres pause -f @ --cluster c", "primacy: --cluster: leave it out: with -f the file counts"},
		{"postgres config set acks=2", "primacy: postgres: give -f FILE, or --cluster NAME and --store"},
	} {
		var out, errs bytes.Buffer
		args := strings.Fields(strings.ReplaceAll(test.args, "@", file))
		code := run(t.Context(), args, strings.NewReader(""), &out, &errs)
		if code != exitUsage || !strings.HasPrefix(errs.String(), strings.ReplaceAll(test.want, "@", file)) ||
			strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%s: got %d, %q, want %d, %s", test.args, code, errs.String(), exitUsage, test.want)
		}
	}
}

func TestASwitchoverToWhoMustNotBePromotedIsRefused(t *testing.T) {
	record := &core.Record{Primary: core.Identity{Name: "a"}, Durability: core.Async}
	j := clusterJSON{Primary: "a", Record: record, Members: []memberJSON{{Name: "a"},
		{Name: "b", State: core.PhaseFollowing}, {Name: "c", State: core.PhaseFollowing, NoFailover: true}}}
	if why := j.refusal("b"); why != "" {
		t.Error(why)
	}
	if why := j.refusal("c"); !strings.Contains(why, "must not be promoted") {
		t.Errorf("%q", why)
	}
	if why := j.refusal(""); why != "" {
		t.Error(why)
	}
	record.Durability = core.Quorum
	if why := j.refusal(""); !strings.Contains(why, "no voter") {
		t.Errorf("nobody votes: %q", why)
	}
	j.Members[2].Voter = true // the server would be shut down for nothing, or the request wait for ever
	for _, to := range []string{"", "a"} {
		if why := j.refusal(to); !strings.Contains(why, "restart its agent") {
			t.Errorf("%q: only who must not be promoted votes: %q", to, why)
		}
	}
}

// On a full disk no restart sets anything: whoever reads list must not be sent to type one.
func TestAFullDiskComesBeforeWhatItCauses(t *testing.T) {
	m := memberJSON{Name: "a", Overridden: []string{"primary_slot_name ()"}}
	if all := m.settings(); len(all) != 1 || !strings.Contains(all[0], "'primacy postgres restart a'") {
		t.Errorf("%q", all)
	}
	m.DiskFull = []string{"/data"}
	all := m.settings()
	if len(all) != 2 || !strings.Contains(all[0], "/data") || strings.Contains(all[1], "restart") {
		t.Errorf("%q", all)
	}
}
