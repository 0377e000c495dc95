package page

import (
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
)

func TestATimelineIsDrawnToScale(t *testing.T) {
	at := clockAt(3, 12)
	tl := draw(spansOf(night(), clockAt(5, 0), clockAt(5, 0)), clockAt(0, 0), clockAt(5, 0), &at)
	if len(tl.Lanes) != 3 || tl.Lanes[0].Name != "web-3" || tl.Lanes[2].Name != "web-1" {
		t.Fatalf("%+v", tl.Lanes)
	}
	for i, want := range []bar{
		{X: "80.000%", W: "20.000%", Kind: "leads"},
		{X: "63.333%", W: "6.667%", Kind: "led"}, // as long as it is known to have led
		{X: "20.000%", W: "40.000%", Kind: "led"},
	} {
		got := tl.Lanes[i].Bars
		if len(got) != 1 || got[0].X != want.X || got[0].W != want.W || got[0].Kind != want.Kind {
			t.Errorf("lane %d: %+v, want %+v", i, got, want)
		}
	}
	if len(tl.Bands) != 3 || tl.Bands[0].Kind != "unknown" || tl.Bands[0].X != "0.000%" || tl.Bands[0].W != "20.000%" ||
		tl.Bands[1].Kind != "gap" || tl.Bands[1].X != "60.000%" || tl.Bands[1].W != "3.333%" ||
		tl.Bands[2].Kind != "unknown" || tl.Bands[2].X != "70.000%" || tl.Bands[2].W != "10.000%" {
		t.Errorf("bands: %+v", tl.Bands)
	}
	if tl.Mark == nil || tl.Mark.X != "64.000%" {
		t.Errorf("mark: %+v", tl.Mark)
	}
	for _, want := range []string{"3 terms of 3 leaders", "1 gaps", "together 10m0s"} {
		if !strings.Contains(tl.Words, want) {
			t.Errorf("%q lacks %q", tl.Words, want)
		}
	}
	if !strings.Contains(tl.Lanes[2].Bars[0].Title, "asked for by ops@desk") {
		t.Error(tl.Lanes[2].Bars[0].Title)
	}
}

// A loop of a thousand short terms is one bar, and each leader of many is found.
func TestATimelineOfManyTerms(t *testing.T) {
	var past []primacy.TermRecord
	from := clockAt(1, 0)
	for i := range 1000 {
		past = append([]primacy.TermRecord{{Token: primacy.Token(i + 1), ID: string(rune('a' + i%12)), From: from,
			To: from.Add(time.Second), Reason: primacy.Failed}}, past...)
		from = from.Add(2 * time.Second)
	}
	tl := draw(spansOf(past, clockAt(2, 0), clockAt(2, 0)), midnight, clockAt(23, 0), nil)
	if len(tl.Lanes) != mostLanes || tl.Lanes[mostLanes-1].Name != "5 others" {
		t.Errorf("%d lanes, the last %q", len(tl.Lanes), tl.Lanes[len(tl.Lanes)-1].Name)
	}
	bars := len(tl.Bands)
	for _, l := range tl.Lanes {
		bars += len(l.Bars)
	}
	if bars > 40 {
		t.Errorf("%d bars are drawn over each other", bars)
	}
}

func TestTicksStandAtRoundTimes(t *testing.T) {
	for _, c := range []struct {
		from, to time.Time
		words    string
	}{
		{clockAt(3, 2), clockAt(4, 2), "03:10 03:20 03:30 03:40 03:50 04:00"},
		{clockAt(-12, 2), clockAt(12, 2), "15:00 18:00 21:00 Nov 29 03:00 06:00 09:00 12:00"},
		{clockAt(-5*24, 2), clockAt(2*24, 2), "Nov 25 Nov 26 Nov 27 Nov 28 Nov 29 Nov 30 Dec 1"},
	} {
		var words []string
		for _, k := range draw(nil, c.from, c.to, nil).Ticks {
			words = append(words, k.Word)
		}
		if got := strings.Join(words, " "); got != c.words {
			t.Errorf("got  %s\nwant %s", got, c.words)
		}
	}
}

// A leader whose clock is ahead, and one whose clock was set back while it led, leave no time in
// which nobody led.
func TestClocksThatAreWrongMakeNoGap(t *testing.T) {
	now := clockAt(5, 0)
	before := primacy.TermRecord{Token: 5, ID: "web-1", From: clockAt(1, 0), To: clockAt(4, 0), Reason: primacy.Expired}
	back := before
	back.To = clockAt(0, 30)
	leads := primacy.TermRecord{Token: 9, ID: "web-2", From: clockAt(5, 4), Reason: primacy.Leads}
	later := leads
	later.From = clockAt(4, 30)
	for _, c := range []struct {
		past []primacy.TermRecord
		at   time.Time
		says string
	}{
		{[]primacy.TermRecord{leads, before}, now, "The clock of web-2, which leads now, is ahead: " +
			"by it that term begins 2026-11-29 05:04:00"},
		{[]primacy.TermRecord{later, back}, clockAt(4, 0), "web-1 was last known to lead 2026-11-29 01:00:00"},
	} {
		if a := ledAt(c.past, c.at, now); a.Level != "unknown" || !strings.Contains(a.Who+" "+a.Detail, c.says) {
			t.Errorf("%+v lacks %q", a, c.says)
		}
		for _, s := range spansOf(c.past, now, now) {
			if s.kind == "gap" {
				t.Errorf("the drawing says that %s", s.title)
			}
		}
	}
}

// The present leader began after the end of the window: that is no clock that is ahead.
func TestAnOutageBeforeThePresentLeaderIsAGap(t *testing.T) {
	past := []primacy.TermRecord{
		{ID: "b", Token: 9, From: clockAt(14, 0), Reason: primacy.Leads},
		{ID: "a", Token: 3, From: clockAt(10, 0), To: clockAt(10, 5), Reason: primacy.Resigned},
	}
	for _, s := range spansOf(past, clockAt(16, 0), clockAt(10, 36)) {
		if s.kind == "gap" && s.from.Equal(clockAt(10, 5)) {
			return
		}
	}
	t.Error("that nobody led is not shown")
}
