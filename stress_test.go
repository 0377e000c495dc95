package primacy

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestStress lets processes on four machines fight for two names, in fake time. The clocks of the machines and of the store run at
// rates of their own, as far apart as the drift allows. Messages are late, lost, doubled, or pass one way only; processes are paused,
// starved of their timers, crash and start again; machines are suspended; store clients ignore their contexts; the store restarts and
// changes its leader; an operator removes claims and ends leases by hand; sessions close and open again. What must hold meanwhile and
// in the end is in stress_judge_test.go.
//
// The environment: STRESS_SEEDS is how many seeds to run (default 60), STRESS_SEED the first of them. STRESS_SEED alone runs that one,
// which is how a failure is looked at again. A seed fixes who does what and when, but not the order of what happens in the same
// instant of fake time: add -count=100 where one run is not enough. With -v it ends with what was done, in figures.
func TestStress(t *testing.T) {
	sum := stressSeeds(t, 60, false)
	if t.Failed() || os.Getenv("STRESS_SEED") != "" {
		return
	}
	for _, must := range []string{"writes refused by the fence", "unfenced writes that went back", "locks handed on in a process", "handed over", "asked to hand over",
		"many: terms", "many: terms told to have ended", "claims exchanged"} {
		if sum[must] == 0 {
			t.Errorf("%s: none in all seeds: the faults are too weak to prove anything", must)
		}
	}
}

// TestStressBeyondTheBound runs clocks that are further apart than the drift allows. Two leaders at once must then be seen: what finds
// none there would find none anywhere. All else still holds, fenced writes above all.
func TestStressBeyondTheBound(t *testing.T) {
	sum := stressSeeds(t, 40, true)
	if !t.Failed() && os.Getenv("STRESS_SEED") == "" && (sum["histories with an overlap"] == 0 || sum["looks that saw two"] == 0) {
		t.Errorf("no overlap in any seed: the judge sees nothing, or the faults are too weak")
	}
}

func stressSeeds(t *testing.T, n int, beyond bool) map[string]int {
	first := envInt(t, "STRESS_SEED", 1)
	if os.Getenv("STRESS_SEED") != "" {
		n = 1
	}
	if os.Getenv("MUTATION") != "" {
		n = 600 // one is as rare as one seed in a hundred; the run ends with the first that catches it
	}
	n = envInt(t, "STRESS_SEEDS", n)
	sum, ran := map[string]int{}, 0
	for seed := first; seed < first+n; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ran++
				for what, n := range stress(t, uint64(seed), beyond) {
					sum[what] += n
				}
			})
		})
	}
	var figures strings.Builder
	for _, what := range slices.Sorted(maps.Keys(sum)) {
		fmt.Fprintf(&figures, "\n%9d %s", sum[what], what)
	}
	t.Logf("%d seeds:%s", ran, &figures)
	return sum
}

func envInt(t *testing.T, key string, or int) int {
	s := os.Getenv(key)
	if s == "" {
		return or
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return n
}

// stress runs one seed and returns what was done, in figures.
func stress(t *testing.T, seed uint64, beyond bool) map[string]int {
	f := newFleet(t, seed, beyond)
	defer f.judge.report()
	stop := f.judge.poll()
	for range 60 + f.rnd.IntN(60) {
		f.act()
		if f.rnd.IntN(3) > 0 {
			time.Sleep(upTo(f.rnd, 2*time.Second))
		}
		synctest.Wait() // the next act finds everybody at rest: removals by hand are then one step
		f.judge.look()
		f.front.inOrder(f.names)
	}
	f.calmDown()
	stop()
	f.checkTheEnd()
	for _, m := range f.machines {
		f.judge.counts["calls on the store"] += int(m.calls.Load())
		f.judge.counts["requests that came after their caller had gone"] += int(m.late.Load())
	}
	f.judge.counts["simulated seconds"] += int(f.judge.now() / time.Second)
	return f.judge.counts
}
