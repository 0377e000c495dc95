//go:build linux

package torture

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/primacy-go/primacy/internal/safety"
)

// verdict is what a line's record says.
type verdict struct {
	line         *line
	terms        []safety.Interval // each from its first act to its last
	overlaps     []safety.Overlap
	acts         int
	removedActs  int // after an operator had removed the claim, and before the holder heard of it
	longestDeaf  time.Duration
	writes       []safety.Write
	acknowledged int
	unknown      int
	lost         int
	// writes under an older token that arrived: taken by the unfenced register, refused by the
	// fenced one
	stale    int
	faults   []error
	silences []silence
}

// silence is a time in which nobody acted.
type silence struct{ from, to time.Duration }

// A pause in a term that is longer than this counts as not acting, where it is asked for how long
// two acted at once.
const breath = 10 * actEvery

// judge reads the record of a line. Everything has ended.
func judge(l *line) (*verdict, error) {
	v := &verdict{line: l}
	var pieces, full []safety.Interval
	var all []sight
	for _, c := range l.candidates {
		if err := c.poll(); err != nil {
			return nil, err
		}
		v.acts += len(c.acts)
		whole, _ := termsOf(l.name, c.id, c.acts)
		full = append(full, whole...)
		kept := v.withoutRemoved(slices.Clone(c.acts))
		terms, parts := termsOf(l.name, c.id, kept)
		v.terms, pieces, all = append(v.terms, terms...), append(pieces, parts...), append(all, kept...)
	}
	if err := safety.Check(v.terms); err != nil {
		v.faults = append(v.faults, err)
	}
	// Whether two led at once is asked of whole terms; for how long, of the times in which they
	// acted.
	v.overlaps = safety.Overlaps(pieces)
	if whole := safety.Overlaps(v.terms); len(whole) > len(v.overlaps) {
		for i := range whole {
			whole[i].For = 0 // each acted while the other did not, but within its term
		}
		v.overlaps = append(v.overlaps, missing(whole, v.overlaps)...)
	}
	v.overlaps = append(v.overlaps, missing(v.besideRemoved(full), v.overlaps)...)
	v.silences = silences(all)
	return v, v.judgeWrites()
}

// besideRemoved finds older terms that led beside one whose claim was removed: what is left out for
// the sake of its successors excuses no predecessor.
func (v *verdict) besideRemoved(full []safety.Interval) (found []safety.Overlap) {
	for _, r := range v.line.removals {
		for _, term := range full {
			if v.line.claim(term.Token) != r.token {
				continue
			}
			pair := slices.DeleteFunc(slices.Clone(v.terms),
				func(i safety.Interval) bool { return i.Token >= term.Token })
			found = append(found, safety.Overlaps(append(pair, term))...)
		}
	}
	if len(found) > 0 {
		v.faults = append(v.faults, fmt.Errorf("beside a term whose claim was removed: %v", found[0]))
	}
	return found
}

// isAfter returns how long after the instant noted for its token an act was, negative if it was
// not.
func isAfter(notes []late, a sight) time.Duration {
	for _, n := range notes {
		if a.token == n.token && a.at >= n.thaw {
			return a.at - n.thaw
		}
	}
	return -1
}

// withoutRemoved leaves out acts under a claim that an operator had removed: the store's promise to
// the holder was broken by hand, and another leads at once. They may go on until the holder hears
// of it, and at most to its deadline.
func (v *verdict) withoutRemoved(acts []sight) []sight {
	return slices.DeleteFunc(acts, func(a sight) bool {
		after := isAfter(v.line.removals, sight{a.at, v.line.claim(a.token)})
		if after < 0 || after > v.line.ttl {
			return false
		}
		v.removedActs++
		v.longestDeaf = max(v.longestDeaf, after)
		return true
	})
}

// termsOf returns the terms of a candidate, and the same in pieces between which it did not act.
func termsOf(name, who string, seen []sight) (terms, pieces []safety.Interval) {
	var acts []safety.Act
	for _, a := range seen {
		acts = append(acts, safety.Act{At: a.at, Token: a.token, Who: who})
	}
	return safety.Terms(name, acts, breath)
}

func missing(whole, known []safety.Overlap) []safety.Overlap {
	same := func(a, b safety.Overlap) bool {
		return a.Older.Token == b.Older.Token && a.Younger.Token == b.Younger.Token && a.Older.Who == b.Older.Who &&
			a.Younger.Who == b.Younger.Who
	}
	return slices.DeleteFunc(whole, func(o safety.Overlap) bool {
		return slices.ContainsFunc(known, func(k safety.Overlap) bool { return same(o, k) })
	})
}

// silences returns when nobody acted for more than a breath.
func silences(acts []sight) (found []silence) {
	slices.SortFunc(acts, func(a, b sight) int { return cmp.Compare(a.at, b.at) })
	for i := 1; i < len(acts); i++ {
		if acts[i].at-acts[i-1].at > breath {
			found = append(found, silence{acts[i-1].at, acts[i].at})
		}
	}
	return found
}

// judgeWrites compares what the callers were told with what the register holds.
func (v *verdict) judgeWrites() error {
	var records []io.Reader
	for _, c := range v.line.candidates {
		files, err := filepath.Glob(filepath.Join(c.dir, "writes-*"))
		if err != nil {
			return err
		}
		for _, name := range files {
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			records = append(records, f)
		}
	}
	var err error
	if v.writes, err = safety.ReadWrites(records...); err != nil {
		return err
	}
	for _, w := range v.writes {
		switch w.Outcome {
		case safety.Applied:
			v.acknowledged++
		case safety.Unknown:
			v.unknown++
		}
	}
	s := v.line.sink
	s.mu.Lock()
	defer s.mu.Unlock()
	v.stale = len(s.late)
	v.lost, _ = safety.LostWrites(s.log, v.writes)
	if err := safety.CheckFence(s.log, v.writes); err != nil {
		v.faults = append(v.faults, err)
	}
	if r := linearizable(v.writes, s.called, s.reads); r != porcupine.Ok {
		v.faults = append(v.faults, fmt.Errorf("porcupine says of the fenced register's history: %v", r))
	}
	v.faults = append(v.faults, v.unexpected()...)
	return nil
}

// unexpected returns the late writes of commands that nothing explains: a command that `primacy
// run` ends in time writes late only where its write was kept on its way, or where an operator
// removed its claim.
func (v *verdict) unexpected() (found []error) {
	l := v.line
	for _, w := range l.sink.late {
		explained := l.held[w.Token] ||
			slices.ContainsFunc(l.removals, func(t late) bool { return t.token == w.Token })
		if strings.HasPrefix(w.Who, kindRun) && !explained {
			found = append(found, fmt.Errorf("a late write of a command that nothing explains: %v", w))
		}
	}
	return found
}

// longest returns the longest time without a leader.
func longest(silences []silence) (most time.Duration) {
	for _, s := range silences {
		most = max(most, s.to-s.from)
	}
	return most
}

// during returns the longest silence that a fault fell into, or that fell into the fault.
func during(silences []silence, f injection) (most time.Duration) {
	for _, s := range silences {
		if s.from <= f.to && s.to >= f.from {
			most = max(most, s.to-s.from)
		}
	}
	return most
}

// table is the end of a run.
func (s *torture) table(verdicts []*verdict, title string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, seed %d, ttl %v, %d faults of %d kinds\n\n", title, s.seed, s.ttl, len(s.injected),
		len(s.kinds()))
	fmt.Fprintf(&b, "%-64s %6s  %s\n", "fault", "times", "longest time without a leader, p50 and max")
	for _, kind := range s.kinds() {
		var gaps spread
		n := 0
		for _, f := range s.injected {
			if f.kind != kind {
				continue
			}
			n++
			for _, v := range verdicts {
				if v.line.name == f.note {
					gaps = append(gaps, during(v.silences, f))
				}
			}
		}
		fmt.Fprintf(&b, "%-64s %6d  %v\n", kind, n, gaps)
	}
	for _, what := range sorted(s.missed) {
		fmt.Fprintf(&b, "not counted, %d times: %s\n", s.missed[what], what)
	}
	for _, v := range verdicts {
		b.WriteString("\n" + v.String() + s.blame(v))
	}
	return b.String()
}

// kinds returns the kinds of faults that were done, sorted.
func (s *torture) kinds() []string {
	n := map[string]int{}
	for _, f := range s.injected {
		n[f.kind]++
	}
	return sorted(n)
}

func sorted[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (v *verdict) String() string {
	var b strings.Builder
	row := func(what string, value any) { fmt.Fprintf(&b, "  %-50s %v\n", what, value) }
	var most time.Duration
	if len(v.overlaps) > 0 {
		most = v.overlaps[0].For
	}
	starts, kinds := 0, map[string]int{}
	for _, c := range v.line.candidates {
		starts += c.starts
		kinds[c.kind]++
	}
	fmt.Fprintf(&b, "line %q: %d candidates %v\n", v.line.name, len(v.line.candidates), kinds)
	row("terms", len(v.terms))
	row("processes started", starts)
	row("acts", v.acts)
	row("two leaders at once (overlaps)", len(v.overlaps))
	row("of these after the older claim was removed by hand", v.byHand())
	row("longest overlap", most.Round(time.Microsecond))
	row("fenced writes acknowledged", v.acknowledged)
	row("of these lost", v.lost)
	row("writes of unknown outcome", v.unknown)
	row("stale writes, taken without a fence", v.stale)
	row("stale writes, refused by the fence", v.stale)
	row("acts after an operator had removed the claim",
		fmt.Sprintf("%d, for %v at most", v.removedActs, v.longestDeaf.Round(time.Millisecond)))
	row("longest time without a leader", longest(v.silences).Round(time.Millisecond))
	if v.line.lock() {
		row("of the terms, handed on inside a process", v.handedOn())
	}
	return b.String() + v.line.transferTable()
}

// handedOn counts the terms of a lock that one of the same process had before under the same claim.
func (v *verdict) handedOn() (n int) {
	for _, t := range v.terms {
		if t.Token&255 > 0 {
			n++
		}
	}
	return n
}

// byHand counts the overlaps of candidates that act on, beyond a ttl, under a claim that an
// operator has removed.
func (v *verdict) byHand() (n int) {
	for _, o := range v.overlaps {
		if slices.ContainsFunc(v.line.removals,
			func(r late) bool { return r.token == v.line.claim(o.Older.Token) && r.thaw <= o.Younger.From }) {
			n++
		}
	}
	return n
}

// blame lists the overlaps, the longest first, with the faults under which they came about.
func (s *torture) blame(v *verdict) string {
	var b strings.Builder
	for i, o := range v.overlaps {
		if i == 20 {
			fmt.Fprintf(&b, "  … and %d more\n", len(v.overlaps)-i)
			break
		}
		var under []string
		for _, f := range s.injected {
			if begun := max(o.Older.From, o.Younger.From); f.note == v.line.name && f.from <= begun &&
				begun <= f.to+s.ttl {
				under = append(under, f.kind)
			}
		}
		fmt.Fprintf(&b, "  overlap: %v\n    after: %s\n", o, strings.Join(under, "; "))
	}
	return b.String()
}

func (v *verdict) err() error { return errors.Join(v.faults...) }
