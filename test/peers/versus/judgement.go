//go:build unix

package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// result is what the harness says of a run. Where it has several lines of candidates, counts are
// sums and durations the longest.
type result struct {
	kind   string
	failed error // why there is no result

	faults, kinds int // of faults
	terms         int
	overlaps      int
	longest       time.Duration // overlap
	total         time.Duration // of the overlaps that are listed, the longest
	more          bool          // there are shorter ones that are not listed
	stale         int           // writes under an older token that arrived
	lost          int           // acknowledged fenced writes
	gap           time.Duration // longest time without a leader
	// longest time that somebody acted after an operator had removed its claim; 0: nobody was seen
	// to
	deaf           time.Duration
	lines, rowsHad int
}

var (
	title   = regexp.MustCompile(`, (\d+) faults of (\d+) kinds$`)
	overlap = regexp.MustCompile(`^overlap: two leaders for (\S+): `)
	removed = regexp.MustCompile(`^acts after an operator had removed the claim {2,}\d+, for (\S+) at most$`)
	row     = regexp.MustCompile(`^(\S.*?) {2,}(\S+)$`)
)

// rows are those of the harness's table that count here.
var rows = map[string]func(r *result, value string) error{
	"terms":                               sum(func(r *result) *int { return &r.terms }),
	"two leaders at once (overlaps)":      sum(func(r *result) *int { return &r.overlaps }),
	"of these lost":                       sum(func(r *result) *int { return &r.lost }),
	"stale writes, taken without a fence": sum(func(r *result) *int { return &r.stale }),
	"longest overlap":                     most(func(r *result) *time.Duration { return &r.longest }),
	"longest time without a leader":       most(func(r *result) *time.Duration { return &r.gap }),
}

func sum(of func(*result) *int) func(*result, string) error {
	return func(r *result, value string) error {
		n, err := strconv.Atoi(value)
		*of(r) += n
		return err
	}
}

func most(of func(*result) *time.Duration) func(*result, string) error {
	return func(r *result, value string) error {
		d, err := time.ParseDuration(value)
		*of(r) = max(*of(r), d)
		return err
	}
}

// read takes the result out of what the harness printed. A table that is not all there is an error.
func (r *result) read(text string) error {
	for line := range strings.Lines(text) {
		if err := r.take(strings.TrimSpace(line)); err != nil {
			return fmt.Errorf("the harness's table: %q: %w", strings.TrimSpace(line), err)
		}
	}
	switch {
	case r.lines == 0:
		return errors.New("the harness printed no table")
	case r.rowsHad != r.lines*len(rows):
		return fmt.Errorf("the harness's table has changed: got %d of %d rows for %d lines of candidates", r.rowsHad,
			r.lines*len(rows), r.lines)
	case r.faults == 0 || r.terms == 0:
		return fmt.Errorf("%d faults and %d terms prove nothing", r.faults, r.terms)
	}
	return nil
}

// take reads one line of the table, or nothing from any other.
func (r *result) take(line string) error {
	if m := title.FindStringSubmatch(line); m != nil {
		r.faults, _ = strconv.Atoi(m[1])
		r.kinds, _ = strconv.Atoi(m[2])
		return nil
	}
	if m := overlap.FindStringSubmatch(line); m != nil {
		d, err := time.ParseDuration(m[1])
		r.total += d
		return err
	}
	if m := removed.FindStringSubmatch(line); m != nil {
		d, err := time.ParseDuration(m[1])
		r.deaf = max(r.deaf, d)
		return err
	}
	switch m := row.FindStringSubmatch(line); {
	case strings.HasPrefix(line, `line "`):
		r.lines++
	case strings.HasPrefix(line, "… and "):
		r.more = true
	case m != nil && rows[m[1]] != nil:
		r.rowsHad++
		return rows[m[1]](r, m[2])
	}
	return nil
}
