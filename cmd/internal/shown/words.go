package shown

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/primacy-go/primacy"
)

// MayLead is said of an exclusive claim of which no term was recorded: it may be a lock's, or in
// its first moment, or another program's.
const MayLead = "leader or lock holder"

// Why tells people why a term ended. Its times are of the zone.
func Why(r primacy.TermRecord, zone *time.Location) string {
	if r.Reason == primacy.Leads && r.From.IsZero() {
		return MayLead
	}
	s := Clean(Told(r.Reason))
	switch r.Reason {
	case primacy.Leads:
		return s
	case primacy.Transferred:
		s += " to " + cmp.Or(Name(r.Successor), "another")
	case primacy.Unknown, primacy.Expired:
		s = whyExpired(s, r, zone)
	}
	if r.Text != "" {
		s += ": " + words(r.Text)
	}
	if r.Outlived > 0 {
		s += fmt.Sprintf("; its work was alive %s after the lease deadline", Short(r.Outlived))
	}
	return s
}

// whyExpired says what is known of a term that was not renewed, or of whose end nobody told.
func whyExpired(s string, r primacy.TermRecord, zone *time.Location) string {
	outage, frozen := "", ""
	if r.Paused > 0 {
		frozen = "its process was frozen for " + Short(r.Paused)
	}
	switch {
	case r.DownFrom.IsZero():
	case r.DownTo.IsZero():
		outage = fmt.Sprintf("the store had not answered since %s", r.DownFrom.In(zone).Format(time.TimeOnly))
	default:
		outage = fmt.Sprintf("the store did not answer for %s (%s to %s)", Short(r.DownTo.Sub(r.DownFrom)),
			r.DownFrom.In(zone).Format(time.TimeOnly), r.DownTo.In(zone).Format(time.TimeOnly))
	}
	switch {
	case r.Reason == primacy.Unknown && outage != "":
		s = "no end was recorded: " + outage
	case outage != "" && frozen != "":
		s += ": " + outage + "; " + frozen
	case outage != "" || frozen != "":
		s += ": " + outage + frozen
	}
	if r.Reason == primacy.Unknown && r.ToAfter.After(r.From) {
		s += "; last known to lead at " + Clock(r.ToAfter, zone)
	}
	return s
}

// GapBefore is for how long nobody led before a term, or at most; or for how long the term before
// it went on beside it. A dash where that is not known.
func GapBefore(r primacy.TermRecord) string {
	switch {
	case r.Overlap > 0:
		return "overlaps " + Short(r.Overlap)
	case r.Gap != nil:
		return Short(*r.Gap)
	case r.GapMost != nil:
		return "<= " + Short(*r.GapMost)
	}
	return "-"
}

// Clock is a time as people read it, to the second; a dash where it is not known.
func Clock(t time.Time, zone *time.Location) string {
	if t.IsZero() {
		return "-"
	}
	return t.In(zone).Format(time.DateTime)
}

// Short is a duration in two or three digits, as far as people care.
func Short(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// Clean makes somebody else's text safe for a line: no control characters, not too long.
func Clean(s string) string { return upTo(60, s) }

// Name does the same to a name or an ID, which is never cut: two that begin alike would be told as
// one, and a command would not know it. What is longer than any of ours may have megabytes.
func Name(s string) string { return upTo(primacy.MaxName, s) }

// words are those of a record, which has 512 bytes of them at most: what matters may be at the end.
func words(s string) string { return upTo(600, s) }

func upTo(limit int, s string) string {
	if len(s) > 8*limit { // a value may have megabytes
		s = s[:8*limit]
	}
	if r := []rune(Printable(s)); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return Printable(s)
}

// Printable shows as a dot what is not printable, or is not seen: two names of which one has such a
// letter would look the same.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !Shows(r) {
			return '·'
		}
		return r
	}, s)
}

// Shows says whether a letter can be seen in every terminal and browser.
func Shows(r rune) bool {
	return r != utf8.RuneError && unicode.IsPrint(r) && !unicode.Is(unicode.Variation_Selector, r) &&
		!unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) && r != 0x2800 // a Braille letter without dots
}
