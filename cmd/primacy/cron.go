package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/near"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/cmd/internal/telemetry"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/metrics"
	pauses "github.com/primacy-go/primacy/pause"
)

// crontab is one `primacy cron`.
type crontab struct {
	*app
	file     string
	one      cron.Job // NAME SPEC -- CMD
	drain    bool
	prefix   bool
	max      int
	spread   time.Duration
	look     time.Duration
	statusAt string
	isolate  string
	leaving  atomic.Bool // no run begins any more
	own      []string    // environment variables meant for this process alone
	signals  chan os.Signal
	logging  sync.Mutex
}

func cronCommand(a *app) *cobra.Command {
	t := &crontab{app: a, one: cron.DefaultJob()}
	c := &cobra.Command{
		Use: "cron [flags] -f FILE | NAME SPEC -- COMMAND [ARG...]",

		DisableFlagsInUseLine: true,
		Annotations:           map[string]string{stays: "yes"},
		Short:                 "Run commands by a schedule, each scheduled time once in the whole fleet",
		Long: `Run commands by a schedule. Start it with the same FILE on as many machines as you like: each
scheduled time of a job runs once in the fleet.

  primacy cron -f jobs.toml                                         the jobs of a file; SIGHUP reads it again
  primacy cron report "0 3 * * mon-fri" --timezone UTC -- ./report  one job
  primacy cron check -f jobs.toml                                   check the file; show the next times of each job
  primacy cron status                                               what ran, where, how it ended, and what is next
  primacy cron history report                                       the runs of a job, the newest first

SPEC is five fields as in crontab(5), or six with seconds first, or @daily and the like, or "@every 90s" (counted
from 1970, so the same on all machines). Times are in UTC, unless a time zone is given.

Whoever runs a scheduled time first appends a record to the store. At most one run begins for each scheduled time
and attempt. A run whose process dies or loses the store is ended by its guardian, recorded as lost, and tried
again as often as the job's retries allow. Environment of a command: PRIMACY_CRON_JOB, PRIMACY_CRON_INSTANT (the
scheduled time), PRIMACY_CRON_ATTEMPT, PRIMACY_CRON_RUN, PRIMACY_TOKEN (send it with every write), PRIMACY_ID.

After SIGTERM or ^C no run begins any more, and running commands get SIGTERM; with --drain they are waited for,
until a second signal. Exit codes: 0 stopped by a signal; 121 store unreachable before start; 125 usage, or a
mistake in the file.`,
		Args: t.arguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context()) },
	}
	t.flags(c.Flags())
	t.own = ownVariables(c.Flags())
	c.AddCommand(cronCheckCommand(a), cronStatusCommand(a), cronHistoryCommand(a))
	c.AddCommand(cronMarkCommand(a, "pause"), cronMarkCommand(a, "resume"), cronMarkCommand(a, "run"))
	return c
}

func (t *crontab) flags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVarP(&t.file, "file", "f", "", "the jobs, in TOML: [jobs.NAME] with schedule and command, and [defaults]")
	f.BoolVar(&t.drain, "drain", false, "on SIGTERM wait for the commands that run")
	f.BoolVar(&t.prefix, "prefix", false, "put the job and the scheduled time before each line of output")
	f.StringVar(&t.statusAt, "status", "", "serve /livez, /readyz and /metrics over HTTP at HOST:PORT or unix:PATH")
	isolateFlag(f, &t.isolate)
	f.IntVar(&t.max, "max-running", 0, "at most so many commands at a time in this process; 0: no limit")
	f.DurationVar(&t.spread, "spread", 100*time.Millisecond,
		"wait a random part of this before each run, so that not one machine runs everything")
	f.DurationVar(&t.look, "look", 5*time.Second, "how often to look for lost runs and missed times")
	f.StringVar(&t.one.Zone, "timezone", "", "of the one job: a name such as Europe/Berlin (default UTC)")
	f.StringVar(&t.one.Overlap, "overlap", t.one.Overlap,
		"of the one job, while the run before still runs: forbid, allow or replace")
	f.StringVar(&t.one.Missed, "missed", t.one.Missed,
		"of the one job, if no run began in time: once, skip or all")
	f.DurationVar(&t.one.MissedWithin, "missed-within", 0,
		"of the one job: a time missed longer ago than this never runs; 0: no limit")
	f.IntVar(&t.one.Retries, "retries", 0, "of the one job: how often to try again after a run failed or was lost")
	f.DurationVar(&t.one.RetryDelay, "retry-delay", t.one.RetryDelay, "of the one job: time before the next try")
	f.DurationVar(&t.one.Timeout, "run-timeout", 0, "of the one job: SIGTERM after this time; 0: never")
	f.DurationVar(&t.one.StopTimeout, "stop-timeout", t.one.StopTimeout, "of the one job: time from SIGTERM to SIGKILL")
	f.DurationVar(&t.one.Jitter, "jitter", 0, "of the one job: run up to this much later than scheduled")
}

// arguments reads NAME SPEC and the command. Flags may stand between SPEC and --.
func (t *crontab) arguments(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case t.file != "" && len(args) > 0:
		return errors.New("give -f FILE, or NAME SPEC -- COMMAND, not both")
	case t.file != "":
		return nil
	case len(args) == 0:
		return errors.New("give -f FILE, or NAME SPEC -- COMMAND")
	case dash < 0 && len(args) <= 2 && near.Word(args[0], verbsOf(cmd)) != "":
		return fmt.Errorf("cron %s is no command%s", clean(args[0]), hint("cron "+near.Word(args[0], verbsOf(cmd))))
	case dash != 2 || len(args) < 3:
		return errors.New(`give NAME, SPEC as one word in quotes, then -- and a COMMAND: ` +
			`primacy cron report "0 3 * * *" -- ./report`)
	}
	t.one.Name, t.one.Spec, t.one.Command = args[0], args[1], args[2:]
	return nil
}

// jobs reads the file, or returns the one job.
func (t *crontab) jobs() ([]*cron.Job, error) {
	if t.file != "" {
		return cron.Load(t.file)
	}
	j, err := t.one.Check()
	if err != nil {
		return nil, fmt.Errorf("cron %s: %w", clean(t.one.Name), err)
	}
	if _, err := supervise.LookPath(j.Command); err != nil {
		return nil, startError(err)
	}
	return []*cron.Job{j}, nil
}

func (t *crontab) check() error {
	switch {
	case t.max < 0:
		return fmt.Errorf("--max-running %d: use 0 for no limit, or more", t.max)
	case t.spread < 0 || t.spread > time.Minute:
		return fmt.Errorf("--spread %v: use 0s to 1m", t.spread)
	case t.look < 100*time.Millisecond || t.look > time.Hour:
		return fmt.Errorf("--look %v: use 100ms to 1h", t.look)
	}
	return checkIsolate(t.isolate)
}

func (t *crontab) run(ctx context.Context) error {
	jobs, err := t.jobs()
	if err = errors.Join(err, t.check()); err != nil {
		return err
	}
	supervisor, err := newSupervisor(t.isolate)
	if err != nil {
		return err
	}
	t.signals = make(chan os.Signal, 16)
	signal.Notify(t.signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(t.signals)
	var s *primacy.Session
	var store driver.Store
	var done func()
	end, again := t.whileOpening(ctx, func(ctx context.Context) {
		s, store, done, err = t.openSession(ctx, primacy.Options{}, true)
	})
	switch {
	case err != nil && end:
		return nil
	case err != nil:
		return err
	}
	defer done()
	if end {
		return nil
	}
	e, err := t.engine(s, store, supervisor)
	if err != nil {
		return err
	}
	endStatus, err := t.serveStatus(s, e, jobs)
	if err != nil {
		return err
	}
	defer endStatus()
	e.Set(jobs)
	t.say("cron: %s runs %d %s", s.ID(), len(jobs), plural(len(jobs), "job", "jobs"))
	if again {
		t.reload(e)
	}
	t.follow(e)
	return nil
}

// whileOpening has the store opened, and says what signals asked for meanwhile: that the process
// ends, which ends the opening, since a store that does not answer must not keep it; and that the
// file is read again. A signal that it took is taken from those that follow answers.
func (t *crontab) whileOpening(ctx context.Context, open func(context.Context)) (end, again bool) {
	opening, stop := context.WithCancel(ctx)
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for {
			select {
			case <-opening.Done():
				return
			case sig := <-t.signals:
				if sig != syscall.SIGHUP {
					end = true
					stop()
					return
				}
				again = true
			}
		}
	}()
	open(opening)
	stop()
	<-heard
	return end || ctx.Err() != nil, again
}

// engine returns the engine on the session.
func (t *crontab) engine(s *primacy.Session, store driver.Store, supervisor *supervise.Supervisor) (*cron.Engine,
	error,
) {
	journal, ok := store.(driver.Journal)
	if !ok {
		return nil, &exitError{exitUsage, cron.ErrNoJournal}
	}
	host, _ := os.Hostname()
	reader := pauses.NewReader(store, releaseLimit)
	c := &cron.Commands{Supervisor: supervisor, ID: s.ID(), Env: t.environment(), Stdout: os.Stdout,
		Stderr: os.Stderr, Prefix: t.prefix}
	return cron.New(cron.Options{Journal: journal, Claims: cron.SessionClaims{Session: s}, Runner: c.Run, ID: s.ID(),
		Host: host,
		Log:  t.log, Rand: rand.Float64, Spread: t.spread, Look: t.look, Attempt: max(2*time.Second, t.ttl/2),
		Max: t.max,
		Pauses: func(ctx context.Context, age time.Duration) ([]pauses.Pause, error) {
			now, err := reader.Since(ctx, time.Now().Add(-age))
			return now.List(), err
		}}), nil
}

// environment is what commands get of ours: not what was meant for this process alone, nor a
// password.
func (t *crontab) environment() []string {
	own := append(slices.Clip(t.own), "PRIMACY_STORE", heldEnv, stateFileEnv, "PRIMACY_NAME")
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(own, name)
	})
	if t.store != "" && !hasPassword(t.store) {
		env = append(env, "PRIMACY_STORE="+t.store)
	}
	return env
}

// follow answers signals until one ends it.
func (t *crontab) follow(e *cron.Engine) {
	for sig := range t.signals {
		if sig == syscall.SIGHUP {
			t.reload(e)
			continue
		}
		break
	}
	t.leaving.Store(true)
	switch n := e.Active(); {
	case n > 0 && t.drain:
		t.say("cron: waiting for %d %s; another signal stops %s", n, plural(n, "command", "commands"),
			plural(n, "it", "them"))
	case n > 0:
		t.say("cron: stopping %d %s", n, plural(n, "command", "commands"))
	}
	hurry := make(chan struct{})
	over := make(chan struct{})
	go func() {
		for {
			select {
			case sig := <-t.signals:
				if sig != syscall.SIGHUP {
					close(hurry)
					return
				}
			case <-over:
				return
			}
		}
	}()
	e.Stop(t.drain, hurry)
	close(over)
}

// reload reads the file again. One with a mistake in it changes nothing.
func (t *crontab) reload(e *cron.Engine) {
	if t.file == "" {
		return
	}
	jobs, err := cron.Load(t.file)
	if err != nil {
		fmt.Fprintf(t.stderr, "primacy: cron: not reloaded: %s\n", oneLine(err))
		return
	}
	e.Set(jobs)
	t.say("cron: reloaded, %d %s", len(jobs), plural(len(jobs), "job", "jobs"))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// log writes one line for an event.
func (t *crontab) log(e cron.Event) {
	trouble := slices.Contains([]string{cron.Failed, cron.TimedOut, cron.Lost, "trouble", "clock", "full"}, e.What)
	if t.quiet && !trouble || e.What == cron.Suppressed && !t.verbose {
		return
	}
	line := "cron: " + e.Job
	if !e.ID.At.IsZero() {
		line += " " + e.ID.At.UTC().Format(time.RFC3339)
	}
	if e.ID.Attempt > 1 {
		line += fmt.Sprintf(" attempt %d", e.ID.Attempt)
	}
	line += ": " + e.What
	if e.Late > time.Second {
		line += fmt.Sprintf(", %v late", e.Late.Round(100*time.Millisecond))
	}
	if e.Text != "" {
		line += ": " + e.Text
	}
	t.logging.Lock()
	defer t.logging.Unlock()
	fmt.Fprintf(t.stderr, "primacy: %s\n", printable(line))
}

// cronResults says under which result of primacy_cron_runs_total a verdict counts. What a job's own
// policy did, overlap and replaced, is no failure, and is in the journal.
var cronResults = map[string]metrics.CronResult{
	cron.OK: metrics.CronOK, cron.Failed: metrics.CronFailed, cron.TimedOut: metrics.CronFailed,
	cron.Stopped: metrics.CronFailed, cron.Lost: metrics.CronFailed,
	cron.Missed: metrics.CronMissed, cron.Suppressed: metrics.CronSuppressed,
}

// serveStatus answers at --status, and returns what ends it. What the engine counts is shown from
// then on.
func (t *crontab) serveStatus(s *primacy.Session, e *cron.Engine, jobs []*cron.Job) (end func(), err error) {
	if t.statusAt == "" {
		return func() {}, nil
	}
	l, err := listenStatus(t.statusAt)
	if err != nil {
		return nil, fmt.Errorf("--status %s: %w", clean(t.statusAt), err)
	}
	names := []string{}
	for _, j := range jobs {
		names = append(names, j.Name)
	}
	shown, err := telemetry.New(s, telemetry.Options{Options: figures(false), Jobs: names})
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	e.Counters().Tell(func(job, result string, n uint64) {
		if r, ok := cronResults[result]; ok {
			for ; n > 0; n-- {
				shown.Cron.Add(job, r)
			}
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	pulse := health.NewPulse(ctx, max(t.ttl, time.Second), func() { e.Touch() })
	o := health.Options{Alive: pulse.Alive, Ready: t.ready, Metrics: shown.Handler(),
		Leads: func(string, primacy.Token) (health.Lead, bool) { return health.Lead{}, false }} // it has no leader
	unserve := answerStatus(l, o.Handler())
	return func() { unserve(); stop(); e.Counters().Tell(nil); shown.Close() }, nil
}

// ready says that the store has answered, which it had before this was served, and that runs still
// begin here.
func (t *crontab) ready() error {
	if t.leaving.Load() {
		return errors.New("this process is stopping")
	}
	return nil
}
