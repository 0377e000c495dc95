package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/cmd/internal/parallel"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
)

// cronReader keeps what was read of all jobs for a moment, for all tabs.
type cronReader struct {
	store   driver.Store
	timeout time.Duration

	mu   sync.Mutex
	jobs []jobRuns
	more int // jobs that are not among them
	err  error
	at   time.Time
	turn int // where the next reading begins: at the first that the last one had no time for

	oneMu sync.Mutex
	one   map[string]*oneJob // those whose own view is open
}

// oneJob is what was read for the view of a job.
type oneJob struct {
	mu   sync.Mutex
	runs jobRuns
	err  error
	at   time.Time
}

type jobRuns struct {
	info cron.JobInfo
	runs []cron.RunInfo
}

const (
	cronEvery = 2 * time.Second
	cells     = 24  // runs of a job in the grid
	mostJobs  = 200 // that are read
	runsShown = 200 // of one job
)

// all returns the jobs by name, each with its latest runs, and how many there are beside.
func (c *cronReader) all(ctx context.Context) (jobs []jobRuns, more int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < cronEvery {
		return c.jobs, c.more, c.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	defer cancel()
	c.jobs, c.err = c.read(ctx)
	c.at = time.Now()
	return c.jobs, c.more, c.err
}

func (c *cronReader) read(ctx context.Context) ([]jobRuns, error) {
	infos, err := cron.ReadAll(ctx, c.store, time.Now())
	if err != nil {
		return nil, err
	}
	c.more = max(0, len(infos)-mostJobs)
	infos = infos[:len(infos)-c.more]
	before := make(map[string][]cron.RunInfo, len(c.jobs))
	for _, j := range c.jobs {
		before[j.info.Job] = j.runs
	}
	all, errs := make([]jobRuns, len(infos)), make([]error, len(infos))
	parallel.Each(len(infos), func(i int) {
		i = (c.turn + i) % len(infos)
		_, runs, err := cron.ReadJob(ctx, c.store, infos[i].Job, 3*cells, time.Now())
		if err != nil && !errors.Is(err, cron.ErrNoJob) { // what was read before is shown on
			runs, errs[i] = before[infos[i].Job], err
		}
		all[i] = jobRuns{infos[i], runs}
	})
	var unread error
	for i := range infos {
		if at := (c.turn + i) % len(infos); errs[at] != nil {
			c.turn, unread = at, errs[at]
			break
		}
	}
	known := all[:0]
	for i, j := range all {
		if errs[i] == nil || j.runs != nil {
			known = append(known, j)
		}
	}
	return known, unread
}

// ofOne returns what the view of one job shows. It is read once for all tabs.
func (c *cronReader) ofOne(ctx context.Context, name string) (cron.JobInfo, []cron.RunInfo, error) {
	c.oneMu.Lock()
	if c.one == nil || len(c.one) >= mostJobs && c.one[name] == nil {
		c.one = map[string]*oneJob{}
	}
	j := c.one[name]
	if j == nil {
		j = &oneJob{}
		c.one[name] = j
	}
	c.oneMu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.at.IsZero() || time.Since(j.at) >= cronEvery {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
		defer cancel()
		j.runs.info, j.runs.runs, j.err = cron.ReadJob(ctx, c.store, name, 3*runsShown, time.Now())
		j.at = time.Now()
	}
	return j.runs.info, j.runs.runs, j.err
}

// cell is one instant of a job in the grid.
type cell struct{ Kind, Mark, Title, URL string }

// jobRow is a job in the grid.
type jobRow struct {
	ID, Name, URL      string
	Schedule, Timezone string
	Paused             bool
	PausedBy           string
	Stopped            bool // by a pause of its name, or of all that is below cron/
	Held               int  // scheduled times that wait for the end of that
	Last, By           string
	LastAt             time.Time
	Level              string
	Took, Typical      string
	Next               time.Time
	Disagree           bool
	Cells              []cell // the newest last
	Empty              int    // cells without a run
}

// results say how a run is shown: for a colour, by a shape, and whether it is trouble.
var results = map[string]struct{ kind, mark string }{
	cron.OK: {"good", "✓"}, cron.Failed: {"bad", "✗"}, cron.TimedOut: {"bad", "T"}, cron.Lost: {"bad", "?"},
	cron.Stopped: {"warn", "■"}, cron.Replaced: {"warn", "↻"}, cron.Overlap: {"idle", "="}, cron.Missed: {"warn", "–"},
	"running": {"now", "▶"}, cron.Paused: {"idle", "‖"},
}

func jobURL(name string) string { return Path + "job?" + url.Values{"name": {name}}.Encode() }

func runID(r cron.RunInfo) string {
	return fmt.Sprintf("run-%s-%d", r.Instant.UTC().Format("20060102T150405Z"), r.Attempt)
}

func jobRowOf(j jobRuns) jobRow {
	r := jobRow{ID: idOf("j", j.info.Job), Name: j.info.Job, URL: jobURL(j.info.Job), Schedule: j.info.Schedule,
		Timezone: j.info.Timezone, Paused: j.info.Paused, PausedBy: j.info.PausedBy, Disagree: j.info.Disagree,
		Held: j.info.Held,
		Last: "never", Level: "idle"}
	if j.info.Next != nil {
		r.Next = *j.info.Next
	}
	if l := j.info.Last; l != nil {
		r.Last, r.LastAt, r.By, r.Took, r.Level = l.Result, l.Instant, l.By, l.Took, results[l.Result].kind
	}
	runs := j.runs[:min(len(j.runs), cells)]
	for _, run := range slices.Backward(runs) {
		how := results[run.Result]
		c := cell{Kind: how.kind, Mark: how.mark, Title: runTitle(run), URL: r.URL + "#" + runID(run)}
		if c.Mark == "" {
			c.Kind, c.Mark = "idle", "·"
		}
		r.Cells = append(r.Cells, c)
	}
	r.Empty = cells - len(r.Cells)
	r.Typical = typical(j.runs)
	return r
}

func runTitle(run cron.RunInfo) string {
	s := fmt.Sprintf("%s: %s", utc(run.Instant), run.Result)
	if run.Attempt > 1 {
		s += fmt.Sprintf(", attempt %d", run.Attempt)
	}
	if run.Code != nil {
		s += fmt.Sprintf(", exit %d", *run.Code)
	}
	if run.Took != "" {
		s += ", took " + run.Took
	}
	if run.Count > 0 {
		s += fmt.Sprintf(", %d scheduled times up to %s", run.Count, utc(run.Upto))
	}
	if run.By != "" {
		s += ", on " + shown.Name(run.By)
	}
	return s
}

// typical is the median of how long runs took that went well.
func typical(runs []cron.RunInfo) string {
	var took []time.Duration
	for _, r := range runs {
		if d, err := time.ParseDuration(r.Took); err == nil && r.Result == cron.OK {
			took = append(took, d)
		}
	}
	if len(took) == 0 {
		return ""
	}
	slices.Sort(took)
	return shown.Short(took[len(took)/2])
}

// cronJobs shows the jobs by their instants.
func cronJobs(ctx context.Context, p *Page, _ url.Values) (content, error) {
	jobs, more, err := p.cron.all(ctx)
	none := ""
	switch {
	case errors.Is(err, cron.ErrNoJournal):
		none = "This store keeps no records, which cron needs."
	case err != nil && len(jobs) > 0:
		none = fmt.Sprintf("Not all jobs could be read now, and some may be shown as they were: %v.", err)
	case err != nil:
		none = fmt.Sprintf("The jobs could not be read: %v.", err)
	case len(jobs) == 0:
		none = "There are no jobs."
	}
	rows := make([]jobRow, len(jobs))
	infos := []cron.JobInfo{}
	head := map[string]any{"None": none, "All": len(jobs), "More": more}
	pauses := p.standing.pausedBelow(cron.Prefix)
	c := content{title: "Cron", parts: []part{newPart("chead", "chead", head), pauses.part()}}
	for i, j := range jobs {
		rows[i] = jobRowOf(j)
		rows[i].Stopped = p.standing.over(cron.Prefix+j.info.Job) != nil
		c.parts = append(c.parts, part{id: rows[i].ID, template: "jrow", data: rows[i], list: "rows",
			key: keyOf(rows[i])})
		infos = append(infos, j.info)
	}
	c.data = map[string]any{"Head": head, "Rows": rows, "Cells": cells, "Pauses": pauses,
		"Asks": p.standing.pauseAsk("Pause all jobs", cron.Prefix)}
	c.json = map[string]any{"jobs": infos, "pauses": p.standing.pausesJSON(cron.Prefix)}
	pauses.unknownIn(c.json)
	if err != nil { // no job in the JSON does not say that there is none
		c.json.(map[string]any)["error"] = none
	}
	return c, nil
}

// run is a row of a job's table.
type run struct {
	ID, Kind, Mark, Result string
	Instant, Began         time.Time
	Attempt                int
	Took, By, Token, Code  string
	Text                   string
}

// cronJob shows the runs of one job.
func cronJob(ctx context.Context, p *Page, q url.Values) (content, error) {
	name := q.Get("name")
	info, runs, err := p.cron.ofOne(ctx, name)
	switch {
	case errors.Is(err, cron.ErrNoJob):
		return content{}, bad(http.StatusNotFound, "There is no such job", "%v", err)
	case errors.Is(err, cron.ErrNoJournal):
		return content{}, bad(http.StatusNotImplemented, "There are no jobs", "%v", err)
	case err != nil:
		return content{}, err
	}
	runs = runs[:min(len(runs), runsShown)]
	head := jobRowOf(jobRuns{info, runs})
	pauses := p.standing.pausedOver(cron.Prefix + name)
	head.Stopped = len(pauses.All) > 0
	rows := []run{}
	for _, r := range runs {
		how := results[r.Result]
		one := run{ID: runID(r), Kind: how.kind, Mark: how.mark, Result: r.Result, Instant: r.Instant, Began: r.Began,
			Attempt: r.Attempt, Took: r.Took, By: r.By, Token: r.Token, Text: r.Text}
		if r.Code != nil {
			one.Code = strconv.Itoa(*r.Code)
		}
		switch {
		case r.Count > 0:
			one.Text = fmt.Sprintf("%d scheduled times up to %s", r.Count, utc(r.Upto))
		case r.Afterword != "":
			one.Text = "reported late: " + r.Afterword
		case r.CatchUp && one.Text == "":
			one.Text = "a missed time, run late"
		}
		rows = append(rows, one)
	}
	return content{title: name, data: map[string]any{"Head": head, "Runs": rows, "Name": name, "Pauses": pauses,
		"Commands": []string{command("cron run", name), command("cron pause", name), command("cron resume",
			name)}},
		parts: []part{newPart("jhead", "jhead", head), pauses.part(), newPart("runs", "runs", rows)},
		json:  map[string]any{"job": info, "runs": runs}}, nil
}
