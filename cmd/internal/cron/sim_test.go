package cron

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/pause"
)

// TestSimulation runs several engines in fake time over one store, with crashes, pauses,
// partitions, lost answers and wrong clocks, and judges what their commands did and what the store
// says. CRON_SEEDS plays more seeds.
func TestSimulation(t *testing.T) {
	seeds := seedsOf(4)
	total := map[string]int{}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			w := newSimWorld(t, uint64(seed), true)
			w.play(150 * time.Second)
			w.judge()
			for what, n := range w.count {
				total[what] += n
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Log(total)
	for _, what := range []string{"ran", OK, Lost, Overlap, Missed, Stopped, Replaced, "retried", "crash", "pause",
		"partition", "unknown"} {
		if total[what] == 0 && seeds >= 20 {
			t.Errorf("the simulation never had: %s", what)
		}
	}
}

// The judge must see it when commands outlive their claim.
func TestTheSimulationSeesCommandsThatAreNotStopped(t *testing.T) {
	for seed := range 30 {
		seen := false
		synctest.Test(t, func(t *testing.T) {
			w := newSimWorld(t, uint64(seed), false)
			w.play(2 * time.Minute)
			seen = len(w.wrong) > 0
		})
		if seen {
			return
		}
	}
	t.Error("in 30 seeds without a guardian nothing was noticed")
}

// Who was frozen for so long that the journal has forgotten what happened meanwhile must not do any
// of it again.
func TestAJournalThatForgets(t *testing.T) {
	for seed := range seedsOf(3) {
		synctest.Test(t, func(t *testing.T) {
			w := newSimWorld(t, uint64(seed), true)
			w.longest = 70 * time.Second
			for _, j := range w.jobs {
				j.Keep = 9 // far less than a file may say
			}
			w.play(3 * time.Minute)
			for _, text := range w.wrong {
				t.Errorf("seed %d: %s", seed, text)
			}
			ran := 0
			for _, ids := range w.ran {
				ran += len(ids)
			}
			if ran < 50 {
				t.Errorf("seed %d: only %d runs", seed, ran)
			}
		})
	}
}

// seedsOf returns how many seeds to play: one under the race detector, which is there for the
// engine's locks; CRON_SEEDS if that is set.
func seedsOf(n int) int {
	if n, err := strconv.Atoi(os.Getenv("CRON_SEEDS")); err == nil {
		return n
	}
	if racing {
		return 1
	}
	return n
}

type simWorld struct {
	*testing.T
	rand    *rand.Rand
	store   *memstore.Store
	guarded bool          // commands are ended by the deadline
	longest time.Duration // of a pause or a partition
	room    int           // commands at a time of each process
	jobs    []*Job
	procs   []*simProc
	began   time.Time
	stopped time.Time
	onTry   func()                                                      // before a claim is asked for
	deaf    func(context.Context, driver.Record) error                  // nil or what is told instead of "appended"
	pauses  func(context.Context, time.Duration) ([]pause.Pause, error) // as in Options
	script  func(Run) (length time.Duration, verdict string)            // nil: they take what they take

	mu        sync.Mutex
	slow      time.Duration // so long a call takes each way, until slowUntil
	slowUntil time.Time
	live      map[string]map[ID]int // by job: commands that run now
	ran       map[string]map[ID]int
	wrong     []string
	count     map[string]int
}

const (
	simTTL   = 10 * time.Second
	simRight = 9 * time.Second // of each renewal, on the holder's clock
	simGrace = time.Second
)

func newSimWorld(t *testing.T, seed uint64, guarded bool) *simWorld {
	w := &simWorld{T: t, rand: rand.New(rand.NewPCG(seed, 7)), store: memstore.New(memstore.Options{}),
		guarded: guarded, longest: 15 * time.Second, room: 6, began: time.Now(),
		live: map[string]map[ID]int{}, ran: map[string]map[ID]int{}, count: map[string]int{}}
	for i, set := range []func(*Job){
		func(j *Job) { j.Spec, j.Overlap, j.Retries, j.RetryDelay = "*/3 * * * * *", Allow, 2, time.Second },
		func(j *Job) { j.Spec, j.Retries = "@every 7s", 1 },
		func(j *Job) { j.Spec, j.Overlap, j.RetryOn = "@every 11s", Replace, []string{Lost} },
		func(j *Job) { j.Spec, j.Overlap, j.Missed, j.CatchUp = "@every 5s", Allow, All, 3 },
		func(j *Job) { j.Spec, j.Missed, j.Jitter = "*/10 * * * * *", Skip, 3*time.Second },
	} {
		j := DefaultJob()
		j.Name, j.Command, j.Keep = fmt.Sprintf("j%d", i), []string{"x"}, 10000
		set(&j)
		checked, err := j.Check()
		if err != nil {
			t.Fatal(err)
		}
		w.jobs = append(w.jobs, checked)
	}
	return w
}

func (w *simWorld) float() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rand.Float64()
}

func (w *simWorld) span(low, high time.Duration) time.Duration {
	return low + time.Duration(w.float()*float64(high-low))
}

func (w *simWorld) counted(what string, n int) {
	w.mu.Lock()
	w.count[what] += n
	w.mu.Unlock()
}

func (w *simWorld) fails(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, time.Since(w.began).String()+": "+fmt.Sprintf(format, args...))
}

// play lets faults happen for so long, heals everything, and ends.
func (w *simWorld) play(span time.Duration) {
	for i := range 4 {
		w.procs = append(w.procs, w.spawn(i, 0))
	}
	for n := 10; time.Since(w.began) < span; {
		time.Sleep(w.span(100*time.Millisecond, 4*time.Second))
		i := int(w.float() * 4)
		p := w.procs[i]
		switch f := w.float(); {
		case f < 0.25:
			w.counted("crash", 1)
			w.crash(i)
			time.Sleep(w.span(0, 2*time.Second))
			n++
			w.procs[i] = w.spawn(n*10+i, time.Duration((w.float()-0.5)*float64(3*time.Second)))
		case f < 0.5:
			w.counted("pause", 1)
			p.pause(w.span(100*time.Millisecond, w.longest))
		case f < 0.75:
			w.counted("partition", 1)
			p.cut(w.span(100*time.Millisecond, w.longest))
		case f < 0.8:
			p.engine.Stop(w.float() < 0.5, p.dead)
			p.die()
			w.procs[i] = w.spawn(n*10+i+100, 0)
			n++
		case f < 0.83:
			w.nobody()
		case f < 0.9:
			p.mu.Lock()
			p.skew += w.span(-2*time.Second, 2*time.Second)
			p.mu.Unlock()
		}
	}
	for _, p := range w.procs {
		p.heal()
	}
	time.Sleep(75 * time.Second)
	w.stopped = time.Now()
	w.finish()
}

// nobody runs for a while.
func (w *simWorld) nobody() {
	w.counted("nobody", 1)
	for i := range w.procs {
		w.crash(i)
	}
	time.Sleep(w.span(5*time.Second, 40*time.Second))
	for i := range w.procs {
		w.procs[i] = w.spawn(1000+i+int(time.Since(w.began).Seconds())*10, 0)
	}
}

func (w *simWorld) finish() {
	var all sync.WaitGroup
	for _, p := range w.procs {
		all.Go(func() { p.engine.Stop(true, nil); p.die() })
	}
	all.Wait()
	time.Sleep(time.Minute) // what died long ago ends its goroutines
}

func (w *simWorld) crash(i int) {
	p := w.procs[i]
	p.die()
	go p.engine.Stop(false, nil)
}

// judge looks at what is there in the end.
func (w *simWorld) judge() {
	for _, text := range w.wrong {
		w.Error(text)
	}
	for _, j := range w.jobs {
		records, err := w.store.Records(context.Background(), Prefix+j.Name, "", 100000)
		if err != nil {
			w.Fatal(err)
		}
		v := see(records)
		w.judgeInstants(j, v)
		for id, a := range v.attempts {
			w.judgeAttempt(j, v, id, a)
		}
		for id, n := range w.ran[j.Name] {
			if a := v.attempts[id]; n != 1 || a == nil || a.begin.Verdict != Began {
				w.Errorf("%s %v ran %d times, its record is %+v", j.Name, id, n, a)
			}
			w.count["ran"]++
		}
	}
}

func (w *simWorld) judgeInstants(j *Job, v *view) {
	from, known := v.origin(j.instants())
	if !known { // a decision was there before anybody had said so: instants count from the oldest
		w.count["origin unsaid"]++
		from, known = v.start(j.instants())
	}
	if !known {
		w.Errorf("%s: no record of where it begins", j.Name)
		return
	}
	for at := j.schedule.Next(from); at.Before(w.stopped.Add(-5 * time.Second)); at = j.schedule.Next(at) {
		if !v.decided(ID{at, 1}) && !w.excused(v, at) {
			w.Errorf("%s %v: nobody has decided about it", j.Name, at)
			for _, r := range v.records {
				if d := r.Key.At.Sub(at); d.Abs() < 8*time.Second || r.Key.Kind == kindNote || r.Key.Kind == kindGap {
					w.Logf("%s %s by %s at %v done %v upto %v", r.Key, r.Verdict, r.By, r.When, r.Done, r.Upto)
				}
			}
		}
	}
}

func (w *simWorld) judgeAttempt(j *Job, v *view, id ID, a *begun) {
	if a.begin.Verdict != Began {
		w.count[a.begin.Verdict]++
		return
	}
	if a.end == nil {
		w.Errorf("%s %v has begun by %s and has no end", j.Name, id, a.begin.By)
		return
	}
	w.count[a.end.Verdict]++
	if id.Attempt > 1 {
		w.count["retried"]++
	}
	if a.end.Verdict == OK && w.ran[j.Name][id] != 1 {
		w.Errorf("%s %v is said to be ok and ran %d times", j.Name, id, w.ran[j.Name][id])
	}
	_, again := v.attempts[ID{id.At, id.Attempt + 1}]
	if want := j.retries(a.end.Verdict) && id.Attempt <= j.Retries; again != want &&
		a.end.When.Before(w.stopped.Add(-w.patience(j))) {
		w.Errorf("%s %v ended as %s; tried again: %v", j.Name, id, a.end.Verdict, again)
	}
}

// patience is how long after an end the next attempt may begin: it may have to wait for a run that
// takes 30 s.
func (w *simWorld) patience(j *Job) time.Duration {
	if j.Overlap == Allow {
		return 15 * time.Second
	}
	return 50 * time.Second
}
