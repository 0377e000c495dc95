package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	pauses "github.com/primacy-go/primacy/pause"
	"github.com/primacy-go/primacy/shards"
)

// Variables of a shard's command, beside those that every command has.
const (
	shardEnv  = "PRIMACY_SHARD"
	shardsEnv = "PRIMACY_SHARDS"
)

// shardOptions are the flags of run for shards.
type shardOptions struct {
	shards int // 0: one command, of one election
	weight int
	prefix bool
}

func (o *shardOptions) flags(f *pflag.FlagSet) {
	f.IntVar(&o.shards, "shards", 0,
		"run one COMMAND for each of so many numbered shards that falls to this process: the same number everywhere")
	f.IntVar(&o.weight, "weight", 1, "with --shards: how many shards this process gets compared with others")
	f.BoolVar(&o.prefix, "prefix", false, "with --shards: put the shard before each line of output")
	_ = f.SetAnnotation("shards", noVariable, nil) // the commands find PRIMACY_SHARDS, and may run primacy
}

// notWithShards are the flags that make no sense for a command of many, and why.
var notWithShards = []struct{ flag, why string }{
	{"standby", "nobody stands by: every process has shards of its own"},
	{"on-leader-change", "each shard has a leader of its own: 'primacy observe NAME/0000' follows one"},
	{"priority", "shards are spread by --weight"},
	{"steady", "shards are spread by --weight"},
	{"wait", "a process may have no shard for a while"},
	{"on-lost", "a shard that was lost is another's, and the process stays"},
	{"on-unreachable", "all commands stop before the deadline"},
	{"on-unhealthy", "an unhealthy process gives its shards to healthy ones, where there are any"},
	{"backoff", "a command that ends gives its shard up, and this process does not take that one for 1s to 1m"},
	{"notify", "it is ready once it is a member"},
	{"status", "a process has many shards: ask 'primacy shards NAME'"},
}

// validate refuses what makes no sense. Given says whether somebody has set a flag.
func (o *shardOptions) validate(given func(flag string) bool) error {
	if o.shards == 0 && !given("shards") {
		for _, flag := range []string{"weight", "prefix"} {
			if given(flag) {
				return fmt.Errorf("--%s is for --shards only", flag)
			}
		}
		return nil
	}
	if o.shards < 1 || o.shards > shards.MaxShards {
		return fmt.Errorf("--shards %d: use 1 to %d", o.shards, shards.MaxShards)
	}
	if o.weight < 1 || o.weight > shards.MaxWeight {
		return fmt.Errorf("--weight %d: use 1 to %d", o.weight, shards.MaxWeight)
	}
	for _, n := range notWithShards {
		if given(n.flag) {
			return fmt.Errorf("--%s does not go with --shards: %s", n.flag, n.why)
		}
	}
	return nil
}

// sharded is one `primacy run --shards`: a member of a group of shards. Each shard that it owns has
// a runner of its own, which runs the command under the shard's term.
type sharded struct {
	r      *runner
	group  *shards.Group
	null   *os.File   // the commands' input
	lines  cron.Lines // output with a prefix
	pauses *pauses.Reader

	mu      sync.Mutex
	own     map[*runner]bool
	hooks   sync.WaitGroup // on-deposed
	leaving bool
}

// shardOf is what a runner of one shard has beside others.
type shardOf struct {
	*sharded
	number int
}

// liveSharded is live for a group of shards: it returns once this process has left the group, and
// nothing of its commands is left.
func liveSharded(ctx context.Context, r *runner, value string) error {
	g := &sharded{r: r, own: map[*runner]bool{}}
	var err error
	if g.null, err = os.Open(os.DevNull); err != nil {
		return err
	}
	defer g.null.Close()
	var done func()
	r.idle(func() {
		// The work is another process, which its guardian ends by the deadline: that this one was
		// late to hear of it is no reason to end.
		o := primacy.Options{Grace: r.stopTimeout, History: runHistory, Overrun: primacy.OverrunWait}
		r.session, r.at, done, err = r.openSession(ctx, o, true)
	})
	if done != nil {
		defer func() { done(); keepUnrecorded(r) }()
	}
	if err != nil {
		return r.ended(ctx, err)
	}
	g.pauses = pauses.NewReader(r.at, releaseLimit)
	if g.group, err = g.join(value); err != nil {
		return err
	}
	r.healthCheck.member = g.group
	endMonitor, err := r.monitor.start(ctx)
	if err != nil {
		return err
	}
	defer func() { endMonitor(); r.healthCheck.end() }()
	if err := r.healthCheck.start(); err != nil {
		return err
	}
	r.idle(func() { recordUnrecorded(ctx, r) })
	if ctx.Err() != nil {
		return r.ended(ctx, context.Cause(ctx))
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	over := make(chan struct{})
	var answering sync.WaitGroup
	answering.Go(func() { g.answer(over, leave) })
	r.report(event{Event: "candidate"})
	r.say("%s joins %s, %d shards", r.session.ID(), clean(r.name), r.shards)
	err = g.group.Run(ctx, g.work)
	r.leaving.Store(true)
	g.hooks.Wait()
	close(over)
	answering.Wait()
	return shardsFailed(err)
}

// join returns the group.
func (g *sharded) join(value string) (*shards.Group, error) {
	r := g.r
	o := &shards.Options{Weight: r.weight, Value: []byte(value), Logger: r.logger()}
	o.Paused = func(ctx context.Context, name string) (bool, error) {
		now, err := g.pauses.Since(ctx, time.Now())
		return now.Of(name, name+"/") != nil, err // a pause of all that is below is one of all shards
	}
	group, err := shards.New(r.session, r.name, r.shards, o)
	if err == nil && r.health != "" {
		group.SetReady(false) // until the check succeeds
	}
	return group, err
}

// answer answers signals. The first that asks this process to end has it leave the group: others
// take its shards. A second one goes to the commands, as all others do.
func (g *sharded) answer(over <-chan struct{}, leave func()) {
	r := g.r
	for {
		select {
		case <-over:
			return
		case sig := <-r.signals:
			g.mu.Lock()
			first := !g.leaving && sig != syscall.SIGHUP && r.ends(sig)
			g.leaving = g.leaving || first
			if !first {
				for sub := range g.own {
					select {
					case sub.signals <- sig:
					default: // it has sixteen unread
					}
				}
			}
			g.mu.Unlock()
			if first {
				r.ending.Store(true)
				r.say("leaving %s: others take its shards; another signal goes to the commands", clean(r.name))
				r.manager.stopping(shards.DefaultLeaveTimeout + releaseLimit + r.hooks.limit())
				leave()
			}
		}
	}
}

// runnerOf returns the runner of one shard. It calls stop for a signal that asks its command to end
// and comes while there is none: in a hook, or before it is started again.
func (g *sharded) runnerOf(s *shards.Shard, stop context.CancelCauseFunc) *runner {
	r := g.r
	sub := newRunner(r.app, r.contest)
	sub.name, sub.lifeOptions, sub.args, sub.stopTimeout, sub.own = s.Term.Name(), r.lifeOptions, r.args, r.stopTimeout,
		r.own
	sub.supervisor, sub.session, sub.at, sub.log, sub.ignored = r.supervisor, r.session, r.at, r.log, r.ignored
	sub.shardOptions, sub.shard = r.shardOptions, &shardOf{g, s.Number}
	sub.signals, sub.stop = make(chan os.Signal, 16), func(cause error) {
		if r.ending.Load() { // before that only SIGHUP comes here, which ends nothing
			stop(cause)
		}
	}
	sub.current.Store(s.Term)
	g.mu.Lock()
	g.own[sub] = true
	g.mu.Unlock()
	return sub
}

// work runs the command of a shard in its term. It returns when nothing of the command is left.
func (g *sharded) work(ctx context.Context, s *shards.Shard) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := g.runnerOf(s, stop)
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.own, r)
	}()
	var err error
	begins := g.admitted(r, s.Term)
	if begins {
		inTerms.Add(1)
		r.report(event{Event: "elected", Token: s.Term.Token()})
		r.idle(func() { r.hooks.elected(ctx, s.Term) })
	}
	if err = r.stoppedMeanwhile(ctx); err == nil && context.Cause(s.Term.Context()) == nil {
		err = r.work(ctx, s.Term)
	}
	if err == nil {
		err = r.lost(s.Term)
	}
	if begins {
		wait := r.hooks.deposed(context.WithoutCancel(ctx), s.Term, err)
		g.hooks.Go(func() { wait(); inTerms.Add(-1) })
	}
	r.explain(s.Term, err)
	switch {
	case err != nil:
		return err
	case r.status.Code != 0:
		return fmt.Errorf("the command ended with status %d", r.status.Code)
	}
	return nil
}

// forgetSignals drops those that came for a command before it began: while a pause keeps it from
// that nobody passes them on, and the first that it got could end it.
func forgetSignals(signals <-chan os.Signal) {
	for {
		select {
		case <-signals:
		default:
			return
		}
	}
}

// admitted waits, with a shard that is ours, until no pause forbids that its command begins. The
// shard stays ours meanwhile: whoever got it in our place would wait too. It returns false if the
// term ends first.
func (g *sharded) admitted(r *runner, t *primacy.Term) bool {
	ctx := t.Context()
	for told := ""; ctx.Err() == nil; {
		why := ""
		if told != "" { // many may wait at a time: they share a reading
			why = g.forbidden(ctx, t, time.Second)
		}
		if why == "" {
			why = g.forbidden(ctx, t, 0)
		}
		switch {
		case why == "" && told != "":
			forgetSignals(r.signals) // they were for commands that ran
			r.report(event{Event: primacy.ElectionResumed.String()})
			return true
		case why == "":
			return true
		case told == "":
			r.say("OURS, AND NOT RUNNING: %s: %s; waiting for the end of the pause", clean(r.name), printable(why))
			r.report(event{Event: primacy.ElectionPaused.String(), Token: t.Token(), Text: why})
		}
		told = why
		pause(ctx, 2*time.Second)
	}
	return false
}

// forbidden says why no command may begin in a term, by a reading of the pauses that is no older
// than age; "" if it may. A pause of the group's name is one of all its shards.
func (g *sharded) forbidden(ctx context.Context, t *primacy.Term, age time.Duration) string {
	if g.r.ignorePauses {
		return ""
	}
	now, err := g.pauses.Since(ctx, time.Now().Add(-age))
	p := now.Forbids(t.Name(), g.r.session.ID(), uint64(t.Token()), g.r.name)
	switch {
	case err != nil:
		return "what is paused is not known: " + oneLine(err)
	case p != nil:
		return p.String()
	}
	return ""
}

// outputs returns what the command writes to, and what waits until all of it was passed on. Nil
// files are our own.
func outputs(r *runner) (out, errs *os.File, wait func(), err error) {
	if r.shard == nil || !r.prefix {
		return nil, nil, func() {}, nil
	}
	pipes, wait, err := r.shard.lines.PassOn("["+r.name+"] ", os.Stdout, os.Stderr)
	if err != nil {
		return nil, nil, nil, err
	}
	return pipes[0], pipes[1], wait, nil
}

// variables returns what a shard's command finds of it in its environment.
func (s *shardOf) variables() map[string]string {
	return map[string]string{shardEnv: strconv.Itoa(s.number), shardsEnv: strconv.Itoa(s.group.Shards())}
}

// alone changes a command that runs beside others of this process: none of them gets what is typed.
func (s *shardOf) alone(c *supervise.Command) { c.Stdin, c.NoJobControl = s.null, true }

// shardsFailed turns how a group ended into an exit code.
func shardsFailed(err error) error {
	if errors.Is(err, shards.ErrShards) {
		return &exitError{exitUsage, err}
	}
	return err
}

// givenFlags says which flags somebody has set, on the command line, by the environment or in the
// file of --config.
func givenFlags(f *pflag.FlagSet) func(string) bool {
	var names []string
	f.Visit(func(f *pflag.Flag) { names = append(names, f.Name) })
	return func(name string) bool { return slices.Contains(names, name) }
}
