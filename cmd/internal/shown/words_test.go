package shown

import (
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
)

// Two IDs that begin alike are not told as one, and the words of a record are told to their end,
// where its outcome stands.
func TestNamesAndReasonsAreNotCut(t *testing.T) {
	host := strings.Repeat("payments-worker-", 4)[:63]
	if a, b := Name(host+"-1-ab12"), Name(host+"-1-77fe"); a == b || strings.Contains(a, "…") {
		t.Errorf("%s and %s", a, b)
	}
	if got := Name(strings.Repeat("é", primacy.MaxName)); strings.Contains(got, "…") {
		t.Error("the longest name is cut: " + got)
	}
	if got := []rune(Name(strings.Repeat("x", 1<<20))); len(got) != primacy.MaxName {
		t.Errorf("what is no name of ours has %d letters", len(got))
	}
	text := "to be handed over to " + host + "-1-ab12, which the store has not confirmed"
	r := primacy.TermRecord{Reason: primacy.Resigned, Text: text, Successor: host + "-1-ab12", From: time.Now()}
	if got := Why(r, time.UTC); got != "resigned: "+text {
		t.Error(got)
	}
	r.Reason = primacy.Transferred
	if got := Why(r, time.UTC); !strings.HasPrefix(got, "transferred to "+host+"-1-ab12: ") {
		t.Error(got)
	}
	if got := Clean(strings.Repeat("x", 61)); got != strings.Repeat("x", 59)+"…" {
		t.Error(got)
	}
}

// Letters that cannot be seen would make two names look the same.
func TestWhatCannotBeSeenIsADot(t *testing.T) {
	for _, s := range []string{"a\u3164", "a\u115f", "a\ufe0f", "a\u2800", "a\u202e", "a\u034f", "a\x00", "a\xff"} {
		if got := Printable(s); got != "a·" {
			t.Errorf("%q is shown as %q", s, got)
		}
	}
	for _, s := range []string{"zürich", "日本", "e\u0301", "a b"} {
		if got := Printable(s); got != s {
			t.Errorf("%q is shown as %q", s, got)
		}
	}
}
