package cron

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/pause"
)

// Hold is a claim that this process holds.
type Hold interface {
	Check() error            // nil while it is held, by the clock, now
	Ending() <-chan struct{} // closed when what runs under it has to stop
	Cause() error            // why
	Token() string           // of the term: it grows from one holder of the claim to the next
	Release(ctx context.Context) error
}

// Claims are taken in the store.
type Claims interface {
	// Try returns the claim if it is free now, otherwise [ErrHeld].
	Try(ctx context.Context, name string) (Hold, error)
	// Standing says whether somebody holds it.
	Standing(ctx context.Context, name string) (bool, error)
	// Ask asks who holds it to stop.
	Ask(ctx context.Context, name, why string) error
}

// ErrHeld says that another holds the claim.
var ErrHeld = errors.New("held by another")

// Runner runs a command. It returns when nothing of it is left. Stop is closed when this process is
// told to end.
type Runner func(stop <-chan struct{}, h Hold, r Run) Ended

// Run is one run to be.
type Run struct {
	Job *Job
	ID
	Name  string // of the run: random
	Claim string
}

// Ended is how a run ended.
type Ended struct {
	Verdict string
	Code    int // as a shell tells it
	Text    string
	Late    time.Duration // after the deadline; 0 is what must be
}

// Event is something that happened to a job, for the log.
type Event struct {
	Job  string
	ID   ID
	What string // a verdict; "begun", "suppressed", "trouble", "clock" or "full"
	Run  string
	Text string
	Late time.Duration // of "begun": after the instant
}

// Options of an engine. Journal, Claims, Runner, ID and Log must be given.
type Options struct {
	Journal driver.Journal
	Claims  Claims
	Runner  Runner
	ID      string // of the session
	Host    string
	Log     func(Event)
	Now     func() time.Time // the wall clock
	Rand    func() float64
	Spread  time.Duration // each process waits a random part of it, so that a fast machine does not win all
	Look    time.Duration // between two looks at a job's journal that nothing else asks for
	Attempt time.Duration // the time limit of one call on the store
	Max     int           // commands at a time; 0: no limit
	// Pauses returns what operators have paused, as of now or of an instant that is no longer ago
	// than age. Nil: nothing ever is.
	Pauses func(ctx context.Context, age time.Duration) ([]pause.Pause, error)
}

// Engine runs jobs, beside others like it on other machines.
type Engine struct {
	o        Options
	counters Counters
	stop     chan struct{} // closed when no run may begin any more
	quit     chan struct{} // closed when those that run have to end
	runs     sync.WaitGroup
	slots    chan struct{}
	reads    chan struct{} // calls under way that read from the store
	writes   chan struct{} // calls under way that write to it

	mu     sync.Mutex
	jobs   map[string]*jobLoop
	busy   map[string]map[orderKey]bool
	active int
	closed bool
}

// orderKey is what tells one order from another while it is carried out.
type orderKey struct {
	act act
	id  ID
}

// jobLoop runs one job in this process, on a goroutine of its own (loop).
type jobLoop struct {
	e       *Engine
	job     *Job
	mu      sync.Mutex
	t       *tracker
	wake    chan struct{}
	end     chan struct{}
	ahead   map[string]bool // whose clock was told to be ahead
	down    atomic.Bool
	aheadMu sync.Mutex // guards ahead

	held   held             // used by loop alone
	holds  atomic.Bool      // a pause holds the job, as far as held knows
	probed map[ID]time.Time // when a run that others began was last looked at
	soon   bool             // look at the journal at once; guarded by mu
	readAt time.Time        // guarded by mu
	deepAt time.Time        // when it was read back to all that matters; guarded by mu
	back   int              // how many records that were; guarded by mu
	mixed  bool             // the job had another definition, here or elsewhere, in what was read; guarded by mu
	edge   time.Time        // before it lie only instants that the journal may forget soon; guarded by mu
}

// New returns an engine without jobs.
func New(o Options) *Engine {
	if o.Now == nil {
		o.Now = time.Now
	}
	e := &Engine{o: o, reads: make(chan struct{}, callsAtOnce), writes: make(chan struct{}, callsAtOnce),
		stop: make(chan struct{}), quit: make(chan struct{}), jobs: map[string]*jobLoop{},
		busy: map[string]map[orderKey]bool{}}
	if o.Max > 0 {
		e.slots = make(chan struct{}, o.Max)
	}
	return e
}

// Counters returns what has been counted of this process.
func (e *Engine) Counters() *Counters { return &e.counters }

// Touch returns once it has had the locks that everything here needs.
func (e *Engine) Touch() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.jobs {
		l.mu.Lock()
		_ = l.t.begins
		l.mu.Unlock()
	}
}

// Active returns how many commands run here.
func (e *Engine) Active() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.active
}

// Set makes these the jobs. What runs of others goes on to its end.
func (e *Engine) Set(jobs []*Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	named := map[string]*Job{}
	for _, j := range jobs {
		named[j.Name] = j
	}
	for name, l := range e.jobs {
		if j := named[name]; j == nil || j.Definition() != l.job.Definition() {
			close(l.end)
			delete(e.jobs, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if e.jobs[name] == nil {
			l := &jobLoop{e: e, job: named[name], t: newTracker(named[name]), wake: make(chan struct{}, 1),
				end: make(chan struct{}), ahead: map[string]bool{}, probed: map[ID]time.Time{}}
			e.jobs[name] = l
			e.runs.Go(l.loop)
		}
	}
}

// Stop lets no run begin any more, and returns when nothing runs. What runs is told to end, unless
// drain: then that is awaited until hurry is closed.
func (e *Engine) Stop(drain bool, hurry <-chan struct{}) {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.stop)
		for _, l := range e.jobs {
			close(l.end)
		}
		e.jobs = nil
	}
	e.mu.Unlock()
	done := make(chan struct{})
	go func() { e.runs.Wait(); close(done) }()
	if drain {
		select {
		case <-done:
			return
		case <-hurry:
		}
	}
	e.mu.Lock()
	select {
	case <-e.quit:
	default:
		close(e.quit)
	}
	e.mu.Unlock()
	<-done
}

// A store that answers slowly gets no more to do for it: so many calls of this process are under
// way at a time. Without that, what many jobs ask again in vain keeps it slow. Writes do not wait
// behind reads: the end of a run is one.
const callsAtOnce = 6

// readCall returns the context of one call that reads, once there is room for it.
func (e *Engine) readCall() (context.Context, context.CancelFunc) { return e.call(e.reads) }

// writeCall returns the same for a call that writes.
func (e *Engine) writeCall() (context.Context, context.CancelFunc) { return e.call(e.writes) }

func (e *Engine) call(room chan struct{}) (context.Context, context.CancelFunc) {
	room <- struct{}{}
	ctx, cancel := context.WithTimeout(context.Background(), e.o.Attempt)
	return ctx, sync.OnceFunc(func() { cancel(); <-room })
}

func (e *Engine) log(j *Job, id ID, what, run, text string) {
	e.o.Log(Event{Job: j.Name, ID: id, What: what, Run: run, Text: text})
}

// Suppressed counts the instants that this process was ready for and another had decided already;
// it is no verdict of a record.
const Suppressed = "duplicate_suppressed"

// Result is what Counters count by: primacy_cron_runs_total{cronjob,result}. They are the verdicts
// and Suppressed.
type Result struct{ Job, Result string }

// Counters count what became of instants in this process, since it began.
type Counters struct {
	mu sync.Mutex
	n  map[Result]uint64

	tell func(job, result string, n uint64)
}

// Tell lets f know of what has been counted already, and of each count from now on. Nil: no more.
func (c *Counters) Tell(f func(job, result string, n uint64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tell = f; f != nil {
		for r, n := range c.n {
			f(r.Job, r.Result, n)
		}
	}
}

// Add counts n more.
func (c *Counters) Add(job, result string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[Result]uint64{}
	}
	c.n[Result{job, result}] += n
	if c.tell != nil {
		c.tell(job, result, n)
	}
}
