package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/doctor"
	"github.com/primacy-go/primacy/cmd/internal/embedded"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
)

// leads is what a candidate of the torture asks before each act, and outlives is what happens when it acts on. Tests of the judge put a cheat here.
var (
	leads    = doctor.Leads
	outlives = primacy.OverrunExit
)

// doctorCandidateCommand is one of the processes that the torture runs.
func (a *app) doctorCandidateCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "candidate",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			c := &doctor.Candidate{In: a.stdin, Out: a.stdout, Leads: leads, Overrun: outlives}
			return c.Run(ctx)
		},
	}
}

func (a *app) torture(ctx context.Context, o doctorOptions) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	st, endpoint, done, err := a.openForTorture(ctx)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer done()
	if o.seed == 0 {
		o.seed = rand.Uint64N(1e9) + 1
	}
	show := newProgress(a, o.torture)
	t := doctor.Torture{Store: st, URL: a.store, Endpoint: endpoint, Command: []string{self, "doctor", "candidate"}, Duration: o.torture, TTL: a.ttl,
		Candidates: o.candidates, Seed: o.seed, Tell: show.fault, Progress: show.state}
	if caps := st.Caps(); t.TTL < caps.MinTTL || caps.MaxTTL > 0 && t.TTL > caps.MaxTTL {
		return fmt.Errorf("--ttl %v: %s keeps leases of %v to %v", t.TTL, caps.Store, caps.MinTTL, caps.MaxTTL)
	}
	show.say("torturing %s with %d candidates for %v, ttl %v, seed %d", st.Caps().Store, o.candidates, o.torture, t.TTL, o.seed)
	v, err := t.Run(ctx)
	show.close()
	if err != nil {
		return &exitError{exitUnreachable, err}
	}
	if err := a.printVerdict(v); err != nil {
		return err
	}
	switch {
	case v.Outcome == doctor.Disproved:
		return &exitError{code: exitNo}
	case ctx.Err() != nil:
		return &exitError{130, errors.New("interrupted: above is what was measured so far")}
	case v.Outcome == doctor.Unproved:
		return &exitError{code: exitNotAcquired}
	}
	return nil
}

// openForTorture opens the store, and for the embedded one tells where its etcd listens: candidates must not host it, they will be killed.
func (a *app) openForTorture(ctx context.Context) (driver.Store, string, func(), error) {
	if a.store != "" && !strings.HasPrefix(a.store, embeddedScheme) {
		st, done, err := a.openQuietly(ctx)
		return st, "", done, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	dir, err := a.embeddedDir()
	if err != nil {
		return nil, "", nil, err
	}
	node, err := embedded.Open(ctx, dir, embedded.Options{Logger: a.logger()})
	if err != nil {
		return nil, "", nil, &exitError{exitUnreachable, err}
	}
	st, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{node.Endpoint()}})
	if err != nil {
		_ = node.Close()
		return nil, "", nil, &exitError{exitUnreachable, a.unreachable(ctx, err)}
	}
	return st, node.Endpoint(), func() { _ = st.Close(); _ = node.Close() }, nil
}

// progress shows a torture: one line that is written again and again on a terminal, a line for each fault elsewhere.
type progress struct {
	w     io.Writer
	quiet bool
	width int // 0: not a terminal
	total time.Duration
	mu    sync.Mutex
}

func newProgress(a *app, total time.Duration) *progress {
	p := &progress{w: a.stderr, quiet: a.quiet, total: total}
	if f, ok := a.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		p.width = 80
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil && cols > 20 {
			p.width = cols
		}
	}
	return p
}

func (p *progress) say(format string, args ...any) {
	if p.quiet {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "primacy: "+format+"\n", args...)
}

func (p *progress) fault(at time.Duration, text string) {
	if p.width == 0 {
		p.say("%5.1fs  %s", at.Seconds(), text)
	}
}

func (p *progress) state(s doctor.State) {
	if p.quiet || p.width == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	line := []rune(fmt.Sprintf("%3.0f of %v  terms %d  faults %d  two leaders %d  %s", s.At.Seconds(), p.total, s.Terms, s.Faults, s.Overlaps, s.Last))
	if len(line) > p.width-1 { // a wrapped line would stay on the screen
		line = append(line[:p.width-2], '…')
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", string(line))
}

// close takes the line away.
func (p *progress) close() {
	if !p.quiet && p.width > 0 {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func (a *app) printVerdict(v *doctor.Verdict) error {
	if a.output != "table" {
		return a.writeJSON(v)
	}
	seconds := func(s float64) string { return fmt.Sprintf("%.2f s", s) }
	rows := [][]string{
		{"duration", seconds(v.Seconds)},
		{"candidates", fmt.Sprintf("%d, ttl %v, on %s", v.Candidates, v.TTL, v.Store)},
		{"terms", fmt.Sprint(v.Terms)},
		{"two leaders at once", howMany(v)},
		{"acts", fmt.Sprint(v.Acts)},
		{"acts that came late", fmt.Sprintf("%d (made without a fence, refused with one)", v.Stale)},
		{"writes acknowledged", fmt.Sprintf("%d, lost %d", v.Acked, len(v.Lost))},
		{"nobody led", fmt.Sprintf("p50 %s, p99 %s, longest %s", seconds(v.GapP50), seconds(v.GapP99), seconds(v.GapMax))},
		{"seed", fmt.Sprint(v.Seed)},
	}
	for i, kind := range slices.Sorted(maps.Keys(v.Faults)) {
		head := ""
		if i == 0 {
			head = "faults"
		}
		rows = append(rows, []string{head, fmt.Sprintf("%d  %s", v.Faults[kind], kind)})
	}
	if err := table(a.stdout, rows...); err != nil {
		return err
	}
	p := newPaper(a.stdout)
	fmt.Fprintln(a.stdout)
	if len(v.Without) > 0 {
		p.para("", 0, fmt.Sprintf("Left out, since %s: %s.", v.Why, strings.Join(v.Without, ", ")))
	}
	if len(v.Left) > 0 {
		p.para("", 0, fmt.Sprintf("Left behind in the store: %s. It goes with its lease, within %v.", strings.Join(v.Left, ", "), v.TTL))
	}
	if v.Fell != "" {
		p.para("", 0, "A candidate said: "+printable(v.Fell))
	}
	p.para("", 0, printable(v.Sentence))
	return nil
}

func howMany(v *doctor.Verdict) string {
	if v.Overlaps == 0 {
		return "0"
	}
	return fmt.Sprintf("%d, longest %.3f s", v.Overlaps, v.Longest)
}
