package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/onethread"
)

const (
	demoName = "demo"
	// demoTTL is doubled, up to demoLongestTTL, each time the machine is too busy to keep a term.
	demoTTL        = 3 * time.Second
	demoLongestTTL = 4 * demoTTL
	demoLimit      = 2 * time.Minute // with each ttl
)

func demoCommand(a *app) *cobra.Command {
	var keep bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "See it work: three candidates, one is killed, one is frozen",
		Long: `Run three real candidate processes on an embedded store in a temporary folder. The leader is
killed with SIGKILL, the next one frozen with SIGSTOP, the third asked to resign. What is shown at
the end is counted from what the workers themselves wrote: a line every 5 ms while they act. Exit 0 if there was
never more than one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, flag := range []string{"store", "id", "ttl", "output"} { // variables are for other runs
				if slices.Contains(a.typed, flag) {
					return fmt.Errorf("demo: leave out --%s: it has a store, candidates and a picture of its own", flag)
				}
			}
			return runDemo(cmd.Context(), a, keep)
		},
	}
	c.Flags().BoolVar(&keep, "keep", false, "leave it running at the end, to play with")
	return c
}

// demo holds what the script needs.
type demo struct {
	*app
	view  *view
	nodes []*node
	e     *primacy.Election
	acts  string // the file the workers write
	token primacy.Token
	ttl   time.Duration
	limit *time.Timer // ends the script
	// frozen is the node that was sent SIGSTOP, until it has ended.
	frozen *node
}

func runDemo(ctx context.Context, a *app, keep bool) error {
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	dir, err := os.MkdirTemp("", "primacy-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	a.store, a.id, a.ttl = embeddedScheme+filepath.Join(dir, "store"), "demo", demoTTL
	s, _, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	d := &demo{app: a, e: s.Election(demoName), acts: filepath.Join(dir, "acts"), ttl: demoTTL}
	do, end := onethread.Start()
	defer end()
	if err := os.MkdirAll(filepath.Join(dir, "run"), 0o700); err != nil {
		return err
	}
	for i := 1; i <= 3; i++ {
		d.nodes = append(d.nodes, newNode(do, self, fmt.Sprintf("node-%d", i), dir, a.store, d.ttl, d.acts))
	}
	defer func() {
		for _, n := range d.nodes {
			n.down()
		}
	}()
	d.view = newView(a.stdout, func() []string { return leases(d.nodes) })
	err = d.script(ctx)
	d.view.close()
	if err != nil {
		return d.failed(ctx, err)
	}
	if err := d.verdict(); err != nil {
		return err
	}
	if keep {
		fmt.Fprintf(a.stdout, "\nStill running. In another terminal:\n  export PRIMACY_STORE=%s\n"+
			"  primacy status; primacy observe %s; primacy resign %s\nStop with ^C.\n",
			a.store, demoName, demoName)
		<-ctx.Done()
	}
	return nil
}

// untilInterrupted returns a context that a signal ends, also the one that says that nobody reads
// what is shown any more (demo | head). That would end this process at once, and leave its folder.
func untilInterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := make(chan os.Signal, 8)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	go func() {
		for {
			select {
			case s := <-c:
				// A connection to a server that was killed brings SIGPIPE too.
				if s != syscall.SIGPIPE || unread(os.Stdout) || unread(os.Stderr) {
					cancel(errors.New(s.String()))
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(c)
		cancel(context.Canceled)
	}
}

// unread says whether f is a pipe, or the like, whose reader is gone.
func unread(f *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd())}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}

func (d *demo) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &exitError{code: 130, err: errors.New("the demo was interrupted")}
	}
	return err
}

// script is the story.
func (d *demo) script(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.limit = time.AfterFunc(demoLimit, func() {
		cancel(fmt.Errorf("the demo took more than %v: is the machine very busy?", demoLimit))
	})
	defer d.limit.Stop()
	d.view.line("an embedded store is running; three candidates for %q, ttl %v", demoName, d.ttl)
	for _, n := range d.nodes {
		if err := n.up(); err != nil {
			return err
		}
	}
	leader, err := d.next(ctx)
	if err != nil {
		return err
	}
	for steps := []func(context.Context, *node) error{d.kill, d.freeze, d.resign}; len(steps) > 0; {
		if err := sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		switch err := steps[0](ctx, leader); {
		case errors.Is(err, os.ErrProcessDone) || errors.Is(err, primacy.ErrNoLeader):
			// On a busy machine a lease can end unrenewed. The next leader gets the step.
			d.view.line("%s has lost its term under token %d: is this machine busy?", leader.id, d.token)
		case err != nil:
			return err
		default:
			steps = steps[1:]
		}
		if leader, err = d.next(ctx); err != nil {
			return err
		}
		if err := d.restore(ctx); err != nil {
			return err
		}
	}
	return sleep(ctx, time.Second)
}

// next waits for a term newer than the last one and until its worker acts, and returns its node.
// On a busy machine all nodes may lose their terms and end: next starts them again.
func (d *demo) next(ctx context.Context) (*node, error) {
	for ctx.Err() == nil {
		if n, err := d.nextWithin(ctx, 2*d.ttl); n != nil || err != nil {
			return n, err
		}
		for _, n := range d.nodes {
			if n != d.frozen && n.awaitExit(0) {
				if err := n.up(); err != nil {
					return nil, err
				}
			}
		}
	}
	return nil, context.Cause(ctx)
}

// nextWithin is next for a limited time, and starts nothing. It returns nil when the time is over.
// If the leader's worker has not acted by then, the next call waits for that worker again.
func (d *demo) nextWithin(ctx context.Context, limit time.Duration) (*node, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for st, err := range d.e.Observe(ctx) {
		if err != nil || st.Leader == nil || st.Leader.Token <= d.token {
			continue
		}
		before := d.token
		d.token = st.Leader.Token
		for _, n := range d.nodes {
			if n.id != st.Leader.ID {
				continue
			}
			if acted, err := d.told(ctx, n); acted || err != nil && ctx.Err() == nil {
				return n, err
			}
			if ctx.Err() == nil {
				return nil, d.slower()
			}
			d.token = before
		}
	}
	return nil, nil
}

// slower starts the nodes again with twice the ttl: this machine was too busy to keep a term of the
// present one. A frozen node gets the new ttl at its next start.
func (d *demo) slower() error {
	if d.ttl == demoLongestTTL {
		return nil
	}
	d.ttl *= 2
	d.limit.Reset(demoLimit)
	d.view.line("this machine is busy: the nodes start again, with ttl %v", d.ttl)
	for _, n := range d.nodes {
		n.setTTL(d.ttl)
		if n == d.frozen {
			continue
		}
		n.down()
		if err := n.up(); err != nil {
			return err
		}
	}
	return nil
}

// told says how long nobody acted before n did, once the worker has written its first line. It
// reports false if the term was over before that: on a busy machine a worker may start too late.
func (d *demo) told(ctx context.Context, n *node) (acted bool, err error) {
	for try := 1; ; try++ {
		periods, err := readPeriods(d.acts)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		if i := len(periods) - 1; i >= 0 && periods[i].token == uint64(d.token) {
			if i == 0 {
				d.view.line("%s leads under token %d", n.id, d.token)
			} else {
				d.view.line("%s leads under token %d; nobody acted for %v", n.id, d.token,
					gap(periods[i-1], periods[i]))
			}
			return true, nil
		}
		if try%20 == 0 {
			if l, err := d.e.Leader(ctx); err == nil && l.Token != d.token || errors.Is(err, primacy.ErrNoLeader) {
				d.view.line("%s lost its term under token %d before its worker had begun", n.id, d.token)
				return false, nil
			}
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return false, err
		}
	}
}

func gap(before, after period) time.Duration {
	return (after.first - before.last).Round(time.Millisecond)
}

func (d *demo) kill(_ context.Context, n *node) error {
	if err := n.signal(syscall.SIGKILL); err != nil {
		return err
	}
	d.view.line("SIGKILL to %s: its guardian must stop the work, and then gives leadership up", n.id)
	n.awaitExit(time.Second)
	return nil
}

func (d *demo) freeze(_ context.Context, n *node) error {
	if err := n.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	n.set("frozen")
	d.frozen = n
	d.view.line("SIGSTOP to %s: its guardian must stop the work, and the kernel wakes it at its deadline", n.id)
	return nil
}

func (d *demo) resign(ctx context.Context, n *node) error {
	d.view.line("%s is asked to resign: it stops its work, then the next one leads", n.id)
	n.set("resigning")
	_, err := d.e.Ask(ctx, primacy.Request{Reason: "the demo asks"})
	return err
}

// restore starts what has ended, so that three stand again.
func (d *demo) restore(ctx context.Context) error {
	for _, n := range d.nodes {
		if n == d.frozen {
			d.frozen = nil
			if !n.awaitExit(20 * time.Second) {
				return fmt.Errorf("%s has not ended after its deadline", n.id)
			}
			d.view.line("%s has woken and seen that it leads no more: %s (122: leadership lost)", n.id, n.say())
		}
		if n.say() == "resigning" && !n.awaitExit(20*time.Second) {
			return fmt.Errorf("%s has not ended after it was asked to resign", n.id)
		}
		if n.awaitExit(0) {
			if err := n.up(); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// verdict counts what the workers wrote.
func (d *demo) verdict() error {
	periods, err := readPeriods(d.acts)
	if err != nil {
		return err
	}
	instants, backwards := twoLeaders(periods)
	rows := [][]string{{"TOKEN", "LEADER", "ACTED FOR", "ACTS", "NOBODY BEFORE"}}
	for i, r := range periods {
		before := "-"
		if i > 0 {
			before = gap(periods[i-1], r).String()
		}
		rows = append(rows, []string{fmt.Sprint(r.token), r.id, (r.last - r.first).Round(time.Millisecond).String(),
			fmt.Sprint(r.acts), before})
	}
	fmt.Fprintln(d.stdout)
	if err := table(d.stdout, rows...); err != nil {
		return err
	}
	fmt.Fprintf(d.stdout, "\ntokens that did not grow: %d\ninstants with two leaders: %d\n", backwards, instants)
	if instants > 0 || backwards > 0 {
		return fail(exitNo, "the promise was broken; please report it with the lines above")
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// workerTick is how often a worker writes that it acts.
const workerTick = 5 * time.Millisecond

// workerCommand is the demo's work: it acts as leader by appending a line every 5 ms, without
// asking whether it may. So the file shows when somebody really acted, as seen by those who did.
func workerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker FILE",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := os.OpenFile(args[0], os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
			if err != nil {
				return err
			}
			defer f.Close()
			return act(f, os.Getenv("PRIMACY_TOKEN"), os.Getenv("PRIMACY_ID"))
		},
	}
}

func act(w io.Writer, token, id string) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	tick := time.NewTicker(workerTick)
	defer tick.Stop()
	for {
		// One write, one line: appends of several processes do not mix.
		if _, err := fmt.Fprintf(w, "%d %s %s\n", boottime.Now().Nanoseconds(), token, id); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-term:
			return nil
		}
	}
}

// period is what the workers wrote under one token.
type period struct {
	token       uint64
	id          string
	first, last time.Duration // on the boot clock
	acts        int
}

// readPeriods reads what workers wrote, in order of their first act. A last line without its end is
// being written just now.
func readPeriods(path string) ([]period, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	byToken := map[uint64]*period{}
	lines := strings.Split(string(b), "\n")
	for i, line := range lines[:len(lines)-1] {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s:%d: %q is not what a worker writes", path, i+1, line)
		}
		ns, err1 := strconv.ParseInt(fields[0], 10, 64)
		token, err2 := strconv.ParseUint(fields[1], 10, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("%s:%d: %q is not what a worker writes", path, i+1, line)
		}
		at := time.Duration(ns)
		r := byToken[token]
		if r == nil {
			r = &period{token: token, id: fields[2], first: at, last: at}
			byToken[token] = r
		}
		r.first, r.last, r.acts = min(r.first, at), max(r.last, at), r.acts+1
	}
	periods := make([]period, 0, len(byToken))
	for _, r := range byToken {
		periods = append(periods, *r)
	}
	slices.SortFunc(periods, func(a, b period) int { return int(a.first - b.first) })
	return periods, nil
}

// twoLeaders counts the ticks during which workers of two tokens acted, and the tokens that did not
// grow.
func twoLeaders(periods []period) (instants, backwards int) {
	var until time.Duration
	var largest uint64
	for _, r := range periods {
		if overlap := min(until, r.last) - r.first; overlap >= 0 && until > 0 {
			instants += 1 + int(overlap/workerTick)
		}
		if r.token <= largest {
			backwards++
		}
		until, largest = max(until, r.last), max(largest, r.token)
	}
	return instants, backwards
}
