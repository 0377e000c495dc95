//go:build linux

package torture

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
)

// forHow long something is, from the environment.
func forHow(t testing.TB, name string, otherwise time.Duration) time.Duration {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("%s=%q: want a duration such as 10m", name, text)
	}
	return d
}

func newSeed(t testing.TB) uint64 {
	return uint64(knob(t, "TORTURE_SEED", int(time.Now().UnixNano()&0xffffff)+1))
}

// What ten minutes must have seen to count.
const (
	longRun   = 10 * time.Minute
	leastDone = 200
	leastKind = 8
)

// TestTorture holds the whole to its promises under faults of many kinds at once: a cluster of three in network namespaces, two
// lines of candidates, `primacy run` and library processes mixed, whose leaders are asked to hand over now and then, and a mutex that several
// goroutines of each process want. Afterwards the record is judged: never two leaders at once, tokens that grow, no acknowledged
// fenced write lost.
//
// With TORTURE_WORKER the candidates are that program. Then two leaders at once are counted, and are no failure; with
// TORTURE_EXPECT=overlap it is one if there are none.
func TestTorture(t *testing.T) {
	t.Parallel()
	d, ttl, seed := forHow(t, "TORTURE_FOR", time.Minute), forHow(t, "TORTURE_TTL", 3*time.Second), newSeed(t)
	t.Logf("TORTURE_SEED=%d TORTURE_FOR=%v TORTURE_TTL=%v", seed, d, ttl)
	fmt.Fprintf(os.Stderr, "torture: TORTURE_SEED=%d TORTURE_FOR=%v TORTURE_TTL=%v\n", seed, d, ttl)
	s, row := newStage(t, seed, ttl), lanes()
	title, foreign := "Primacy", os.Getenv("TORTURE_WORKER") != ""
	if foreign {
		title = os.Getenv("TORTURE_KIND")
		s.addLine("torture", kindForeign, kindForeign, kindForeign, kindForeign)
	} else {
		s.addLine("torture", kindRun, kindPrimacy, kindRun, kindPrimacy, kindPrimacy)
		s.addLine("torture/library", kindPrimacy, kindPrimacy, kindPrimacy)
		s.addLine("torture/lock", kindMutex, kindMutex, kindMutex)
		s.asker = openSession(t, primacy.Options{ID: "torture"}, s.cluster.Endpoints()...)
		row = append(row, transferLane())
	}
	verdicts := s.run(row, d)
	text := s.table(verdicts, title)
	t.Log("\n" + text)
	for _, v := range verdicts {
		s.expect(v, foreign)
		s.expectTransfers(v.line, undisturbed, 10)
	}
	if d >= longRun && s.network != nil && (len(s.struck) < leastDone || len(s.kinds()) < leastKind) {
		t.Errorf("%d faults of %d kinds in %v, want at least %d of %d", len(s.struck), len(s.kinds()), d, leastDone, leastKind)
	}
	if t.Failed() {
		t.Logf("this run: TORTURE_SEED=%d", seed)
	}
}

// run does harm for that long and returns what the record of each line says.
func (s *stage) run(lanes []lane, d time.Duration) []*verdict {
	s.Helper()
	stall := watchStalls()
	wait := s.up()
	s.harm(lanes, d)
	s.settle()
	wait()
	var verdicts []*verdict
	for _, l := range s.lines {
		v, err := judge(l)
		if err != nil {
			s.Fatal(err)
		}
		verdicts = append(verdicts, v)
	}
	s.Logf("the machine itself let a thread wait for %v at most", stall().Round(time.Millisecond))
	return verdicts
}

// expect fails the test where the record breaks a promise.
func (s *stage) expect(v *verdict, foreign bool) {
	s.Helper()
	if len(v.terms) == 0 || v.acknowledged == 0 {
		s.Errorf("%s: %d terms and %d writes: nothing was tried", v.line.name, len(v.terms), v.acknowledged)
	}
	switch {
	case foreign && os.Getenv("TORTURE_EXPECT") == "overlap" && len(v.overlaps) == 0:
		s.Errorf("%s: no overlap, want one: these faults prove nothing", v.line.name)
	case foreign:
		s.Logf("%s: %v", v.line.name, v.err())
	case v.err() != nil || len(v.overlaps) > 0 || v.lost > 0:
		s.Errorf("%s: the promise was broken: %v; %d overlaps, %d acknowledged writes lost", v.line.name, v.err(), len(v.overlaps), v.lost)
		s.keep()
	}
}

// keep saves the record of a run that went wrong.
func (s *stage) keep() {
	if os.Getenv("TORTURE_KEEP") != "" {
		return
	}
	dir, err := os.MkdirTemp("", "torture-failed-")
	if err == nil {
		err = os.CopyFS(dir+"/record", os.DirFS(s.dir))
	}
	s.Logf("the record is kept in %s (%v)", dir, err)
}

// TestTortureControls does the same to candidates that do without what this library does. A harness in which nothing fails proves
// nothing: each of them must be seen to lead twice.
//
// A long run (from two minutes on) has all faults. A short one has those only that tell most surely, each line its own, since a
// change of etcd's leader lengthens all leases and so hides what the others do.
func TestTortureControls(t *testing.T) {
	t.Parallel()
	d, ttl, seed := forHow(t, "TORTURE_CONTROL_FOR", 30*time.Second), forHow(t, "TORTURE_CONTROL_TTL", 4*time.Second), newSeed(t)
	t.Logf("TORTURE_SEED=%d TORTURE_CONTROL_FOR=%v TORTURE_CONTROL_TTL=%v", seed, d, ttl)
	s := newStage(t, seed, ttl)
	kinds := []string{"plain-keepalive", "etcd-election"}
	for _, kind := range kinds {
		s.addLine("control-"+kind, slices.Repeat([]string{kind}, 4)...)
	}
	all := lanes()
	if d < 2*time.Minute {
		all = nil
		for i := range kinds {
			all = append(all, lane{name: kinds[i], kinds: aimed("late reply, then silence"), most: 500 * time.Millisecond, line: i + 1})
		}
	}
	verdicts := s.run(all, d)
	t.Log("\n" + s.table(verdicts, "Controls"))
	for _, v := range verdicts {
		if len(v.overlaps) == 0 {
			t.Errorf("%s: no overlap: these faults prove nothing", v.line.name)
		}
	}
}

// aimed returns the faults of those names.
func aimed(names ...string) (few []harm) {
	for _, la := range lanes() {
		for _, h := range la.kinds {
			if slices.Contains(names, h.name) {
				few = append(few, h)
			}
		}
	}
	return few
}
