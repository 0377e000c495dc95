package page

import (
	"fmt"
	"slices"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

// timeline is a history drawn to scale: a lane for each leader, a band behind them where nobody
// led.
type timeline struct {
	From, To time.Time
	Lanes    []lane
	Bands    []bar // over all lanes
	Ticks    []tick
	Mark     *tick // the instant that was asked about
	Height   string
	WordsY   string // of the words below the lanes, in the ems of a smaller font
	Middle   string // of the lanes, for what is written over them
	Words    string // what the drawing shows, for who does not see it
}

// lane is the terms of one leader, or of all for whom there is no lane.
type lane struct {
	Name string
	Bars []bar
}

// bar is a part of the time. Lengths are in percent of the width.
type bar struct {
	X, W  string
	Y     string
	Kind  string // led, leads, gap or unknown
	Title string
}

type tick struct{ X, Word, Anchor string }

const (
	mostLanes = 8
	laneEm    = 1.75 // the height of a lane
	tickEm    = 1.6  // and of the words below them
	smaller   = 0.85 // the font of these words; page.css has it too
	leastBar  = 0.25 // percent: a term of a second is seen among those of days
)

// span is a part of the time before it is drawn.
type span struct {
	from, to time.Time
	kind     string
	id       string // who led
	title    string
}

// datable returns the terms, the newest first, without the times that cannot be: the beginning of
// who leads by a clock that is ahead, and an end before the beginning, where a clock was set back.
// They would be told as times in which nobody led.
func datable(past []primacy.TermRecord, now time.Time) []primacy.TermRecord {
	past = slices.Clone(past)
	for i := range past {
		r := &past[i]
		if r.Reason == primacy.Leads && r.From.After(now) {
			r.From = time.Time{}
		}
		if !r.To.IsZero() && r.To.Before(r.From) {
			if r.To, r.ToAfter = (time.Time{}), r.From; i > 0 {
				r.ToBefore = past[i-1].From
			}
		}
	}
	return past
}

// spansOf makes of terms, the newest first, what was when, until then: who led, nobody, or not
// known.
func spansOf(past []primacy.TermRecord, now, until time.Time) (all []span) {
	past = datable(past, now)
	add := func(from, to time.Time, kind, id, title string) {
		if to.After(from) {
			all = append(all, span{from, to, kind, id, title})
		}
	}
	next := until                   // when the next term began whose beginning is known
	var undated *primacy.TermRecord // a term between the two whose beginning nobody recorded
	for i := range past {
		r := &past[i]
		if r.From.IsZero() {
			undated = r
			continue
		}
		who := fmt.Sprintf("%s led under token %s from %s", named(r.ID), r.Token, utc(r.From))
		nobody := func(from time.Time) {
			if undated != nil {
				add(from, next, "unknown", "", fmt.Sprintf("not known: %s led under token %s, and nobody recorded "+
					"since when", named(undated.ID), undated.Token))
				return
			}
			add(from, next, "gap", "", fmt.Sprintf("nobody led for %s, from %s to %s", shown.Short(next.Sub(from)),
				utc(from), utc(next)))
		}
		switch {
		case r.Reason == primacy.Leads:
			add(r.From, until, "leads", r.ID, who+" and leads now")
		case !r.To.IsZero():
			add(r.From, r.To.Add(time.Millisecond), "led", r.ID, fmt.Sprintf("%s to %s (%s): %s", who, utc(r.To),
				shown.Short(r.To.Sub(r.From)), ending(*r)))
			nobody(r.To)
		default:
			known := r.From
			if r.ToAfter.After(known) {
				known = r.ToAfter
			}
			add(r.From, known.Add(time.Millisecond), "led", r.ID, fmt.Sprintf("%s at least to %s: %s", who, utc(known),
				ending(*r)))
			add(known, next, "unknown", "", fmt.Sprintf("not known: nobody recorded when the term of %s ended, "+
				"between %s and %s", named(r.ID), utc(known), utc(next)))
		}
		next, undated = r.From, nil
	}
	if len(past) > 0 {
		add(time.Time{}, next, "unknown", "", "not known: no earlier term was read, or none is kept")
	}
	return all
}

// draw makes the timeline of a window.
func draw(spans []span, from, to time.Time, at *time.Time) timeline {
	tl := timeline{From: from, To: to}
	var ids []string
	led, gaps, leaderless := 0, 0, time.Duration(0)
	for _, s := range spans { // the newest first
		if s.to.Before(from) || s.from.After(to) {
			continue
		}
		switch {
		case s.kind == "gap":
			gaps++
			leaderless += earlier(s.to, to).Sub(later(s.from, from))
		case s.id != "" || s.kind != "unknown":
			led++
			if !slices.Contains(ids, s.id) {
				ids = append(ids, s.id)
			}
		}
	}
	lanes := min(len(ids), mostLanes)
	for i := range lanes {
		l := lane{Name: named(ids[i])}
		if i == mostLanes-1 && len(ids) > mostLanes {
			l.Name = fmt.Sprintf("%d others", len(ids)-mostLanes+1)
		}
		tl.Lanes = append(tl.Lanes, l)
	}
	scale := func(t time.Time) float64 { return 100 * float64(t.Sub(from)) / float64(to.Sub(from)) }
	for _, s := range slices.Backward(spans) {
		if s.to.Before(from) || s.from.After(to) {
			continue
		}
		x0, x1 := scale(later(s.from, from)), scale(earlier(s.to, to))
		if s.kind == "gap" || s.kind == "unknown" {
			tl.Bands = joined(tl.Bands, bar{Kind: s.kind, Title: s.title}, x0, x1)
			continue
		}
		n := min(slices.Index(ids, s.id), lanes-1)
		l := &tl.Lanes[n]
		l.Bars = joined(l.Bars, bar{Kind: s.kind, Title: s.title, Y: em(laneEm*float64(n) + 0.25)}, x0, x1)
	}
	tl.Ticks = ticksOf(from, to, scale)
	if at != nil && !at.Before(from) && !at.After(to) {
		tl.Mark = &tick{X: percent(scale(*at)), Word: utc(*at)}
	}
	tl.Height, tl.Middle = em(laneEm*float64(lanes)+tickEm), em(laneEm*float64(lanes))
	tl.WordsY = em((laneEm*float64(lanes) + tickEm - 0.35) / smaller)
	tl.Words = fmt.Sprintf("Timeline from %s to %s: %d terms of %d leaders, %d gaps in which nobody led, together %s. "+
		"The table below has the same.", utc(from), utc(to), led, len(ids), gaps, shown.Short(leaderless))
	return tl
}

// joined adds a bar, or lets the last one grow where both would be drawn over each other.
func joined(all []bar, b bar, x0, x1 float64) []bar {
	w := max(x1-x0, leastBar)
	if n := len(all); n > 0 && all[n-1].Kind == b.Kind {
		var lastX, lastW float64
		_, _ = fmt.Sscanf(all[n-1].X+" "+all[n-1].W, "%f%% %f%%", &lastX, &lastW)
		if w <= leastBar && x0 < lastX+lastW {
			all[n-1].W, all[n-1].Title = percent(max(lastW, x0+w-lastX)), "several; the last: "+b.Title
			return all
		}
	}
	b.X, b.W = percent(min(x0, 100-leastBar)), percent(w)
	return append(all, b)
}

// steps are from one word below the drawing to the next.
var steps = []time.Duration{time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 48 * time.Hour}

func ticksOf(from, to time.Time, scale func(time.Time) float64) (all []tick) {
	step := steps[len(steps)-1]
	for _, s := range steps {
		if to.Sub(from)/s <= 8 {
			step = s
			break
		}
	}
	for t := from.UTC().Truncate(step).Add(step); !t.After(to); t = t.Add(step) {
		x := scale(t)
		word := t.Format("15:04")
		if step >= 24*time.Hour || t.Hour() == 0 && t.Minute() == 0 {
			word = t.Format("Jan 2")
		}
		anchor := "middle"
		switch {
		case x < 3:
			anchor = "start"
		case x > 97:
			anchor = "end"
		}
		all = append(all, tick{percent(x), word, anchor})
	}
	return all
}

func percent(x float64) string { return fmt.Sprintf("%.3f%%", x) }

func em(x float64) string { return fmt.Sprintf("%.2fem", x) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
