package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// lockOptions are flock(1)'s, by its letters.
type lockOptions struct {
	nonblock, shared, exclusive bool
	slots, conflict             int
	command                     string
}

func lockCommand(a *app) *cobra.Command {
	var o lockOptions
	var command []string
	r := newRunner(a, contest{
		lock: true, has: "holds the lock", right: "the lock on", missed: "not holding the lock", role: "holder",
	})
	c := &cobra.Command{
		Use: "lock NAME [flags] [[--] COMMAND [ARG...]]",

		DisableFlagsInUseLine: true,
		Short:                 "Run a command while holding a lock: flock(1) for the fleet",
		Long: `Wait for the lock NAME, run COMMAND while holding it, and release it. First come, first served, on
all machines that use the store.

  primacy lock backup -- restic backup /srv         wait for the lock, then run
  primacy lock -n -q nightly -- ./report            only if it is free; if not: no output, exit 124
  primacy lock -w 30 -E 0 nightly -- ./report       wait 30 s at most; exit 0 if it was not free
  primacy lock -s catalog -- ./read                 shared: many readers, or one writer (without -s)
  primacy lock --slots 3 build -- make              at most three at once; all must give the same number
  primacy lock deploy -c 'cd /srv && ./up'          through a shell: $SHELL, or /bin/sh
  primacy lock maintenance                          hold it until ^C, or a SIGTERM or SIGHUP

Flags of primacy go before COMMAND; what follows COMMAND is its own. Without -c there is no shell. COMMAND is
supervised as by 'primacy run': when the lock is lost, its process group gets SIGTERM --stop-timeout before the
deadline, and its whole tree SIGKILL before the deadline, also when this process itself is killed or frozen. When it is
killed, its guardian releases the lock as soon as nothing of COMMAND is left. COMMAND has the environment that
'primacy run' gives. The fencing token PRIMACY_TOKEN grows from one holder of the lock to the next. (It is 65,536
times the claim's number that 'primacy status' shows, or a little more.)

Without COMMAND it prints one line on stdout once the lock is held (-o json: name, id, token and claim). It exits
122 with a message on stderr as soon as the lock is lost. It stops nothing but itself: whatever relies on the
lock must watch for that.

A lock and an election of one name exclude each other. A lock inside a command that holds the same lock already
is refused.

Exit codes: the command's own, 128+n if it died of signal n; 121 store unreachable before start; 122 lock lost
while it ran; 123 resigned on purpose ('primacy resign'); 124, or the code of -E, not acquired with -n or -w; 125
usage; 126/127 command not executable/not found. Without COMMAND: 0 if a signal ended it.`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 0 {
				return errors.New("give the NAME of a lock")
			}
			r.name, command = args[0], args[1:]
			if cmd.ArgsLenAtDash() != 0 {
				if command, err = afterName(cmd, command); err != nil {
					return err
				}
			}
			return primacy.CheckName(r.name)
		},
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			changed := cmd.Flags().Changed
			if r.args, err = o.commandOf(command, changed("command")); err == nil {
				err = o.check(changed)
			}
			if err != nil {
				return fmt.Errorf("lock %s: %w", clean(r.name), err)
			}
			o.apply(r, changed("wait"))
			return r.run(cmd.Context())
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows NAME is read by afterName: COMMAND has flags of its own
	f.BoolVarP(&o.nonblock, "nonblock", "n", false, "give up (exit 124) at once if the lock is not free")
	f.DurationVarP(&r.wait, "wait", "w", 0,
		"give up (exit 124) if not acquired after this time: seconds, such as 2.5, or 2m; 0: as -n")
	f.IntVarP(&o.conflict, "conflict-exit-code", "E", exitNotAcquired, "the exit code when giving up, 0 to 255")
	f.BoolVarP(&o.shared, "shared", "s", false, "share it with others who use -s: for reading")
	f.BoolVarP(&o.exclusive, "exclusive", "x", false, "hold it alone (default)")
	f.BoolVarP(&o.exclusive, "ex", "e", false, "as -x")
	_ = f.MarkHidden("ex")
	f.IntVar(&o.slots, "slots", 0,
		fmt.Sprintf("a semaphore: at most so many hold it at once, 1 to %d", primacy.MaxSlots))
	f.StringVarP(&o.command, "command", "c", "", "run this by $SHELL -c, or /bin/sh -c")
	f.DurationVar(&r.stopTimeout, "stop-timeout", 0,
		"time from SIGTERM to SIGKILL when the lock is lost (default a tenth of the ttl)")
	r.bothFlags(f)
	r.own = ownVariables(f)
	return c
}

// commandOf returns the command to run; rest is what follows NAME and its flags.
func (o lockOptions) commandOf(rest []string, viaShell bool) ([]string, error) {
	switch {
	case viaShell && len(rest) > 0:
		return nil, fmt.Errorf("-c takes one argument: quote the whole command, or leave out %s", clean(rest[0]))
	case viaShell:
		return []string{cmp.Or(os.Getenv("SHELL"), "/bin/sh"), "-c", o.command}, nil
	case len(rest) == 0:
		return nil, nil
	case rest[0] == "--" && len(rest) == 1:
		return nil, errors.New("give a COMMAND after --, or leave the -- out to hold the lock until a signal")
	case rest[0] == "--":
		return rest[1:], nil
	}
	return rest, nil
}

// check refuses what contradicts itself.
func (o lockOptions) check(changed func(string) bool) error {
	switch {
	case o.nonblock && changed("wait"):
		return errors.New("-n and -w exclude each other: give up at once, or wait")
	case o.shared && o.exclusive:
		return errors.New("-s and -x exclude each other")
	case o.shared && changed("slots"):
		return errors.New("-s and --slots exclude each other: any number of readers, or so many holders")
	case o.exclusive && changed("slots"):
		return errors.New("-x and --slots exclude each other; --slots 1 is one holder")
	case changed("slots") && (o.slots < 1 || o.slots > primacy.MaxSlots):
		return fmt.Errorf("--slots %d: use 1 to %d", o.slots, primacy.MaxSlots)
	case o.conflict < 0 || o.conflict > 255:
		return fmt.Errorf("-E %d: an exit code is 0 to 255", o.conflict)
	}
	return nil
}

// apply says to the runner how the lock is won.
func (o lockOptions) apply(r *runner, limited bool) {
	r.late = o.conflict
	r.try = o.nonblock || limited && r.wait == 0
	if r.slots = o.slots; o.shared {
		r.slots = driver.Unlimited
	}
	r.win = func(ctx context.Context, s *primacy.Session) (*primacy.Term, error) {
		way, try := s.Mutex(r.name, nil).Lock, s.Mutex(r.name, nil).TryLock
		switch {
		case r.slots > 0:
			way, try = s.Semaphore(r.name, r.slots).Acquire, s.Semaphore(r.name, r.slots).TryAcquire
		case r.slots < 0:
			way, try = s.RWMutex(r.name).RLock, s.RWMutex(r.name).TryRLock
		}
		if r.try {
			return try(ctx)
		}
		return way(ctx)
	}
}

// heldLine is what a lock without a command prints with -o json. 64-bit numbers are strings.
type heldLine struct {
	Name  string        `json:"name"`
	ID    string        `json:"id"`
	Token primacy.Token `json:"token"`
	Claim primacy.Token `json:"claim"`
	Share string        `json:"share,omitempty"`
}

// hold is work without a command: it says that the lock is held and returns when a signal or a loss
// ends it. A loss is told in its moment; what is still asked of the store ends with the right at
// the latest.
func (r *runner) hold(term *primacy.Term) error {
	if err := r.tellHeld(term); err != nil {
		return err
	}
	failed := r.monitor.unreachable()
	for {
		select {
		case <-failed:
			r.gaveUp = true
			return nil
		case <-storeGone:
			r.gaveUp = true
			return nil
		case sig := <-r.signals:
			if r.ends(sig) {
				return nil
			}
		case <-term.Context().Done():
			cause := context.Cause(term.Context())
			code := exitLost
			if errors.Is(cause, primacy.ErrResigned) || errors.Is(cause, primacy.ErrTransferred) {
				code = exitResigned
			}
			fmt.Fprintf(r.stderr, "primacy: %s\n", oneLine(cause))
			return &exitError{code: code}
		}
	}
}

func (r *runner) tellHeld(term *primacy.Term) error {
	if r.output != "table" {
		r.output = "ndjson" // one line
		return r.writeJSON(heldLine{r.name, r.session.ID(), term.Token(), term.ClaimToken(), share(r.slots)})
	}
	if _, err := fmt.Fprintln(r.stdout, r.won(r.session.ID(), term)); err != nil {
		return err
	}
	r.say("^C, SIGTERM or SIGHUP releases it")
	return nil
}

// tooLate is the answer when it was not won in time. With -q the exit code alone is a lock's
// answer, as flock's is.
func (r *runner) tooLate(format string, args ...any) error {
	if r.lock && r.quiet {
		return &exitError{code: r.late}
	}
	return fail(r.late, format, args...)
}
