package cron

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/pause"
)

// For `primacy cron status` and history, GET /v1/cron and GET /v1/cron/JOB: call [ReadAll] and
// [ReadJob] and write what they return as JSON.

// RunInfo is one attempt at one instant, or one decision not to run.
type RunInfo struct {
	Instant   time.Time `json:"instant"`
	Attempt   int       `json:"attempt"`
	Result    string    `json:"result"` // a verdict of an end; "running" while there is none; overlap, missed, paused
	By        string    `json:"by"`     // the process that ran it, or decided not to
	Host      string    `json:"host,omitempty"`
	Began     time.Time `json:"began,omitzero"` // on that process's clock
	Ended     time.Time `json:"ended,omitzero"`
	Code      *int      `json:"exit_code,omitempty"`
	Took      string    `json:"took,omitempty"`
	Token     string    `json:"token,omitempty"`
	Run       string    `json:"run,omitempty"`
	CatchUp   bool      `json:"catch_up,omitempty"` // it was missed, and made up for
	LostBy    string    `json:"declared_lost_by,omitempty"`
	Afterword string    `json:"told_late,omitempty"` // what its runner said after it was declared lost
	Text      string    `json:"text,omitempty"`
	Upto      time.Time `json:"upto,omitzero"` // of many missed instants told together
	Count     int       `json:"count,omitempty"`
}

// JobInfo is what the store knows of a job.
type JobInfo struct {
	Job      string     `json:"job"`
	Schedule string     `json:"schedule,omitempty"`
	Timezone string     `json:"timezone,omitempty"`
	Paused   bool       `json:"paused"`
	PausedBy string     `json:"paused_by,omitempty"`
	Held     int        `json:"held,omitempty"` // scheduled times recorded as paused and not decided yet
	Next     *time.Time `json:"next,omitempty"`
	Last     *RunInfo   `json:"last,omitempty"` // that ran, or runs
	// begun, and no end is told: one whose runner died is among them until that is found
	Running []RunInfo      `json:"running"`
	Results map[string]int `json:"results"` // of the records that were read
	// the newest hash of the job by each process that decided something
	Definitions map[string]string `json:"definitions"`
	// processes had different definitions at the same time, not one after the other
	Disagree bool `json:"disagree"`
}

// ErrNoJob says that no process has ever had a job of that name.
var ErrNoJob = errors.New("no such job")

// ErrNoJournal says that the store keeps no records.
var ErrNoJournal = errors.New("this store keeps no records, which cron needs: use etcd, PostgreSQL, " +
	"Redis by redis://, or ZooKeeper")

// ReadAll returns all jobs that have records, by name.
func ReadAll(ctx context.Context, st driver.Store, now time.Time) ([]JobInfo, error) {
	j, ok := st.(driver.Journal)
	if !ok {
		return nil, ErrNoJournal
	}
	names, err := j.Journals(ctx, Prefix)
	if err != nil {
		return nil, err
	}
	all := []JobInfo{}
	for _, name := range names {
		info, _, err := ReadJob(ctx, st, strings.TrimPrefix(name, Prefix), window, now)
		if err != nil && !errors.Is(err, ErrNoJob) {
			return nil, err
		} else if err == nil {
			all = append(all, info)
		}
	}
	return all, nil
}

// ReadJob returns a job and what became of its latest instants, the newest first, from at most
// limit records (two each run). What it says of the job goes back to the oldest run that has not
// ended. [ErrNoJob] if it has none.
func ReadJob(ctx context.Context, st driver.Store, name string, limit int, now time.Time) (JobInfo, []RunInfo, error) {
	journal, ok := st.(driver.Journal)
	switch {
	case !ok:
		return JobInfo{}, nil, ErrNoJournal
	case !jobName.MatchString(name):
		return JobInfo{}, nil, fmt.Errorf("%w: %q is not the name of one", ErrNoJob, name)
	}
	records, err := journal.Records(ctx, Prefix+name, "", limit)
	if err != nil {
		return JobInfo{}, nil, err
	}
	if len(records) == 0 {
		return JobInfo{}, nil, fmt.Errorf("%w: %s has no records", ErrNoJob, name)
	}
	runs := see(records).runs()
	if records, err = unfinished(ctx, journal, name, records); err != nil {
		return JobInfo{}, nil, err
	}
	v := see(records)
	return v.info(name, v.runs(), now), runs, nil
}

// unfinished returns the records and those behind them, back to where all is over, as they say: the
// beginning of a run that hangs lies behind all that may not begin beside it. Where these are very
// many, what is in between is left out.
func unfinished(ctx context.Context, journal driver.Journal, name string, records []driver.Record) ([]driver.Record,
	error,
) {
	const page, pages = 4 * window, 4
	v := see(records)
	done := v.done(v.sched())
	for n := range pages + 1 {
		before := records[len(records)-1].Key
		if done.IsZero() || before <= (Key{At: done, Kind: kindGap}).String() {
			break
		}
		if n == pages {
			before = min(before, Key{At: done.Add(time.Second)}.String())
		}
		more, err := journal.Records(ctx, Prefix+name, before, page)
		if err != nil {
			return nil, err
		}
		if records = append(records, more...); len(more) < page {
			break
		}
	}
	return records, nil
}

func (v *view) info(name string, runs []RunInfo, now time.Time) JobInfo {
	j := JobInfo{Job: name, Paused: v.paused, Running: []RunInfo{}, Results: map[string]int{},
		Definitions: map[string]string{}}
	for _, r := range v.records {
		if r.Def != "" {
			j.Definitions[r.By] = r.Def
			j.Schedule, j.Timezone = r.Spec, r.Zone
		}
		if r.Verdict == Paused && r.Key.Kind == kindNote {
			j.PausedBy = r.By
		}
	}
	if !j.Paused {
		j.PausedBy = ""
	}
	j.Disagree = v.disagree()
	for i, r := range runs {
		if r.Result == Paused {
			j.Held++
			continue
		}
		j.Results[r.Result] += max(1, r.Count)
		if r.Result == "running" {
			j.Running = append(j.Running, r)
		}
		if j.Last == nil && r.Result != Overlap && r.Result != Missed {
			j.Last = &runs[i]
		}
	}
	if s, err := ParseSchedule(j.Schedule, j.Timezone); err == nil && !j.Paused {
		if next := s.Next(now); !next.IsZero() {
			j.Next = &next
		}
	}
	return j
}

// disagree says whether a definition was used again after another one had come.
func (v *view) disagree() bool {
	byTime := slices.Clone(v.records)
	slices.SortStableFunc(byTime, func(a, b Record) int { return a.When.Compare(b.When) })
	var defs []string
	for _, r := range byTime {
		switch {
		case r.Def == "" || len(defs) > 0 && defs[len(defs)-1] == r.Def:
		case slices.Contains(defs, r.Def):
			return true
		default:
			defs = append(defs, r.Def)
		}
	}
	return false
}

// runs returns what became of instants, the newest first.
func (v *view) runs() []RunInfo {
	runs := []RunInfo{}
	for _, a := range v.attempts {
		r := a.info()
		if h, held := v.held[a.id.At]; held && r.Result == Missed {
			r.Text = h.Text
		}
		runs = append(runs, r)
	}
	for at, h := range v.held {
		if !v.decided(ID{at, 1}) {
			runs = append(runs, RunInfo{Instant: at, Result: Paused, By: h.By, Host: h.Host, Text: h.Text})
		}
	}
	for _, g := range v.gaps {
		runs = append(runs, RunInfo{Instant: g.Key.At, Result: Missed, By: g.By, Host: g.Host, Upto: g.Upto,
			Count: g.Count})
	}
	slices.SortFunc(runs, func(a, b RunInfo) int {
		if c := b.Instant.Compare(a.Instant); c != 0 {
			return c
		}
		return b.Attempt - a.Attempt
	})
	return runs
}

func (a *begun) info() RunInfo {
	r := RunInfo{Instant: a.id.At, Attempt: a.id.Attempt, Result: a.begin.Verdict, By: a.begin.By, Host: a.begin.Host,
		Token: a.begin.Token, Run: a.begin.Run,
		CatchUp: a.begin.CatchUp, Text: a.begin.Text}
	if a.begin.Verdict != Began {
		return r
	}
	r.Began, r.Result = a.begin.When, "running"
	if e := a.end; e != nil {
		r.Result, r.Ended, r.Code, r.Took, r.Text = e.Verdict, e.When, e.Code, e.Took, e.Text
		if e.Run != a.begin.Run && r.By != "" {
			r.LostBy = e.By
		}
		if r.By == "" { // its beginning is not among what was read
			r.By, r.Host, r.Run = e.By, e.Host, e.Run
		}
	}
	if l := a.late; l != nil {
		r.Afterword = strings.TrimSpace(l.Verdict + " " + l.Text)
		r.Code = l.Code
	}
	return r
}

// Mark records, for all processes, that a job is Paused or Resumed, or that a run of this instant
// is Wanted, in the name of by.
func Mark(ctx context.Context, st driver.Store, job, verdict, by string, now time.Time) (time.Time, error) {
	journal, ok := st.(driver.Journal)
	if !ok {
		return time.Time{}, ErrNoJournal
	}
	info, _, err := ReadJob(ctx, st, job, window, now)
	if err != nil {
		return time.Time{}, err
	}
	if verdict != Wanted && info.Paused == (verdict == Paused) {
		return time.Time{}, fmt.Errorf("%w: %s", ErrAlready,
			map[bool]string{true: "it is paused", false: "it is not paused"}[info.Paused])
	}
	records, err := journal.Records(ctx, Prefix+job, "", window)
	if err != nil {
		return time.Time{}, err
	}
	at := now.UTC().Truncate(time.Second)
	v := see(records)
	noted := v.noted
	if verdict != Wanted && !at.After(noted) { // by a clock that is ahead of ours
		at = noted.Add(time.Second)
	}
	if verdict == Wanted && info.Paused && at.After(noted) {
		if err := stayPaused(ctx, journal, job, by, noted, at, now); err != nil {
			return time.Time{}, err
		}
	}
	r := Record{Key: Key{At: at}, Verdict: verdict, Run: runName(), By: by, When: now.UTC()}
	if verdict != Wanted {
		return mark(ctx, journal, job, kindNote, r, nextSecond)
	}
	place := func(at time.Time) (time.Time, error) { return v.place(ctx, st, info, at) }
	if r.Key.At, err = place(at); err != nil {
		return time.Time{}, err
	}
	return mark(ctx, journal, job, kindWant, r, func(at time.Time) (time.Time, error) {
		return place(at.Add(time.Second))
	})
}

// place returns the second of an extra run, the first from at on that is no scheduled time of the
// job, nor has a run: there it would be the scheduled one, and so be none. Of a job of every second
// there is none, unless the job is paused: then no scheduled time runs.
func (v *view) place(ctx context.Context, st driver.Store, info JobInfo, at time.Time) (time.Time, error) {
	s, err := ParseSchedule(info.Schedule, info.Timezone)
	if err != nil { // of a newer version
		s = nil
	}
	if at, ok := v.free(at, s); ok {
		return at, nil
	}
	all, err := pause.List(ctx, st)
	if info.Paused || err == nil && pause.Strongest(all, Prefix+info.Job) != nil {
		if at, ok := v.free(at, nil); ok {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%w: each of the next seconds is a scheduled time of the job", ErrAlready)
}

// free returns the first second from at on that has no run, nor is an instant of s; false: none is
// near.
func (v *view) free(at time.Time, s *Schedule) (time.Time, bool) {
	for range 60 {
		if v.attempts[ID{at, 1}] == nil && (s == nil || !s.Next(at.Add(-time.Second)).Equal(at)) {
			return at, true
		}
		at = at.Add(time.Second)
	}
	return time.Time{}, false
}

// nextSecond is where a mark goes whose second has one.
func nextSecond(at time.Time) (time.Time, error) { return at.Add(time.Second), nil }

// mark appends a record at the first second from its own on that has none of its kind. Next says
// which second comes after one.
func mark(ctx context.Context, journal driver.Journal, job, kind string, r Record,
	next func(time.Time) (time.Time, error),
) (time.Time, error) {
	for range 60 { // another mark of the same second
		r.Key.Kind = kind
		d, err := r.driver()
		if err != nil {
			return time.Time{}, err
		}
		there, added, err := journal.Append(ctx, Prefix+job, d, maxKeep)
		if err != nil {
			return time.Time{}, err
		}
		if added || string(there.Value) == string(d.Value) {
			return r.Key.At, nil
		}
		if r.Key.At, err = next(r.Key.At); err != nil {
			return time.Time{}, err
		}
	}
	return time.Time{}, errors.New("too many marks at once")
}

// stayPaused says once more, before an extra run, that the job is paused: the records of many such
// runs would put the word since noted where nobody reads it.
func stayPaused(ctx context.Context, journal driver.Journal, job, by string, noted, at, now time.Time) error {
	r := Record{Key: Key{At: at}, Verdict: Paused, Run: runName(), By: by, When: now.UTC()}
	at, err := mark(ctx, journal, job, kindNote, r, nextSecond)
	if err != nil {
		return err
	}
	records, err := journal.Records(ctx, Prefix+job, "", window)
	if err != nil {
		return err
	}
	for _, other := range see(records).records {
		// meanwhile, by somebody else: that stands
		if other.Verdict == Resumed && other.Key.At.After(noted) && other.Key.At.Before(at) {
			r.Verdict, r.Run, r.Key.At = Resumed, runName(), at.Add(time.Second)
			_, err = mark(ctx, journal, job, kindNote, r, nextSecond)
		}
	}
	return err
}

// ErrAlready says that a job is paused, or runs, already.
var ErrAlready = errors.New("nothing to do")
