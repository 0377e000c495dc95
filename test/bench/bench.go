package main

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Bench is one measurement. Its figures may belong to several rows of the table.
type Bench struct {
	Name  string
	Lines []Line
	Reps  int  // at most so many repetitions; 0: as many as asked for
	Solo  bool // ours alone
	// Run measures one contender once: a slice. In each repetition ours and the peer's slice follow
	// each other, in turns.
	Run func(ctx context.Context, e *Env, c *Contender) (Sample, error)
	// Together measures all contenders at once, under the same faults, instead of Run.
	Together func(ctx context.Context, e *Env, cs []*Contender) ([]Sample, error)
}

// Line is one figure of a measurement, as a line of the table.
type Line struct {
	Row    int
	Key    string // of the figure in the sample
	What   string
	Unit   Unit
	Higher bool // a larger figure is the better one
	Goal   Goal
	Goal3  *Goal           // with three members; nil: the same
	Slow   *Goal           // on a slow disk; nil: the same
	On     map[string]Goal // by store, instead of all these
	Slack  float64
	Chart  string // its name in the chart; empty: not shown there
}

// Goal is what a line has to reach. What is 0 is not asked for.
type Goal struct {
	Ratio float64 // at least so many times better than the peer
	Most  float64 // our figure at most
	Least float64 // our figure at least
	P99   float64 // our 99th percentile at most
	Text  string  // instead of the above in words
}

// Sample is what one slice gives, by key.
type Sample map[string]Figure

// Figure is one value. Where each operation was timed, Each has all of them and the value is their
// median.
type Figure struct {
	Value float64
	Each  []float64
}

// String leaves the single operations out.
func (f Figure) String() string { return fmt.Sprintf("%.3g", f.Value) }

func value(v float64) Figure { return Figure{Value: v} }

func times(each []float64) Figure { return Figure{median(each), each} }

// run measures a Bench against one peer.
func (b *Bench) run(ctx context.Context, e *Env, ours, peer *Contender) ([]Result, error) {
	reps := e.Reps
	if b.Reps > 0 {
		reps = min(reps, b.Reps)
	}
	cs := []*Contender{ours, peer}
	if b.Solo {
		cs = cs[:1]
	}
	samples := make([][]Sample, len(cs))
	begin := time.Now()
	for rep := range reps {
		if err := b.once(ctx, e, cs, rep, samples); err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name, err)
		}
	}
	e.logf("  %s: %d repetitions in %.1f s", b.Name, reps, time.Since(begin).Seconds())
	if b.Solo {
		samples = append(samples, nil)
	}
	var results []Result
	for _, l := range b.Lines {
		results = append(results, l.result(l.goal(e), samples[0], samples[1]))
	}
	return results, nil
}

func (b *Bench) once(ctx context.Context, e *Env, cs []*Contender, rep int, samples [][]Sample) error {
	if b.Together != nil {
		ctx, cancel := context.WithTimeoutCause(ctx, sliceLimit, errSlow)
		defer cancel()
		got, err := b.Together(ctx, e, cs)
		for i, s := range got {
			samples[i] = append(samples[i], s)
		}
		return err
	}
	for i := range cs {
		i = (i + rep) % len(cs) // each is first in turn
		runtime.GC()
		begin := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, sliceLimit, errSlow)
		s, err := b.Run(limited, e, cs[i])
		cancel()
		e.debugf("    %s: %v in %.1f s", cs[i].Name, s, time.Since(begin).Seconds())
		if err != nil {
			return fmt.Errorf("%s, repetition %d: %w", cs[i].Name, rep+1, err)
		}
		samples[i] = append(samples[i], s)
	}
	return nil
}

// sliceLimit ends a slice that hangs.
const sliceLimit = 3 * time.Minute

var errSlow = fmt.Errorf("not done after %v", sliceLimit)

// Side is one contender's part of a result.
type Side struct {
	Value Spread  `json:"value"`
	P50   float64 `json:"p50,omitempty"`
	P99   float64 `json:"p99,omitempty"`
	N     int     `json:"n,omitempty"` // operations timed
}

// Result is one line of the table.
type Result struct {
	Row     int     `json:"row"`
	What    string  `json:"what"`
	Unit    Unit    `json:"unit"`
	Higher  bool    `json:"higher_is_better"`
	Ours    Side    `json:"ours"`
	Peer    *Side   `json:"peer,omitempty"`
	Ratio   *Spread `json:"ratio,omitempty"`
	Goal    string  `json:"goal,omitempty"`
	Want    float64 `json:"goal_ratio,omitempty"`
	Reached string  `json:"reached,omitempty"` // yes, no, or why not quite
	Reps    int     `json:"repetitions"`
	Chart   string  `json:"chart,omitempty"`
}

// goal returns what the line has to reach on these servers.
func (l Line) goal(e *Env) Goal {
	if l.On != nil {
		return l.On[e.Kind]
	}
	switch {
	case e.Slow && l.Slow != nil:
		return *l.Slow
	case e.Members > 1 && l.Goal3 != nil:
		return *l.Goal3
	}
	return l.Goal
}

func (l Line) result(goal Goal, ours, peer []Sample) Result {
	r := Result{Row: l.Row, What: l.What, Unit: l.Unit, Higher: l.Higher, Goal: goal.String(l.Unit), Want: goal.Ratio, Chart: l.Chart, Reps: len(ours)}
	mine, side := sideOf(ours, l.Key)
	r.Ours = side
	if len(peer) > 0 {
		theirs, side := sideOf(peer, l.Key)
		r.Peer = &side
		if rs := ratios(mine, theirs, l.Higher); len(rs) > 0 {
			s := spreadOf(rs)
			r.Ratio = &s
		}
	}
	r.Reached = goal.judge(r, l.Slack)
	return r
}

// sideOf returns a figure's value in each repetition, and what they come to.
func sideOf(samples []Sample, key string) ([]float64, Side) {
	var values, each []float64
	for _, s := range samples {
		values = append(values, s[key].Value)
		each = append(each, s[key].Each...)
	}
	side := Side{Value: spreadOf(values), N: len(each)}
	if len(each) > 0 {
		side.P50, side.P99 = quantile(each, 0.5), quantile(each, 0.99)
	}
	return values, side
}

// judge says whether a result reaches the goal. Whatever the goal, a 99th percentile worse than the
// peer's does not.
func (g Goal) judge(r Result, slack float64) string {
	switch {
	case g == Goal{}:
		return ""
	case g.Ratio > 0 && (r.Ratio == nil || r.Ratio.Median < g.Ratio),
		g.Most > 0 && r.Ours.Value.Median > g.Most,
		g.Least > 0 && r.Ours.Value.Median < g.Least:
		return "no"
	case g.P99 > 0 && r.Ours.P99 > g.P99:
		return "p99 too large"
	case r.Peer != nil && r.Peer.N > 0 && r.Ours.P99 > r.Peer.P99*(1+slack):
		return "p99 worse"
	}
	return "yes"
}
