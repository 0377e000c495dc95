package cron

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"time"
	// a machine or an image without time zones must not decide other instants than the rest of the
	// fleet
	_ "time/tzdata"

	parser "github.com/netresearch/go-cron"
)

// Schedule is a set of instants, the same on every machine that has the same text and time zone:
// whole seconds, in UTC. It depends on nothing else, above all not on when somebody asks, or two
// processes would disagree about what an instant is.
//
// A crontab line names wall times. How they become instants where a zone changes its offset is our
// own rule; the parser's library is asked about wall times only, as if there were no zones (its own
// answer for a skipped hour depends on where the search begins):
//
//   - a schedule of certain hours ("30 2 * * *"): a wall time that does not exist runs at the
//     instant at which the clock jumped, several of them once; one that comes twice runs the first
//     time only;
//   - a schedule of every hour ("*/10 * * * *"): what does not exist does not run, and what comes
//     twice runs twice: it follows the time that passes;
//   - "@every 90s": every multiple of 90 s since 1970-01-01 00:00 UTC, whatever the zone.
type Schedule struct {
	text  string
	zone  *time.Location
	every time.Duration // not 0: "@every"
	wall  *parser.SpecSchedule
	fixed bool // not every hour
}

// fields is what a schedule may have: five fields, or six with seconds in front; @daily and the
// like; L, W and # as Quartz has them. A day matches where either of day of month and day of week
// does, once both are given, as in every crontab.
var fields = parser.MustNewParser(parser.SecondOptional | parser.Minute | parser.Hour |
	parser.Dom | parser.Month | parser.Dow |
	parser.Descriptor | parser.Extended | parser.DowOrDom).WithMaxSearchYears(30)

// ParseSchedule reads a schedule such as "*/5 * * * *", "30 0 3 * * mon-fri" (seconds first) or
// "@every 90s". Zone is the name of a time zone; empty is UTC, never the machine's own, which may
// differ from machine to machine.
func ParseSchedule(text, zone string) (*Schedule, error) {
	s := &Schedule{text: strings.Join(strings.Fields(text), " "), zone: time.UTC}
	switch {
	case s.text == "":
		return nil, errors.New(`the schedule is empty: give five fields such as "*/5 * * * *", ` +
			`six with seconds first, or "@every 90s"`)
	case strings.HasPrefix(s.text, "TZ="), strings.HasPrefix(s.text, "CRON_TZ="):
		return nil, errors.New("give the time zone by the key timezone, not in the schedule")
	case strings.EqualFold(zone, "local"):
		return nil, errors.New(`timezone "Local" differs from machine to machine: name one, such as "Europe/Berlin"`)
	}
	if zone != "" {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			return nil, fmt.Errorf(`unknown timezone %q: use a name such as "UTC" or "Europe/Berlin"`, zone)
		}
		s.zone = loc
	}
	if d, ok := strings.CutPrefix(s.text, "@every"); ok {
		return s, s.parseEvery(strings.TrimSpace(d))
	}
	return s, s.parseFields()
}

func (s *Schedule) parseEvery(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d%time.Second != 0 || d > 366*24*time.Hour {
		return fmt.Errorf("@every %s: give whole seconds of at least 1s, such as 90s or 6h", text)
	}
	s.every = d
	return nil
}

func (s *Schedule) parseFields() error {
	// In small letters: the library takes the H of THU for a word of its own.
	text := "CRON_TZ=UTC " + strings.ToLower(s.text)
	parsed, err := fields.Parse(text)
	if err != nil {
		return fmt.Errorf("%q: %s", s.text, strings.ReplaceAll(err.Error(), "CRON_TZ=UTC ", ""))
	}
	wall, ok := parsed.(*parser.SpecSchedule)
	if !ok {
		return fmt.Errorf("%q: not fields, @daily or @every", s.text)
	}
	day := wall.Dom != 0 || wall.Dow != 0 || len(wall.DomConstraints)+len(wall.DowConstraints) > 0
	if wall.Second == 0 || wall.Minute == 0 || wall.Hour == 0 || wall.Month == 0 || !day {
		// such as "," : the search for it would go through every second
		return fmt.Errorf("%q: a field names no value", s.text)
	}
	if wall.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return fmt.Errorf("%q: there is no such day", s.text)
	}
	s.wall, s.fixed = wall, bits.OnesCount64(wall.Hour&(1<<24-1)) < 24
	return nil
}

// String returns the schedule as it was given.
func (s *Schedule) String() string { return s.text }

// Zone returns the name of its time zone.
func (s *Schedule) Zone() string { return s.zone.String() }

// Next returns the first instant after t, zero if there is none in the next years.
func (s *Schedule) Next(t time.Time) time.Time {
	t = t.UTC().Truncate(time.Second)
	if s.every != 0 {
		n, d := t.Unix(), int64(s.every/time.Second)
		return time.Unix((floorDiv(n, d)+1)*d, 0).UTC()
	}
	if s.zone == time.UTC {
		return s.wall.Next(t)
	}
	for range 200 { // stretches of one offset: two a year, and none repeats
		begin, end := t.In(s.zone).ZoneBounds()
		at := s.within(t, begin, end)
		if !at.IsZero() || end.IsZero() {
			return at
		}
		if s.jumpedOver(end) {
			return end.UTC()
		}
		// From here on the search is in the next stretch, its first second included.
		if at := s.first(end); !at.IsZero() {
			return at
		}
		t = end.UTC()
	}
	return time.Time{}
}

// first returns end if it is an instant by its own wall time, or zero.
func (s *Schedule) first(at time.Time) time.Time {
	w := wallOf(at.In(s.zone))
	if s.wall.Next(w.Add(-time.Second)).Equal(w) && !(s.fixed && s.repeated(at)) {
		return at.UTC()
	}
	return time.Time{}
}

// within returns the first instant after t in the stretch of one offset that t is in, or zero.
func (s *Schedule) within(t, begin, end time.Time) time.Time {
	offset := wallOf(t.In(s.zone)).Sub(t)
	w := t.Add(offset)
	if s.fixed && !begin.IsZero() {
		// Wall times up to here came once already, before the clock was put back.
		if last := wallOf(begin.Add(-time.Second).In(s.zone)); w.Before(last) {
			w = last
		}
	}
	w = s.wall.Next(w)
	at := w.Add(-offset)
	if w.IsZero() || !end.IsZero() && !at.Before(end) {
		return time.Time{}
	}
	return at
}

// repeated says whether the wall time of at came once already.
func (s *Schedule) repeated(at time.Time) bool {
	begin, _ := at.In(s.zone).ZoneBounds()
	return !begin.IsZero() && !wallOf(at.In(s.zone)).After(wallOf(begin.Add(-time.Second).In(s.zone)))
}

// jumpedOver says whether a schedule of certain hours has wall times that do not exist because the
// clock was put forward at that instant.
func (s *Schedule) jumpedOver(at time.Time) bool {
	before := wallOf(at.Add(-time.Second).In(s.zone))
	after := wallOf(at.In(s.zone))
	next := s.wall.Next(before)
	return s.fixed && !next.IsZero() && next.Before(after)
}

// wallOf returns what the clock on the wall shows, as if it were UTC.
func wallOf(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a + b - 1) / b)
	}
	return a / b
}
