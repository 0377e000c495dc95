package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
)

func (a *app) runCommand() *cobra.Command {
	r := &runner{app: a}
	c := &cobra.Command{
		Use:   "run NAME [--] COMMAND [ARG...]",
		Short: "Stand for election and run a command only while leading",
		Long: `Stand for election and run COMMAND only while leading. The command is started directly, without a shell, and never outlives its
right to run: when leadership is lost its whole process tree gets SIGTERM --stop-timeout before the deadline, and SIGKILL in time for it,
also when this process itself is killed or frozen (a small guardian process sees to it).

In its environment: PRIMACY_NAME, PRIMACY_ID, PRIMACY_TOKEN (send it with every write), PRIMACY_TTL_MS, PRIMACY_STATE_FILE
('primacy leader NAME --valid' reads it), and PRIMACY_STORE unless that holds a password.

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
			return r.run(cmd.Context())
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows NAME belongs to the command
	f.DurationVar(&r.wait, "wait", 0, "give up (exit 124) when not leading after so long; 0: wait for ever")
	f.DurationVar(&r.stopTimeout, "stop-timeout", 0, "from SIGTERM to SIGKILL when leadership ends (default a tenth of the ttl)")
	f.StringVar(&r.value, "value", "", "what observers see beside the ID")
	return c
}

// runner is one `primacy run`.
type runner struct {
	*app
	name, value       string
	args              []string
	wait, stopTimeout time.Duration

	supervisor *supervise.Supervisor
	signals    chan os.Signal
	session    *primacy.Session
	status     supervise.Status // of the command, once it has ended
	started    bool
}

func (r *runner) run(ctx context.Context) error {
	if len(r.args) == 0 {
		return fmt.Errorf("run %s: give a COMMAND", r.name)
	}
	if _, err := supervise.LookPath(r.args); err != nil {
		return startError(err) // before the election: a misspelt command must not win it
	}
	if r.wait < 0 || r.stopTimeout < 0 {
		return fmt.Errorf("--wait and --stop-timeout must not be negative")
	}
	var err error
	if r.supervisor, err = supervise.New(); err != nil { // before Notify, which forgets what was ignored
		return err
	}
	r.signals = make(chan os.Signal, 16)
	signal.Notify(r.signals, supervise.Signals()...)
	defer signal.Stop(r.signals)

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	waiting := make(chan struct{})
	answered := make(chan struct{})
	go func() { defer close(answered); r.answerWhileWaiting(stop, waiting) }()
	leading := func() { close(waiting); <-answered }

	s, _, done, err := r.openSession(ctx, primacy.Options{Grace: r.stopTimeout}, true)
	if err != nil {
		return r.ended(ctx, err)
	}
	defer done()
	r.session = s
	r.sayWho(ctx)
	campaign := ctx
	if r.wait > 0 {
		var cancel context.CancelFunc
		campaign, cancel = context.WithTimeoutCause(ctx, r.wait, errWaited)
		defer cancel()
	}
	return r.ended(ctx, r.lead(campaign, leading))
}

var errWaited = errors.New("not acquired in time")

// lead campaigns once and runs the command in the term. From the win on the campaign's time limit must not end the term.
func (r *runner) lead(ctx context.Context, leading func()) error {
	term, err := r.session.Election(r.name).Campaign(ctx, []byte(r.value))
	if err != nil {
		return err
	}
	leading()
	workErr := r.stoppedMeanwhile(ctx)
	if workErr == nil {
		workErr = r.work(term)
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
		return &primacy.EndedError{Name: r.name, Token: term.Token(), Cause: primacy.ErrExpired}
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
			switch n := sig.(syscall.Signal); n {
			case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
				stop(signalled{n})
				return
			}
		}
	}
}

// ended turns how it ended into an exit code.
func (r *runner) ended(ctx context.Context, err error) error {
	var sig signalled
	var term *primacy.EndedError
	switch {
	case errors.As(context.Cause(ctx), &sig) && !r.started:
		return &exitError{code: 128 + int(sig.sig)}
	case errors.Is(err, errWaited):
		return fail(exitNotAcquired, "not leading %s after %v", r.name, r.wait)
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

// sayWho tells people whom they wait for.
func (r *runner) sayWho(ctx context.Context) {
	if r.quiet {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if st, err := r.session.Election(r.name).State(ctx); err == nil && st.Leader != nil {
		r.say("%s waits for %s: %s leads under token %d, %d waiting", r.session.ID(), r.name, who(st.Leader), st.Leader.Token, len(st.Waiting))
	}
}
