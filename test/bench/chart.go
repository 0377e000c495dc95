package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The picture: a bar for each line with a ratio to the peer, on a logarithmic scale, with marks for
// the goal and for what the floor would reach. It is drawn for light and dark pages.

const (
	chartWidth = 860
	chartLeft  = 300 // where the bars begin
	chartRight = 90  // left free for the number behind the longest bar
	barHeight  = 16
	barStep    = 26
	chartTop   = 64
)

const chartStyle = `
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f; }
  .title { font-weight: 600; font-size: 15px; }
  .dim { fill: #59636e; font-size: 12px; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  .one { stroke: #59636e; stroke-width: 1.5; }
  .bar { fill: #1f7a5c; }
  .slower { fill: #b35900; }
  .goal, .floor { stroke: #24292f; stroke-width: 2.5; }
  .floor { stroke-dasharray: 4 3; }
  .spread { stroke: #24292f; stroke-width: 1; opacity: .55; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .dim { fill: #9198a1; } .grid { stroke: #30363d; } .one { stroke: #9198a1; }
    .bar { fill: #3fb389; } .slower { fill: #e09a4f; } .goal, .floor, .spread { stroke: #e6edf3; }
  }
`

// scale maps a ratio to a place on the page.
type scale struct{ low, high float64 } // powers of ten

func (s scale) x(ratio float64) float64 {
	part := (math.Log10(ratio) - s.low) / (s.high - s.low)
	return chartLeft + part*(chartWidth-chartLeft-chartRight)
}

// marks are the ratios to the peer that are marked at a line's bar; 0: none.
func (r Result) marks() (goal, floor float64) {
	if r.FloorPeer != nil {
		floor = r.FloorPeer.Median
	}
	return r.Want, floor
}

// scaleOf returns the whole powers of ten around all bars and marks, and 1.
func scaleOf(results []Result) scale {
	low, high := 0.0, 1.0
	for _, r := range results {
		goal, floor := r.marks()
		for _, v := range []float64{r.Ratio.Median, r.Ratio.Min, r.Ratio.Max, goal, floor} {
			if v > 0 {
				low, high = min(low, math.Floor(math.Log10(v))), max(high, math.Ceil(math.Log10(v)))
			}
		}
	}
	return scale{low, high}
}

// drawing returns the chart as SVG.
func drawing(r *Report) string {
	var shown []Result
	for _, res := range r.Results {
		if res.Chart != "" && res.Ratio != nil {
			shown = append(shown, res)
		}
	}
	s := scaleOf(shown)
	bottom := chartTop + barStep*len(shown)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		chartWidth, bottom+46, chartWidth, bottom+46, html.EscapeString("How many times better Primacy does than "+r.Peer))
	fmt.Fprintf(&b, "<style>%s</style>\n", chartStyle)
	text(&b, 12, 24, "title", "", "Primacy beside "+r.Peer+": how many times better")
	text(&b, 12, 43, "dim", "", fmt.Sprintf("%s, medians of %d runs in turns; thin line: smallest to largest; "+
		"mark: our goal; dashed: the floor, the least that it takes", r.where(), r.Reps))
	grid(&b, s, bottom)
	for i, res := range shown {
		bar(&b, s, res, float64(chartTop+i*barStep))
	}
	text(&b, 12, float64(bottom)+40, "dim", "", r.Machine+", "+strings.SplitN(r.Date, "T", 2)[0])
	b.WriteString("</svg>\n")
	return b.String()
}

// where says what was measured on, in short.
func (r *Report) where() string {
	if r.Store != "" && r.Store != "etcd" {
		return r.Store
	}
	return fmt.Sprintf("%d-member etcd", r.Members)
}

func text(b *strings.Builder, x, y float64, class, anchor, s string) {
	if anchor != "" {
		anchor = ` text-anchor="` + anchor + `"`
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" class="%s"%s>%s</text>`+"\n", x, y, class, anchor, html.EscapeString(s))
}

func line(b *strings.Builder, class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(b, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

// grid draws a line for each power of ten.
func grid(b *strings.Builder, s scale, bottom int) {
	for p := s.low; p <= s.high; p++ {
		class, v := "grid", math.Pow(10, p)
		if p == 0 {
			class = "one"
		}
		line(b, class, s.x(v), chartTop-6, s.x(v), float64(bottom))
		text(b, s.x(v), float64(bottom)+18, "dim", "middle", number(v)+"x")
	}
}

// bar draws one line of the table. A bar grows from 1x: to the right what is better, to the left
// what is worse.
func bar(b *strings.Builder, s scale, r Result, y float64) {
	from, to, class := s.x(1), s.x(r.Ratio.Median), "bar"
	if r.Ratio.Median < 1 {
		from, to, class = to, from, "slower"
	}
	text(b, chartLeft-10, y+barHeight-3, "", "end", r.Chart)
	fmt.Fprintf(b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%d" rx="2"/>`+"\n", class, from, y, max(1, to-from), barHeight)
	line(b, "spread", s.x(r.Ratio.Min), y+barHeight/2, s.x(r.Ratio.Max), y+barHeight/2)
	right := max(to, s.x(r.Ratio.Max))
	goal, floor := r.marks()
	if goal > 0 {
		line(b, "goal", s.x(goal), y-3, s.x(goal), y+barHeight+3)
		right = max(right, s.x(goal))
	}
	if floor > 0 {
		line(b, "floor", s.x(floor), y-3, s.x(floor), y+barHeight+3)
		right = max(right, s.x(floor))
	}
	text(b, right+7, y+barHeight-3, "", "", number(r.Ratio.Median)+"x")
}
