//go:build unix

// Versus runs the torture harness for Primacy and then for each peer, for the same time and with
// the same seed, and prints one Markdown table.
//
//	go run ./versus [-for 2m] [-seed N] [-kinds primacy,etcd-election,...] [-harness ..] [-keep DIR]
//
// It runs in the folder of its module. The same seed draws the same schedule of faults; when a
// fault meets whom depends on the run. It exits with 1 if a run gave no result, or if Primacy's own
// failed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ours is the kind that runs without a foreign worker.
const ours = "primacy"

var known = []string{ours, "etcd-election", "etcd-mutex", "plain-keepalive", "client-go"}

type options struct {
	lasting time.Duration
	seed    uint64
	kinds   []string
	cmd     string // the folder of the module with the harness
	keep    string // what the runs printed
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "versus:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := versus(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "versus:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("versus", flag.ContinueOnError)
	f.DurationVar(&o.lasting, "for", 2*time.Minute, "how long faults are injected in each run")
	f.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano())&0xffffff+1, "of the schedule of faults")
	kinds := f.String("kinds", strings.Join(known, ","), "which to run, in this order")
	f.StringVar(&o.cmd, "cmd", "..", "folder of the module that holds ./torture")
	f.StringVar(&o.keep, "keep", "", "folder for what the runs print; a new temporary one by default")
	if err := f.Parse(args); err != nil {
		return o, fmt.Errorf("these options are not understood")
	}
	o.kinds = strings.Split(*kinds, ",")
	for _, k := range o.kinds {
		if !slices.Contains(known, k) {
			return o, fmt.Errorf("-kinds: %q: want some of %s", k, strings.Join(known, ","))
		}
	}
	switch {
	case f.NArg() != 0:
		return o, fmt.Errorf("unexpected argument %q: there are options only", f.Arg(0))
	case o.lasting <= 0:
		return o, fmt.Errorf("-for %v: want a duration such as 2m", o.lasting)
	case o.seed == 0:
		return o, fmt.Errorf("-seed 0: want a number from 1")
	}
	if _, err := os.Stat(filepath.Join(o.cmd, "torture")); err != nil {
		return o, fmt.Errorf("-cmd: no harness there: %w", err)
	}
	return o, nil
}

// versus does all runs, one after another: beside each other they would disturb each other. It says
// whether all gave a result and ours passed.
func versus(ctx context.Context, o options) (ok bool, err error) {
	if o.keep == "" {
		if o.keep, err = os.MkdirTemp("", "versus-"); err != nil {
			return false, err
		}
	} else if err := os.MkdirAll(o.keep, 0o755); err != nil {
		return false, err
	}
	if o.keep, err = filepath.Abs(o.keep); err != nil {
		return false, err
	}
	worker := filepath.Join(o.keep, "worker")
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", worker, "./worker").CombinedOutput(); err != nil {
		return false, fmt.Errorf("build ./worker (versus runs in the folder of its module): %w\n%s", err, text)
	}
	fmt.Fprintf(os.Stderr, "versus: seed %d, %v each; what the runs print is in %s\n", o.seed, o.lasting, o.keep)
	ok = true
	var results []result
	for i, kind := range o.kinds {
		fmt.Fprintf(os.Stderr, "versus: %d of %d: %s\n", i+1, len(o.kinds), kind)
		r, err := torture(ctx, o, kind, worker)
		if ctx.Err() != nil {
			err = fmt.Errorf("interrupted")
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "versus: %s: %v\n", kind, err)
			ok = false
		}
		results = append(results, r)
		if ctx.Err() != nil {
			break
		}
	}
	fmt.Print(table(results))
	fmt.Printf("\nSeed %d, %v each. Primacy's row is of two lines of candidates, %s and its library, under the "+
		"same faults; "+
		"What is done after a claim was deleted by hand is no overlap before the TTL has passed, and its writes "+
		"are among the stale ones.\n", o.seed, o.lasting, "`primacy run`")
	return ok, nil
}
