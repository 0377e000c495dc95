//go:build linux

package peerstest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/internal/safety"
)

// fault is done to the leader a while two others stand by. It returns when the leader's work has
// ended and another leads.
type fault struct {
	name    string
	release bool // ReleaseOnCancel
	noLimit bool // requests have no limit of their own, as in client-go's example
	do      func(e *election, a *process)
}

var faults = []fault{
	// All of the process stands still until another has led for a moment.
	{"paused for longer than the lease", false, false, func(e *election, a *process) {
		begin := now()
		e.signal(a, syscall.SIGSTOP)
		e.leads(begin, a)
		time.Sleep(time.Second)
		e.signal(a, syscall.SIGCONT)
		e.stops(a)
	}},
	{"cut off from the API server", false, false, func(e *election, a *process) { cutOff(e, a) }},
	// The same where the leader tries to release what it cannot renew.
	{"cut off, with ReleaseOnCancel", true, false, func(e *election, a *process) { cutOff(e, a) }},
	// What the leader sent last, be it a release, arrives when another leads.
	{"a release that arrives late", true, true, func(e *election, a *process) {
		begin := now()
		a.link.Hold()
		b := e.leads(begin, a)
		// It has given up to renew, and is about to release.
		time.Sleep(max(0, begin+e.at.renew+e.at.retry+200*time.Millisecond-now()))
		a.link.Heal()
		e.stops(a)
		// If its lease was erased its work ends, or goes on beside another's.
		e.await(begin, e.at.renew+e.at.retry*3, func(h happening) bool { return h.what == stopped && h.id == b.id })
	}},
	// Answers to the leader come later and later, near the limit of a request, which is half the
	// RenewDeadline, and then not at all.
	{"the API server answers slowly, then not at all", false, false, func(e *election, a *process) {
		begin := now()
		limit := e.at.requests()
		for _, share := range []time.Duration{4, 7, 9} {
			a.link.Delay(limit*share/10, proxy.Down)
			time.Sleep(limit + e.at.retry)
		}
		cutOffSince(e, a, begin)
	}},
}

func cutOff(e *election, a *process) {
	time.Sleep(rand.N(e.at.retry))
	cutOffSince(e, a, now())
}

// cutOffSince cuts a leader off, by silence or by closed connections, until its work has ended.
func cutOffSince(e *election, a *process, begin time.Duration) {
	if rand.IntN(2) == 0 {
		a.link.Hold()
	} else {
		a.link.Cut()
	}
	e.leads(begin, a)
	e.stops(a)
}

// tally is what came of one fault with one kind of elector.
type tally struct {
	rounds, overlaps int           // of these, with two at once
	longest          time.Duration // that two acted at once
}

func (y *tally) add(all []safety.Overlap) {
	y.rounds++
	if len(all) > 0 {
		y.overlaps, y.longest = y.overlaps+1, max(y.longest, all[0].For)
	}
}

func (y *tally) String() string {
	if y.overlaps == 0 {
		return fmt.Sprintf("0 of %d", y.rounds)
	}
	return fmt.Sprintf("%d of %d, up to %v", y.overlaps, y.rounds, y.longest.Round(time.Millisecond))
}

func knob(t *testing.T, name string, otherwise int) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if os.Getenv(name) == "" {
		return otherwise
	}
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: want a whole number from 1", name, os.Getenv(name))
	}
	return n
}

func readTimes(t *testing.T) (all []times) {
	text := os.Getenv("ELECTORS_TIMES")
	if text == "" {
		text = "4s/3s/500ms"
	}
	for one := range strings.SplitSeq(text, ",") {
		var three [3]time.Duration
		parts := strings.Split(one, "/")
		for i := range three {
			var err error
			if len(parts) != len(three) {
				err = fmt.Errorf("it has %d parts", len(parts))
			} else {
				three[i], err = time.ParseDuration(parts[i])
			}
			if err != nil {
				t.Fatalf("ELECTORS_TIMES=%q: want durations as in 4s/3s/500ms: %v", text, err)
			}
		}
		all = append(all, times{three[0], three[1], three[2]})
	}
	return all
}

// Ours never acts beside another, where it asks before each act. client-go's is seen to.
func TestSideBySide(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of real time for each fault: without -short")
	}
	t.Parallel()
	rounds := knob(t, "ELECTORS_ROUNDS", 1)
	srv := k8stest.Start(t)
	turn := make(chan struct{}, knob(t, "ELECTORS_AT_ONCE", 8))
	for i, at := range readTimes(t) {
		var mu sync.Mutex
		found := map[[3]string]*tally{}
		for _, f := range faults {
			for _, kind := range []string{"client-go", "primacy"} {
				for _, file := range []string{byContext, asked} {
					found[[3]string{f.name, kind, file}] = &tally{}
				}
			}
		}
		t.Run(at.String(), func(t *testing.T) {
			var all sync.WaitGroup
			for n := range rounds {
				for k, f := range faults {
					for _, kind := range []string{"client-go", "primacy"} {
						if !strings.Contains(f.name, os.Getenv("ELECTORS_FAULT")) {
							continue
						}
						turn <- struct{}{}
						all.Go(func() {
							defer func() { <-turn }()
							t.Run(fmt.Sprintf("%s/%s/%d", f.name, kind, n), func(t *testing.T) {
								e := newElection(t, srv, fmt.Sprintf("%s-%d-%d-%d", kind, i, k, n), at)
								e.release, e.noLimit = f.release, f.noLimit
								if !e.round(f, kind) {
									return
								}
								mu.Lock()
								defer mu.Unlock()
								for _, file := range []string{byContext, asked} {
									found[[3]string{f.name, kind, file}].add(safety.Overlaps(e.pieces(file)))
								}
							})
						})
					}
				}
			}
			all.Wait()
		})
		var b strings.Builder
		fmt.Fprintf(&b, "%v\n| fault | client-go, by its context | and IsLeader | ours, by its context | "+
			"and IsLeader |\n|---|---|---|---|---|\n", at)
		for _, f := range faults {
			fmt.Fprintf(&b, "| %s |", f.name)
			for _, kind := range []string{"client-go", "primacy"} {
				for _, file := range []string{byContext, asked} {
					fmt.Fprintf(&b, " %v |", found[[3]string{f.name, kind, file}])
				}
			}
			b.WriteString("\n")
			theirs := found[[3]string{f.name, "client-go", byContext}]
			if theirs.overlaps == 0 && theirs.rounds >= 20 {
				t.Errorf("%s: in %d rounds it did client-go no harm: it proves nothing", f.name, theirs.rounds)
			}
		}
		t.Log("\n" + b.String())
	}
}

// round is one election under a fault. It returns false if the leader lost the Lease before, as it
// may on a machine that is too busy for it.
func (e *election) round(f fault, kind string) bool {
	e.Helper()
	a := e.start(os.Args[0], kind, "a")
	if e.leads(0, nil) != a {
		e.Fatal("another leads")
	}
	e.start(os.Args[0], kind, "b")
	e.start(os.Args[0], kind, "c")
	time.Sleep(e.at.retry*3 + rand.N(e.at.retry)) // they stand by
	fair := !slices.ContainsFunc(e.happened(), func(h happening) bool { return h.what == stopped })
	if fair {
		f.do(e, a)
	}
	a.link.Heal()
	e.end(e.running()...)
	if kind != "primacy" {
		return fair
	}
	if err := safety.Check(e.pieces(asked)); err != nil {
		e.Errorf("%s: %v", f.name, err)
	}
	return fair
}
