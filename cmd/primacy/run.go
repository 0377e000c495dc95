package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/driver"
)

func runCommand(a *app) *cobra.Command {
	var value string
	var o primacy.CampaignOptions
	r := &runner{app: a, contest: contest{has: "leads", right: "leadership of", missed: "not leading", late: exitNotAcquired, role: "leader"}}
	c := &cobra.Command{
		Use:         "run NAME [--] COMMAND [ARG...]",
		Short:       "Stand for election and run a command only while leading",
		Annotations: map[string]string{configArgs: "NAME and COMMAND"},
		Long: `Stand for election and run COMMAND only while leading. The command is started directly, without a shell, and never outlives its
right to run: when leadership is lost its whole process tree gets SIGTERM --stop-timeout before the deadline, and SIGKILL in time for it,
also when this process itself is killed or frozen (a small guardian process sees to it). When this process is killed, the guardian also
gives leadership up as soon as nothing of the command is left, so that the next candidate need not wait for the ttl.

In its environment: PRIMACY_NAME, PRIMACY_ID, PRIMACY_TOKEN (send it with every write), PRIMACY_TTL_MS, PRIMACY_ROLE, PRIMACY_STATE_FILE
('primacy leader NAME --valid' reads it), PRIMACY_HELD (what it and those around it hold: a run or lock of the same name inside would
wait for itself, and is refused), and PRIMACY_STORE unless that holds a password.

--standby, --on-elected, --on-deposed and --on-leader-change take one shell line each (/bin/sh -c). The standby is what runs here while
somebody else leads: it is gone, with all it started, before COMMAND starts. A hook has --hook-timeout; PRIMACY_EVENT says which it is,
PRIMACY_LEADER who leads. on-elected runs before COMMAND, in the term; if it fails COMMAND starts all the same. on-deposed runs when
nothing of COMMAND is left, beside the release and not before it: PRIMACY_REASON says why the term ended.

Under systemd (Type=notify) it tells READY=1, STATUS=, STOPPING=1 and WATCHDOG=1; as process 1 of a container it buries orphans.
With --config, NAME and COMMAND may be 'name' and 'command' of the table [run].

Exit codes: the command's own, 128+n if it died of signal n; 121 store unreachable before start; 122 leadership lost while it ran;
123 resigned on purpose; 124 not acquired within --wait; 125 usage; 126/127 command not executable/not found.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() == 0 { // they may stand in the file, or NAME may
				return nil
			}
			return primacy.CheckName(args[0])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.named(args, cmd.ArgsLenAtDash() == 0); err != nil {
				return err
			}
			if o.Priority < 0 || o.Steady < 0 {
				return fmt.Errorf("--priority and --steady must not be negative")
			}
			r.win = func(ctx context.Context, s *primacy.Session) (*primacy.Term, error) {
				o.Value = []byte(value)
				return s.Election(r.name).Campaign(ctx, &o)
			}
			return r.run(cmd.Context())
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows NAME belongs to the command
	f.DurationVar(&r.wait, "wait", 0, "give up (exit 124) when not leading after so long; 0: wait for ever")
	f.DurationVar(&r.stopTimeout, "stop-timeout", 0, "from SIGTERM to SIGKILL when leadership ends (default a tenth of the ttl)")
	f.StringVar(&value, "value", "", "what observers see beside the ID")
	f.IntVar(&o.Priority, "priority", 0, "above 0: a leader of a smaller priority is asked to hand over")
	f.DurationVar(&o.Steady, "steady", 0, "how long to stand in the line before it is asked (default three times the ttl)")
	r.lifeFlags(f)
	r.runFlags(f)
	r.own = ownVariables(f)
	return c
}

// named takes NAME and COMMAND from the command line, or else from the file. What follows a -- that stands first is a COMMAND, if the file has
// the NAME: taken for one, it would make a second election beside that of the fleet.
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

// runner is one `primacy run` or `primacy lock`.
type runner struct {
	*app
	contest
	life
	name        string
	args        []string // the command; none: a lock is held until a signal
	stopTimeout time.Duration
	own         []string // environment variables meant for this process alone

	supervisor *supervise.Supervisor
	signals    chan os.Signal
	deaf       []os.Signal // ignored when this process began, as by nohup
	session    *primacy.Session
	at         driver.Store
	outer      []held // what the commands around this one hold

	stop    context.CancelCauseFunc // ends the wait
	ending  atomic.Bool             // a signal was passed on that asks the command to end: it is not started again
	leaving atomic.Bool             // no further term comes
	current atomic.Pointer[primacy.Term]

	overSince atomic.Int64 // when the present term was first seen to be over, by the wall clock; 0: it is not
	log       *eventLog
	manager   *manager
	standby   understudy
	beat      *heartbeat

	// Of the present term.
	status  supervise.Status // of the command, once it has ended
	started bool
	gaveUp  bool // because the store did not answer
}

// contest is what run and lock differ in: how the right is won, and in which words that is told.
type contest struct {
	win   func(context.Context, *primacy.Session) (*primacy.Term, error)
	lock  bool
	slots int           // as in primacy.Entry: 0 is exclusive
	try   bool          // win or give up at once
	wait  time.Duration // give up after so long; 0: never
	late  int           // the exit code then

	has, right, missed string
	role               string // the command's PRIMACY_ROLE
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
	if err := r.checkLife(); err != nil {
		return err
	}
	if len(r.args) > 0 {
		if _, err := supervise.LookPath(r.args); err != nil {
			return startError(err) // before the contest: a misspelt command must not win it
		}
		if r.supervisor, err = supervise.New(); err != nil { // before Notify, which forgets what was ignored
			return err
		}
	}
	r.stderr = newPatient(r.stderr)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // else a word to a pipe whose reader is gone would end this process, and the command
	r.signals = make(chan os.Signal, 16)
	for _, sig := range supervise.Signals() {
		if signal.Ignored(sig) {
			r.deaf = append(r.deaf, sig)
		}
	}
	signal.Notify(r.signals, supervise.Signals()...)
	defer signal.Stop(r.signals)

	ctx, r.stop = context.WithCancelCause(ctx)
	defer r.stop(nil)
	if os.Getpid() == 1 && r.supervisor != nil {
		r.supervisor.Reap(ctx)
	}
	closeLife, err := r.beginLife()
	if err != nil {
		return err
	}
	err = r.live(ctx)
	closeLife(err)
	return err
}

var (
	errWaited   = errors.New("not acquired in time")
	errNoAnswer = fmt.Errorf("%w in the time given", primacy.ErrUnreachable)
)

// limited returns the context of the contest.
func (r *runner) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	switch {
	case r.try: // the answer takes one round trip
		return context.WithTimeoutCause(ctx, r.timeout, errNoAnswer)
	case r.wait > 0:
		return context.WithTimeoutCause(ctx, r.wait, errWaited)
	}
	return ctx, func() {}
}

// ended turns how it ended into an exit code.
func (r *runner) ended(ctx context.Context, err error) error {
	var sig signalled
	var term *primacy.EndedError
	switch {
	case errors.As(err, &sig), errors.As(context.Cause(ctx), &sig) && !r.started:
		return &exitError{code: 128 + int(sig.sig)}
	case errors.Is(err, errWaited):
		return r.tooLate("%s %s after %v", r.missed, r.name, r.wait)
	case errors.Is(err, primacy.ErrHeld):
		return r.tooLate("%s", r.inTheWay(ctx))
	case errors.As(err, &term) && (errors.Is(err, primacy.ErrResigned) || errors.Is(err, primacy.ErrTransferred)):
		return &exitError{exitResigned, err}
	case errors.As(err, &term), errors.Is(err, supervise.ErrTooLate):
		return &exitError{exitLost, err}
	case err != nil:
		return err
	case r.status.Code != 0:
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
