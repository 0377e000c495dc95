package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/kubeconfig"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

func runCommand(a *app) *cobra.Command {
	var value string
	var o primacy.CampaignOptions
	var words []string // NAME and COMMAND
	var dashFirst bool
	r := newRunner(a, contest{
		has: "leads", right: "leadership of", missed: "not leading", late: exitNotAcquired, role: "leader",
	})
	c := &cobra.Command{
		Use:         "run NAME [flags] [--] COMMAND [ARG...]",
		Short:       "Run a command on one machine at a time: only while leading",
		Annotations: map[string]string{configArgs: "NAME and COMMAND", stays: "yes"},
		Long: `Join the queue of candidates for NAME, and run COMMAND while leading. Of all that run this with one NAME
one leads at a time: first come, first served.

  primacy run billing -- ./invoicer --verbose
  primacy run billing --ttl 5s ./invoicer --verbose     flags of primacy go before COMMAND

COMMAND is started directly, without a shell, and does not outlive its leadership: when that is lost, its process
group gets SIGTERM --stop-timeout before the deadline, and its whole tree SIGKILL before the deadline. That holds also
when this process itself is killed or frozen: a guardian process keeps the deadline too. If primacy and its
guardian are killed at the same instant, the kernel kills the command, but what the command has started lives on,
unless --isolate pid is given. When this process is killed, the guardian gives leadership up as soon as nothing of
COMMAND is left, so that the next candidate need not wait for the ttl.

Environment of COMMAND: PRIMACY_NAME, PRIMACY_ID, PRIMACY_TOKEN (send it with every write), PRIMACY_TTL_MS,
PRIMACY_ROLE, PRIMACY_STATE_FILE (read by 'primacy leader NAME --valid'), PRIMACY_HELD (the names held by COMMAND
and the commands around it: a run or lock of one of them inside would wait for itself, and is refused), and
PRIMACY_STORE, unless it contains a password.

--standby, --on-elected, --on-deposed and --on-leader-change each take one shell line (/bin/sh -c). The standby
runs here while somebody else leads. It is gone, with all it started, before COMMAND starts. The other three are
hooks, limited by --hook-timeout; PRIMACY_EVENT says which one it is, PRIMACY_LEADER who leads. on-elected runs
before COMMAND, as part of the term; COMMAND starts even if it fails. on-deposed runs when nothing of COMMAND is
left, at the same time as the release: the next leader may lead already. PRIMACY_REASON says why the term ended.

--health is a shell line, run as the hooks are, or a URL. While it fails this candidate does not stand in the
queue, so whoever waits is healthy. An unhealthy leader hands over if somebody waits; otherwise it leads on, or with
--on-unhealthy resign gives up. Then it stays, whatever --on-lost says, and stands again once it is healthy, after
30 s or more. Nobody hands over for its health while 'primacy pause' has paused NAME.

Under systemd (Type=notify) it sends READY=1, STATUS=, STOPPING=1 and WATCHDOG=1. As process 1 of a container it
reaps zombie processes. With --config, NAME and COMMAND may be 'name' and 'command' of the table [run].

Exit codes: the command's own, 128+n if it died of signal n; 121 store unreachable before start; 122 leadership
lost while it ran; 123 resigned on purpose; 124 not leading within --wait; 125 usage; 126/127 command not
executable/not found.`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			words, dashFirst = args, cmd.ArgsLenAtDash() == 0
			if len(args) == 0 || dashFirst { // they may stand in the file, or NAME may
				return nil
			}
			command, err := afterName(cmd, args[1:])
			if err != nil {
				return err
			}
			words = append(args[:1:1], command...)
			return primacy.CheckName(args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := r.named(words, dashFirst); err != nil {
				return err
			}
			if o.Priority < 0 || o.Steady < 0 {
				return fmt.Errorf("--priority and --steady must not be negative")
			}
			given := givenFlags(cmd.Flags())
			err := errors.Join(r.candidacy.validate(given), r.shardOptions.validate(given))
			if err != nil {
				return err
			}
			if r.shards > 0 {
				r.liveBy = func(ctx context.Context) error { return liveSharded(ctx, r, value) }
			}
			r.win = func(ctx context.Context, s *primacy.Session) (*primacy.Term, error) {
				o.Value, o.Health, o.ObeyPauses = []byte(value), r.healthCheck.health(), !r.ignorePauses
				return s.Election(r.name).Campaign(ctx, &o)
			}
			return r.run(cmd.Context())
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows NAME is read by afterName: COMMAND has flags of its own
	f.DurationVar(&r.wait, "wait", 0,
		"give up (exit 124) if not leading after this time: seconds, such as 2.5, or 2m; 0: wait for ever")
	f.DurationVar(&r.stopTimeout, "stop-timeout", 0,
		"time from SIGTERM to SIGKILL when leadership ends (default a tenth of the ttl)")
	f.StringVar(&value, "value", "", "a text that observers see beside the ID, such as an address")
	f.IntVar(&o.Priority, "priority", 0, "above 0: ask a leader of a smaller priority to hand over")
	f.DurationVar(&o.Steady, "steady", 0,
		"how long to wait in the queue before asking it (default three times the ttl)")
	r.bothFlags(f)
	r.runFlags(f)
	r.candidacy.flags(f)
	r.shardOptions.flags(f)
	r.own = ownVariables(f)
	return c
}

// named takes NAME and COMMAND from the command line, or else from the file. What follows a -- that
// stands first is a COMMAND, if the file has the NAME: taken for one, it would make a second
// election beside that of the fleet.
func (r *runner) named(args []string, dashFirst bool) error {
	if dashFirst && r.config != nil && r.config.name != "" {
		r.args, args = args, nil
	}
	if len(args) > 0 {
		r.name, r.args = args[0], args[1:]
		if len(r.args) > 0 && r.args[0] == "--" {
			if r.args = r.args[1:]; len(r.args) == 0 {
				return fmt.Errorf("run %s: give a COMMAND", r.name)
			}
		}
	}
	if c := r.config; c != nil {
		if r.name == "" {
			r.name = c.name
		}
		if len(r.args) == 0 {
			r.args = c.args
		}
	}
	switch {
	case r.name == "" && len(r.args) == 0:
		return errors.New("give a NAME and a COMMAND")
	case r.name == "":
		return errors.New("give a NAME")
	case len(r.args) == 0:
		return fmt.Errorf("run %s: give a COMMAND", r.name)
	}
	return primacy.CheckName(r.name)
}

// What flags that are a choice can say.
const (
	recampaign = "recampaign"
	restart    = "restart"
	stopNow    = "stop-now"
	asLeader   = "leader"
)

// lifeOptions are the flags for what goes on around the command: hooks, a standby, events, the
// service manager.
type lifeOptions struct {
	notify        string // when READY=1 is told
	onUnreachable string
	onLost        string
	onExit        string
	isolate       string
	eventsTo      string
	statusAt      string

	standbyLine, onElected, onDeposed, onLeaderChange string // shell lines

	hookTimeout time.Duration
	backoff     time.Duration // at most, before standing again after failures; 0: none
}

// bothFlags are those of run and lock.
func (o *lifeOptions) bothFlags(f *pflag.FlagSet) {
	f.StringVar(&o.notify, "notify", "candidate",
		"when to send READY=1 to systemd: candidate (once in the queue) or leader")
	f.StringVar(&o.onUnreachable, "on-unreachable", "stop-at-deadline",
		"if the store does not answer: stop-at-deadline, or stop-now (at the first renewal that fails)")
	isolateFlag(f, &o.isolate)
	f.StringVar(&o.eventsTo, "events", "", "write each event as a line of JSON to a FILE, or fd:N")
	f.StringVar(&o.statusAt, "status", "",
		"serve /leader, /livez, /readyz and /metrics over HTTP at HOST:PORT or unix:PATH")
}

// isolatePID is what --isolate can say.
const isolatePID = "pid"

// isolateFlag is of run, lock and cron.
func isolateFlag(f *pflag.FlagSet, value *string) {
	f.StringVar(value, "isolate", "",
		"pid: run each command in a PID namespace, which the kernel ends with the guardian (default: do not)")
}

func checkIsolate(value string) error {
	if value != "" && value != isolatePID {
		return fmt.Errorf("--isolate %q: use %s, or leave it out", clean(value), isolatePID)
	}
	return nil
}

// newSupervisor returns what runs commands, each isolated as --isolate says. Call it before
// signal.Notify, which forgets which signals were ignored.
func newSupervisor(isolate string) (*supervise.Supervisor, error) {
	s, err := supervise.New()
	if err != nil {
		return nil, err
	}
	kubeconfig.StartWith(s.StartOther)
	if isolate != "" {
		if err = s.Isolate(); err != nil {
			err = fmt.Errorf("--isolate %s: %w", isolate, err)
		}
	}
	return s, err
}

// runFlags are run's alone.
func (o *lifeOptions) runFlags(f *pflag.FlagSet) {
	f.StringVar(&o.onLost, "on-lost", "exit", "if leadership is lost: exit (122), or recampaign (join the queue again)")
	f.StringVar(&o.onExit, "on-exit", "resign",
		"when COMMAND ends: resign (and exit with its status), or restart it in the same term")
	f.StringVar(&o.standbyLine, "standby", "", "a shell line to run while somebody else leads")
	f.StringVar(&o.onElected, "on-elected", "", "a shell line to run before COMMAND")
	f.StringVar(&o.onDeposed, "on-deposed", "", "a shell line to run when a term has ended")
	f.StringVar(&o.onLeaderChange, "on-leader-change", "",
		"a shell line to run when the leader changes, to this process too, or nobody leads")
	f.DurationVar(&o.backoff, "backoff", 30*time.Second,
		"when COMMAND failed soon after its start the last times on this host, wait before standing again: 1s, "+
			"twice as long each time, at most this; 0: never")
	f.DurationVar(&o.hookTimeout, "hook-timeout", 10*time.Second, "time limit of each of the three hooks")
}

// check refuses what makes no sense. A lock has none of run's flags.
func (o *lifeOptions) check(lock bool) error {
	if o.backoff < 0 {
		return fmt.Errorf("--backoff %v: use a positive duration, such as 30s, or 0 for none", o.backoff)
	}
	if !lock && o.hookTimeout <= 0 {
		return fmt.Errorf("--hook-timeout %v: use a positive duration, such as 10s", o.hookTimeout)
	}
	if err := checkIsolate(o.isolate); err != nil {
		return err
	}
	for _, c := range []struct {
		flag, value string
		choice      []string
	}{
		{"notify", o.notify, []string{"candidate", asLeader}},
		{"on-unreachable", o.onUnreachable, []string{"stop-at-deadline", stopNow}},
		{"on-lost", o.onLost, []string{"exit", recampaign}},
		{"on-exit", o.onExit, []string{"resign", restart}},
	} {
		if !slices.Contains(c.choice, c.value) && (c.value != "" || !lock) {
			return fmt.Errorf("--%s %q: use %s or %s", c.flag, clean(c.value), c.choice[0], c.choice[1])
		}
	}
	return nil
}

// runner is one `primacy run` or `primacy lock`.
type runner struct {
	*app
	contest
	lifeOptions
	candidacy
	shardOptions
	args        []string // the command; none: a lock is held until a signal
	stopTimeout time.Duration
	own         []string // environment variables meant for this process alone

	liveBy     func(context.Context) error // live, or liveSharded
	supervisor *supervise.Supervisor
	signals    chan os.Signal
	ignored    []os.Signal // ignored when this process began, as by nohup
	session    *primacy.Session
	at         driver.Store

	stop     context.CancelCauseFunc // ends the wait
	ending   atomic.Bool             // a signal was passed on that asks the command to end: it is not started again
	leaving  atomic.Bool             // no further term comes
	passedOn atomic.Int32            // the signal that the command was sent last for us
	current  atomic.Pointer[primacy.Term]

	log     *eventLog
	manager *manager
	standby standby
	hooks   hooks
	monitor monitor

	healthCheck healthCheck
	shard       *shardOf // nil: it is of no shard

	// Of the present term.
	status  supervise.Status // of the command, once it has ended
	started bool
	gaveUp  bool // because the store did not answer
}

func newRunner(a *app, c contest) *runner {
	r := &runner{app: a, contest: c}
	r.liveBy = r.live
	r.standby.r, r.hooks.r, r.monitor.r, r.healthCheck.r = r, r, r, r
	return r
}

// ownVariables returns the environment variables that stand for a verb's own flags.
func ownVariables(f *pflag.FlagSet) (own []string) {
	f.VisitAll(func(f *pflag.Flag) {
		own = append(own, variable(f.Name))
	})
	return own
}

func (r *runner) run(ctx context.Context) error {
	var err error
	if r.outer, err = heldOutside(r.name); err != nil {
		return err
	}
	if r.wait < 0 || r.stopTimeout < 0 {
		return fmt.Errorf("--wait and --stop-timeout must not be negative")
	}
	if err := r.stopsInTime(); err != nil {
		return err
	}
	if err := r.check(r.lock); err != nil {
		return err
	}
	if len(r.args) > 0 {
		if _, err := supervise.LookPath(r.args); err != nil {
			if strings.HasPrefix(r.args[0], "-") { // behind a --
				err = fmt.Errorf("%w: flags of primacy go before the --", err)
			}
			return startError(err) // before the contest: a misspelt command must not win it
		}
		if closedOutput(os.Stdout) {
			r.say("warning: standard output is closed: what the command writes there goes to /dev/null")
		}
		dir, err := runtimeDir()
		if err != nil {
			return err // nor one that gets no state file
		}
		sweepStates(dir)
		if r.supervisor, err = newSupervisor(r.isolate); err != nil {
			return err
		}
	}
	r.stderr = newDropWriter(r.stderr)
	// else a word to a pipe whose reader is gone would end this process, and the command
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	r.signals = make(chan os.Signal, 16)
	for _, sig := range supervise.Signals() {
		if signal.Ignored(sig) {
			r.ignored = append(r.ignored, sig)
		}
	}
	signal.Notify(r.signals, supervise.Signals()...)
	defer signal.Stop(r.signals)

	ctx, r.stop = context.WithCancelCause(ctx)
	defer r.stop(nil)
	if os.Getpid() == 1 && r.supervisor != nil {
		r.supervisor.Reap(ctx)
	}
	endReports, err := r.beginReports()
	if err != nil {
		return err
	}
	err = r.liveBy(ctx)
	endReports(err)
	return err
}

// stopsInTime refuses a --stop-timeout that leaves no time to renew the lease. The library's own
// words for it are none that a user of the program has met.
func (r *runner) stopsInTime() error {
	t := core.Timing{Grace: r.stopTimeout}.Fill(r.ttl)
	if most := t.Span() - t.Every - 2*t.Attempt; r.stopTimeout > most && most > 0 {
		return fmt.Errorf("--stop-timeout %v is too long for --ttl %v: use at most %v, or a longer --ttl",
			r.stopTimeout, r.ttl, most)
	}
	return nil
}

// beginReports opens --events and the service manager, before anything is stood for, and returns
// what closes them with how it ended.
func (r *runner) beginReports() (end func(error), err error) {
	if r.eventsTo != "" {
		if r.log, err = openEvents(r.eventsTo, r.say); err != nil {
			return nil, err
		}
	}
	r.manager = newManager(r)
	return func(err error) {
		code := 0
		e := event{Event: "finished", Status: &code}
		if err != nil {
			code = codeOf(err)
			var exit *exitError
			if !errors.As(err, &exit) || exit.err != nil {
				e.Err = oneLine(err)
			}
		}
		r.report(e)
		r.log.close()
	}, nil
}

// report tells --events and the service manager what happened.
func (r *runner) report(e event) {
	e.Time, e.Election = time.Now().UTC(), r.name
	if r.session != nil {
		e.ID = r.session.ID()
	}
	r.log.write(e)
	r.manager.notified(e)
}

// ended turns how it ended into an exit code.
func (r *runner) ended(ctx context.Context, err error) error {
	var sig signalled
	var term *primacy.EndedError
	switch {
	case errors.As(err, &sig), errors.As(context.Cause(ctx), &sig) && !r.started:
		return &exitError{code: 128 + int(sig.sig)}
	case errors.Is(err, errWaited):
		return r.tooLate("%s %s after %v%s", r.missed, r.name, r.wait, r.waitedFor(ctx))
	case errors.Is(err, primacy.ErrHeld):
		return r.tooLate("%s", r.inTheWay(ctx))
	case errors.As(err, &term) && (errors.Is(err, primacy.ErrResigned) || errors.Is(err, primacy.ErrTransferred)):
		return &exitError{exitResigned, err}
	case errors.As(err, &term), errors.Is(err, supervise.ErrTooLate):
		return &exitError{exitLost, err}
	case err != nil:
		return err
	case r.status.Code != 0:
		r.interrupted = r.status.Interrupted
		return &exitError{code: r.status.Code}
	}
	return nil
}

func startError(err error) error {
	switch {
	case errors.Is(err, supervise.ErrNotFound):
		return &exitError{127, err}
	case errors.Is(err, supervise.ErrNotExecutable):
		return &exitError{126, err}
	}
	return err
}
