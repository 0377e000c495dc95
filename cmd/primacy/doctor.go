package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/doctor"
	"github.com/primacy-go/primacy/driver"
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

func (a *app) doctorCommand() *cobra.Command {
	var o doctorOptions
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Examine the store and this machine, or torture them: does the promise hold here?",
		Long: `Look at everything that the promise of one leader rests on: servers, versions, space, permissions, round trips, leases, and at which
rate the store's clock runs against ours. Says what this store can promise and what it cannot. It takes some 8 s and leaves nothing behind.

  primacy doctor                           what is well, what is not, and what to do
  primacy doctor --name billing            and whether we may stand for billing, and how its line is
  primacy doctor --torture 60s             candidates stand for a name of their own; kill, freeze and cut them off for 60 s; count leaders

Torture harms nobody else: only candidates of its own are killed, frozen or cut off, through proxies of its own, and only claims
and leases of its own are removed. It renews and writes as four candidates do. The lease's ttl is 3 s there unless --ttl is given.

Exit codes: 0 all is well, also with warnings (unless --strict), or the promise held; 1 something failed, or the promise was broken;
121 store unreachable, or it refuses us; 124 torture proved nothing: too little happened; 125 usage or own failure; 130 interrupted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			if cmd.Flags().Changed("torture") {
				if !cmd.Flags().Changed("ttl") {
					a.ttl = doctor.TortureTTL
				}
				return a.torture(cmd.Context(), o)
			}
			return a.doctor(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.name, "name", "", "an election to look at too; it is only read")
	f.DurationVar(&o.window, "clock-window", 6*time.Second, "for how long the store's clock is watched: longer is more precise")
	f.BoolVar(&o.strict, "strict", false, "a warning is a failure: exit 1")
	f.DurationVar(&o.torture, "torture", 0, "run candidates for so long, with faults, and count leaders")
	f.IntVar(&o.candidates, "candidates", 4, "with --torture: so many candidates")
	f.Uint64Var(&o.seed, "seed", 0, "with --torture: the same faults in the same order (default: a new one, which is told)")
	c.AddCommand(a.doctorCandidateCommand())
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

func (a *app) doctor(ctx context.Context, o doctorOptions) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	st, done, err := a.openQuietly(ctx)
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
	rep := doctor.Examine(limited, st, doctor.Options{Name: o.name, TTL: a.ttl, Drift: doctorDrift, Window: o.window, Tries: 50, Tell: show})
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
func (a *app) openQuietly(ctx context.Context) (driver.Store, func(), error) {
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
