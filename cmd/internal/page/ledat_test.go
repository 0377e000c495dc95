package page

import (
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
)

var midnight = time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)

func clockAt(h, m int) time.Time {
	return midnight.Add(time.Duration(h)*time.Hour + time.Duration(m)*time.Minute)
}

// night is what happened to billing: web-1 was asked to resign, web-2 was killed, web-3 leads.
func night() []primacy.TermRecord {
	return []primacy.TermRecord{
		{Token: 9, ID: "web-3", From: clockAt(4, 0), Reason: primacy.Leads},
		{Token: 7, ID: "web-2", From: clockAt(3, 10), Reason: primacy.Unknown, ToAfter: clockAt(3, 30),
			ToBefore: clockAt(4, 0)},
		{Token: 5, ID: "web-1", From: clockAt(1, 0), To: clockAt(3, 0), Reason: primacy.Resigned, By: "ops@desk",
			Text: "a deploy"},
	}
}

func TestWhoLedAtAnInstant(t *testing.T) {
	now := clockAt(5, 0)
	for _, c := range []struct {
		at    time.Time
		level string
		token string
		says  []string
	}{
		{clockAt(0, 59), "unknown", "", []string{"not known", "do not reach back", "web-1", "01:00:00"}},
		{clockAt(1, 0), "led", "5", []string{"web-1 led", "2h0m0s", "resigned: a deploy, asked for by ops@desk",
			"web-2 was the next to lead, from 2026-11-29 03:10:00 UTC"}},
		{clockAt(2, 59), "led", "5", []string{"web-1 led"}},
		{clockAt(3, 0), "gap", "", []string{"Nobody led", "web-1 had ended 2026-11-29 03:00:00", "web-2 was the next"}},
		{clockAt(3, 9), "gap", "", []string{"Nobody led"}},
		{clockAt(3, 12), "led", "7", []string{"web-2 led", "last known to lead 2026-11-29 03:30:00",
			"web-3 was the next"}},
		{clockAt(3, 31), "unknown", "", []string{"not known", "web-2 was last known to lead", "web-3"}},
		{clockAt(4, 0), "led", "9", []string{"web-3 led", "goes on"}},
		{clockAt(5, 1), "unknown", "", []string{"future"}},
	} {
		a := ledAt(night(), c.at, now)
		if a.Level != c.level || a.Token != c.token {
			t.Errorf("%v: %s, token %q, want %s, %q", c.at, a.Level, a.Token, c.level, c.token)
		}
		for _, want := range c.says {
			if !strings.Contains(a.Who+" "+a.Detail, want) {
				t.Errorf("%v lacks %q: %s %s", c.at, want, a.Who, a.Detail)
			}
		}
	}
	if a := ledAt(nil, clockAt(1, 0), now); a.Level != "unknown" || !strings.Contains(a.Who, "Nothing is recorded") {
		t.Errorf("%+v", a)
	}
	ended := night()[2:]
	if a := ledAt(ended, clockAt(4, 0), now); a.Level != "gap" || !strings.Contains(a.Detail, "Nobody has led since") {
		t.Errorf("%+v", a)
	}
	unrecorded := []primacy.TermRecord{{Token: 3, ID: "web-9", Reason: primacy.Leads}}
	if a := ledAt(unrecorded, clockAt(4, 0), now); a.Level != "unknown" || !strings.Contains(a.Detail,
		"web-9 leads now") {
		t.Errorf("%+v", a)
	}
}

func TestAnInstantAsPeopleWriteIt(t *testing.T) {
	vienna, err := time.LoadLocation("Europe/Vienna")
	if err != nil {
		t.Fatal(err)
	}
	now := clockAt(5, 0)
	for _, c := range []struct {
		text string
		zone *time.Location
		want time.Time
	}{
		{"03:12", time.UTC, clockAt(3, 12)},
		{"03:12 UTC", time.UTC, clockAt(3, 12)},
		{"03:12:30", time.UTC, clockAt(3, 12).Add(30 * time.Second)},
		{"05:01", time.UTC, clockAt(5, 1).AddDate(0, 0, -1)}, // has not been today
		{"03:12", vienna, clockAt(2, 12)},
		{"2026-11-28 03:12", time.UTC, clockAt(3, 12).AddDate(0, 0, -1)},
		{" 2026-11-28 03:12:00 ", vienna, clockAt(2, 12).AddDate(0, 0, -1)},
		{"2026-11-28T03:12:00Z", vienna, clockAt(3, 12).AddDate(0, 0, -1)},
		{"2026-11-28T03:12:00+01:00", time.UTC, clockAt(2, 12).AddDate(0, 0, -1)},
	} {
		if got, err := instantOf(c.text, c.zone, now); err != nil || !got.Equal(c.want) {
			t.Errorf("%q in %v is %v (%v), want %v", c.text, c.zone, got, err, c.want)
		}
	}
	for _, text := range []string{"", "3", "25:00", "yesterday", "2026-13-01 03:12"} {
		if got, err := instantOf(text, time.UTC, now); err == nil || !strings.Contains(err.Error(), "03:12") {
			t.Errorf("%q is %v (%v)", text, got, err)
		}
	}
}

// A term of which nobody recorded the beginning is one all the same: it is no gap.
func TestATermWithoutABeginningIsNoGap(t *testing.T) {
	first := primacy.TermRecord{Token: 10, ID: "web-1", From: clockAt(1, 0), To: clockAt(2, 0),
		Reason: primacy.Resigned}
	leads := []primacy.TermRecord{{Token: 20, ID: "another", Reason: primacy.Leads}, first}
	died := []primacy.TermRecord{{Token: 30, ID: "web-3", From: clockAt(6, 0), Reason: primacy.Leads},
		{Token: 20, ID: "web-2", To: clockAt(5, 0), Reason: primacy.Died}, first}
	for _, c := range []struct {
		past  []primacy.TermRecord
		at    time.Time
		level string
		says  string
	}{
		{leads, clockAt(1, 30), "led", "another led after it, under token 20"},
		{leads, clockAt(3, 0), "unknown", "another led after it, under token 20; nobody recorded since when"},
		{died, clockAt(3, 0), "unknown", "web-2 led after it"},
		{died, clockAt(5, 30), "gap", "The term of web-2 had ended"},
		{leads[:1], clockAt(3, 0), "unknown", "no record says since when"},
		{died[1:2], clockAt(3, 0), "unknown", "No record says when a term began"},
	} {
		a := ledAt(c.past, c.at, clockAt(8, 0))
		if got := a.Who + " " + a.Detail; a.Level != c.level || !strings.Contains(got, c.says) ||
			strings.Contains(got, "Nobody has led since") {
			t.Errorf("at %v: %s: %s", c.at, a.Level, got)
		}
	}
	for _, past := range [][]primacy.TermRecord{leads, died} {
		for _, s := range spansOf(past, clockAt(8, 0), clockAt(8, 0)) {
			if s.kind == "gap" {
				t.Errorf("the drawing says that %s", s.title)
			}
		}
	}
}

// A claim that is removed by hand leaves its leader in office until he hears of it. Where the
// records have two leaders, that is the answer, and not that one of them led.
func TestWhereTheRecordsHaveTwoLeadersThatIsTold(t *testing.T) {
	at := func(s int) time.Time { return clockAt(3, 12).Add(time.Duration(s) * time.Second) }
	leads := primacy.TermRecord{Token: 9, ID: "web-2", From: at(5), Reason: primacy.Leads}
	over := leads
	over.To, over.Reason = at(7), primacy.Failed
	web1 := func(why primacy.Reason) primacy.TermRecord {
		return primacy.TermRecord{Token: 5, ID: "web-1", From: clockAt(1, 0), To: at(14), Reason: why}
	}
	for _, c := range []struct {
		newer primacy.TermRecord
		why   primacy.Reason
		at    time.Time
		level string
		says  string
	}{
		{leads, primacy.Deposed, at(4), "led", "web-1 led"},
		{leads, primacy.Deposed, at(8), "unknown", "both web-2 and web-1 led. By the records"},
		{leads, primacy.Deposed, at(8), "unknown", "there were two; or their clocks differ"},
		{leads, primacy.Expired, at(8), "unknown", "Their clocks differ; or the claim of web-1 was removed"},
		{leads, primacy.Expired, at(14), "led", "web-2 led. Its term began"},
		{leads, primacy.Expired, at(14), "led", "Their clocks differ"},
		{over, primacy.Deposed, at(10), "unknown", "that of web-1 before it ended 2026-11-29 03:12:14"},
	} {
		a := ledAt([]primacy.TermRecord{c.newer, web1(c.why)}, c.at, clockAt(5, 0))
		if got := a.Who + " " + a.Detail; a.Level != c.level || !strings.Contains(got, c.says) {
			t.Errorf("at %v: %s, %s; want %s and %q", c.at, a.Level, got, c.level, c.says)
		}
	}
	leads.Gap, leads.Overlap = new(time.Duration), 9*time.Second
	if got := termsOf([]primacy.TermRecord{leads}, nil)[0]; got.Gap != "overlaps 9s" || !got.GapIs {
		t.Errorf("%+v", got)
	}
}

// Times are of the leaders' own clocks: where these cannot both be right, that is said.
func TestClocksThatDisagreeAreTold(t *testing.T) {
	past := []primacy.TermRecord{{Token: 20, ID: "web-2", From: clockAt(1, 0), Reason: primacy.Leads},
		{Token: 10, ID: "web-1", From: clockAt(1, 30), To: clockAt(2, 0), Reason: primacy.Resigned}}
	if a := ledAt(past, clockAt(1, 45), clockAt(5, 0)); !strings.Contains(a.Detail, "Their clocks differ") {
		t.Errorf("%+v", a)
	}
}

// Where the page has not read all that is kept, it does not say that nothing is.
func TestTermsThatWereNotReadAreNotMissing(t *testing.T) {
	past := make([]primacy.TermRecord, termsRead)
	for i := range past {
		from := midnight.Add(-time.Duration(i) * time.Hour)
		past[i] = primacy.TermRecord{Token: primacy.Token(termsRead - i), ID: "web-1", Reason: primacy.Resigned,
			From: from, To: from.Add(time.Minute)}
	}
	if a := ledAt(past, midnight.AddDate(-1, 0, 0), clockAt(5, 0)); !strings.Contains(a.Detail, "may have more") {
		t.Errorf("%+v", a)
	}
}

// The page writes UTC behind its times: copied back they mean the same, whatever zone is chosen. A
// time that a clock shows twice, or never, is none.
func TestAnInstantIsOne(t *testing.T) {
	vienna, err := time.LoadLocation("Europe/Vienna")
	if err != nil {
		t.Skip(err)
	}
	for s, want := range map[string]string{"03:12 UTC": "2026-11-29T03:12:00Z", "03:12": "2026-11-29T02:12:00Z",
		"2026-11-29 03:12:00 UTC": "2026-11-29T03:12:00Z"} {
		got, err := instantOf(s, vienna, clockAt(5, 0))
		if err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%q is %v (%v), want %s", s, got, err, want)
		}
	}
	for s, want := range map[string]string{"2026-10-25 02:30": "is twice there", "2026-03-29 02:30": "is not there"} {
		if got, err := instantOf(s, vienna, clockAt(5, 0)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %v (%v), want that it %s", s, got, err, want)
		}
	}
}
