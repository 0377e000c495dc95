// Command spec checks the models of the protocol in this directory with spin: README.md says what
// they claim. It fails unless every base model holds in its whole state space, every rule that is
// taken out has a counterexample, and every event that the claim is about can happen.
//
//	go run ./test/spec                      everything
//	go run ./test/spec -large               the base models with larger bounds
//	go run ./test/spec lease NO_DRIFT       one option, with its story
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"
)

func main() {
	large := flag.Bool("large", false, "the base models with larger bounds, instead of everything")
	jobs := flag.Int("j", 2, "searches side by side")
	limit := flag.Duration("limit", 10*time.Minute, "time for one search")
	memory := flag.Int("memory", 7000, "megabytes for all searches side by side")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := tools(); err != nil {
		fmt.Fprintln(os.Stderr, "spec:", err)
		os.Exit(2)
	}
	if *jobs < 1 || *memory / *jobs < 200 {
		fmt.Fprintln(os.Stderr, "spec: -j must be at least 1, and -memory at least 200 for each search")
		os.Exit(2)
	}
	list := choose(*large, flag.Args())
	if len(list) == 0 {
		fmt.Fprintf(os.Stderr, "spec: there is no search for %q: name a model of %v, and an option of its own\n",
			flag.Args(), models)
		os.Exit(2)
	}
	start := time.Now()
	all := runAll(ctx, list, *jobs, limits{Megabytes: *memory / *jobs, Time: *limit})
	if failed := report(os.Stdout, all, time.Since(start)); failed > 0 {
		os.Exit(1)
	}
}

// choose returns the searches to run.
func choose(large bool, args []string) []search {
	var list []search
	for _, s := range append(append(append([]search{}, bases...), options...), reachable()...) {
		if len(args) > 0 && args[0] != s.Model || len(args) > 1 && args[1] != s.Name || s.Large != large {
			continue
		}
		list = append(list, s)
	}
	return list
}

// reachable are the searches for the events that must be able to happen.
func reachable() []search {
	var list []search
	for _, m := range models {
		for i, says := range events[m] {
			d := []string{fmt.Sprintf("REACH=%d", i+1)}
			switch {
			case m == "observed" && i == 7:
				d = append(d, "ENTERING")
			case m == "observed" && i > 7:
				d = append(d, "T=2", "TOKENS=2", "BASE=6")
			case m == "seal":
				d = append(d, "TERMS=3", "K=2", "CHANGES=1")
			case m != "raftterm":
				d = append(d, "WRITES")
			case i == 7:
				d = append(d, "ENTERING")
			}
			list = append(list, search{Model: m, Name: "can happen", Says: says, Define: d, Want: reached, Cut: i == 2})
		}
	}
	return list
}

// runAll runs the searches, some side by side, and returns their results in the same order. The
// longest come first in the lists.
func runAll(ctx context.Context, list []search, jobs int, l limits) []result {
	all := make([]result, len(list))
	next := make(chan int)
	var wg sync.WaitGroup
	for range jobs {
		wg.Go(func() {
			for i := range next {
				all[i] = list[i].run(ctx, l)
			}
		})
	}
	for i := range list {
		next <- i
	}
	close(next)
	wg.Wait()
	return all
}

// report prints the stories and the table, and returns how many searches did not give the answer
// that they must.
func report(w io.Writer, all []result, took time.Duration) int {
	for _, r := range all {
		if len(r.Story) > 0 && (r.Want != reached || r.Problem != nil) {
			fmt.Fprintf(w, "%s, %s: %s\n%s\n", r.Model, r.Name, r.Says, timeline(r.Story))
		}
	}
	fmt.Fprintf(w, "%-9s %-18s %-62s %-14s %9s %5s %6s %6s\n", "model", "option", "", "result", "states", "depth",
		"CPU s", "MB")
	failed, cpu := 0, time.Duration(0)
	for _, r := range all {
		answer := "holds"
		cpu += r.CPU
		switch {
		case r.Problem != nil:
			answer = "WRONG"
			failed++
		case r.Want == reached:
			answer = "can happen"
		case r.Want != "":
			answer = "counterexample"
		}
		fmt.Fprintf(w, "%-9s %-18s %-62s %-14s %9d %5d %6.1f %6.0f\n", r.Model, r.Name, r.Says, answer, r.States,
			r.Depth, r.CPU.Seconds(), r.Memory)
	}
	for _, r := range all {
		if r.Problem != nil {
			fmt.Fprintf(w, "WRONG: %s, %s (%s): %v\n", r.Model, r.Name, r.Says, r.Problem)
		}
	}
	fmt.Fprintf(w, "%d searches in %.0f s, %.0f s of CPU: %d wrong\n", len(all), took.Seconds(), cpu.Seconds(), failed)
	return failed
}
