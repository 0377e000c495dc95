//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/open"
)

// cronID is one attempt at one instant of a job.
type cronID struct {
	job     string
	at      time.Time
	attempt int
}

// cronAct is what the command of one attempt wrote itself: when it began, when it was last seen,
// when it ended.
type cronAct struct {
	begins, ends      int
	began, last, done time.Time
	token             uint64
}

// cronJudge holds what the commands wrote against the schedule and against what the store says.
type cronJudge struct {
	*cronFleet
	cut     time.Time // what was due until then must be settled
	acts    map[cronID]*cronAct
	records map[cronID]map[string]cron.Record // by kind
	gaps    map[string][]cron.Record
	first   map[string]time.Time
	count   map[string]int
	late    []time.Duration
	errors  []string
	pending []string // what is not settled yet
}

func newCronJudge(f *cronFleet, cut time.Time) *cronJudge {
	c := &cronJudge{cronFleet: f, cut: cut, acts: map[cronID]*cronAct{}, records: map[cronID]map[string]cron.Record{},
		gaps: map[string][]cron.Record{}, first: map[string]time.Time{}, count: map[string]int{}}
	c.readLog()
	st, err := open.Open(f.Context(), f.store)
	if err != nil {
		f.Fatal(err)
	}
	defer st.Close()
	for _, j := range f.jobs {
		c.readJournal(st.(driver.Journal), j.Name)
	}
	return c
}

func (c *cronJudge) wrong(format string, args ...any) {
	c.errors = append(c.errors, fmt.Sprintf(format, args...))
}

// open notes that something is not settled, if it must be.
func (c *cronJudge) open(id cronID, format string, args ...any) {
	if !id.at.After(c.cut) {
		c.pending = append(c.pending, fmt.Sprintf("%v: ", id)+fmt.Sprintf(format, args...))
	}
}

func (c *cronJudge) readLog() {
	text, err := os.ReadFile(c.log)
	if err != nil {
		c.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		w := strings.Fields(line)
		if len(w) != 6 {
			c.wrong("the log has %q", line)
			continue
		}
		at, err := time.Parse(time.RFC3339, w[2])
		attempt, err2 := strconv.Atoi(w[3])
		token, err3 := strconv.ParseUint(w[4], 10, 64)
		ns, err4 := strconv.ParseInt(w[5], 10, 64)
		if cmp.Or(err, err2, err3, err4) != nil {
			c.wrong("the log has %q", line)
			continue
		}
		id, now := cronID{w[1], at, attempt}, time.Unix(0, ns)
		if c.acts[id] == nil {
			c.acts[id] = &cronAct{}
		}
		a := c.acts[id]
		a.last, a.token = now, token
		switch w[0] {
		case "S":
			a.begins, a.began = a.begins+1, now
		case "E":
			a.ends, a.done = a.ends+1, now
		}
	}
}

func (c *cronJudge) readJournal(j driver.Journal, job string) {
	var records []driver.Record
	var err error
	for range 20 { // on a busy machine the store may take its time
		if records, err = j.Records(c.Context(), cron.Prefix+job, "", 20000); err == nil {
			break
		}
	}
	if err != nil {
		c.Fatal(err)
	}
	for _, d := range records {
		r, ok := cron.ParseRecord(d)
		if !ok {
			c.wrong("%s: a record %q %q", job, d.Key, d.Value)
			continue
		}
		id := cronID{job, r.Key.At, r.Key.Attempt}
		switch {
		case r.Key.Kind == "m":
			c.gaps[job] = append(c.gaps[job], r)
		case r.Verdict == cron.Fresh:
			c.first[job] = r.Key.At
		default:
			if c.records[id] == nil {
				c.records[id] = map[string]cron.Record{}
			}
			c.records[id][r.Key.Kind] = r
		}
	}
}

func (c *cronJudge) judge() {
	for _, j := range c.jobs {
		c.instants(j)
		if j.Overlap != cron.Allow {
			c.alone(j)
		}
	}
	for id, kinds := range c.records {
		c.attempt(id, kinds)
	}
	for id, a := range c.acts {
		c.act(id, a)
	}
	slices.Sort(c.late)
}

// report fails the test where something is wrong, and tells the figures.
func (c *cronJudge) report() {
	at := func(p float64) time.Duration {
		if len(c.late) == 0 {
			return 0
		}
		return c.late[int(p*float64(len(c.late)-1))].Round(time.Millisecond)
	}
	c.Logf("%d jobs on 5 processes; faults %v", len(c.jobs), c.cronFleet.acts)
	c.Logf("%v", c.count)
	c.Logf("late after the instant, first attempts in time: median %v, 95 %% %v, 99 %% %v, worst %v of %d", at(0.5),
		at(0.95), at(0.99), at(1), len(c.late))
	for i, text := range append(c.errors, c.pending...) {
		if i < 20 {
			c.Error(text)
		}
	}
	if n := len(c.errors) + len(c.pending); n > 0 {
		c.Errorf("%d things are wrong, %d of them not settled", n, len(c.pending))
	}
	if c.count["ran"] == 0 || c.count["instants"] == 0 {
		c.Error("nothing ran")
	}
}

// instants checks that each instant of the schedule is decided.
func (c *cronJudge) instants(j *cron.Job) {
	from, ok := c.first[j.Name]
	if !ok {
		c.wrong("%s: no record of where it begins", j.Name)
		return
	}
	for at := j.Schedule().Next(from); !at.After(c.cut); at = j.Schedule().Next(at) {
		c.count["instants"]++
		r, decided := c.records[cronID{j.Name, at, 1}]["a"]
		switch {
		case decided:
			c.count["decided "+r.Verdict]++
		case slices.ContainsFunc(c.gaps[j.Name], func(g cron.Record) bool {
			return !at.Before(g.Key.At) &&
				!at.After(g.Upto)
		}):
			c.count["decided missed"]++
		default:
			c.open(cronID{j.Name, at, 1}, "nobody has decided about it; it counts from %s, and around it are%s",
				from.Format("15:04:05"), c.around(j.Name, at))
		}
	}
}

// around tells the records of a job near an instant.
func (c *cronJudge) around(job string, at time.Time) (text string) {
	var near []cron.Record
	for id, kinds := range c.records {
		if id.job == job && id.at.Sub(at).Abs() < 20*time.Second {
			near = slices.AppendSeq(near, maps.Values(kinds))
		}
	}
	slices.SortFunc(near, func(a, b cron.Record) int { return a.When.Compare(b.When) })
	for _, r := range near {
		text += fmt.Sprintf("\n\t%s %s by %s at %s, over up to %s", r.Key, r.Verdict, r.By,
			r.When.Format("15:04:05.0"), r.Done.Format("15:04:05"))
	}
	for _, g := range c.gaps[job] {
		text += fmt.Sprintf("\n\t%s missed up to %s by %s at %s", g.Key, g.Upto.Format("15:04:05"), g.By,
			g.When.Format("15:04:05"))
	}
	return text
}

// attempt checks one attempt as the store has it, and that the job's policy was followed after it.
func (c *cronJudge) attempt(id cronID, kinds map[string]cron.Record) {
	job := c.jobs[slices.IndexFunc(c.jobs, func(j *cron.Job) bool { return j.Name == id.job })]
	begin, decided := kinds["a"]
	end, ended := kinds["z"]
	a := c.acts[id]
	if !decided || begin.Verdict != cron.Began {
		if a != nil || ended {
			c.wrong("%v: ran, or ended, but the record of its beginning is %+v", id, begin)
		}
		return
	}
	if !ended {
		c.open(id, "has begun and has no end: by %s at %v", begin.By, begin.When)
		return
	}
	c.count["attempts"]++
	c.count["ended "+end.Verdict]++
	if id.attempt > 1 {
		c.count["retried"]++
	}
	switch {
	case end.Verdict == cron.OK && (a == nil || a.begins != 1 || a.ends != 1):
		c.wrong("%v: ended ok, but its command wrote %+v", id, a)
	case end.Verdict == cron.Lost && a != nil && a.last.After(end.When):
		c.wrong("%v: declared lost at %v, but its command still worked %v later", id, end.When, a.last.Sub(end.When))
	}
	if a != nil && strconv.FormatUint(a.token, 10) != begin.Token {
		c.wrong("%v: ran under token %d, recorded was %s", id, a.token, begin.Token)
	}
	next, again := c.records[cronID{id.job, id.at, id.attempt + 1}]["a"]
	due := slices.Contains(job.RetryOn, end.Verdict) && id.attempt <= job.Retries
	switch {
	case again && !due:
		c.wrong("%v: ended as %s, and was tried again by %s against the policy", id, end.Verdict, next.By)
	case due && !again:
		c.open(id, "ended as %s at %v, and was not tried again", end.Verdict, end.When)
	}
}

// act checks what one command wrote.
func (c *cronJudge) act(id cronID, a *cronAct) {
	c.count["ran"]++
	if a.begins > 1 || a.ends > 1 {
		c.count["duplicates"]++
		c.wrong("%v: began %d times and ended %d times", id, a.begins, a.ends)
	}
	begin, ok := c.records[id]["a"]
	if !ok {
		c.wrong("%v: ran, and the store knows nothing of it", id)
		return
	}
	job := c.jobs[slices.IndexFunc(c.jobs, func(j *cron.Job) bool { return j.Name == id.job })]
	if id.attempt == 1 && !begin.CatchUp && job.Jitter == 0 {
		c.late = append(c.late, a.began.Sub(id.at))
	}
	if a.began.Before(id.at) {
		c.wrong("%v: began %v before its instant", id, id.at.Sub(a.began))
	}
}

// alone checks that runs of a job that may not overlap did not, and that the later has the larger
// token.
func (c *cronJudge) alone(j *cron.Job) {
	type span struct {
		id cronID
		*cronAct
	}
	var spans []span
	for id, a := range c.acts {
		if id.job == j.Name {
			spans = append(spans, span{id, a})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.began.Compare(b.began) })
	for i := 1; i < len(spans); i++ {
		before, after := spans[i-1], spans[i]
		if after.began.Before(before.last) {
			c.wrong("%v began at %v, while %v still worked until %v", after.id, after.began, before.id, before.last)
		}
		if after.token <= before.token {
			c.wrong("%v has token %d, after %d of %v", after.id, after.token, before.token, before.id)
		}
	}
}

func (i cronID) String() string {
	return fmt.Sprintf("%s %s attempt %d", i.job, i.at.Format("15:04:05"), i.attempt)
}
