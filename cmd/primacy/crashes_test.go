package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
)

// ending returns a term of id that lasted so long.
func ending(id string, why primacy.Reason, lasted time.Duration) primacy.TermRecord {
	from := time.Now().Add(-time.Hour)
	return primacy.TermRecord{Token: 1, ID: id, Reason: why, From: from, To: from.Add(lasted), Text: "status 1"}
}

func TestCrashesThatCount(t *testing.T) {
	type terms []primacy.TermRecord
	crash := func(id string) primacy.TermRecord { return ending(id, primacy.Failed, 50*time.Millisecond) }
	for what, c := range map[string]struct {
		id   string
		past terms
		want int
	}{
		"nothing is known":         {"a", nil, 0},
		"three in a row":           {"a", terms{crash("a"), crash("a"), crash("a")}, 3},
		"others do not count":      {"b", terms{crash("a"), crash("c"), crash("a")}, 0},
		"nor do they end a row":    {"a", terms{crash("a"), ending("b", primacy.Expired, time.Hour), crash("a")}, 2},
		"a good term ends it":      {"a", terms{crash("a"), ending("a", primacy.Resigned, time.Second), crash("a")}, 1},
		"so does a long one":       {"a", terms{ending("a", primacy.Failed, time.Minute), crash("a")}, 0},
		"made up on the same host": {"web-1-77-00ff", terms{crash("web-1-4711-abcd"), crash("web-1-12-0123")}, 2},
		"on another host":          {"web-1-77-00ff", terms{crash("web-2-4711-abcd"), crash("web-1")}, 0},
	} {
		if n, _ := crashes(c.past, c.id); n != c.want {
			t.Errorf("%s: %d, want %d", what, n, c.want)
		}
	}
	const most = 30 * time.Second
	for _, c := range []struct {
		n         int
		ago, want time.Duration
	}{
		{0, 0, 0}, {1, 0, time.Second}, {2, 0, 2 * time.Second}, {5, 0, 16 * time.Second}, {6, 0, most}, {99, 0, most},
		{3, time.Second, 3 * time.Second}, {3, -time.Hour, 4 * time.Second},
	} {
		if got := crashWait(c.n, most, c.ago); got != c.want {
			t.Errorf("after %d crashes, %v ago: %v, want %v", c.n, c.ago, got, c.want)
		}
	}
	if got := crashWait(3, most, time.Hour); got > 0 {
		t.Errorf("an hour after the last: %v", got)
	}
	if got := crashWait(9, 0, 0); got != 0 {
		t.Errorf("switched off: %v", got)
	}
}

// Who waits after a crash says so to the service manager, which would end it as one that does not
// start.
func TestTheServiceManagerIsToldOfTheBackoff(t *testing.T) {
	w := newWorld(t)
	m, in := newServiceManager(w)
	for range 5 {
		w.start("run", "--id", "me", "--backoff", "0", "n", "sh", "-c", "exit 1").ends(1)
	}
	p := in.start("run", "--id", "me", "--backoff", "1h", "--wait", "2h", "n", "true").
		tells("n failed on this host 5 times in a row")
	m.hears("STATUS=the command failed soon after its start; stands again in ")
	m.hears("EXTEND_TIMEOUT_USEC=")
	p.signal(syscall.SIGTERM).ends(143)
}

func TestALoopIsOneLine(t *testing.T) {
	var all []primacy.TermRecord
	at := time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC)
	for i := range 50 {
		r := primacy.TermRecord{Name: "n", Token: primacy.Token(100 - i), ID: []string{"web-2", "web-1"}[i%2],
			From: at.Add(-time.Duration(i) * time.Second), Reason: primacy.Failed,
			Text: "the command ended with status 1"}
		r.To = r.From.Add(20 * time.Millisecond)
		switch i {
		case 3: // somebody asked for that one
			r.Reason, r.By = primacy.Resigned, "root@web-9"
		case 49:
			r.Text = "the command ended with status 2"
		}
		all = append(all, r)
	}
	var b strings.Builder
	if err := printTerms(&app{stdout: &b}, all, 3); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 4 || !strings.Contains(lines[1], "98..100") || !strings.Contains(lines[1], "status 1 ×3") ||
		!strings.Contains(lines[2], "root@web-9") || !strings.Contains(lines[3], "52..96") ||
		!strings.Contains(lines[3], "web-1, web-2") || !strings.Contains(lines[3], "status 1 ×45") {
		t.Errorf("%s", b.String())
	}
	b.Reset()
	if _ = printTerms(&app{stdout: &b}, all, 0); strings.Count(b.String(), "\n") != 5 {
		t.Errorf("all of them:\n%s", b.String())
	}
}

func TestBoundsAreToldAsBounds(t *testing.T) {
	at := time.Date(2026, 11, 22, 2, 0, 0, 0, time.Local)
	most := 100 * time.Second
	unknown := primacy.TermRecord{Token: 7, ID: "web-2", From: at, Reason: primacy.Unknown, ToAfter: at.Add(time.Hour),
		ToBefore: at.Add(time.Hour + most), DownFrom: at.Add(time.Hour), DownTo: at.Add(time.Hour + 65*time.Second)}
	frozen := primacy.TermRecord{Token: 6, ID: "web-1", From: at, To: at.Add(time.Minute), Reason: primacy.Expired,
		Paused: 29400 * time.Millisecond, Outlived: 21970 * time.Millisecond}
	both := primacy.TermRecord{Token: 5, ID: "web-3", From: at.Add(-time.Minute), To: at, Reason: primacy.Expired,
		DownFrom: at.Add(-8 * time.Second), Paused: 80 * time.Second}
	var b strings.Builder
	err := printTerms(&app{stdout: &b}, []primacy.TermRecord{
		{Token: 8, ID: "web-3", From: at.Add(time.Hour + most), Reason: primacy.Leads, GapMost: &most},
		unknown, frozen, both,
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<= 1m40s", "<= 2026-11-22 03:01:40", ">= 1h0m0s",
		"no end was recorded: the store did not answer for 1m5s (03:00:00 to 03:01:05); " +
			"last known to lead at 2026-11-22 03:00:00",
		"lease expired: its process was frozen for 29.4s; its work was alive 22s after the lease deadline",
		"lease expired: the store had not answered since 01:59:52; its process was frozen for 1m20s"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, b.String())
		}
	}
}

// Failures with hours between them are no loop: the line of one would hide that nobody led.
func TestFailuresHoursApartAreNoLoop(t *testing.T) {
	var all []primacy.TermRecord
	for i := range 3 {
		from, gap := time.Date(2026, 12, 1, 3-i, 0, 0, 0, time.UTC), time.Hour-2*time.Second
		all = append(all, primacy.TermRecord{Token: primacy.Token(9 - i), ID: "a", From: from,
			To: from.Add(2 * time.Second), Reason: primacy.Failed, Gap: &gap})
	}
	if got := alike(all); len(got) != 3 {
		t.Errorf("%d lines of 3 terms with an hour between them", len(got))
	}
	for i := range all {
		soon := time.Second
		all[i].Gap = &soon
	}
	if got := alike(all); len(got) != 1 {
		t.Errorf("%d lines of a loop", len(got))
	}
}
