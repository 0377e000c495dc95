package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/driver"
)

func (a *app) runCommand() *cobra.Command {
	var value string
	var o primacy.CandidateOptions
	r := &runner{app: a, contest: contest{has: "leads", right: "leadership of", missed: "not leading", late: exitNotAcquired}}
	c := &cobra.Command{
		Use:   "run NAME [--] COMMAND [ARG...]",
		Short: "Stand for election and run a command only while leading",
		Long: `Stand for election and run COMMAND only while leading. The command is started directly, without a shell, and never outlives its
right to run: when leadership is lost its whole process tree gets SIGTERM --stop-timeout before the deadline, and SIGKILL in time for it,
also when this process itself is killed or frozen (a small guardian process sees to it). When this process is killed, the guardian also
gives leadership up as soon as nothing of the command is left, so that the next candidate need not wait for the ttl.

In its environment: PRIMACY_NAME, PRIMACY_ID, PRIMACY_TOKEN (send it with every write), PRIMACY_TTL_MS, PRIMACY_STATE_FILE
('primacy leader NAME --valid' reads it), PRIMACY_HELD (what it and those around it hold: a run or lock of the same name inside would
wait for itself, and is refused), and PRIMACY_STORE unless that holds a password.

Exit codes: the command's own, 128+n if it died of signal n; 121 store unreachable before start; 122 leadership lost while it ran;
123 resigned on purpose; 124 not acquired within --wait; 125 usage; 126/127 command not executable/not found.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("give a NAME and a COMMAND")
			}
			return primacy.CheckName(args[0])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r.name, r.args = args[0], args[1:]
			if len(r.args) > 0 && r.args[0] == "--" {
				r.args = r.args[1:]
			}
			if len(r.args) == 0 {
				return fmt.Errorf("run %s: give a COMMAND", r.name)
			}
			if o.Priority < 0 || o.Steady < 0 {
				return fmt.Errorf("--priority and --steady must not be negative")
			}
			r.win = func(ctx context.Context, s *primacy.Session) (*primacy.Term, error) {
				o.Value = []byte(value)
				return s.Election(r.name).CampaignAs(ctx, o)
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
	r.own = ownVariables(f)
	return c
}

// runner is one `primacy run` or `primacy lock`.
type runner struct {
	*app
	contest
	name        string
	args        []string // the command; none: a lock is held until a signal
	stopTimeout time.Duration
	own         []string // environment variables meant for this process alone

	supervisor *supervise.Supervisor
	signals    chan os.Signal
	deaf       []os.Signal // ignored when this process began, as by nohup
	session    *primacy.Session
	at         driver.Store
	outer      []held           // what the commands around this one hold
	status     supervise.Status // of the command, once it has ended
	started    bool
}

// contest is what run and lock differ in: how the right is won, and in which words that is told.
type contest struct {
	win   func(context.Context, *primacy.Session) (*primacy.Term, error)
	lock  bool
	slots int           // as in primacy.Standing: 0 is exclusive
	try   bool          // win or give up at once
	wait  time.Duration // give up after so long; 0: never
	late  int           // the exit code then

	has, right, missed string
}

// ownVariables returns the environment variables that stand for a verb's own flags.
func ownVariables(f *pflag.FlagSet) (own []string) {
	f.VisitAll(func(f *pflag.Flag) {
		own = append(own, "PRIMACY_"+strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")))
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
	if len(r.args) > 0 {
		if _, err := supervise.LookPath(r.args); err != nil {
			return startError(err) // before the contest: a misspelt command must not win it
		}
		if r.supervisor, err = supervise.New(); err != nil { // before Notify, which forgets what was ignored
			return err
		}
	}
	r.signals = make(chan os.Signal, 16)
	for _, sig := range supervise.Signals() {
		if signal.Ignored(sig) {
			r.deaf = append(r.deaf, sig)
		}
	}
	signal.Notify(r.signals, supervise.Signals()...)
	defer signal.Stop(r.signals)

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	waiting := make(chan struct{})
	answered := make(chan struct{})
	go func() { defer close(answered); r.answerWhileWaiting(stop, waiting) }()
	leading := func() { close(waiting); <-answered }

	s, store, done, err := r.openSession(ctx, primacy.Options{Grace: r.stopTimeout}, true)
	if err != nil {
		return r.ended(ctx, err)
	}
	defer done()
	r.session, r.at = s, store
	if err := r.look(ctx); err != nil {
		return r.ended(ctx, err)
	}
	campaign, cancel := r.limited(ctx)
	defer cancel()
	return r.ended(ctx, r.lead(campaign, leading))
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

// lead wins once and runs the command in the term. From the win on the contest's time limit must not end the term.
func (r *runner) lead(ctx context.Context, leading func()) error {
	term, err := r.win(ctx, r.session)
	if err != nil {
		return err
	}
	leading()
	workErr := r.stoppedMeanwhile(ctx)
	switch {
	case workErr != nil:
	case len(r.args) > 0:
		workErr = r.work(term)
	default:
		workErr = r.hold(term)
	}
	lost := r.lost(term)
	limit, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if err := term.Resign(limit); err != nil { // nothing runs any more
		r.say("the store did not confirm the release of %s; its lease runs out in %v", r.name, term.TTL())
	}
	if workErr != nil {
		return workErr
	}
	return lost
}

// lost returns why the command was stopped, nil if it ended by itself: then its own status counts, whatever came after.
func (r *runner) lost(term *primacy.Term) error {
	lost := context.Cause(term.Context())
	switch {
	case r.started && r.status.By == supervise.Exited:
		return nil
	case lost == nil && r.status.By == supervise.Deadline: // the guardian saw it come before our own timer did
		return fail(exitLost, "%s %q under token %d ended: %w", r.right, r.name, term.Token(), primacy.ErrExpired)
	}
	return lost
}

// stoppedMeanwhile returns the signal that ended the wait in the very moment of the win: nobody would forward it to the command.
func (r *runner) stoppedMeanwhile(ctx context.Context) error {
	var sig signalled
	if errors.As(context.Cause(ctx), &sig) {
		return sig
	}
	return nil
}

// signalled says that a signal ended the wait.
type signalled struct{ sig syscall.Signal }

func (s signalled) Error() string { return "stopped by " + s.sig.String() }

// answerWhileWaiting ends the wait on a signal that asks for it: a candidate without a command has nobody to forward it to.
func (r *runner) answerWhileWaiting(stop context.CancelCauseFunc, leading <-chan struct{}) {
	for {
		select {
		case <-leading:
			return
		case sig := <-r.signals:
			if r.ends(sig) {
				stop(signalled{sig.(syscall.Signal)})
				return
			}
		}
	}
}

// ends says whether a signal ends a process that has no command to forward it to. Not one that nohup, or a shell that starts
// a job in the background, made it ignore.
func (r *runner) ends(sig os.Signal) bool {
	switch sig {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
		return !slices.Contains(r.deaf, sig)
	}
	return false
}

// ended turns how it ended into an exit code.
func (r *runner) ended(ctx context.Context, err error) error {
	var sig signalled
	var term *primacy.EndedError
	switch {
	case errors.As(context.Cause(ctx), &sig) && !r.started:
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
