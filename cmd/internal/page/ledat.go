package page

import (
	"fmt"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

// answer says who led at an instant.
type answer struct {
	At     time.Time
	Level  string // led, gap or unknown
	Who    string
	Token  string // of the term that led; empty: none did, or it is not known
	Detail string // from when to when, and why it ended
}

// ledAt finds who led at an instant among terms, the newest first. Times are of the leaders' own
// wall clocks, which is what an operator compares them with.
func ledAt(past []primacy.TermRecord, at, now time.Time) (a answer) {
	a = answer{At: at}
	if at.After(now) {
		return a.is("unknown", "That is in the future.", "Nobody knows who will lead.")
	}
	if len(past) > 0 && past[0].Reason == primacy.Leads && past[0].From.After(now) {
		defer func(r primacy.TermRecord) {
			a.Detail += fmt.Sprintf(" The clock of %s, which leads now, is ahead: by it that term begins %s.",
				named(r.ID), utc(r.From))
		}(past[0])
	}
	past = datable(past, now)
	var next *primacy.TermRecord    // the term after the one that is looked at
	var undated *primacy.TermRecord // the newest between the two whose beginning nobody recorded
	for i := range past {
		r := &past[i]
		switch {
		case r.From.IsZero():
			if undated == nil {
				undated = r
			}
		case r.From.After(at):
			next, undated = r, nil
		default:
			return a.during(r, undated, next).beside(r, past[i+1:])
		}
	}
	switch {
	case len(past) == 0:
		return a.is("unknown", "Nothing is recorded.", "Nobody has led it, its records are gone, or it is a lock, "+
			"which has no history.")
	case past[0].Reason == primacy.Leads && past[0].From.IsZero() && len(past) == 1:
		return a.is("unknown", "It is not known.", fmt.Sprintf("%s leads now, and no record says since when.",
			named(past[0].ID)))
	}
	switch {
	case next == nil:
		return a.is("unknown", "It is not known.", "No record says when a term began.")
	case len(past) >= termsRead:
		return a.is("unknown", "It is not known here.", fmt.Sprintf("The page reads the last %d terms, of which the "+
			"oldest began %s: the history may have more.", termsRead, utc(next.From)))
	}
	return a.is("unknown", "It is not known.", "The records do not reach back that far: the oldest term of which they "+
		"tell, of "+named(next.ID)+", began "+utc(next.From)+".")
}

// during answers with r, the newest term that is known to have begun at the instant. Next is the
// next term whose beginning is known, nil if there is none. Undated is a term between the two whose
// beginning nobody recorded, nil if there is none.
func (a answer) during(r, undated, next *primacy.TermRecord) answer {
	who, led := named(r.ID), "from "+utc(r.From)
	after := "Nobody has led since."
	switch {
	case undated != nil:
		after = fmt.Sprintf("%s led after it, under token %s; nobody recorded since when.", named(undated.ID),
			undated.Token)
	case next != nil:
		after = fmt.Sprintf("%s was the next to lead, from %s.", named(next.ID), utc(next.From))
	}
	switch {
	case r.Reason == primacy.Leads:
		a.Token = r.Token.String()
		return a.is("led", who+" led.", fmt.Sprintf("Its term began %s and goes on.", utc(r.From)))
	case !r.To.IsZero() && a.At.Before(r.To):
		a.Token = r.Token.String()
		return a.is("led", who+" led,", fmt.Sprintf("%s to %s (%s). The term ended: %s. %s", led, utc(r.To),
			shown.Short(r.To.Sub(r.From)), ending(*r), after))
	case undated != nil && (undated.To.IsZero() || a.At.Before(undated.To)):
		until := ""
		if !undated.To.IsZero() {
			until = " Its term ended " + utc(undated.To) + "."
		}
		return a.is("unknown", "It is not known.", fmt.Sprintf("%s led %s.%s %s", who, led, ended(*r), after+until))
	case undated != nil:
		return a.is("gap", "Nobody led.", fmt.Sprintf("The term of %s had ended %s: %s.", named(undated.ID),
			utc(undated.To), ending(*undated)))
	case !r.To.IsZero():
		return a.is("gap", "Nobody led.", fmt.Sprintf("The term of %s had ended %s: %s. %s", who, utc(r.To),
			ending(*r), after))
	case !a.At.After(r.ToAfter):
		a.Token = r.Token.String()
		return a.is("led", who+" led,", fmt.Sprintf("%s. It was last known to lead %s; %s. %s", led, utc(r.ToAfter),
			ending(*r), after))
	case r.ToBefore.IsZero() || a.At.Before(r.ToBefore):
		return a.is("unknown", "It is not known.", fmt.Sprintf("%s was last known to lead %s, and nobody recorded the "+
			"end of its term: it led on, or nobody did. %s", who, utc(r.ToAfter), after))
	}
	return a.is("gap", "Nobody led.", fmt.Sprintf("The term of %s was over %s at the latest: %s. %s", who,
		utc(r.ToBefore), ending(*r), after))
}

// beside adds to the answer with r what older terms, the newest first, say that by their records
// went on after r had begun. Was there one at the instant, then nobody can say who led alone: its
// claim was removed while it led, or the clocks of the two differ.
func (a answer) beside(r *primacy.TermRecord, older []primacy.TermRecord) answer {
	for i := range older {
		o := &older[i]
		if o.From.IsZero() || o.From.After(a.At) || !o.To.After(r.From) {
			continue
		}
		why := fmt.Sprintf("Their clocks differ; or the claim of %s was removed from the store, and it led on until "+
			"it had heard of that: then there were two.", named(o.ID))
		if o.Reason == primacy.Deposed {
			why = fmt.Sprintf("The claim of %s was removed from the store, and it led on until it had heard of that: "+
				"then there were two; or their clocks differ.", named(o.ID))
		}
		why = fmt.Sprintf(" By the records the term of %s began %s, and that of %s before it ended %s: %s. %s",
			named(r.ID), utc(r.From), named(o.ID), utc(o.To), ending(*o), why)
		switch {
		case !o.To.After(a.At):
			a.Detail += why
		case a.Level == "led":
			a.Token = ""
			a = a.is("unknown", fmt.Sprintf("By their records both %s and %s led.", named(r.ID), named(o.ID)),
				strings.TrimSpace(why))
		default:
			a = a.is("unknown", "It is not known.", a.Detail+why)
		}
		return a
	}
	return a
}

// ended says when a term ended, as far as that is known.
func ended(r primacy.TermRecord) string {
	if r.To.IsZero() {
		return ""
	}
	return " Its term ended " + utc(r.To) + ": " + ending(r) + "."
}

func (a answer) is(level, who, detail string) answer {
	a.Level, a.Who, a.Detail = level, who, detail
	return a
}

// ending is why a term ended, and who asked for it.
func ending(r primacy.TermRecord) string {
	s := shown.Why(r, time.UTC)
	if r.By != "" {
		s += ", asked for by " + shown.Name(r.By)
	}
	return s
}

func named(id string) string {
	if id == "" {
		return "somebody of whom no ID is known"
	}
	return shown.Name(id)
}

func utc(t time.Time) string { return shown.Clock(t, time.UTC) + " UTC" }

// layouts are how an instant may be written. The first two have no day: the last such time is
// meant.
var layouts = []string{"15:04", "15:04:05", "2006-01-02 15:04", "2006-01-02 15:04:05", "2006-01-02T15:04",
	"2006-01-02T15:04:05"}

// instantOf reads an instant as people write it, in a zone.
func instantOf(s string, zone *time.Location, now time.Time) (time.Time, error) {
	if own, is := strings.CutSuffix(strings.TrimSpace(s), "UTC"); is { // what he writes goes before what he has chosen
		s, zone = own, time.UTC
	}
	s = strings.TrimSpace(s)
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	for i, layout := range layouts {
		t, err := time.ParseInLocation(layout, s, zone)
		if err != nil {
			continue
		}
		if i > 1 {
			return onlyOne(t, s, layout)
		}
		h, m, sec := t.Clock()
		n := now.In(zone)
		t = time.Date(n.Year(), n.Month(), n.Day(), h, m, sec, 0, zone)
		if t.After(now) {
			t = time.Date(n.Year(), n.Month(), n.Day()-1, h, m, sec, 0, zone)
		}
		return onlyOne(t, s, layout)
	}
	return time.Time{}, fmt.Errorf("%q is no time: write 03:12, 2026-11-29 03:12 or 2026-11-29T03:12:00Z", s)
}

// onlyOne refuses a time that a clock shows twice, or never, in the night when it is changed.
func onlyOne(t time.Time, s, layout string) (time.Time, error) {
	for _, other := range []time.Time{t, t.Add(-time.Hour), t.Add(time.Hour)} {
		if same := other.Format(layout) == t.Format(layout); same && !other.Equal(t) {
			return t, fmt.Errorf("%q is twice there, since the clock is changed that night: write it in UTC", s)
		}
	}
	if got, err := time.Parse(layout, s); err == nil && got.Format("15:04:05") != t.Format("15:04:05") {
		return t, fmt.Errorf("%q is not there, since the clock is changed that night: write it in UTC", s)
	}
	return t, nil
}
