//go:build linux

package torture

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/internal/safety"
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

// TestTorture holds the whole to its promises under faults of many kinds at once: a cluster of
// three in network namespaces, two lines of candidates, `primacy run` and library processes mixed,
// whose leaders are asked to hand over now and then, and a mutex that several goroutines of each
// process want. Afterwards the record is judged: never two leaders at once, tokens that grow, no
// acknowledged fenced write lost.
//
// With TORTURE_WORKER the candidates are that program. Then two leaders at once are counted, and
// are no failure; with TORTURE_EXPECT=overlap it is one if there are none.
func TestTorture(t *testing.T) {
	t.Parallel()
	d := forHow(t, "TORTURE_FOR", briefly(20*time.Second, time.Minute))
	ttl, seed := forHow(t, "TORTURE_TTL", 3*time.Second), newSeed(t)
	t.Logf("TORTURE_SEED=%d TORTURE_FOR=%v TORTURE_TTL=%v", seed, d, ttl)
	fmt.Fprintf(os.Stderr, "torture: TORTURE_SEED=%d TORTURE_FOR=%v TORTURE_TTL=%v\n", seed, d, ttl)
	s, row := newTorture(t, seed, ttl), lanes()
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
	if d >= longRun && s.network != nil && (len(s.injected) < leastDone || len(s.kinds()) < leastKind) {
		t.Errorf("%d faults of %d kinds in %v, want at least %d of %d", len(s.injected), len(s.kinds()), d, leastDone,
			leastKind)
	}
	if t.Failed() {
		t.Logf("this run: TORTURE_SEED=%d", seed)
	}
}

// run does harm for that long and returns what the record of each line says.
func (s *torture) run(lanes []lane, d time.Duration) []*verdict {
	s.Helper()
	stall := safety.WatchStalls(time.Millisecond)
	wait := s.up()
	s.injectFaults(lanes, d)
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
	most, _ := stall()
	s.Logf("the machine itself let a thread wait for %v at most", most.Round(time.Millisecond))
	return verdicts
}

// expect fails the test where the record breaks a promise.
func (s *torture) expect(v *verdict, foreign bool) {
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
		s.Errorf("%s: the promise was broken: %v; %d overlaps, %d acknowledged writes lost", v.line.name, v.err(),
			len(v.overlaps), v.lost)
		s.keep()
	}
}

// keep saves the record of a run that went wrong.
func (s *torture) keep() {
	if os.Getenv("TORTURE_KEEP") != "" {
		return
	}
	dir, err := os.MkdirTemp("", "torture-failed-")
	if err == nil {
		err = os.CopyFS(dir+"/record", os.DirFS(s.dir))
	}
	s.Logf("the record is kept in %s (%v)", dir, err)
}

// TestTortureControls does the same to candidates that do without what this library does. A harness
// in which nothing fails proves nothing: each of them must be seen to lead twice.
//
// A long run (from two minutes on) has all faults. A short one has those only that tell most
// surely, each line its own, since a change of etcd's leader lengthens all leases and so hides what
// the others do.
func TestTortureControls(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	d, ttl, seed := forHow(t, "TORTURE_CONTROL_FOR", 30*time.Second), forHow(t, "TORTURE_CONTROL_TTL", 4*time.Second),
		newSeed(t)
	t.Logf("TORTURE_SEED=%d TORTURE_CONTROL_FOR=%v TORTURE_CONTROL_TTL=%v", seed, d, ttl)
	kinds := []string{"plain-keepalive", "etcd-election"}
	overlaps := map[string]int{}
	for try := uint64(0); try < 4 && len(overlaps) < len(kinds); try++ { // a busy machine has few leaders
		t.Run(fmt.Sprint("try ", try+1), func(t *testing.T) {
			s := newTorture(t, seed+try, ttl)
			for _, kind := range kinds {
				s.addLine("control-"+kind, slices.Repeat([]string{kind}, 4)...)
			}
			all := lanes()
			if d < 2*time.Minute {
				all = nil
				for i := range kinds {
					all = append(all, lane{name: kinds[i], kinds: aimed("late reply, then silence"),
						most: 500 * time.Millisecond, line: i + 1})
				}
			}
			verdicts := s.run(all, d)
			t.Log("\n" + s.table(verdicts, "Controls"))
			for _, v := range verdicts {
				if n := len(v.overlaps); n > 0 {
					overlaps[v.line.name] += n
				}
			}
		})
	}
	if len(overlaps) < len(kinds) {
		t.Errorf("overlaps were seen with %v only: these faults prove nothing", overlaps)
	}
}

// aimed returns the faults of those names.
func aimed(names ...string) (few []fault) {
	for _, la := range lanes() {
		for _, h := range la.kinds {
			if slices.Contains(names, h.name) {
				few = append(few, h)
			}
		}
	}
	return few
}

const (
	pollEvery   = 20 * time.Millisecond
	meterMemory = 100 // polls
)

// line is the candidates for one name, and the register that its leader writes to.
type line struct {
	name       string
	dir        string
	program    string
	ttl        time.Duration
	sink       *sink
	candidates []*candidate
	rated      int // how many of them have clocks that run fast or slow

	mu       sync.Mutex
	removals []late          // terms whose claim an operator removed, and when
	held     map[uint64]bool // tokens of commands whose write was kept on its way

	transfers map[string]tally // by what disturbed them
}

// asked says whether leaders of the line can be asked to hand over.
func (l *line) asked() bool {
	return slices.ContainsFunc(l.candidates, func(c *candidate) bool {
		return c.kind == kindPrimacy ||
			c.kind == kindRun
	})
}

// claim returns the number by which the store knows the claim of a term: its token, but for a lock,
// which a process hands on behind one claim.
func (l *line) claim(token uint64) uint64 {
	if l.lock() {
		return token >> 16
	}
	return token
}

func (l *line) lock() bool { return len(l.candidates) > 0 && l.candidates[0].kind == kindMutex }

// torture is one run: a cluster, lines of candidates on it, and the faults.
type torture struct {
	*testing.T
	seed    uint64
	ttl     time.Duration
	spare   time.Duration // for how much longer than the ttl the store keeps a lease
	dir     string
	cluster *etcdtest.Cluster // nil: store is another store
	store   *installed
	network *etcdtest.Network // nil: everything on loopback
	small   *smallDisk        // of member 0; nil: no
	lines   []*line
	began   time.Duration
	rates   bool          // candidates time each other: with TORTURE_RATE their clocks run at two rates
	stop    chan struct{} // closed when the faults are over
	asker   *primacy.Session

	mu       sync.Mutex
	timeline *os.File // a line for each fault
	injected []injection
	missed   map[string]int // faults that found nobody to inject it into
}

// injection is one fault that was injected.
type injection struct {
	kind, note string
	from, to   time.Duration
}

// newTorture starts a cluster of three, in network namespaces where they are permitted.
func newTorture(t *testing.T, seed uint64, ttl time.Duration) *torture {
	t.Helper()
	s := emptyTorture(t, seed, ttl)
	o := etcdtest.Options{Version: os.Getenv("TORTURE_ETCD"), ClockRate: clockRates(t)}
	nw, err := etcdtest.TryNetwork(t, 3)
	if err == nil {
		s.network, o = nw, nw.Options(o)
	} else {
		t.Logf("WITHOUT network namespaces (%v): etcd runs on loopback, and these faults are left out: %s", err,
			strings.Join(needNetwork(), ", "))
	}
	if s.small, err = newSmallDisk(t); err == nil {
		o.DataDir = s.small.of
	} else {
		t.Logf("WITHOUT a small disk (%v): left out: %s", err, diskFull)
	}
	s.cluster = etcdtest.StartCluster(t, 3, o)
	s.store = &installed{url: func(servers []string) string { return "etcd://" + strings.Join(servers, ",") }}
	for _, m := range s.cluster.Members {
		s.store.servers = append(s.store.servers, m.Addr())
	}
	return s
}

// emptyTorture has no store yet.
func emptyTorture(t *testing.T, seed uint64, ttl time.Duration) *torture {
	t.Helper()
	s := &torture{T: t, seed: seed, ttl: ttl, dir: os.Getenv("TORTURE_KEEP"), stop: make(chan struct{}),
		missed: map[string]int{}}
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	var err error
	if s.timeline, err = appendTo(filepath.Join(s.dir, "faults")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.timeline.Close() })
	return s
}

// addLine enters candidates of the given kinds for a name.
func (s *torture) addLine(name string, kinds ...string) *line {
	s.Helper()
	l := &line{name: name, ttl: s.ttl, held: map[uint64]bool{}, transfers: map[string]tally{},
		dir: filepath.Join(s.dir, strings.ReplaceAll(name, "/", "-"))}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		s.Fatal(err)
	}
	if slices.Contains(kinds, kindRun) {
		var err error
		if l.program, err = programtest.Program(); err != nil {
			s.Fatal(err)
		}
	}
	l.sink = newSink(s, s.socketDir())
	for i, kind := range kinds {
		c := newCandidate(s, l, fmt.Sprintf("%s%d", kind, i+1), kind, s.store)
		if kind == kindPrimacy && i%2 == 0 {
			c.env = append(c.env, zealEnv+"=yes")
		}
		if kind == kindPrimacy && i%3 == 2 {
			c.env = append(c.env, reignEnv+"=5s")
		}
		if kind == kindPrimacy && s.rates {
			c.worker = s.workerAt(l)
		}
		l.candidates = append(l.candidates, c)
	}
	s.lines = append(s.lines, l)
	return l
}

// socketDir is a folder with a short name: a unix socket's path has 107 bytes at most.
func (s *torture) socketDir() string {
	dir, err := os.MkdirTemp("", "torture-")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// up starts the candidates and what watches them. It returns what waits until all of it has ended.
func (s *torture) up() (wait func()) {
	s.began = boottime.Now()
	rng := rand.New(rand.NewPCG(s.seed, 99))
	over := make(chan struct{})
	var wg sync.WaitGroup
	for _, l := range s.lines {
		for _, c := range l.candidates {
			own := rand.New(rand.NewPCG(rng.Uint64(), 0))
			go func() {
				if err := c.keep(own); err != nil {
					s.Error(err)
				}
			}()
		}
		wg.Go(func() { l.sink.watch(s, over) })
	}
	wg.Go(func() { s.poll(over) })
	return func() {
		var downs sync.WaitGroup
		for _, l := range s.lines {
			for _, c := range l.candidates {
				downs.Go(func() {
					if err := c.down(); err != nil {
						s.Error(err)
					}
				})
			}
		}
		downs.Wait()
		close(over)
		wg.Wait()
	}
}

// poll reads along what the candidates write.
func (s *torture) poll(over <-chan struct{}) {
	tell := boottime.Now() + 10*time.Second
	for {
		for _, l := range s.lines {
			for _, c := range l.candidates {
				if err := c.poll(); err != nil {
					s.Error(err)
				}
				c.meter()
			}
		}
		if boottime.Now() > tell {
			tell += 10 * time.Second
			s.progress()
		}
		select {
		case <-over:
			return
		case <-time.After(pollEvery):
		}
	}
}

// progress tells people how it goes.
func (s *torture) progress() {
	s.mu.Lock()
	done := len(s.injected)
	s.mu.Unlock()
	text := fmt.Sprintf("torture: %3.0f s, %d faults", (boottime.Now() - s.began).Seconds(), done)
	for _, l := range s.lines {
		who := "nobody"
		if c, token := l.leader(); c != nil {
			who = fmt.Sprintf("%s under %d", c.id, token)
		}
		l.sink.mu.Lock()
		text += fmt.Sprintf("; %s: %s, %d writes, %d late", l.name, who, len(l.sink.log), len(l.sink.late))
		l.sink.mu.Unlock()
	}
	fmt.Fprintln(os.Stderr, text)
}

// leader returns who has acted just now under the largest token.
func (l *line) leader() (*candidate, uint64) {
	var best *candidate
	var newest sight
	for _, c := range l.candidates {
		if last, ok := c.last(); ok && last.token > newest.token {
			best, newest = c, last
		}
	}
	if best == nil || boottime.Now()-newest.at > 300*time.Millisecond {
		return nil, 0
	}
	return best, newest.token
}

// await waits for a leader. Nil if there is none in time or the faults are over.
func (s *torture) await(l *line, limit time.Duration) (*candidate, uint64) {
	for end := boottime.Now() + limit; boottime.Now() < end && !s.over(); time.Sleep(pollEvery) {
		if c, token := l.leader(); c != nil {
			return c, token
		}
	}
	return nil, 0
}

func (s *torture) over() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// pause waits, or until the faults are over.
func (s *torture) pause(d time.Duration) {
	select {
	case <-s.stop:
	case <-time.After(d):
	}
}

func (s *torture) record(kind, note string, from time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := injection{kind, note, from, boottime.Now()}
	s.injected = append(s.injected, f)
	if s.timeline != nil {
		fmt.Fprintf(s.timeline, "%d %d %s: %s\n", f.from.Nanoseconds(), f.to.Nanoseconds(), f.note, f.kind)
	}
}

// settle waits until every line has a leader again, once nothing is done to them any more.
func (s *torture) settle() {
	s.Helper()
	healed := boottime.Now()
	if err := s.recovered(); err != nil {
		s.Errorf("etcd does not recover: %v", err)
	}
	for _, l := range s.lines {
		if !within(4*time.Minute, func() bool { c, _ := l.leader(); return c != nil }) {
			s.Errorf("%s: nobody leads 4 minutes after the last fault", l.name)
			for _, c := range l.candidates {
				s.Logf("the end of %s's log:\n%s", c.id, c.logTail())
			}
		}
	}
	s.Logf("the last fault is over: every line has a leader %v later",
		(boottime.Now() - healed).Round(time.Millisecond))
	time.Sleep(time.Second)
}

// clockRates has the clocks of two members run fast and slow by so many percent. Nil: not asked
// for, since such servers must be built first, for minutes. Candidates that time each other run at
// such rates themselves: addLine.
func clockRates(t testing.TB) func(member int) int {
	if os.Getenv("TORTURE_RATE") == "" {
		return nil
	}
	percent := knob(t, "TORTURE_RATE", 5)
	return func(member int) int { return []int{percent, -percent, 0}[member] }
}
