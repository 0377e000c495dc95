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

// Runner runs a command. It returns when nothing of it is left. Stop is closed when this process is told to end.
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
}

// Engine runs jobs, beside others like it on other machines.
type Engine struct {
	o        Options
	counters Counters
	stop     chan struct{} // closed when no run may begin any more
	quit     chan struct{} // closed when those that run have to end
	runs     sync.WaitGroup
	slots    chan struct{}

	mu     sync.Mutex
	jobs   map[string]*line
	busy   map[string]map[order1]bool
	active int
	closed bool
}

// order1 is what tells one order from another while it is carried out.
type order1 struct {
	act act
	id  ID
}

// line is one job in this process.
type line struct {
	e     *Engine
	job   *Job
	mu    sync.Mutex
	t     *tracker
	wake  chan struct{}
	end   chan struct{}
	ahead map[string]bool // whose clock was told to be ahead
	down  atomic.Bool
	told  sync.Mutex // guards ahead

	probed map[ID]time.Time // when a run that others began was last looked at
	soon   bool             // look at the journal at once; guarded by mu
	readAt time.Time        // guarded by mu
}

// New returns an engine without jobs.
func New(o Options) *Engine {
	if o.Now == nil {
		o.Now = time.Now
	}
	e := &Engine{o: o, stop: make(chan struct{}), quit: make(chan struct{}), jobs: map[string]*line{}, busy: map[string]map[order1]bool{}}
	if o.Max > 0 {
		e.slots = make(chan struct{}, o.Max)
	}
	return e
}

// Counters returns what has been counted of this process.
func (e *Engine) Counters() *Counters { return &e.counters }

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
			l := &line{e: e, job: named[name], t: newTracker(named[name]), wake: make(chan struct{}, 1), end: make(chan struct{}), ahead: map[string]bool{}, probed: map[ID]time.Time{}}
			e.jobs[name] = l
			e.runs.Go(l.loop)
		}
	}
}

// Stop lets no run begin any more, and returns when nothing runs. What runs is told to end, unless drain: then that is awaited until hurry is closed.
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

// loop follows one job. It looks at the clock every second, whatever the schedule says: a timer stands still while the machine is suspended, and the clock
// on the wall may be put on.
func (l *line) loop() {
	look := l.e.o.Now() // at once
	for {
		now := l.e.o.Now()
		l.mu.Lock()
		due := l.t.due(now)
		next := l.t.next(now)
		if l.soon {
			look, l.soon = now, false
		}
		l.mu.Unlock()
		acting := slices.ContainsFunc(due, func(o order) bool { return o.act != actProbe && !l.isBusy(o) })
		if acting && !l.pause(time.Duration(l.e.o.Rand()*float64(l.e.o.Spread))) {
			return
		}
		if acting || !now.Before(look) {
			look = now.Add(time.Duration((0.75 + l.e.o.Rand()/2) * float64(l.e.o.Look)))
			if l.read() {
				l.carryOut()
			} else if !l.pause(l.e.o.Spread + 200*time.Millisecond) {
				return
			}
		}
		wait := min(time.Second, max(time.Millisecond, look.Sub(l.e.o.Now())))
		if !next.IsZero() {
			wait = min(wait, max(time.Millisecond, next.Sub(l.e.o.Now())))
		}
		if !l.pause(wait) {
			return
		}
	}
}

// pause waits; false: the job is over here. News of a run that ended cuts it short.
func (l *line) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-l.end:
		return false
	case <-t.C:
	case <-l.wake:
	}
	select {
	case <-l.end:
		return false
	default:
		return true
	}
}

// read takes the journal in, as far back as there is something to do about it. False: the store did not answer.
func (l *line) read() bool {
	began := l.e.o.Now()
	records, whole, err := l.records()
	if err != nil {
		if !l.down.Swap(true) {
			l.e.log(l.job, ID{}, "trouble", "", "the store does not answer: "+err.Error())
		}
		return false
	}
	l.down.Store(false)
	v := see(records)
	l.observe(v)
	l.mu.Lock()
	if whole && l.t.begins && len(v.records) > 0 {
		l.t.forget(v.records[0].Key.At)
	}
	l.readAt = began
	l.mu.Unlock()
	return true
}

// records reads the newest records, and on back to the oldest that matters. Whole: there are no older ones.
func (l *line) records() (all []driver.Record, whole bool, err error) {
	l.mu.Lock()
	upto := Key{At: l.t.concern(), Kind: kindNote}.String()
	if !l.t.begins {
		upto = "~"
	}
	l.mu.Unlock()
	for before, limit := "", window; ; limit = 4 * window {
		ctx, cancel := l.e.limited()
		page, err := l.e.o.Journal.Records(ctx, Prefix+l.job.Name, before, limit)
		cancel()
		if err != nil {
			return nil, false, err
		}
		all = append(all, page...)
		if len(page) < limit {
			return all, true, nil
		}
		if before = page[len(page)-1].Key; before <= upto {
			return all, false, nil
		}
	}
}

// stale says whether it is some time ago that the journal was read, by a clock that stands still in suspend and by one that does not.
func (l *line) stale() bool {
	const limit = 2 * time.Second
	l.mu.Lock()
	at := l.readAt
	l.mu.Unlock()
	now := l.e.o.Now()
	past, wall := now.Sub(at), now.Round(0).Sub(at.Round(0))
	return past > limit || wall > limit || wall < -limit
}

func (l *line) isDue(id ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t.isDue(id)
}

func (l *line) isOpen(id ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t.open[id] != nil
}

func (l *line) observe(v *view) {
	now := l.e.o.Now()
	l.mu.Lock()
	l.t.observe(v, now)
	l.mu.Unlock()
	const tolerable = 2 * time.Second
	l.told.Lock()
	defer l.told.Unlock()
	for _, r := range v.records {
		if ahead := r.When.Sub(now); ahead > tolerable && !l.ahead[r.By] {
			l.ahead[r.By] = true
			l.e.log(l.job, ID{r.Key.At, r.Key.Attempt}, "clock", "", "the clock of "+r.By+" is ahead of this machine's by "+ahead.Round(time.Second).String()+": its jobs run early")
		}
	}
}

// carryOut starts what is due and not under way.
func (l *line) carryOut() {
	l.mu.Lock()
	due := l.t.due(l.e.o.Now())
	l.mu.Unlock()
	for _, o := range due {
		if o.act == actProbe && !l.ripe(o.id) || !l.begin(o) {
			continue
		}
		l.e.runs.Go(func() {
			defer l.done(o)
			l.do(o)
		})
	}
}

// ripe says whether it is time to look at a run that has no end yet: not in the moment in which it begins, and then now and again.
func (l *line) ripe(id ID) bool {
	now := l.e.o.Now()
	last, seen := l.probed[id]
	if seen && now.Sub(last) < l.e.o.Look/2 && !now.Before(last) {
		return false
	}
	if len(l.probed) > 10*window {
		clear(l.probed)
	}
	l.probed[id] = now
	return seen
}

func (l *line) isBusy(o order) bool {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	return l.e.busyWith(l.job.Name, o)
}

// busyWith says whether an order is being carried out; e.mu is held.
func (e *Engine) busyWith(job string, o order) bool {
	for b := range e.busy[job] {
		if b.act == o.act && (b.id == o.id || b.act == actCatchUp) { // what was missed is one matter, whatever is the first of it
			return true
		}
	}
	return false
}

// begin says whether an order is to be carried out now: not while it is already, nor a look at a run of our own.
func (l *line) begin(o order) bool {
	e := l.e
	e.mu.Lock()
	defer e.mu.Unlock()
	busy := e.busy[l.job.Name]
	if e.closed || e.busyWith(l.job.Name, o) || o.act == actProbe && busy[order1{actRun, o.id}] {
		return false
	}
	if busy == nil {
		busy = map[order1]bool{}
		e.busy[l.job.Name] = busy
	}
	busy[order1{o.act, o.id}] = true
	return true
}

func (l *line) done(o order) {
	l.e.mu.Lock()
	delete(l.e.busy[l.job.Name], order1{o.act, o.id})
	l.e.mu.Unlock()
	if o.act == actRun && l.job.Retries > 0 {
		l.mu.Lock()
		l.soon = true
		l.mu.Unlock()
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (e *Engine) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), e.o.Attempt)
}

func (e *Engine) log(j *Job, id ID, what, run, text string) {
	e.o.Log(Event{Job: j.Name, ID: id, What: what, Run: run, Text: text})
}
