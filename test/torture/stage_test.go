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
)

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

	mu       sync.Mutex
	lates    []late          // terms whose supervisor, guardian and command were frozen and thawed together
	removals []late          // terms whose claim an operator removed, and when
	held     map[uint64]bool // tokens of commands whose write was kept on its way

	transfers map[string]tally // by what disturbed them
}

// asked says whether leaders of the line can be asked to hand over.
func (l *line) asked() bool {
	return slices.ContainsFunc(l.candidates, func(c *candidate) bool { return c.kind == kindPrimacy || c.kind == kindRun })
}

// claim returns the number by which the store knows the claim of a term: its token, but for a lock, which a process hands on behind one claim.
func (l *line) claim(token uint64) uint64 {
	if l.lock() {
		return token >> 16
	}
	return token
}

func (l *line) lock() bool { return len(l.candidates) > 0 && l.candidates[0].kind == kindMutex }

// stage is one run: a cluster, lines of candidates on it, and the faults.
type stage struct {
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
	stop    chan struct{} // closed when the faults are over
	asker   *primacy.Session

	mu       sync.Mutex
	timeline *os.File // a line for each fault
	struck   []strike
	missed   map[string]int // faults that found nobody to strike
}

// strike is one fault that was done.
type strike struct {
	kind, note string
	from, to   time.Duration
}

// newStage starts a cluster of three, in network namespaces where they are permitted.
func newStage(t *testing.T, seed uint64, ttl time.Duration) *stage {
	t.Helper()
	s := bareStage(t, seed, ttl)
	o := etcdtest.Options{Version: os.Getenv("TORTURE_ETCD"), ClockRate: clockRates(t)}
	nw, err := etcdtest.TryNetwork(t, 3)
	if err == nil {
		s.network, o = nw, nw.Options(o)
	} else {
		t.Logf("WITHOUT network namespaces (%v): etcd runs on loopback, and these faults are left out: %s", err, strings.Join(needNetwork(), ", "))
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

// bareStage has no store yet.
func bareStage(t *testing.T, seed uint64, ttl time.Duration) *stage {
	t.Helper()
	s := &stage{T: t, seed: seed, ttl: ttl, dir: os.Getenv("TORTURE_KEEP"), stop: make(chan struct{}), missed: map[string]int{}}
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
func (s *stage) addLine(name string, kinds ...string) *line {
	s.Helper()
	l := &line{name: name, ttl: s.ttl, held: map[uint64]bool{}, transfers: map[string]tally{}, dir: filepath.Join(s.dir, strings.ReplaceAll(name, "/", "-"))}
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
		l.candidates = append(l.candidates, c)
	}
	s.lines = append(s.lines, l)
	return l
}

// socketDir is a folder with a short name: a unix socket's path has 107 bytes at most.
func (s *stage) socketDir() string {
	dir, err := os.MkdirTemp("", "torture-")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// up starts the candidates and what watches them. It returns what waits until all of it has ended.
func (s *stage) up() (wait func()) {
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
func (s *stage) poll(over <-chan struct{}) {
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
func (s *stage) progress() {
	s.mu.Lock()
	done := len(s.struck)
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
func (s *stage) await(l *line, limit time.Duration) (*candidate, uint64) {
	for end := boottime.Now() + limit; boottime.Now() < end && !s.over(); time.Sleep(pollEvery) {
		if c, token := l.leader(); c != nil {
			return c, token
		}
	}
	return nil, 0
}

func (s *stage) over() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// pause waits, or until the faults are over.
func (s *stage) pause(d time.Duration) {
	select {
	case <-s.stop:
	case <-time.After(d):
	}
}

func (s *stage) record(kind, note string, from time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := strike{kind, note, from, boottime.Now()}
	s.struck = append(s.struck, f)
	if s.timeline != nil {
		fmt.Fprintf(s.timeline, "%d %d %s: %s\n", f.from.Nanoseconds(), f.to.Nanoseconds(), f.note, f.kind)
	}
}

// settle waits until every line has a leader again, once nothing is done to them any more.
func (s *stage) settle() {
	s.Helper()
	healed := boottime.Now()
	if err := s.recovered(); err != nil {
		s.Errorf("etcd does not recover: %v", err)
	}
	for _, l := range s.lines {
		if !within(time.Minute, func() bool { c, _ := l.leader(); return c != nil }) {
			s.Errorf("%s: nobody leads a minute after the last fault", l.name)
			for _, c := range l.candidates {
				s.Logf("the end of %s's log:\n%s", c.id, c.logTail())
			}
		}
	}
	s.Logf("the last fault is over: every line has a leader %v later", (boottime.Now() - healed).Round(time.Millisecond))
	time.Sleep(time.Second)
}

// clockRates has the clocks of two members run fast and slow by so many percent. Nil: not asked for, since such servers must be built
// first, for minutes.
func clockRates(t testing.TB) func(member int) int {
	if os.Getenv("TORTURE_RATE") == "" {
		return nil
	}
	percent := knob(t, "TORTURE_RATE", 5)
	return func(member int) int { return []int{percent, -percent, 0}[member] }
}
