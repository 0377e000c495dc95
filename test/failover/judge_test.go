//go:build linux

package failover

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/safety"
)

// seen is one answer as a client got it. Instants are of the boot clock.
type seen struct {
	answer
	sent, got time.Duration
}

// verdict is what the answers say.
type verdict struct {
	byOrder   []string // violations, by the order of answers
	byInstant error    // a violation, by the instants of acts
	overtaken int      // older answers that arrived after a newer one, to requests that had been under way
	gaps      []time.Duration
}

// wrong returns all violations.
func (v verdict) wrong() []string {
	if v.byInstant == nil {
		return v.byOrder
	}
	return append(v.byOrder, v.byInstant.Error())
}

// judge looks at all answers of a run.
func judge(all []seen) verdict {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b seen) int { return int(a.got - b.got) })
	var v verdict
	newest := make([]uint64, len(all)) // token of all answers up to this one
	var top uint64
	var last time.Duration // the newest term's last answer so far
	for i, s := range all {
		// What had arrived before s was sent: a search, since answers are in the order of their
		// arrival.
		before, _ := slices.BinarySearchFunc(all[:i], s.sent,
			func(o seen, at time.Duration) int { return int(o.got - at) })
		if before > 0 && newest[before-1] > s.Token {
			v.byOrder = append(v.byOrder, fmt.Sprintf("token %d of %s answered a request sent at %v, after one "+
				"of token %d had arrived",
				s.Token, s.ID, s.sent, newest[before-1]))
		}
		switch {
		case s.Token > top && top != 0:
			v.gaps = append(v.gaps, s.got-last)
			fallthrough
		case s.Token >= top:
			top, last = s.Token, s.got
		default:
			v.overtaken++
		}
		newest[i] = top
	}
	v.byInstant = inTurn(all)
	return v
}

// inTurn returns an error if a term acted after a newer one had begun to, or at the same instant.
func inTurn(all []seen) error {
	var acts []safety.Act
	for _, s := range all {
		acts = append(acts, safety.Act{At: s.At, Token: s.Token, Who: s.ID})
	}
	terms, _ := safety.Terms("service", acts, 0)
	for i := range terms {
		terms[i].To++
	}
	return safety.Check(terms)
}

// TestTheJudgeBites shows what it must find, and what it must not.
func TestTheJudgeBites(t *testing.T) {
	at := func(token uint64, sent, acted, got time.Duration) seen {
		return seen{answer{token, "x", acted}, sent, got}
	}
	for _, c := range []struct {
		name               string
		all                []seen
		byOrder, byInstant int
		overtaken          int
		gaps               []time.Duration
	}{
		{"one after the other", []seen{at(1, 0, 1, 2), at(1, 3, 4, 5), at(2, 8, 9, 10), at(2, 11, 12, 13)}, 0, 0, 0,
			[]time.Duration{5}},
		{"an old one after a new one", []seen{at(1, 0, 1, 2), at(2, 3, 4, 5), at(1, 6, 7, 8)}, 1, 1, 0 + 1,
			[]time.Duration{3}},
		{"an old answer that was slow", []seen{at(1, 0, 1, 9), at(2, 3, 4, 5)}, 0, 0, 1, nil},
		{"sent in time, acted too late", []seen{at(1, 0, 7, 9), at(2, 3, 4, 5)}, 0, 1, 1, nil},
		{"acted in time, though sent late", []seen{at(1, 6, 1, 9), at(2, 3, 4, 5)}, 1, 0, 1, nil}, // clocks that differ
		{"at one instant", []seen{at(1, 0, 4, 9), at(2, 3, 4, 5)}, 0, 1, 1, nil},
		// a tie of arrival and sending is no order
		{"seen by another client", []seen{at(2, 0, 1, 2), at(1, 2, 3, 4), at(1, 3, 4, 5)}, 1, 1, 2, nil},
	} {
		v := judge(c.all)
		if len(v.byOrder) != c.byOrder || (v.byInstant != nil) != (c.byInstant > 0) || v.overtaken != c.overtaken ||
			!slices.Equal(v.gaps, c.gaps) {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
}
