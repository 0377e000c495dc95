//go:build linux

package interop

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/safety"
)

// judge reads what everybody did, and fails the test if two acted at once or out of order. It
// returns the terms.
func (w *world) judge() []safety.Interval {
	w.Helper()
	f, err := os.Open(w.actsPath())
	if err != nil {
		w.Fatal(err)
	}
	defer f.Close()
	terms, err := safety.Read(lineName, f)
	if err != nil {
		w.Fatal(err)
	}
	if err := check(terms); err != nil {
		w.Errorf("judge: %v", err)
	}
	return terms
}

// isReader tells from who acted whether he only reads: turns are named for their kind.
func isReader(t safety.Interval) bool { return strings.HasPrefix(t.Who, "reader-") }

// check returns nil if nobody acted beside one who holds the line alone, and tokens grew from each
// of those to whoever came after him. Readers may act beside each other.
func check(terms []safety.Interval) error {
	readers := slices.DeleteFunc(slices.Clone(terms), func(t safety.Interval) bool { return !isReader(t) })
	writers := slices.DeleteFunc(slices.Clone(terms), isReader)
	if err := safety.Check(writers); err != nil {
		return err
	}
	for _, r := range readers {
		for _, w := range writers {
			switch {
			case r.From < w.To && w.From < r.To:
				return fmt.Errorf("at once: %v, and %v", r, w)
			case (r.From < w.From) != (r.Token < w.Token):
				return fmt.Errorf("the token went back between %v and %v", r, w)
			}
		}
	}
	return nil
}

// TestTheJudgeBites: what must not happen is found.
func TestTheJudgeBites(t *testing.T) {
	at := func(who string, token uint64, from, to time.Duration) safety.Interval {
		return safety.Interval{Name: lineName, Who: who, Token: token, From: from, To: to}
	}
	for name, test := range map[string]struct {
		terms []safety.Interval
		want  string
	}{
		"in turn": {[]safety.Interval{at("a", 1, 0, 10), at("reader-RLock-1", 2, 11, 20),
			at("reader-RLock-2", 3, 12, 30), at("b", 4, 31, 40)}, ""},
		"two at once":     {[]safety.Interval{at("a", 1, 0, 10), at("b", 2, 9, 12)}, "two leaders at once"},
		"beside a reader": {[]safety.Interval{at("reader-RLock-1", 1, 0, 10), at("b", 2, 9, 12)}, "at once"},
		"a reader jumped ahead": {[]safety.Interval{at("reader-RLock-1", 3, 0, 5), at("b", 2, 9, 12)},
			"token went back"},
		"a writer jumped ahead": {[]safety.Interval{at("b", 3, 0, 5), at("reader-RLock-1", 2, 9, 12)},
			"token went back"},
		"jumped the line":        {[]safety.Interval{at("a", 2, 0, 10), at("b", 1, 11, 12)}, "token went back"},
		"one token, two holders": {[]safety.Interval{at("a", 1, 0, 10), at("b", 1, 11, 12)}, "two owners"},
	} {
		err := check(test.terms)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestTheHarnessBites: one who acts without holding the line, beside one who does, is found in what
// was recorded.
func TestTheHarnessBites(t *testing.T) {
	w := newWorld(t)
	honest := w.begin(ourMutex, "honest", ourMutex.join(w, "honest"))
	<-honest.held
	cheat := w.begin(kind{name: "cheat"}, "cheat", func(tn *turn) error { return w.holds(tn, 1<<40, always) })
	<-cheat.held
	for _, tn := range []*turn{cheat, honest} {
		tn.tellLeave()
		<-tn.done
		if tn.err != nil {
			t.Fatal(tn.err)
		}
	}
	terms, err := os.Open(w.actsPath())
	if err != nil {
		t.Fatal(err)
	}
	defer terms.Close()
	all, err := safety.Read(lineName, terms)
	if err != nil || len(all) != 2 || check(all) == nil {
		t.Errorf("the record of a cheat: %v, %v, and the judge says %v", all, err, check(all))
	}
}
