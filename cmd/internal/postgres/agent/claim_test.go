package agent

import "testing"

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
