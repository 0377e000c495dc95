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
	Run run
	// Floor measures the store's floor (see Contender.Floor) in the same turns, with figures under
	// the same keys; nil: there is none.
	Floor run
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
	On     map[string]Goal // by store, instead of all these
	Slack  float64
	Chart  string // its name in the chart; empty: not shown there
}

// Goal is what a line has to reach. What is 0 is not asked for.
type Goal struct {
	Ratio    float64 // at least so many times better than the peer
	Floor    float64 // the same of the floor: 0.8 is four fifths of its rate, or five fourths of its time
	Most     float64 // our figure at most
	Least    float64 // our figure at least
	P99      float64 // our 99th percentile at most
	FloorP99 float64 // our 99th percentile at most so many times the floor's
	Text     string  // instead of the above in words
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
	cs := []*Contender{ours}
	if !b.Solo {
		cs = append(cs, peer)
	}
	floor := floorOf(ours.Store)
	if b.Floor != nil && floor != nil {
		cs = append(cs, floor)
	}
	samples := map[*Contender][]Sample{}
	begin := time.Now()
	for rep := range reps {
		if err := b.once(ctx, e, cs, rep, samples); err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name, err)
		}
	}
	e.logf("  %s: %d repetitions in %.1f s", b.Name, reps, time.Since(begin).Seconds())
	var results []Result
	for _, l := range b.Lines {
		results = append(results, l.result(l.goal(e), samples[ours], samples[peer], samples[floor]))
	}
	return results, nil
}

func (b *Bench) once(ctx context.Context, e *Env, cs []*Contender, rep int, samples map[*Contender][]Sample) error {
	if b.Together != nil {
		ctx, cancel := context.WithTimeoutCause(ctx, sliceLimit, errSlow)
		defer cancel()
		got, err := b.Together(ctx, e, cs)
		for i, s := range got {
			samples[cs[i]] = append(samples[cs[i]], s)
		}
		return err
	}
	for i := range cs {
		c := cs[(i+rep)%len(cs)] // each is first in turn
		measure := b.Run
		if c.Floor {
			measure = b.Floor
		}
		runtime.GC()
		begin := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, sliceLimit, errSlow)
		s, err := measure(limited, e, c)
		cancel()
		e.debugf("    %s: %v in %.1f s", c.Name, s, time.Since(begin).Seconds())
		if err != nil {
			return fmt.Errorf("%s, repetition %d: %w", c.Name, rep+1, err)
		}
		samples[c] = append(samples[c], s)
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

// Result is one line of the table. Each ratio says how many times better the first of the two is.
type Result struct {
	Row       int     `json:"row"`
	What      string  `json:"what"`
	Unit      Unit    `json:"unit"`
	Higher    bool    `json:"higher_is_better"`
	Ours      Side    `json:"ours"`
	Floor     *Side   `json:"floor,omitempty"`
	Peer      *Side   `json:"peer,omitempty"`
	OursFloor *Spread `json:"ours_to_floor,omitempty"`
	FloorPeer *Spread `json:"floor_to_peer,omitempty"`
	Ratio     *Spread `json:"ratio,omitempty"` // ours to the peer
	Goal      string  `json:"goal,omitempty"`
	Want      float64 `json:"goal_ratio,omitempty"`
	Reached   string  `json:"reached,omitempty"` // yes, no, or why not quite
	Reps      int     `json:"repetitions"`
	Chart     string  `json:"chart,omitempty"`
}

// goal returns what the line has to reach on these servers.
func (l Line) goal(e *Env) Goal {
	if l.On != nil {
		return l.On[e.Kind]
	}
	if e.Members > 1 && l.Goal3 != nil {
		return *l.Goal3
	}
	return l.Goal
}

// result compares what the repetitions gave: the i-th sample of each side is of the i-th one.
func (l Line) result(goal Goal, ours, peer, floor []Sample) Result {
	r := Result{Row: l.Row, What: l.What, Unit: l.Unit, Higher: l.Higher, Goal: goal.String(l.Unit),
		Want: goal.Ratio, Chart: l.Chart, Reps: len(ours)}
	mine, side := sideOf(ours, l.Key)
	r.Ours = side
	var theirs, least []float64
	if len(peer) > 0 {
		theirs, side = sideOf(peer, l.Key)
		r.Peer = &side
		r.Ratio = l.ratio(mine, theirs)
	}
	if _, has := first(floor)[l.Key]; has { // a floor may be that of some lines of a bench only
		var side Side
		least, side = sideOf(floor, l.Key)
		r.Floor = &side
		r.OursFloor, r.FloorPeer = l.ratio(mine, least), l.ratio(least, theirs)
	}
	r.Reached = goal.judge(r, l.Slack)
	return r
}

func first(samples []Sample) Sample {
	if len(samples) == 0 {
		return nil
	}
	return samples[0]
}

// ratio returns how many times better a is than b, within each repetition, nil if no repetition has
// both.
func (l Line) ratio(a, b []float64) *Spread {
	rs := ratios(a, b, l.Higher)
	if len(rs) == 0 {
		return nil
	}
	s := spreadOf(rs)
	return &s
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
		g.Floor > 0 && (r.OursFloor == nil || r.OursFloor.Median < g.Floor),
		g.Most > 0 && r.Ours.Value.Median > g.Most,
		g.Least > 0 && r.Ours.Value.Median < g.Least:
		return "no"
	case g.P99 > 0 && r.Ours.P99 > g.P99,
		g.FloorP99 > 0 && (r.Floor == nil || r.Ours.P99 > r.Floor.P99*g.FloorP99):
		return "p99 too large"
	case r.Peer != nil && r.Peer.N > 0 && r.Ours.P99 > r.Peer.P99*(1+slack):
		return "p99 worse"
	}
	return "yes"
}
