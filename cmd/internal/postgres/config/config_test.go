package config_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

func parse(t *testing.T, text string) config.Document {
	t.Helper()
	d, err := config.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return d
}

// TestWhatADocumentSays: with Patroni's words, and its defaults where a key is missing.
func TestWhatADocumentSays(t *testing.T) {
	for _, test := range []struct {
		text       string
		durability core.Durability
		acks       int
		maxLag     core.LSN
	}{
		{`{}`, core.Async, 1, 1 << 20},
		{`{"synchronous_mode": true}`, core.Available, 1, 1 << 20},
		{`{"synchronous_mode": "on", "synchronous_mode_strict": "yes"}`, core.Quorum, 1, 1 << 20},
		{`{"synchronous_mode": "Quorum", "synchronous_mode_strict": true, "synchronous_node_count": "2"}`, core.Quorum,
			2, 1 << 20},
		{`{"synchronous_mode": "off", "synchronous_mode_strict": true}`, core.Async, 1, 1 << 20},
		{`{"synchronous_mode": false, "maximum_lag_on_failover": 0}`, core.Async, 1, 0},
		{`{"synchronous_mode": null}`, core.Async, 1, 1 << 20},
	} {
		s, _, err := parse(t, test.text).Read()
		if err != nil || s.Durability != test.durability || s.Acks != test.acks || s.MaxLag != test.maxLag {
			t.Errorf("%s: got %+v, %v", test.text, s, err)
		}
	}
	s, told, err := parse(t, `{"pause": true, "primacy": {"drop_after": "1s", "alone_after": "4s"}, "postgresql": {
		"use_slots": true, "use_pg_rewind": true, "parameters": {"Max_Connections": 200, "jit": false, "a.b": "x",
		"wal_log_hints": "on", "wal_keep_segments": 8, "random_page_cost": 1.1, "wal_sender_timeout": "9s",
		"work_mem": null}}}`).Read()
	if err != nil || len(told) > 0 || !s.Pause || s.DropAfter != time.Second || s.AloneAfter != 4*time.Second {
		t.Errorf("got %+v, %q, %v", s, told, err)
	}
	want := config.Defaults().Parameters
	for name, value := range map[string]string{"max_connections": "200", "jit": "off", "wal_log_hints": "on",
		"wal_keep_size": "128MB", "random_page_cost": "1.1", "wal_sender_timeout": "9s", "a.b": "x"} {
		want[name] = value
	}
	if !reflect.DeepEqual(s.Parameters, want) {
		t.Errorf("got parameters %v, want %v", s.Parameters, want)
	}
}

// TestWhatIsRefused: in one line that names the key and what to do. A word that Patroni takes for
// off must not cost acknowledged rows.
func TestWhatIsRefused(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{`{"synchronous_mode": "qourum"}`, `synchronous_mode = "qourum": use on, off or quorum`},
		{`{"synchronous_mode": {}}`, `synchronous_mode = {}: use on, off or quorum`},
		{`{"synchronous_mode_strict": "maybe"}`, `synchronous_mode_strict = "maybe": use true or false`},
		{`{"synchronous_node_count": 0}`, "synchronous_node_count = 0: give a number from 1 to 1000"},
		{`{"synchronous_node_count": 1.5}`, "synchronous_node_count = 1.5: give a whole number"},
		{`{"maximum_lag_on_failover": -1}`, "maximum_lag_on_failover = -1: give a number from 0"},
		{`{"pause": "soon"}`, `pause = "soon": use true or false`},
		{`{"primacy": {"drop_after": 3}}`, `primacy.drop_after = 3: give a duration, such as "3s"`},
		{`{"postgresql": []}`, "postgresql = []: give an object"},
		{`{"postgresql": {"parameters": ["a"]}}`, `postgresql.parameters = ["a"]: give an object`},
		{`{"postgresql": {"parameters": {"work_mem": [1]}}}`, "postgresql.parameters.work_mem = [1]: give a text"},
		{`{"postgresql": {"parameters": {"work_mem": "1", "Work_Mem": "2"}}}`,
			"postgresql.parameters: work_mem is there twice"},
		{`{"postgresql": {"parameters": {"fsync": "FALSE"}}}`, "an acknowledged commit could be lost"},
		{`{"postgresql": {"parameters": {"synchronous_commit": "local"}}}`, "an acknowledged commit could be lost"},
		{`{"postgresql": {"parameters": {"synchronous_standby_names": "*"}}}`,
			"synchronous_standby_names is set by primacy: take it out (it says for whom commits wait"},
		{`{"postgresql": {"parameters": {"hot_standby": "off"}}}`, "hot_standby is set by primacy"},
		{`{"postgresql": {"parameters": {"restore_command": "cp"}}}`, "restore_command is set by primacy"},
		{`{"postgresql": {"parameters": {"recovery_min_apply_delay": "1h"}}}`, "is set by primacy"},
		{`{"postgresql": {"parameters": {"primacy.x": "1"}}}`, "primacy.x is set by primacy"},
		{`{"postgresql": {"parameters": {"wal_level": "minimal"}}}`, "standbys need replica or logical"},
		{`{"postgresql": {"parameters": {"max_connections": "many"}}}`, `max_connections = "many": give a number`},
		{`{"standby_cluster": {"host": "10.0.0.9"}}`, "primacy keeps no standby cluster"},
	} {
		err := parse(t, test.text).Validate()
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %s", test.text, err, test.want)
		}
	}
	for _, text := range []string{``, `[]`, `null`, `{"a": 1} x`, `{"a"}`, `"` + strings.Repeat("x", 2<<20) + `"`} {
		if d, err := config.Parse([]byte(text)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.20s: got %v, %v", text, d, err)
		}
	}
}

// TestWhatCountsForNothingIsTold: with the reason, and only where it says anything.
func TestWhatCountsForNothingIsTold(t *testing.T) {
	_, told, err := parse(t, `{"ttl": 30, "loop_wait": 10, "synchronus_mode": true, "failsafe_mode": false,
		"standby_cluster": {}, "slots": {"a": {"type": "physical"}}, "x-mine": [1],
		"postgresql": {"use_slots": false, "pg_hba": ["host all all all md5"]}}`).Read()
	want := []string{"loop_wait: each member's own file says it",
		"postgresql.pg_hba: each member has its own files", "postgresql.use_slots: it always uses slots",
		"slots: primacy keeps only the slots of members",
		"synchronus_mode: it knows no such key; is synchronous_mode meant?",
		"ttl: each member's own file says it", "x-mine: it knows no such key"}
	if err != nil || !reflect.DeepEqual(told, want) {
		t.Errorf("got %q, %v, want %q", told, err, want)
	}
}

// TestMerge is Patroni's patch_config.
func TestMerge(t *testing.T) {
	const was = `{"ttl":30,"keep":{"me":1.10},"postgresql":{"parameters":{"a":"1","b":2}}}`
	for _, test := range []struct {
		patch, want string
		changed     bool
	}{
		{`{}`, was, false},
		{`{"ttl": "30", "nosuch": null, "postgresql": {"parameters": {"b": "2"}}}`, was, false},
		{`{"ttl": null}`, `{"keep":{"me":1.10},"postgresql":{"parameters":{"a":"1","b":2}}}`, true},
		{`{"postgresql": {"parameters": {"a": null, "c": true}}}`,
			`{"keep":{"me":1.10},"postgresql":{"parameters":{"b":2,"c":true}},"ttl":30}`, true},
		{`{"keep": 1, "ttl": {"x": 1}}`, `{"keep":1,"postgresql":{"parameters":{"a":"1","b":2}},"ttl":{"x":1}}`, true},
	} {
		d := parse(t, was)
		next, changed := d.Merge(parse(t, test.patch))
		if changed != test.changed || string(next.JSON()) != string(parse(t, test.want).JSON()) {
			t.Errorf("%s: got %s, %v", test.patch, next.JSON(), changed)
		}
		if string(d.JSON()) != string(parse(t, was).JSON()) {
			t.Errorf("%s: the document that was merged has become %s", test.patch, d.JSON())
		}
	}
}

// TestAssign: keys with dots, Patroni's rules, and our short words.
func TestAssign(t *testing.T) {
	d := parse(t, `{"slots":{"x":{"type":"physical"}},"unknown":{"n":12345678901234567}}`)
	for _, step := range []struct {
		key   string
		value any
		want  string
	}{
		{"slots.x", nil, `{"unknown":{"n":12345678901234567}}`},
		{"parameters.pg_stat_statements.max", 5,
			`{"postgresql":{"parameters":{"pg_stat_statements.max":5}},"unknown":{"n":12345678901234567}}`},
		{"postgresql.parameters.pg_stat_statements.max", nil, `{"unknown":{"n":12345678901234567}}`},
		{"durability", "available",
			`{"synchronous_mode":true,"synchronous_mode_strict":false,"unknown":{"n":12345678901234567}}`},
		{"unknown", nil, `{"synchronous_mode":true,"synchronous_mode_strict":false}`},
		{"acks", 2, `{"synchronous_mode":true,"synchronous_mode_strict":false,"synchronous_node_count":2}`},
	} {
		var err error
		if d, err = d.Assign(step.key, step.value); err != nil || string(d.JSON()) != step.want {
			t.Errorf("%s: got %s, %v, want %s", step.key, d.JSON(), err, step.want)
		}
	}
	for key, value := range map[string]any{"": 1, "a..b": 1, " a": 1, "durability": "always"} {
		if _, err := d.Assign(key, value); err == nil {
			t.Errorf("%q = %v is taken", key, value)
		}
	}
	if _, err := d.Assign("durability", nil); err == nil {
		t.Error("durability is removed")
	}
}

// TestFirst: what a cluster is born with says the same as the file.
func TestFirst(t *testing.T) {
	for _, durability := range []core.Durability{core.Quorum, core.Available, core.Async} {
		want := config.Defaults()
		want.Durability, want.Acks, want.MaxLag, want.DropAfter = durability, 2, 5, time.Second
		first := want
		first.Parameters = map[string]string{"max_connections": "200", "jit": "off"}
		want.Parameters["max_connections"], want.Parameters["jit"] = "200", "off"
		d := parse(t, string(config.First(first).JSON()))
		if got, told, err := d.Read(); err != nil || len(told) > 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %q, %v, want %+v", got, told, err, want)
		}
		// Patroni before 4.0 takes any other word than a switch for off.
		if on, isBool := d["synchronous_mode"].(bool); !isBool || on != (durability != core.Async) {
			t.Errorf("%s: synchronous_mode = %v", durability, d["synchronous_mode"])
		}
	}
}

func TestKey(t *testing.T) {
	for _, test := range [][3]string{{"/service/", "orders", "/service/orders/config"},
		{"service", "orders", "/service/orders/config"}, {"//a//b", "c", "/a/b/c/config"}, {"", "c", "/c/config"}} {
		if got := config.Key(test[0], test[1]); got != test[2] {
			t.Errorf("%q: got %s, want %s", test[0], got, test[2])
		}
	}
}

// fake is one key.
type fake struct {
	text    string
	version uint64
	before  func() // of each write
}

func (f *fake) Get(context.Context, string) ([]byte, uint64, error) {
	return []byte(f.text), f.version, nil
}

func (f *fake) Put(_ context.Context, _ string, value []byte, version uint64) (uint64, bool, error) {
	if f.before != nil {
		f.before()
	}
	if f.version != version {
		return 0, false, nil
	}
	f.text = string(value)
	f.version++
	return f.version, true, nil
}

// TestChange: what somebody else writes meanwhile is not lost, and what is refused is not written.
func TestChange(t *testing.T) {
	f := &fake{}
	c := config.Of(f, "/service/orders/config")
	if d, version, err := c.Read(t.Context()); d != nil || version != 0 || err != nil {
		t.Errorf("before the first write: got %v, %d, %v", d, version, err)
	}
	if _, err := c.Write(t.Context(), config.Document{"theirs": "1"}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(t.Context(), config.Document{}, 0); !errors.Is(err, config.ErrConflict) {
		t.Errorf("a write over nothing: got %v", err)
	}
	f.before = func() {
		f.before = nil
		f.text, f.version = `{"theirs":"2","more":[1]}`, f.version+1
	}
	ours := func(d config.Document) (config.Document, error) { return d.Assign("acks", 2) }
	was, is, version, err := c.Change(t.Context(), ours)
	if want := `{"more":[1],"synchronous_node_count":2,"theirs":"2"}`; err != nil || f.text != want ||
		string(is.JSON()) != want || string(was.JSON()) != `{"more":[1],"theirs":"2"}` || version != f.version {
		t.Errorf("got %s, %s, %v; the store has %s", was.JSON(), is.JSON(), err, f.text)
	}
	last := f.version
	if _, _, version, err := c.Change(t.Context(), ours); err != nil || version != last || f.version != last {
		t.Errorf("a change that changes nothing was written: %v", err)
	}
	if _, _, _, err := c.Change(t.Context(), func(d config.Document) (config.Document, error) {
		return d.Assign("acks", 0)
	}); !errors.Is(err, config.ErrRefused) || f.version != last {
		t.Errorf("what no member takes: got %v", err)
	}
	none := &fake{}
	if _, is, _, err := config.Of(none, "/k").Change(t.Context(), func(d config.Document) (config.Document, error) {
		return d, nil
	}); is != nil || err != nil || none.version != 0 {
		t.Errorf("where there is none, and none is made: got %v, %v, and the store has %q", is, err, none.text)
	}
	f.text = "{"
	if _, version, err := c.Read(t.Context()); !errors.Is(err, config.ErrRefused) || version != last {
		t.Errorf("what cannot be read: got %d, %v", version, err)
	}
}

// TestYAML: what a person does not touch comes back as it was.
func TestYAML(t *testing.T) {
	d := parse(t, `{"n":12345678901234567,"f":1.5,"on":"on","t":true,"z":null,"e":{},"l":[1,{"a":"b: c"}],
		"s":"2020-01-01",
		"postgresql":{"parameters":{"a.b":"x","log_line_prefix":"%m [%p] "}}}`)
	back, err := config.ParseYAML(d.YAML())
	if err != nil || len(config.Difference(d, back)) > 0 || !d.Equal(back) {
		t.Errorf("%s\ngot %q, %v", d.YAML(), config.Difference(d, back), err)
	}
	for text, want := range map[string]any{"200": json.Number("200"), "on": true, "'on'": "on", "4MB": "4MB",
		"null": nil, "": nil} {
		if v, err := config.ParseValue([]byte(text)); err != nil || v != want {
			t.Errorf("%q: got %#v, %v", text, v, err)
		}
	}
	for text, want := range map[string]any{`"$user", public`: `"$user", public`, "'%m [%p] '": "%m [%p] ",
		"%m [%p] ": "%m [%p] ",
		"x #y":     "x #y", "\u00a0": "\u00a0", "a: b": "a: b", "": "", "&x": "&x", "a\nb": "a\nb", `'it''s'`: "it's",
		`""`: "", "null": nil, "200": json.Number("200"), "on": true, "'on'": "on", " 4MB": " 4MB"} {
		if v, err := config.ParseFor("parameters.x", []byte(text)); err != nil || v != want {
			t.Errorf("%q for a parameter: got %#v, %v", text, v, err)
		}
	}
	if v, err := config.ParseFor("postgresql.parameters.x", []byte("a: b")); err != nil || v != "a: b" {
		t.Errorf("a parameter by its whole name: %v, %v", v, err)
	}
	for key, text := range map[string]string{"acks": `"1" 2`, "primacy.drop_after": `"3s", x`, "pause": "a\n---\nb",
		"parameters.x": "\xff"} {
		if v, err := config.ParseFor(key, []byte(text)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s=%q: got %v, %v", key, text, v, err)
		}
	}
	for _, text := range []string{"a: [", "- 1", "a: 1\na: 2", "a: .inf", "[1]: 2"} {
		if d, err := config.ParseYAML([]byte(text)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, %v", text, d, err)
		}
	}
	got := config.Difference(parse(t, `{"a":1,"b":{"c":"x","d":2}}`), parse(t, `{"a":1,"b":{"c":"y"},"e":{}}`))
	if want := []string{`- b.c: "x"`, `+ b.c: "y"`, "- b.d: 2", "+ e: {}"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}
