package cron

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/core"
)

// Commands starts commands under a guardian each, which ends them before the claim that they run
// under can be another's.
type Commands struct {
	Supervisor     *supervise.Supervisor
	ID             string // of the session
	Env            []string
	Stdout, Stderr *os.File
	Prefix         bool // each line of output begins with the job's name and the instant

	lines Lines // output with a prefix
}

// Run is a [Runner]; the hold must be a [TermHold].
func (c *Commands) Run(stop <-chan struct{}, hold Hold, r Run) Ended {
	h := hold.(TermHold)
	cmd, done, err := c.command(h.Term, r)
	if err != nil {
		return failed(err)
	}
	defer done()
	p, err := c.start(h.Term, cmd)
	if err != nil {
		return failed(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var feeding sync.WaitGroup
	feeding.Go(func() { feed(ctx, h.Term, cmd.Deadline, p) })
	e := c.await(stop, h.Term, p, r)
	st := p.Wait()
	cancel()
	feeding.Wait()
	return e.ended(st, h.Term)
}

func failed(err error) Ended {
	e := Ended{Verdict: Failed, Code: 125, Text: strings.ReplaceAll(err.Error(), "\n", "; ")}
	switch {
	case errors.Is(err, supervise.ErrNotFound):
		e.Code = 127
	case errors.Is(err, supervise.ErrNotExecutable):
		e.Code = 126
	case errors.Is(err, supervise.ErrTooLate):
		e.Verdict, e.Code = Lost, -1
	}
	return e
}

// command returns what to start.
func (c *Commands) command(t *primacy.Term, r Run) (cmd supervise.Command, done func(), err error) {
	null, err := os.Open(os.DevNull) // a command of a schedule has nobody to ask
	if err != nil {
		return cmd, nil, err
	}
	outs, wait, err := c.outputs(r)
	if err != nil {
		null.Close()
		return cmd, nil, err
	}
	cmd = supervise.Command{Args: r.Job.Command, Dir: r.Job.Dir, Env: c.env(t, r), Stdin: null, Stdout: outs[0],
		Stderr: outs[1],
		Grace:  core.Timing{}.Fill(t.TTL()).Grace, Margin: min(250*time.Millisecond, t.TTL()/20)}
	return cmd, func() { null.Close(); wait() }, nil
}

// start starts it, with the deadline as it is now: on a busy machine it may come too late for one.
func (c *Commands) start(t *primacy.Term, cmd supervise.Command) (p *supervise.Process, err error) {
	cmd.Deadline = t.Deadline()
	for tries := 0; ; tries++ {
		if cmd.Deadline == 0 {
			return nil, fmt.Errorf("%w: %w", supervise.ErrTooLate, t.Check())
		}
		p, err = c.Supervisor.Start(cmd)
		if tries == 3 || !errors.Is(err, supervise.ErrTooLate) {
			return p, err
		}
		if cmd.Deadline, err = t.NextDeadline(t.Context(), cmd.Deadline); err != nil {
			return nil, fmt.Errorf("%w: %w", supervise.ErrTooLate, err)
		}
	}
}

// feed moves the command's deadline on with each renewal. When the right is over it kills the
// command: it may have been stopping with a grace since before, and another may run now.
func feed(ctx context.Context, t *primacy.Term, d time.Duration, p *supervise.Process) {
	for {
		var err error
		if d, err = t.NextDeadline(ctx, d); err != nil {
			return
		}
		if d == 0 {
			<-t.Context().Done() // at once: await is to see why, and not only that the command has ended
			p.Stop(0)
			return
		}
		p.Extend(d)
	}
}

// ending is why a command was told to stop.
type ending struct {
	why  string // a verdict; empty: it was not
	text string
}

// await returns when the command has ended, or has been told to, and why.
func (c *Commands) await(stop <-chan struct{}, t *primacy.Term, p *supervise.Process, r Run) (e ending) {
	var late <-chan time.Time
	if r.Job.Timeout > 0 {
		timer := time.NewTimer(r.Job.Timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-p.Done():
		if t.Context().Err() == nil {
			return e
		}
		e = lostBy(t) // feed may have killed it for that: ended tells whether it did
	case <-late:
		e = ending{why: TimedOut, text: fmt.Sprintf("stopped after %v", r.Job.Timeout)}
	case <-stop:
		e = ending{why: Stopped, text: "its runner was told to stop"}
	case <-t.Context().Done():
		e = lostBy(t) // and where the claim is gone, feed kills it at once: another may run already
	}
	p.Stop(r.Job.StopTimeout)
	return e
}

// lostBy is the ending of a command whose term has ended.
func lostBy(t *primacy.Term) ending {
	cause := context.Cause(t.Context())
	e := ending{why: Lost, text: oneLine(cause)}
	if errors.Is(cause, primacy.ErrResigned) {
		e.why = Replaced
	}
	return e
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// ended says how it ended. What ended by itself before it was told to did what it did, whatever
// came after.
func (e ending) ended(st supervise.Status, t *primacy.Term) Ended {
	out := Ended{Verdict: OK, Code: st.Code, Late: st.Overrun}
	switch {
	case e.why != "" && st.Cause != supervise.CauseExited:
		out.Verdict, out.Text = e.why, e.text
	case st.Cause == supervise.CauseDeadline:
		out.Verdict, out.Text = Lost, "its lease was not renewed in time"
	case st.Cause == supervise.CauseGuardianLost:
		out.Verdict, out.Text = Failed, "its guardian was killed, and so was the command"
	case st.Code != 0:
		out.Verdict = Failed
	}
	if out.Verdict == Lost && t.Check() == nil && st.Cause == supervise.CauseDeadline {
		out.Text = "this machine was too busy to extend its time"
	}
	if st.Overrun > 0 {
		out.Text = strings.TrimSpace(fmt.Sprintf("%s ERROR: it was alive %v after its lease deadline",
			out.Text, st.Overrun))
	}
	return out
}

// env is the command's environment: the process's without what is ours, the job's, and the run's.
func (c *Commands) env(t *primacy.Term, r Run) []string {
	set := map[string]string{
		"PRIMACY_NAME":         r.Claim,
		"PRIMACY_ID":           c.ID,
		"PRIMACY_TOKEN":        t.Token().String(),
		"PRIMACY_TTL_MS":       strconv.FormatInt(t.TTL().Milliseconds(), 10),
		"PRIMACY_CRON_JOB":     r.Job.Name,
		"PRIMACY_CRON_INSTANT": r.At.UTC().Format(time.RFC3339),
		"PRIMACY_CRON_ATTEMPT": strconv.Itoa(r.Attempt),
		"PRIMACY_CRON_RUN":     r.Name,
	}
	for name, v := range r.Job.Env {
		set[name] = v
	}
	env := slices.DeleteFunc(slices.Clone(c.Env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ours := set[name]
		return ours
	})
	for name, v := range set {
		env = append(env, name+"="+v)
	}
	slices.Sort(env)
	return env
}

// outputs returns the command's stdout and stderr, and what closes them and waits until all of it
// was passed on, for as long as PassOn does.
func (c *Commands) outputs(r Run) (outs [2]*os.File, wait func(), err error) {
	to := [2]*os.File{c.Stdout, c.Stderr}
	if !c.Prefix {
		return to, func() {}, nil
	}
	pipes, wait, err := c.lines.PassOn("["+r.Job.Name+" "+r.At.UTC().Format("15:04:05")+"] ", c.Stdout, c.Stderr)
	copy(outs[:], pipes)
	return outs, wait, err
}
