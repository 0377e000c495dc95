//go:build linux

package torture

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// forHow long a test does harm.
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
// lines of candidates, `primacy run` and library processes mixed. Afterwards the record is judged: never two leaders at
// once, tokens that grow, no acknowledged fenced write lost.
//
// With TORTURE_WORKER the candidates are that program. Then two leaders at once are counted, and are no failure; with
// TORTURE_EXPECT=overlap it is one if there are none.
func TestTorture(t *testing.T) {
	d, seed := forHow(t, "TORTURE_FOR", time.Minute), newSeed(t)
	t.Logf("TORTURE_SEED=%d TORTURE_FOR=%v, ttl %v", seed, d, lineTTL)
	fmt.Fprintf(os.Stderr, "torture: TORTURE_SEED=%d, for %v\n", seed, d)
	s := newStage(t, seed)
	title, foreign := "Primacy", os.Getenv("TORTURE_WORKER") != ""
	if foreign {
		title = os.Getenv("TORTURE_KIND")
		s.addLine("torture", kindForeign, kindForeign, kindForeign, kindForeign)
	} else {
		s.addLine("torture", kindRun, kindPrimacy, kindRun, kindPrimacy, kindPrimacy)
		s.addLine("torture/library", kindPrimacy, kindPrimacy, kindPrimacy)
	}
	verdicts := s.run(lanes(), d)
	text := s.table(verdicts, title)
	t.Log("\n" + text)
	for _, v := range verdicts {
		s.expect(v, foreign)
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
func TestTortureControls(t *testing.T) {
	d, seed := forHow(t, "TORTURE_CONTROL_FOR", 40*time.Second), newSeed(t)
	t.Logf("TORTURE_SEED=%d TORTURE_CONTROL_FOR=%v, ttl %v", seed, d, lineTTL)
	s := newStage(t, seed)
	for _, kind := range []string{"plain-keepalive", "etcd-election"} {
		s.addLine("control-"+kind, slices.Repeat([]string{kind}, 4)...)
	}
	// All faults in a long run; in a short one those that are known to tell.
	all := lanes()
	if d < 2*time.Minute {
		all = aimed(all, "etcd leader cut off and paused, holder's member", "late reply, then silence", "SIGSTOP, longer than the ttl",
			"frozen with a write on its way", "etcd leader frozen")
	}
	verdicts := s.run(all, d)
	t.Log("\n" + s.table(verdicts, "Controls"))
	for _, v := range verdicts {
		if len(v.overlaps) == 0 {
			t.Errorf("%s: no overlap: these faults prove nothing", v.line.name)
		}
	}
}

// aimed returns the lanes with those faults only.
func aimed(all []lane, names ...string) (few []lane) {
	for _, la := range all {
		la.kinds = slices.DeleteFunc(la.kinds, func(h harm) bool { return !slices.Contains(names, h.name) })
		few = append(few, la)
	}
	return few
}
