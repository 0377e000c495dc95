package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestFiguresAreWrittenForPeople(t *testing.T) {
	for _, c := range []struct {
		u    Unit
		v    float64
		want string
	}{
		{Seconds, 3e-7, "300 ns"}, {Seconds, 43.2e-9, "43.2 ns"}, {Seconds, 1.4e-6, "1.40 µs"}, {Seconds, 0.00142, "1.42 ms"}, {Seconds, 4.28, "4.28 s"},
		{Seconds, -0.5, "-500 ms"}, {Seconds, 0, "0"}, {Rate, 1129353, "1,129,353/s"}, {Rate, 84, "84/s"}, {Count, 1234.5, "1,234"}, {Bytes, 36e6, "36 MB"}, {Share, 0.987, "0.99"},
	} {
		if got := c.u.format(c.v); got != c.want {
			t.Errorf("%v %v: %q, want %q", c.u, c.v, got, c.want)
		}
	}
}

// example is a report with all that can be drawn: better, worse, with and without a goal or a peer.
func example() *Report {
	spread := func(m, lo, hi float64) *Spread { return &Spread{m, lo, hi} }
	return &Report{Date: "2026-01-02T03:04:05Z", Machine: "2 × amd64", Members: 1, Peer: "peer & co", Reps: 5, Results: []Result{
		{Row: 6, What: "fast", Unit: Seconds, Ours: Side{Value: Spread{0.001, 0.001, 0.002}, P50: 0.001, P99: 0.004, N: 40}, Peer: &Side{}, Ratio: spread(53, 42, 61), Want: 50, Goal: "≥ 50x", Reached: "yes", Chart: "fast"},
		{Row: 12, What: "huge", Unit: Rate, Ratio: spread(1051, 900, 1300), Want: 1000, Chart: "huge",
			Floor: &Side{}, FloorPeer: spread(2400, 2000, 2500), OursFloor: spread(0.44, 0.4, 0.5)},
		{Row: 15, What: "slower", Unit: Seconds, Ratio: spread(0.72, 0.6, 0.9), Want: 1, Chart: "slower"},
		{Row: 8, What: "no goal", Unit: Seconds, Ratio: spread(1.5, 1.4, 1.6), Chart: "no <goal>"},
		{Row: 21, What: "not drawn", Unit: Seconds},
	}}
}

func TestTheChartIsWellFormedAndComplete(t *testing.T) {
	svg := drawing(example())
	bars, marks, floors := 0, 0, 0
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		el, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		if el.Name.Local == "rect" {
			bars++
		}
		for _, a := range el.Attr {
			if a.Name.Local == "class" && a.Value == "goal" {
				marks++
			}
			if a.Name.Local == "class" && a.Value == "floor" {
				floors++
			}
		}
	}
	if bars != 4 || marks != 3 || floors != 1 {
		t.Errorf("%d bars, %d goals and %d floors, want 4, 3 and 1", bars, marks, floors)
	}
	if !strings.Contains(svg, "peer &amp; co") {
		t.Error("the peer's name is not in it")
	}
}

func TestTheScaleHoldsAllOfIt(t *testing.T) {
	var shown []Result
	for _, r := range example().Results {
		if r.Ratio != nil {
			shown = append(shown, r)
		}
	}
	s := scaleOf(shown)
	if s.low != -1 || s.high != 4 {
		t.Fatalf("from 10^%v to 10^%v, want -1 to 4", s.low, s.high)
	}
	for _, r := range shown {
		for _, v := range []float64{r.Ratio.Min, r.Ratio.Max} {
			if x := s.x(v); x < chartLeft || x > chartWidth-chartRight {
				t.Errorf("%v is drawn at %v, outside", v, x)
			}
		}
	}
}

func TestTheTableIsAligned(t *testing.T) {
	var b strings.Builder
	writeTable(&b, example().Results, "peer")
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 7 {
		t.Fatalf("%d lines, want 7:\n%s", len(lines), b.String())
	}
	for _, l := range lines {
		if len([]rune(l)) != len([]rune(lines[0])) {
			t.Errorf("not as wide as the others: %q", l)
		}
	}
	if !strings.Contains(b.String(), "53x [42–61]") {
		t.Errorf("no ratio with its spread:\n%s", b.String())
	}
}
