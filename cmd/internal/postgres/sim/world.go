package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

const ms = time.Millisecond

// World is one run: time, chance, the nodes and the store.
type World struct {
	rng   *rand.Rand
	now   time.Duration
	queue []event
	seq   uint64
	plan  plan
	nodes []*node
	store *store
	judge judge

	shared  shared
	request *core.Request
	asked   core.Instructions // as people have written them last
	calm    bool              // no faults any more
	broken  Broken
	cuts    map[[2]int]bool
	serial  int // numbers given out: WAL records, incarnations

	Stats   Stats
	verbose bool
	lines   []string
}

// Stats counts what happened, to show that a run was not about nothing.
type Stats struct {
	Commits, Acked, Promoted, Terms, Faults, Steps, Events int
	Settled, Alone, Clean, Rewinds, Clones, Hands, Late    int
	Restored                                               int // from a backup
	Pauses, Renewed, Tasks                                 int
	Shared, Durability, Forgiven, Short                    int
	Lost                                                   int           // the store, or what came after a backup of it
	Anew                                                   int           // clusters that a person began anew then
	Hopeless                                               int           // runs that destroyed too much
	Recovered                                              time.Duration // from the last fault until all was well
}

// Add adds what another run counted.
func (s *Stats) Add(o Stats) {
	s.Commits += o.Commits
	s.Acked += o.Acked
	s.Promoted += o.Promoted
	s.Terms += o.Terms
	s.Faults += o.Faults
	s.Steps += o.Steps
	s.Events += o.Events
	s.Settled += o.Settled
	s.Alone += o.Alone
	s.Clean += o.Clean
	s.Rewinds += o.Rewinds
	s.Clones += o.Clones
	s.Hands += o.Hands
	s.Late += o.Late
	s.Restored += o.Restored
	s.Pauses += o.Pauses
	s.Renewed += o.Renewed
	s.Tasks += o.Tasks
	s.Shared += o.Shared
	s.Durability += o.Durability
	s.Forgiven += o.Forgiven
	s.Short += o.Short
	s.Lost += o.Lost
	s.Anew += o.Anew
	s.Hopeless += o.Hopeless
	s.Recovered = max(s.Recovered, o.Recovered)
}

// Violation is what must not happen.
type Violation struct {
	Seed uint64
	At   time.Duration
	What string
	Log  []string // the last lines before it, where the run was asked to keep them
}

func (v *Violation) Error() string { return fmt.Sprintf("seed %d, at %v: %s", v.Seed, v.At, v.What) }

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

func (e event) before(f event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// after has do run when d has passed.
func (w *World) after(d time.Duration, do func()) {
	w.seq++
	q := append(w.queue, event{w.now + max(d, 0), w.seq, do})
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if !q[i].before(q[up]) {
			break
		}
		q[i], q[up] = q[up], q[i]
		i = up
	}
	w.queue = q
}

func (w *World) next() event {
	q := w.queue
	first, last := q[0], len(q)-1
	q[0] = q[last]
	q[last] = event{}
	q = q[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(q); c++ {
			if q[c].before(q[least]) {
				least = c
			}
		}
		if least == i {
			break
		}
		q[i], q[least] = q[least], q[i]
		i = least
	}
	w.queue = q
	return first
}

func (w *World) chance(p float64) bool { return w.rng.Float64() < p }

func (w *World) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)))
}

// delay is between lo and hi, and during faults now and then much longer.
func (w *World) delay(lo, hi time.Duration) time.Duration {
	if !w.calm && w.chance(w.plan.slow) {
		return w.between(hi, hi+3*time.Second)
	}
	return w.between(lo, hi)
}

// fails says whether something goes wrong that is wrong with this chance while there are faults.
func (w *World) fails(p float64) bool { return !w.calm && w.chance(p*w.plan.trouble) }

func (w *World) logf(format string, args ...any) {
	if w.verbose {
		w.lines = append(w.lines, fmt.Sprintf("%9.3f  ", w.now.Seconds())+fmt.Sprintf(format, args...))
	}
}

func (w *World) number() int { w.serial++; return w.serial }

// play lets events happen until the run is over.
func (w *World) play() {
	defer func() {
		if r := recover(); r != nil {
			w.judge.violate("panic: %v\n%s", r, debug.Stack())
		}
	}()
	for w.judge.violated == "" && !w.judge.done && len(w.queue) > 0 {
		e := w.next()
		w.now = e.at
		w.Stats.Events++
		e.do()
		if w.calm && w.now > w.plan.quiet+limit {
			w.judge.stuck()
		}
	}
}

// Options say how a seed is played.
type Options struct {
	Log    bool // keep what happens
	Keep   int  // so many lines; 0: all
	Broken Broken
}

// Broken is what is wrong with the world, to show that the judge sees what comes of it. The zero
// Broken is a sound world.
type Broken struct {
	Early    bool // standbys acknowledge WAL before it is flushed
	AnyWrite bool // the store writes a record whatever it has, and whoever leads
}

// limit is how long after the last fault all must be well.
const limit = 3 * time.Minute

// Run plays one seed.
func Run(seed uint64, o Options) (Stats, []string, *Violation) {
	w := &World{rng: rand.New(rand.NewPCG(seed, 0x5ea1)), verbose: o.Log, broken: o.Broken, cuts: map[[2]int]bool{}}
	w.plan = newPlan(w)
	w.store = &store{w: w, up: true}
	w.judge.w = w
	w.logf("%s", w.plan)
	for i := range w.plan.nodes {
		w.nodes = append(w.nodes, newNode(w, i))
	}
	for _, n := range w.nodes {
		w.after(w.between(0, 300*ms), n.powerOn)
		w.after(0, n.clients)
	}
	w.schedule()
	w.play()
	lines := w.lines
	if o.Keep > 0 && len(lines) > o.Keep {
		lines = lines[len(lines)-o.Keep:]
	}
	if w.judge.violated == "" {
		return w.Stats, lines, nil
	}
	return w.Stats, lines, &Violation{seed, w.now, w.judge.violated, lines}
}

// String is one line of all that happened.
func (s Stats) String() string {
	return fmt.Sprintf("%d commits, %d acknowledged, %d terms, %d promotions, %d faults; q fell %d times, "+
		"alone %d, clean stops %d, rewinds %d, clones %d, transfers %d, late writes %d, put back from backups %d, "+
		"pauses %d with %d new terms, tasks %d; configurations %d, another durability %d times, by which %d lost "+
		"commits were no promise; standbys that had to be restarted %d; stores lost %d, and begun anew %d; "+
		"hopeless %d; well after at most %v; %d steps, %d events",
		s.Commits, s.Acked, s.Terms, s.Promoted, s.Faults, s.Settled, s.Alone, s.Clean, s.Rewinds, s.Clones, s.Hands,
		s.Late, s.Restored, s.Pauses, s.Renewed, s.Tasks, s.Shared, s.Durability, s.Forgiven, s.Short,
		s.Lost, s.Anew, s.Hopeless, s.Recovered.Round(time.Millisecond), s.Steps, s.Events)
}
