package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Unit is how a figure is written. Times are kept in seconds.
type Unit string

const (
	Seconds Unit = "s"
	Rate    Unit = "/s"
	Count   Unit = ""
	Bytes   Unit = "B"    // shown in MB
	Single  Unit = "byte" // the same, a few
	Share   Unit = "share"
)

// String writes a figure with three digits that matter.
func (u Unit) format(v float64) string {
	switch u {
	case Seconds:
		return seconds(v)
	case Single:
		return fmt.Sprintf("%.1f kB", v/1e3)
	case Bytes:
		return fmt.Sprintf("%.0f MB", v/1e6)
	case Share:
		return fmt.Sprintf("%.2f", v)
	case Rate:
		return number(v) + "/s"
	}
	return number(v)
}

func seconds(v float64) string {
	switch d := time.Duration(v * 1e9); {
	case d < 0:
		return "-" + seconds(-v)
	case v == 0:
		return "0"
	case v < 1e-6:
		return three(v*1e9) + " ns"
	case v < 1e-3:
		return three(v*1e6) + " µs"
	case v < 1:
		return three(v*1e3) + " ms"
	}
	return three(v) + " s"
}

// number writes a count, with thousands apart.
func number(v float64) string {
	if v < 1000 {
		return three(v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func three(v float64) string {
	switch {
	case v == float64(int64(v)) || v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// String writes a goal.
func (g Goal) String(u Unit) string {
	if g.Text != "" {
		return g.Text
	}
	var parts []string
	add := func(format string, v float64, write func(float64) string) {
		if v > 0 {
			parts = append(parts, fmt.Sprintf(format, write(v)))
		}
	}
	add("≥ %sx", g.Ratio, number)
	add("≥ %sx the floor", g.Floor, number)
	add("≤ %s", g.Most, u.format)
	add("≥ %s", g.Least, u.format)
	add("p99 ≤ %s", g.P99, u.format)
	add("p99 ≤ %s times the floor's", g.FloorP99, number)
	return strings.Join(parts, ", ")
}

func (s Side) String(u Unit) string {
	if s.N == 0 {
		return u.format(s.Value.Median)
	}
	return u.format(s.P50) + " / " + u.format(s.P99)
}

func (s Spread) String() string {
	return fmt.Sprintf("%sx [%s–%s]", number(s.Median), number(s.Min), number(s.Max))
}

// writeTable prints results as Markdown, aligned so that it reads as it is.
func writeTable(w io.Writer, results []Result, peer string) {
	rows := [][]string{{"#", "what", "primacy", "floor", peer, "primacy / floor", "floor / " + peer,
		"primacy / " + peer + " [min–max]", "goal", "reached"}}
	for _, r := range results {
		rows = append(rows, []string{fmt.Sprint(r.Row), r.What, r.Ours.String(r.Unit), r.Floor.orNone(r.Unit),
			r.Peer.orNone(r.Unit), r.OursFloor.orNone(), r.FloorPeer.orNone(), r.Ratio.orNone(), r.Goal, r.Reached})
	}
	writeRows(w, rows)
}

// none stands in a cell of the table that has no figure.
const none = "–"

func (s *Side) orNone(u Unit) string {
	if s == nil {
		return none
	}
	return s.String(u)
}

func (s *Spread) orNone() string {
	if s == nil {
		return none
	}
	return s.String()
}

func writeRows(w io.Writer, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for n, r := range rows {
		for i, cell := range r {
			fmt.Fprintf(w, "| %s%s ", cell, strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)))
		}
		fmt.Fprintln(w, "|")
		if n == 0 {
			for i := range r {
				fmt.Fprintf(w, "|%s", strings.Repeat("-", width[i]+2))
			}
			fmt.Fprintln(w, "|")
		}
	}
}
