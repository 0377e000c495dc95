// Command run plays seeds of the simulation of `primacy postgres` until the time is over, with a
// line of progress each 10 s. At the first violation it prints the seed, the last 200 lines of what
// happened and how to play it again, and exits with 1.
//
//	go run ./internal/postgres/sim/run -for 10m     as many seeds as fit
//	go run ./internal/postgres/sim/run -seeds 1000  so many
//	go run ./internal/postgres/sim/run -seed 7      one seed, with all that happens
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/sim"
)

func main() {
	duration := flag.Duration("for", time.Minute, "")
	seeds := flag.Uint64("seeds", 0, "")
	first := flag.Uint64("first", 1, "")
	one := flag.Uint64("seed", 0, "")
	flag.Parse()
	if *one != 0 {
		stats, lines, v := sim.Run(*one, sim.Options{Log: true})
		fmt.Println(strings.Join(lines, "\n"))
		fmt.Println(stats)
		if v != nil {
			fmt.Println(v)
			os.Exit(1)
		}
		return
	}
	if *seeds > 0 {
		*duration = 0
	}
	os.Exit(play(*first, *seeds, *duration))
}

func play(first, seeds uint64, duration time.Duration) int {
	var mu sync.Mutex
	var all sync.WaitGroup
	var total sim.Stats
	var failure *sim.Violation
	next, played, began := first, uint64(0), time.Now()
	told := began
	for range runtime.NumCPU() {
		all.Go(func() {
			for {
				mu.Lock()
				over := failure != nil || seeds > 0 && next >= first+seeds || seeds == 0 && time.Since(began) > duration
				seed := next
				next++
				mu.Unlock()
				if over {
					return
				}
				stats, _, v := sim.Run(seed, sim.Options{})
				mu.Lock()
				total.Add(stats)
				played++
				if v != nil && (failure == nil || v.Seed < failure.Seed) {
					failure = v
				}
				if time.Since(told) >= 10*time.Second {
					told = time.Now()
					fmt.Fprintf(os.Stderr, "%v: %d seeds, %v\n", time.Since(began).Round(time.Second), played, total)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	fmt.Printf("%d seeds in %v: %v\n", played, time.Since(began).Round(time.Second), total)
	if failure == nil {
		return 0
	}
	_, lines, v := sim.Run(failure.Seed, sim.Options{Log: true, Keep: 200})
	fmt.Println(strings.Join(lines, "\n"))
	fmt.Printf("%v\nplay it again: cd cmd && go run ./internal/postgres/sim/run -seed %d\n", v, failure.Seed)
	return 1
}
