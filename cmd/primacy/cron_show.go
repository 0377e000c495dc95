package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/driver"
)

type nextJSON struct {
	Job        string      `json:"job"`
	Schedule   string      `json:"schedule"`
	Timezone   string      `json:"timezone"`
	Definition string      `json:"definition"`
	Next       []time.Time `json:"next"`
}

func cronCheckCommand(a *app) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "check -f FILE",
		Short: "Check a file of jobs, and show the next five scheduled times of each",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if file == "" {
				return errors.New("give -f FILE")
			}
			jobs, err := cron.Load(file)
			if err != nil {
				return err
			}
			return printNext(a, jobs, time.Now())
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the jobs, in TOML")
	return c
}

func printNext(a *app, jobs []*cron.Job, now time.Time) error {
	rows := [][]string{{"JOB", "SCHEDULE", "ZONE", "NEXT"}}
	all := []nextJSON{}
	for _, j := range jobs {
		s := j.Schedule()
		zone, err := time.LoadLocation(s.Zone())
		if err != nil {
			return err
		}
		n := nextJSON{j.Name, s.String(), s.Zone(), j.Definition(), []time.Time{}}
		for at := s.Next(now); !at.IsZero() && len(n.Next) < 5; at = s.Next(at) {
			n.Next = append(n.Next, at)
			row := []string{"", "", "", at.In(zone).Format("Mon 2006-01-02 15:04:05 -0700")}
			if len(n.Next) == 1 {
				row[0], row[1], row[2] = j.Name, s.String(), s.Zone()
			}
			rows = append(rows, row)
		}
		all = append(all, n)
	}
	if a.output != "table" {
		return a.writeJSON(all)
	}
	return table(a.stdout, rows...)
}

// withJobs opens the store and has do read the jobs in it, or ask for a run of one.
func withJobs(ctx context.Context, a *app, do func(context.Context, driver.Store) error) error {
	return withStore(ctx, a, do, cron.ErrNoJob, cron.ErrAlready)
}

func cronStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status [JOB]",
		Short: "Show the jobs of the store: last run, who ran it, how it ended, what is next",
		Long: `Show the jobs of the store, or one in detail. LAST is the newest scheduled time that ran or runs;
RESULT is ok, failed, timeout, stopped, replaced, lost (its process died or lost the store, and its command was
ended) or running. -o json shows everything that is known. Exit 1 if there is no such job.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withJobs(cmd.Context(), a, func(ctx context.Context, st driver.Store) error {
				if len(args) == 1 {
					info, _, err := cron.ReadJob(ctx, st, args[0], 1000, time.Now())
					if err != nil {
						return err
					}
					return printJob(a, info)
				}
				all, err := cron.ReadAll(ctx, st, time.Now())
				if err != nil {
					return err
				}
				return printJobs(a, all)
			})
		},
	}
}

func printJobs(a *app, all []cron.JobInfo) error {
	if a.output != "table" {
		return a.writeJSON(all)
	}
	rows := [][]string{{"JOB", "SCHEDULE", "LAST", "RESULT", "EXIT", "BY", "NEXT", "NOTE"}}
	for _, j := range all {
		row := []string{clean(j.Job), clean(j.Schedule), "-", "-", "-", "-", "-", "-"}
		if l := j.Last; l != nil {
			row[2], row[3], row[4], row[5] = when(l.Instant), l.Result, exitOf(l), clean(l.By)
		}
		if j.Next != nil {
			row[6] = when(*j.Next)
		}
		if notes := notesOf(j); len(notes) > 0 {
			row[7] = strings.Join(notes, "; ")
		}
		rows = append(rows, row)
	}
	return table(a.stdout, rows...)
}

func notesOf(j cron.JobInfo) (notes []string) {
	if j.Paused {
		notes = append(notes, "paused by "+clean(j.PausedBy))
	}
	if j.Held > 0 {
		notes = append(notes, fmt.Sprintf("%d held by a pause", j.Held))
	}
	if j.Disagree {
		notes = append(notes, "processes have different definitions")
	}
	for _, r := range []string{cron.Lost, cron.Missed, cron.Overlap} {
		if n := j.Results[r]; n > 0 {
			notes = append(notes, fmt.Sprintf("%d %s", n, r))
		}
	}
	return notes
}

func printJob(a *app, j cron.JobInfo) error {
	if a.output != "table" {
		return a.writeJSON(j)
	}
	rows := [][]string{{"job", clean(j.Job)}, {"schedule", clean(j.Schedule) + "  " + clean(j.Timezone)}}
	if j.Next != nil {
		rows = append(rows, []string{"next", when(*j.Next)})
	}
	if l := j.Last; l != nil {
		rows = append(rows, []string{"last", fmt.Sprintf("%s %s, exit %s, by %s on %s", when(l.Instant), l.Result,
			exitOf(l), clean(l.By), clean(l.Host))})
	}
	for _, r := range j.Running {
		rows = append(rows, []string{"running", fmt.Sprintf("%s attempt %d, by %s since %s", when(r.Instant),
			r.Attempt, clean(r.By), when(r.Began))})
	}
	var counts []string
	for _, r := range slices.Sorted(maps.Keys(j.Results)) {
		counts = append(counts, fmt.Sprintf("%d %s", j.Results[r], r))
	}
	rows = append(rows, []string{"kept records", strings.Join(counts, ", ")})
	if j.Paused {
		rows = append(rows, []string{"paused", "by " + clean(j.PausedBy)})
	}
	if j.Disagree {
		for _, by := range slices.Sorted(maps.Keys(j.Definitions)) {
			rows = append(rows, []string{"definition", j.Definitions[by] + " by " + clean(by)})
		}
	}
	return table(a.stdout, rows...)
}

func cronHistoryCommand(a *app) *cobra.Command {
	limit := 50
	c := &cobra.Command{
		Use:   "history JOB",
		Short: "Show the runs of a job and what was missed, the newest first",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || limit > 10000 {
				return fmt.Errorf("--limit %d: use 1 to 10000", limit)
			}
			return withJobs(cmd.Context(), a, func(ctx context.Context, st driver.Store) error {
				_, runs, err := cron.ReadJob(ctx, st, args[0], 3*limit, time.Now())
				if err != nil {
					return err
				}
				return printRuns(a, runs[:min(limit, len(runs))])
			})
		},
	}
	c.Flags().IntVar(&limit, "limit", limit, "how many at most")
	return c
}

func printRuns(a *app, runs []cron.RunInfo) error {
	if a.output != "table" {
		return a.writeJSON(runs)
	}
	rows := [][]string{{"SCHEDULED", "ATTEMPT", "RESULT", "EXIT", "TOOK", "BY", "NOTE"}}
	for i, r := range runs {
		note := clean(r.Text)
		switch {
		case r.Count > 0:
			note = fmt.Sprintf("%d scheduled %s up to %s", r.Count, plural(r.Count, "time", "times"), when(r.Upto))
		case r.Afterword != "":
			note = "reported late: " + clean(r.Afterword)
		case r.CatchUp && note == "":
			note = "a missed time, run late"
		}
		rows = append(rows, []string{when(r.Instant), strconv.Itoa(r.Attempt), r.Result, exitOf(&runs[i]),
			orDash(r.Took), orDash(r.By), note})
	}
	return table(a.stdout, rows...)
}

func cronMarkCommand(a *app, verb string) *cobra.Command {
	what := map[string]struct{ verdict, short, done string }{
		"pause": {cron.Paused, "Stop a job on all machines until it is resumed",
			"paused on all machines until it is resumed"},
		"resume": {cron.Resumed, "Let a paused job run again; what was due meanwhile is skipped", "resumed"},
		"run":    {cron.Wanted, "Ask for one extra run of a job now", "one extra run was asked for"},
	}[verb]
	return &cobra.Command{
		Use:   verb + " JOB",
		Short: what.short,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			by := a.id
			if by == "" {
				by = userAtHost()
			}
			return withJobs(cmd.Context(), a, func(ctx context.Context, st driver.Store) error {
				_, err := cron.Mark(ctx, st, args[0], what.verdict, by, time.Now())
				if err == nil {
					a.say("cron: %s: %s", args[0], what.done)
				}
				return err
			})
		},
	}
}

func when(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

func exitOf(r *cron.RunInfo) string {
	if r.Code == nil {
		return "-"
	}
	return strconv.Itoa(*r.Code)
}

// userAtHost names who types this, for records.
func userAtHost() string {
	host, _ := os.Hostname()
	return strings.ToValidUTF8(cmp.Or(os.Getenv("USER"), os.Getenv("LOGNAME"), strconv.Itoa(os.Getuid()))+"@"+host, "")
}
