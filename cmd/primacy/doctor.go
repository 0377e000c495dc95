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

// doctorDrift is the drift bound that this program's sessions keep: the library's default.
const doctorDrift = 0.10

type doctorOptions struct {
	name   string
	window time.Duration
	strict bool

	torture    time.Duration
	candidates int
	seed       uint64
}

func doctorCommand(a *app) *cobra.Command {
	var o doctorOptions
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Examine the store and this machine, or test them with faults: does the promise hold here?",
		Long: `Examine everything that the promise of one leader depends on: servers, versions, space,
permissions, round trips, leases, and how fast the store's clock runs compared with this machine's. Says what this
store can promise and what it cannot. It takes some 8 s and leaves nothing behind.

  primacy doctor                           what is well, what is not, and what to do
  primacy doctor --name billing            also: may this user campaign for billing, and can its queue be read
  primacy doctor --torture 60s             kill, freeze and cut off candidates of its own for 60 s: did ever two lead?

--torture harms nobody else: it kills, freezes and cuts off only candidates of its own, by proxies of its own, and
removes only claims and leases of its own. Its load is that of four candidates. Its ttl is 3 s unless --ttl is
given.

Exit codes: 0 all is well, or only warnings (without --strict), or the promise held; 1 a check failed, or the
promise was broken; 121 store unreachable, or access refused; 124 --torture proved nothing: too little happened;
125 usage or own failure; 130 interrupted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			if cmd.Flags().Changed("torture") {
				if !cmd.Flags().Changed("ttl") {
					a.ttl = doctor.TortureTTL
				}
				return runTorture(cmd.Context(), a, o)
			}
			return examine(cmd.Context(), a, o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.name, "name", "", "an election to look at too; it is only read")
	f.DurationVar(&o.window, "clock-window", 6*time.Second,
		"for how long the store's clock is watched: longer is more precise")
	f.BoolVar(&o.strict, "strict", false, "a warning is a failure: exit 1")
	f.DurationVar(&o.torture, "torture", 0, "run candidates for so long, with faults, and count leaders")
	f.IntVar(&o.candidates, "candidates", 4, "with --torture: how many candidates")
	f.Uint64Var(&o.seed, "seed", 0,
		"with --torture: the same faults in the same order (default: a new one, which is printed)")
	c.AddCommand(doctorCandidateCommand(a))
	return c
}

func (o doctorOptions) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case changed("name") && primacy.CheckName(o.name) != nil:
		return primacy.CheckName(o.name)
	case o.window < 3*time.Second || o.window > 4*time.Minute:
		return fmt.Errorf("--clock-window %v: use 3s to 4m", o.window)
	case changed("torture") && o.torture < 5*time.Second:
		return fmt.Errorf("--torture %v: use 5s at least; a minute says something", o.torture)
	case !changed("torture") && (changed("candidates") || changed("seed")):
		return errors.New("--candidates and --seed need --torture")
	case o.candidates < 2 || o.candidates > 32:
		return fmt.Errorf("--candidates %d: use 2 to 32", o.candidates)
	}
	return nil
}

func examine(ctx context.Context, a *app, o doctorOptions) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	st, done, err := openQuietly(ctx, a)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer done()
	limited, cancel := context.WithTimeout(ctx, o.window+a.timeout+20*time.Second)
	defer cancel()
	p := newPaper(a.stdout)
	show := func(c doctor.Check) {
		if a.output == "table" {
			p.check(c)
		}
	}
	if a.output == "table" {
		fmt.Fprintf(a.stdout, "%s\n\n", st.Caps().Store)
	}
	way, overNetwork := doctor.Transport(a.store)
	if overNetwork {
		show(way)
	}
	rep := doctor.Examine(limited, st, doctor.Options{Name: o.name, TTL: a.ttl, Drift: doctorDrift, Window: o.window,
		Tries: 50, Tell: show})
	if overNetwork {
		rep.Checks = append([]doctor.Check{way}, rep.Checks...)
	}
	if ctx.Err() != nil {
		return &exitError{130, errors.New("interrupted")}
	}
	warned, failed := rep.Count(driver.Warning), rep.Count(driver.Failed)
	if a.output != "table" {
		if err := a.writeJSON(rep); err != nil {
			return err
		}
	} else {
		p.list("This store can promise:", rep.Can)
		p.list("It cannot promise:", rep.Cannot)
		fmt.Fprintf(a.stdout, "\n%d checks: failed %d, warnings %d\n", len(rep.Checks), failed, warned)
	}
	if failed > 0 || o.strict && warned > 0 {
		return &exitError{code: exitNo}
	}
	return nil
}

// openQuietly opens the store without its warnings, which the report has.
func openQuietly(ctx context.Context, a *app) (driver.Store, func(), error) {
	quiet := *a
	quiet.quiet = true
	return quiet.openStore(ctx)
}

func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &exitError{130, errors.New("interrupted")}
	}
	return err
}

// paper is what people read: wrapped on a terminal, a line each elsewhere.
type paper struct {
	w     io.Writer
	width int // 0: not a terminal
}

func newPaper(w io.Writer) *paper {
	p := &paper{w: w}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.width = 80
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil && cols >= 40 {
			p.width = cols
		}
	}
	return p
}

func (p *paper) check(c doctor.Check) {
	p.para(fmt.Sprintf("%-8s ", c.Level), 9, printable(c.Topic+": "+c.Found))
	if c.Advice != "" {
		p.para("         -> ", 12, printable(c.Advice))
	}
}

func (p *paper) list(title string, lines []string) {
	fmt.Fprintf(p.w, "\n%s\n", title)
	for _, l := range lines {
		p.para("  - ", 4, printable(l))
	}
}

// para prints text after head, wrapped between words and indented.
func (p *paper) para(head string, indent int, text string) {
	line := head
	empty := true
	for _, word := range strings.Fields(text) {
		if p.width > 0 && !empty && len([]rune(line))+1+len([]rune(word)) > p.width {
			fmt.Fprintln(p.w, line)
			line, empty = strings.Repeat(" ", indent), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	fmt.Fprintln(p.w, line)
}

// leads is what a candidate of the torture asks before each act, and outlives is what happens when
// it acts on. Tests of the judge put a cheat here.
var (
	leads    = doctor.Leads
	outlives = primacy.OverrunExit
)

// doctorCandidateCommand is one of the processes that the torture runs.
func doctorCandidateCommand(a *app) *cobra.Command {
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

func runTorture(ctx context.Context, a *app, o doctorOptions) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	st, dir, done, err := openForTorture(ctx, a)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer done()
	if o.seed == 0 {
		o.seed = rand.Uint64N(1e9) + 1
	}
	show := newProgress(a, o.torture)
	t := doctor.Torture{Store: st, URL: a.store, Embedded: dir, Command: []string{self, "doctor", "candidate"},
		Duration: o.torture, TTL: a.ttl,
		Candidates: o.candidates, Seed: o.seed, Tell: show.fault, Progress: show.state}
	caps, longest := st.Caps(), primacy.MaxTTL
	if caps.MaxTTL > 0 {
		longest = min(longest, caps.MaxTTL)
	}
	if t.TTL < caps.MinTTL || t.TTL > longest {
		return fmt.Errorf("--ttl %v: %s keeps leases of %v to %v", t.TTL, caps.Store, caps.MinTTL, longest)
	}
	show.say("torturing %s with %d candidates for %v, ttl %v, seed %d", st.Caps().Store, o.candidates, o.torture,
		t.TTL, o.seed)
	v, err := t.Run(ctx)
	show.close()
	if err != nil {
		return &exitError{exitUnreachable, err}
	}
	if err := printVerdict(a, v); err != nil {
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

// openForTorture opens the store, and for the embedded one tells its directory: candidates must not
// host it, they will be killed.
func openForTorture(ctx context.Context, a *app) (driver.Store, string, func(), error) {
	if a.store != "" && !strings.HasPrefix(a.store, embeddedScheme) {
		st, done, err := openQuietly(ctx, a)
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
	go endWithout(node, a.stderr)
	st, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{node.Endpoint()}})
	if err != nil {
		_ = node.Close()
		return nil, "", nil, &exitError{exitUnreachable, a.unreachable(ctx, err)}
	}
	return st, dir, func() { _ = st.Close(); _ = node.Close() }, nil
}

// progress shows a torture: one line that is written again and again on a terminal, a line for each
// fault elsewhere.
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
	line := []rune(fmt.Sprintf("%3.0f of %v  terms %d  faults %d  two leaders %d  %s", s.At.Seconds(), p.total,
		s.Terms, s.Faults, s.Overlaps, s.Last))
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

func printVerdict(a *app, v *doctor.Verdict) error {
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
		{"nobody led", fmt.Sprintf("p50 %s, p99 %s, longest %s", seconds(v.GapP50), seconds(v.GapP99),
			seconds(v.GapMax))},
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
		p.para("", 0, fmt.Sprintf("Left behind in the store: %s. It goes with its lease, within %v.",
			strings.Join(v.Left, ", "), v.TTL))
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
