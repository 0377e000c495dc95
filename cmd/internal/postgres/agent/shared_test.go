package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// keptKey is the key of a configuration.
type keptKey struct {
	text    string
	version uint64
	err     error
}

func (k *keptKey) Get(context.Context, string) ([]byte, uint64, error) {
	return []byte(k.text), k.version, k.err
}

func (k *keptKey) Put(_ context.Context, _ string, value []byte, version uint64) (uint64, bool, error) {
	if version != k.version {
		return 0, false, nil
	}
	k.put(string(value))
	return k.version, true, nil
}

func (k *keptKey) put(text string) { k.text, k.version = text, k.version+1 }

// fakeServer knows no parameter whose name has "bad" in it.
type fakeServer struct {
	parameters map[string]string
	down       bool
	pending    server.Pending
	overridden []server.Override
}

func (f *fakeServer) Try(_ context.Context, p map[string]string) error {
	for name := range p {
		if strings.Contains(name, "bad") {
			return errors.New("unrecognized configuration parameter " + name)
		}
	}
	return nil
}

func (f *fakeServer) Configure(_ context.Context, p map[string]string) error {
	if f.down {
		return server.ErrNotUp
	}
	f.parameters = p
	return nil
}

func (f *fakeServer) Pending(context.Context) (server.Pending, error) { return f.pending, nil }

func (f *fakeServer) Overridden(context.Context) ([]server.Override, error) { return f.overridden, nil }

type sharedTest struct {
	*testing.T
	*shared
	key *keptKey
	srv *fakeServer
	out bytes.Buffer
}

func newShared(t *testing.T) *sharedTest {
	x := &sharedTest{T: t, key: &keptKey{}, srv: &fakeServer{}}
	first := config.Defaults()
	first.Acks, first.Parameters = 2, map[string]string{"work_mem": "1MB"}
	x.shared = &shared{config: config.Of(x.key, "/service/orders/config"), first: config.First(first),
		path: filepath.Join(t.TempDir(), configFile), server: x.srv, log: slog.New(slog.NewTextHandler(&x.out, nil))}
	x.start(true)
	return x
}

// start is what an agent does that starts.
func (x *sharedTest) start(member bool) {
	x.Helper()
	x.now, x.lastFault = inForce{}, ""
	if err := x.begin(x.Context(), member); err != nil {
		x.Fatal(err)
	}
}

func (x *sharedTest) has(durability core.Durability, acks int, workMem string) {
	x.Helper()
	x.load(x.Context(), false)
	if s := x.now.settings; s.Durability != durability || s.Acks != acks || x.srv.parameters["work_mem"] != workMem {
		x.Errorf("got %s, %d, work_mem %q, want %s, %d, %q", s.Durability, s.Acks, x.srv.parameters["work_mem"],
			durability, acks, workMem)
	}
}

// TestTheFirstConfiguration: the first primary writes what its file says, and the record's
// durability, for that may be older than the file. Where there is one already it counts.
func TestTheFirstConfiguration(t *testing.T) {
	x := newShared(t)
	x.look(t.Context(), nil)
	if x.has(core.Quorum, 2, "1MB"); x.key.version != 0 || x.now.known {
		t.Errorf("a member that does not lead has written %s", x.key.text)
	}
	x.look(t.Context(), &core.Record{Durability: core.Available})
	x.look(t.Context(), nil)
	if x.has(core.Available, 2, "1MB"); !x.now.known || x.key.version != 1 {
		t.Errorf("got %+v, and the store has %s", x.now, x.key.text)
	}
	x.key.text, x.key.version = "", 0 // somebody has removed it
	x.look(t.Context(), nil)
	x.look(t.Context(), &core.Record{Durability: core.Quorum})
	x.now.version = 0
	x.look(t.Context(), nil)
	x.has(core.Available, 2, "1MB")

	x = newShared(t)
	x.key.put(`{"synchronous_node_count": 1, "ttl": 30}`) // of Patroni
	x.look(t.Context(), &core.Record{Durability: core.Quorum})
	x.has(core.Async, 1, "")
	if x.key.version != 1 || !strings.Contains(x.out.String(), "ttl: each member's own file says it") {
		t.Errorf("the store has %s; the log says %s", x.key.text, x.out.String())
	}
}

// TestABadConfiguration changes nothing: neither one that says nonsense, nor one that PostgreSQL
// does not take, also after a restart of the agent. It is told once.
func TestABadConfiguration(t *testing.T) {
	x := newShared(t)
	const good = `{"synchronous_mode": true, "postgresql": {"parameters": {"work_mem": "2MB"}}}`
	x.key.put(good)
	x.look(t.Context(), nil)
	x.has(core.Available, 1, "2MB")
	for _, text := range []string{`{`, `[]`, `{"synchronous_mode": "qourum"}`,
		`{"postgresql": {"parameters": {"bad_one": 1, "work_mem": "3MB"}}}`} {
		x.out.Reset()
		x.key.put(text)
		x.look(t.Context(), nil)
		x.look(t.Context(), nil)
		x.has(core.Available, 1, "2MB")
		n := strings.Count(x.out.String(), "that was good stays in force")
		if n != 1 || x.now.refused == "" || x.now.version != x.key.version {
			t.Errorf("%s: told %d times: %+v", text, n, x.now)
		}
		x.start(true)
		x.has(core.Available, 1, "2MB")
	}
	x.start(false)
	if x.has(core.Quorum, 2, "1MB"); x.now.known {
		t.Error("what is left of a former cluster counts")
	}
	x.start(true)
	x.key.err = errors.New("the store does not answer")
	x.look(t.Context(), nil)
	x.has(core.Available, 1, "2MB")
	x.key.err = nil
	x.key.put(`{"synchronous_mode": "on", "synchronous_mode_strict": 1}`)
	x.look(t.Context(), nil)
	if x.has(core.Quorum, 1, ""); x.now.refused != "" {
		t.Errorf("the refusal stays: %s", x.now.refused)
	}
}

// TestParametersAreLoadedAgain while the server takes none.
func TestParametersAreLoadedAgain(t *testing.T) {
	x := newShared(t)
	x.srv.down = true
	x.key.put(`{"postgresql": {"parameters": {"work_mem": "2MB"}}}`)
	x.look(t.Context(), nil)
	x.has(core.Async, 1, "1MB")
	x.srv.down, x.srv.pending = false, server.Pending{Restart: []string{"a", "b"}, Held: []string{"c"}}
	x.has(core.Async, 1, "2MB")
	s := Said{Pending: x.now.pending, Held: x.now.held}
	if p, h := s.PendingRestart(), s.HeldParameters(); len(p) != 2 || p[1] != "b" || len(h) != 1 ||
		len((Said{}).PendingRestart()) > 0 {
		t.Errorf("pending %q, held %q", p, h)
	}
}

// TestOverridesAreTold: what a member says of them names each, until they are gone.
func TestOverridesAreTold(t *testing.T) {
	x := newShared(t)
	x.srv.overridden = []server.Override{
		{Name: "fsync", Source: "postgresql.auto.conf:3"}, {Name: "a", Source: "changed"},
	}
	x.load(t.Context(), true)
	x.load(t.Context(), true)
	said := Said{Overridden: told(x.now.overridden)}
	if got := said.OverriddenSettings(); len(got) != 2 || got[0] != "fsync (postgresql.auto.conf:3)" ||
		got[1] != "a (changed)" {
		t.Errorf("told %q", got)
	}
	if n := strings.Count(x.out.String(), "past primacy"); n != 1 {
		t.Errorf("the log says it %d times: %s", n, x.out.String())
	}
	x.srv.overridden = nil
	x.load(t.Context(), true)
	if got := (Said{Overridden: told(x.now.overridden)}).OverriddenSettings(); len(got) > 0 {
		t.Errorf("told still %q", got)
	}
}

// TestFullDisksAreLogged: once for each change, and until there is room.
func TestFullDisksAreLogged(t *testing.T) {
	x := newShared(t)
	for i, full := range [][]string{nil, {"/data"}, {"/data"}, {"/data", "/wal"}, nil} {
		x.disks = func() []string { return full }
		x.lookAtDisks()
		if !slices.Equal(x.now.full, full) {
			t.Errorf("%d: full are %v, want %v", i, x.now.full, full)
		}
	}
	if n := strings.Count(x.out.String(), "a disk is full"); n != 2 {
		t.Errorf("the log says it %d times: %s", n, x.out.String())
	}
}

// TestWhatIsDecidedBy: before the configuration is known the record says the durability. The
// cluster is paused while the configuration or a person says so, and no more once neither does.
func TestWhatIsDecidedBy(t *testing.T) {
	async, f := &core.Record{Durability: core.Async}, inForce{settings: core.Settings{Durability: core.Quorum, Acks: 2}}
	if got := f.decided(core.Observation{Record: async}).Settings; got.Durability != core.Async || got.Acks != 2 {
		t.Errorf("not known yet: got %+v", got)
	}
	f.known, f.read = true, true
	if got := f.decided(core.Observation{Record: async}).Settings; got.Durability != core.Quorum {
		t.Errorf("known: got %+v", got)
	}
	person, ours := &core.Pause{By: "anna"}, &core.Pause{By: byConfig + ", version 7"}
	pausedByUs, pausedByAnna := &core.Record{Paused: ours}, &core.Record{Paused: person}
	for i, test := range []struct {
		pause        *core.Pause
		record       *core.Record
		instructions *core.Instructions
		want         *core.Pause
		none         bool // no instructions: a pause goes on
	}{
		{nil, &core.Record{}, nil, nil, true},
		{ours, &core.Record{}, nil, ours, false},
		{ours, &core.Record{}, &core.Instructions{Seq: 3}, ours, false},
		{ours, pausedByAnna, &core.Instructions{Paused: person}, person, false},
		{nil, pausedByAnna, &core.Instructions{Paused: person}, person, false},
		{nil, pausedByAnna, nil, nil, true},
		{nil, pausedByUs, nil, nil, false},
		{nil, pausedByUs, &core.Instructions{Paused: person}, person, false},
		{ours, pausedByUs, &core.Instructions{Forced: ours}, nil, false},
	} {
		f.pause = test.pause
		o := f.decided(core.Observation{Record: test.record, Instructions: test.instructions})
		if (o.Instructions == nil) != test.none || o.Instructions != nil && o.Instructions.Paused != test.want {
			t.Errorf("%d: got %+v", i, o.Instructions)
		}
	}
	f.read, f.pause = false, nil // only the file of the last life is known
	if o := f.decided(core.Observation{Record: pausedByUs}); o.Instructions != nil {
		t.Error("the pause ends before the store was read")
	}
	for i, test := range []struct {
		record       *core.Record
		instructions core.Instructions
		want         *core.Pause
	}{
		{pausedByUs, core.Instructions{Seq: 3}, ours},
		{pausedByUs, core.Instructions{Forced: &core.Pause{By: byConfig + ", version 6"}}, ours},
		{pausedByUs, core.Instructions{Forced: ours}, nil},
		{pausedByUs, core.Instructions{Paused: person}, person},
		{pausedByAnna, core.Instructions{Seq: 3}, nil},
		{&core.Record{}, core.Instructions{Seq: 3}, nil},
	} {
		o := f.decided(core.Observation{Record: test.record, Instructions: &test.instructions})
		if o.Instructions.Paused != test.want {
			t.Errorf("the store was not read, %d: got %+v, want %v", i, o.Instructions.Paused, test.want)
		}
	}
}
