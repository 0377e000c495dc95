// Command run plays seeds of the simulation until the time is over, and prints what happened in a
// table. At the first violation it prints the seed, how to play it again, and a shrunk timeline,
// and exits with 1.
//
//	go run ./test/sim/run -for 10m                 as many seeds as fit
//	go run ./test/sim/run -seeds 100000            so many
//	go run ./test/sim/run -seed 7                  one seed, with its timeline
//	go run ./test/sim/run -store redis             of one kind of store: see sim/stores.go
//	go run ./test/sim/run -drift beyond            clocks beyond the drift bound: overlaps are
//	                                               counted
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/test/sim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type flags struct {
	duration time.Duration
	seeds    uint64
	seed     uint64
	first    uint64
	store    string
	drift    string
	workers  int
}

const usage = "usage: run [-for 1m | -seeds N | -seed N] [-first N] [-store NAME|all] [-drift within|beyond] " +
	"[-workers N]"

func parse(args []string) (flags, error) {
	var f flags
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.DurationVar(&f.duration, "for", 0, "")
	fs.Uint64Var(&f.seeds, "seeds", 0, "")
	fs.Uint64Var(&f.seed, "seed", 0, "")
	fs.Uint64Var(&f.first, "first", 1, "")
	fs.StringVar(&f.store, "store", "all", "")
	fs.StringVar(&f.drift, "drift", "within", "")
	fs.IntVar(&f.workers, "workers", 0, "")
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	zero := false
	fs.Visit(func(g *flag.Flag) { zero = zero || g.Name == "seed" && f.seed == 0 })
	switch {
	case zero:
		return f, errors.New("-seed 0: seeds begin with 1")
	case fs.NArg() > 0:
		return f, fmt.Errorf("%q is no flag", fs.Arg(0))
	case f.store != "all" && !slices.Contains(sim.Stores(), f.store):
		return f, fmt.Errorf("-store %q: it is %s or all", f.store, strings.Join(sim.Stores(), ", "))
	case f.drift != "within" && f.drift != "beyond":
		return f, fmt.Errorf("-drift %q: it is within or beyond", f.drift)
	case f.duration < 0 || f.workers < 0:
		return f, errors.New("-for and -workers cannot be negative")
	case f.seed != 0 && (f.seeds != 0 || f.duration != 0):
		return f, errors.New("-seed plays one seed: leave -seeds and -for out")
	}
	if f.duration == 0 && f.seeds == 0 {
		f.duration = time.Minute
	}
	return f, nil
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	f, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(out, usage)
		return 0
	}
	if err != nil {
		fmt.Fprintf(errs, "run: %v; %s\n", err, usage)
		return 2
	}
	drift := sim.Within
	if f.drift == "beyond" {
		drift = sim.Beyond
	}
	if f.seed != 0 {
		return replay(f, drift, out)
	}
	if f.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.duration)
		defer cancel()
	}
	began := time.Now()
	batch := sim.Batch{First: f.first, Seeds: f.seeds, Store: f.store, Drift: drift, Workers: f.workers}
	total, failure := batch.Run(ctx, progress(errs, began))
	fmt.Fprint(errs, clearLine(errs))
	table(out, total, time.Since(began))
	if failure != nil {
		explain(out, f, failure)
		return 1
	}
	return 0
}

// replay plays one seed and prints all that happens.
func replay(f flags, drift sim.Drift, out io.Writer) int {
	w, tl := &sim.World{}, &sim.Timeline{}
	defer w.Close()
	p := sim.NewPlan(f.seed, f.store, drift)
	r := w.Run(p, tl)
	fmt.Fprintf(out, "seed %d: %s\n\n", f.seed, p)
	if err := tl.Print(out, 0); err != nil {
		return 2
	}
	fmt.Fprintf(out, "\nhash %016x, %d events\n", r.Hash, r.Counts.Events)
	if r.Violation != nil {
		fmt.Fprintf(out, "violation %v\n", r.Violation)
		return 1
	}
	return 0
}

// explain says what is wrong with a seed, how to see it again, and shows the smallest run that has
// the same fault.
func explain(out io.Writer, f flags, failure *sim.Failure) {
	fmt.Fprintf(out, "\nVIOLATION in seed %d: %v\n", failure.Seed, failure.Violation)
	fmt.Fprintf(out, "play it again: go run ./test/sim/run -store %s -drift %s -seed %d\n", f.store, f.drift,
		failure.Seed)
	small, _ := sim.Shrink(failure.Plan, 4000)
	w, tl := &sim.World{}, &sim.Timeline{}
	defer w.Close()
	w.Run(small, tl)
	fmt.Fprintf(out, "shrunk: %s\n\n", small)
	_ = tl.Print(out, 40)
}

// progress writes a line every few seconds where somebody looks at a terminal.
func progress(errs io.Writer, began time.Time) func(sim.Counts) {
	if !terminal(errs) {
		return nil
	}
	last := began
	return func(c sim.Counts) {
		if time.Since(last) < 2*time.Second {
			return
		}
		last = time.Now()
		took := time.Since(began)
		fmt.Fprintf(errs, "%s%v: %d seeds, %.0f a second, %d terms, %d violations", clearLine(errs),
			took.Round(time.Second),
			c.Seeds, float64(c.Seeds)/took.Seconds(), c.Terms, c.Violations)
	}
}

func terminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func clearLine(w io.Writer) string {
	if terminal(w) {
		return "\r\x1b[K"
	}
	return ""
}

// table prints what happened.
func table(out io.Writer, c sim.Counts, took time.Duration) {
	row := func(name string, value any, more ...any) {
		fmt.Fprintf(out, "%-58s %12v  %s\n", name, value, strings.TrimSpace(fmt.Sprintln(more...)))
	}
	virtual := time.Duration(c.Virtual)
	row("seeds", c.Seeds, fmt.Sprintf("%.0f a second, in %v", float64(c.Seeds)/took.Seconds(),
		took.Round(time.Millisecond)))
	row("virtual time", fmt.Sprintf("%.1f days", virtual.Hours()/24))
	row("events", c.Events)
	row("terms", c.Terms, "hand-overs", c.HandOvers)
	row("leases", c.Leases, "renewals accepted", c.Renewals, "not", c.Misses)
	for k := range c.Faults {
		row("fault: "+sim.FaultKind(k).String(), c.Faults[k])
	}
	row("messages lost", c.Lost, "cut off", c.Cut)
	row("messages doubled", c.Doubled)
	row("messages late by up to twice the ttl", c.Late)
	row("goroutines stopped", c.Stalls, "store clients that never came back", c.Hangs)
	row("elections in the store", c.Elections)
	row("checks that said yes, and acts", c.Acts, "that said no", c.SaidNo)
	row("writes long under way", c.Flying)
	row("fenced writes accepted", c.Fenced, "refused", c.Refused)
	row("unfenced writes", c.Unfenced, "stale", c.Stale)
	row("processes ended by overrunning work", c.Overruns)
	row("claims and leases removed by hand", c.Operator, "claims refused", c.Refusals)
	if c.Looks > 0 {
		row("shards moved", c.Moves, "demanded", c.Demand, "for nothing", c.Wasted, "looks of assigners", c.Looks)
		row("groups whose loads were even in the end", c.Even, "old lines read", c.Staled, "members of another number",
			c.Strangers)
		for d, n := range c.Deeds {
			row("fault: "+sim.DeedName(d), n)
		}
	}
	if c.Overlaps > 0 {
		row("two leaders at once, beyond the bound", c.Overlaps)
	}
	row("violations", c.Violations)
}
