package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// TestSaid: who looks at all elections reads what a member of a cluster says as a sentence, and the
// value of anybody else as it is.
func TestSaid(t *testing.T) {
	for _, c := range []struct{ election, value, want string }{
		{"postgres/orders", `{"addr":"h:5432","phase":"leading","seq":"3","timeline":7,"lsn":"1/A0"}`,
			"h:5432: leading, timeline 7, WAL 1/A0"},
		{"postgres/orders", `{"addr":"h:5432","phase":"stopped","seq":"3","why":"full"}`, "h:5432: stopped: full"},
		{"postgres/orders", `{"addr":"h:5432","phase":"sealed","overridden":"work_mem (postgresql.auto.conf:3)"}`,
			"h:5432: sealed; set past primacy: work_mem (postgresql.auto.conf:3)"},
		{"postgres/orders", `{"addr":"h:5432"}`, ""},
		{"postgres/orders", "h:5432", ""},
		{"orders", `{"addr":"h:5432","phase":"leading","seq":"3"}`, ""},
	} {
		s, ok := SaidBy(c.election, []byte(c.value))
		if ok != (c.want != "") || ok && s.String() != c.want {
			t.Errorf("%s of %s: %q, %v, want %q", c.value, c.election, s, ok, c.want)
		}
	}
}

// TestAClaimFits: whatever a member says of itself, the store takes it with its answer. Of a list
// there are whole elements.
func TestAClaimFits(t *testing.T) {
	many := strings.Repeat("work_mem (postgresql.auto.conf:3), ", 300)
	bad := strings.Repeat("\x01<ä", 2000)
	answer := &core.Answer{Token: 7, Identity: core.Identity{Name: "pg1", Incarnation: "x"}}
	for name, said := range map[string]Said{
		"one text": {Refused: strings.Repeat("x", 5000)},
		"texts":    {Refused: bad, Why: bad},
		"all":      {Refused: bad, Why: bad, Pending: many, Held: many, Overridden: many, Full: many},
		"no list":  {Refused: bad, Full: strings.Repeat("/x", 4000)},
	} {
		said.Phase, said.Answer = core.PhaseSealed, answer
		value := said.value()
		got, ok := SaidBy(Prefix+"orders", value)
		if !ok || len(value) > primacy.MaxValue || got.Answer == nil || *got.Answer != *answer {
			t.Errorf("%s: %d bytes, the answer is %+v", name, len(value), got.Answer)
		}
		if !strings.HasSuffix(got.Refused, "…") {
			t.Errorf("%s: nobody sees why the configuration is refused: %q", name, got.Refused)
		}
		for _, o := range got.OverriddenSettings() {
			if o != "work_mem (postgresql.auto.conf:3)" {
				t.Errorf("%s: %q", name, o)
			}
		}
	}
	small := Said{Phase: core.PhaseSealed, Refused: "why", Pending: "a, b"}
	want, err := json.Marshal(small)
	if err != nil || string(small.value()) != string(want) {
		t.Errorf("got %s, want %s", small.value(), want)
	}
}
