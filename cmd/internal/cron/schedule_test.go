package cron

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func instants(t *testing.T, spec, zone, from string, n int) []string {
	t.Helper()
	s, err := ParseSchedule(spec, zone)
	if err != nil {
		t.Fatal(err)
	}
	at, err := time.Parse(time.RFC3339, from)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for range n {
		at = s.Next(at)
		out = append(out, at.In(s.zone).Format("01-02T15:04:05-07"))
	}
	return out
}

func TestSchedules(t *testing.T) {
	for _, c := range []struct{ spec, zone, from, want string }{
		{"*/20 * * * *", "", "2026-01-01T00:00:00Z", "01-01T00:20:00+00 01-01T00:40:00+00 01-01T01:00:00+00"},
		{"*/20 * * * * *", "", "2026-01-01T00:00:00Z", "01-01T00:00:20+00 01-01T00:00:40+00 01-01T00:01:00+00"},
		{"0 3 * * thu", "", "2026-01-01T00:00:00Z", "01-01T03:00:00+00 01-08T03:00:00+00"},
		{"0 3 * mar THU-fri", "", "2026-01-01T00:00:00Z", "03-05T03:00:00+00 03-06T03:00:00+00 03-12T03:00:00+00"},
		{"0 3 13 * fri", "", "2026-02-01T00:00:00Z",
			"02-06T03:00:00+00 02-13T03:00:00+00 02-20T03:00:00+00 02-27T03:00:00+00 03-06T03:00:00+00 " +
				"03-13T03:00:00+00"},
		{"0 3 L * *", "", "2026-02-01T00:00:00Z", "02-28T03:00:00+00 03-31T03:00:00+00"},
		{"0 3 * * fri#l", "", "2026-02-01T00:00:00Z", "02-27T03:00:00+00 03-27T03:00:00+00"},
		{"@daily", "", "2026-02-28T00:00:00Z", "03-01T00:00:00+00"},
		{"@Weekly", "", "2026-02-28T00:00:00Z", "03-01T00:00:00+00 03-08T00:00:00+00"},
		{"0 0 29 2 *", "", "2026-02-28T00:00:00Z", "02-29T00:00:00+00"},
		// The hour that does not exist, and the hour that comes twice: certain hours.
		{"30 2 * * *", "America/New_York", "2024-03-09T12:00:00Z", "03-10T03:00:00-04 03-11T02:30:00-04"},
		{"*/10 2 * * *", "America/New_York", "2024-03-10T06:00:00Z", "03-10T03:00:00-04 03-11T02:00:00-04"},
		{"0 2,3 * * *", "America/New_York", "2024-03-10T06:00:00Z", "03-10T03:00:00-04 03-11T02:00:00-04"},
		{"30 1 * * *", "America/New_York", "2024-11-02T12:00:00Z", "11-03T01:30:00-04 11-04T01:30:00-05"},
		{"30 1,2 * * *", "America/New_York", "2024-11-03T05:35:00Z", "11-03T02:30:00-05 11-04T01:30:00-05"},
		{"0 2 * * *", "America/New_York", "2024-11-03T00:00:00Z", "11-03T02:00:00-05 11-04T02:00:00-05"},
		{"0 1 * * *", "America/New_York", "2024-11-03T05:30:00Z", "11-04T01:00:00-05"},
		// Every hour: by the time that passes.
		{"30 * * * *", "America/New_York", "2024-03-10T06:00:00Z",
			"03-10T01:30:00-05 03-10T03:30:00-04 03-10T04:30:00-04"},
		{"30 * * * *", "America/New_York", "2024-11-03T05:00:00Z",
			"11-03T01:30:00-04 11-03T01:30:00-05 11-03T02:30:00-05"},
		{"0 * * * *", "America/New_York", "2024-11-03T04:30:00Z",
			"11-03T01:00:00-04 11-03T01:00:00-05 11-03T02:00:00-05"},
		{"0 * * * *", "America/New_York", "2024-03-10T06:00:00Z", "03-10T03:00:00-04 03-10T04:00:00-04"},
		// Midnight that does not exist; half an hour; a day that does not exist.
		{"0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", "11-04T01:00:00-02 11-05T00:00:00-02"},
		{"15 2 * * *", "Australia/Lord_Howe", "2024-10-05T12:00:00Z", "10-06T02:30:00+11 10-07T02:15:00+11"},
		{"0 12 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", "12-29T12:00:00-10 12-31T00:00:00+14 12-31T12:00:00+14"},
		{"@every 7s", "", "1970-01-01T00:00:00Z", "01-01T00:00:07+00 01-01T00:00:14+00"},
		{"@every 7s", "", "1970-01-01T00:00:06Z", "01-01T00:00:07+00"},
	} {
		want := strings.Fields(c.want)
		if got := instants(t, c.spec, c.zone, c.from, len(want)); strings.Join(got, " ") != c.want {
			t.Errorf("%s in %s: %v, want %v", c.spec, c.zone, got, want)
		}
	}
}

// Two processes agree on what is an instant only if it does not matter where the search for it
// begins.
func TestTheInstantsDoNotDependOnWhoAsksWhen(t *testing.T) {
	specs := []string{"30 2 * * *", "*/10 1,2 * * *", "17 */3 * * *", "*/30 * * * *", "0 0 * * *", "15 0 1-7 * mon",
		"@every 17s", "*/7 */13 * * * *"}
	for _, zone := range []string{"UTC", "America/New_York", "Europe/Berlin", "America/Sao_Paulo",
		"Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia"} {
		for _, spec := range specs {
			s, err := ParseSchedule(spec, zone)
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(1, 2))
			from := time.Date(2011+r.IntN(14), 1, 1, 0, 0, 0, 0, time.UTC)
			for range 300 {
				a := from.Add(time.Duration(r.Int64N(int64(365 * 24 * time.Hour))))
				next := s.Next(a)
				if !next.After(a) {
					t.Fatalf("%s in %s: Next(%v) = %v", spec, zone, a, next)
				}
				b := a.Add(time.Duration(r.Int64N(int64(next.Sub(a)))))
				if got := s.Next(b); !got.Equal(next) {
					t.Fatalf("%s in %s: Next(%v) = %v, but Next(%v) = %v", spec, zone, a, next, b, got)
				}
			}
			for _, end := range changes(s.zone, from) { // and close to each change of the clock
				for m := -200; m <= 200; m++ {
					a := end.Add(time.Duration(m) * 61 * time.Second)
					next := s.Next(a)
					if got := s.Next(next.Add(-time.Second)); !got.Equal(next) {
						t.Fatalf("%s in %s: Next(%v) = %v, but a second before that it is %v", spec, zone, a, next, got)
					}
				}
			}
		}
	}
}

func changes(zone *time.Location, from time.Time) (all []time.Time) {
	for range 4 {
		_, end := from.In(zone).ZoneBounds()
		if end.IsZero() {
			break
		}
		all, from = append(all, end), end
	}
	return all
}

func TestBadSchedulesAreOneLine(t *testing.T) {
	for spec, want := range map[string]string{
		"": "empty", "* * * *": "expected 5 to 6 fields", "* * * * * * *": "expected 5 to 6 fields",
		"61 * * * *": "61", ", * * * *": "no value",
		"* * 30 2 *": "no such day", "@reboot": "unrecognized", "@every": "whole seconds",
		"@every 0s": "whole seconds", "@every 1.5s": "whole seconds", "@every -5m": "whole seconds",
		"CRON_TZ=UTC * * * * *": "by the key timezone", "TZ=": "by the key timezone", "*/0 * * * *": "step",
		"* * * * xyz": "xyz", "H * * * *": "", "5-1-2 * * * *": "hyphens",
	} {
		s, err := ParseSchedule(spec, "")
		if err == nil {
			t.Errorf("%q: accepted as %+v", spec, s)
		} else if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q in one line", spec, err, want)
		}
	}
	for _, zone := range []string{"Local", "local", "Mars/Olympus", "../../etc/passwd"} {
		if _, err := ParseSchedule("* * * * *", zone); err == nil {
			t.Errorf("timezone %q accepted", zone)
		}
	}
}

func FuzzSchedule(f *testing.F) {
	for _, s := range []string{"* * * * *", "*/5 1-3,7 L * fri#2", "@every 5s", "0 0 15W * ?", "@daily",
		"59 23 31 12 7"} {
		f.Add(s, int64(1711846800))
	}
	f.Fuzz(func(t *testing.T, spec string, from int64) {
		s, err := ParseSchedule(spec, "Europe/Berlin")
		if err != nil {
			return
		}
		at := time.Unix(from%(1<<32), 0)
		next := s.Next(at)
		if next.IsZero() {
			return
		}
		if !next.After(at) || !s.Next(next.Add(-time.Second)).Equal(next) || next.Nanosecond() != 0 {
			t.Fatalf("%q: Next(%v) = %v", spec, at, next)
		}
	})
}
