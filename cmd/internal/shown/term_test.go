package shown

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
)

// One shape of a term for history, status and the sidecar.
func TestATermInJSON(t *testing.T) {
	zone := time.FixedZone("", 3600)
	from := time.Date(2026, 11, 22, 12, 0, 0, 0, zone)
	gap := 1234567 * time.Microsecond
	for _, c := range []struct {
		term primacy.TermRecord
		want string
	}{
		{
			primacy.TermRecord{
				Name: "n", Token: 1<<63 + 1, ID: "a", Value: []byte("v\xff"), From: from,
				To:     from.Add(90 * time.Second),
				Reason: primacy.Transferred, By: "ops", Text: "w\xffy", Successor: "b", Gap: &gap, Overlap: time.Second,
			},
			`{"name":"n","token":"9223372036854775809","id":"a","value":"v` + "\uFFFD" +
				`","from":"2026-11-22T11:00:00Z","to":"2026-11-22T11:01:30Z",` +
				`"lasted_ms":"90000","gap_before_ms":"1234","reason":"transferred","by":"ops","text":"w` + "\uFFFD" +
				`y","successor":"b","leads":false,"overlap_ms":"1000"}`,
		},
		{primacy.TermRecord{Name: "n", Token: 2, Reason: primacy.Leads},
			`{"name":"n","token":"2","id":"","value":"","reason":"leading","leads":true}`},
	} {
		got, err := json.Marshal(TermOf(c.term))
		if err != nil || string(got) != c.want {
			t.Errorf("got  %s\nwant %s (%v)", got, c.want, err)
		}
	}
	if got, _ := json.Marshal(TermsOf(nil)); string(got) != "[]" {
		t.Errorf("no terms are %s", got)
	}
}
