package primacy

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// EventKind is what happened to a session.
type EventKind int

// Behind each kind stand the fields of [Event] that it fills in, besides At. Of locks only overruns
// and duplicate IDs are told, since locks come and go too often. WorkStopped comes right after
// Ended if the work returned while the right lived, and later if the work outlived its right.
const (
	LeaseGranted  EventKind = iota + 1 // Lease; Took: how long the store needed
	LeaseLost                          // Lease, Cause: its terms' contexts end. Not told once Session.Close was called
	Renewed                            // Lease; Took: from sending the renewal to the store's answer
	RenewalMissed                      // Lease, Took; Cause: the store's error, or context.DeadlineExceeded: no answer
	CampaignBegun                      // Name
	CampaignEnded                      // nothing was won. Name; Took: since CampaignBegun; Cause: why
	Elected                            // Name, Token, Lease; Took: since CampaignBegun
	Stopping                           // the work has to stop. Name, Token, Lease, Reason, Cause, By, Text, To
	Ended                              // the right is over: once for each Elected. As Stopping; Took: since Stopping
	WorkStopped                        // given up, and no work runs. Name, Token, Lease, Reason; Took: since Stopping
	HandedOver                         // Name, Token, Lease; To: whose session leads now
	WorkOverran                        // work still runs though its right is over. Name, Token, Lease, Lock
	NotHandedOver                      // the hand-over failed, or nobody knows. Name, Token, Lease, To; Cause: why
	GrantFailed                        // Took; Cause: the store's error, or that it did not answer
	DuplicateID                        // another process has this ID. Name, Lock; Lease: its lease; Text: its value
)

var eventKinds = [...]string{LeaseGranted: "lease_granted", LeaseLost: "lease_lost", Renewed: "renewed", RenewalMissed: "renewal_missed",
	CampaignBegun: "campaign_begun", CampaignEnded: "campaign_ended", Elected: "elected", Stopping: "stopping", Ended: "ended",
	WorkStopped: "work_stopped", HandedOver: "handed_over", WorkOverran: "work_overran", NotHandedOver: "not_handed_over",
	GrantFailed: "grant_failed", DuplicateID: "duplicate_id", HealthChanged: "health_changed",
	UnhealthyLeads: "unhealthy_leads", ElectionPaused: "election_paused", ElectionResumed: "election_resumed"}

// What keeps a candidate from leading, beside the line.
const (
	HealthChanged   = DuplicateID + 1 + iota // a Health is healthy now, or with a Cause and Text unhealthy
	UnhealthyLeads                           // unhealthy, and not handed over. Name, Token, Lease; Text: why not
	ElectionPaused                           // it is kept from leading: nobody new is elected. Name; Text: the pause
	ElectionResumed                          // that is over, and it stands again. Name
)

// String returns the kind as one word that does not change.
func (k EventKind) String() string {
	if k <= 0 || int(k) >= len(eventKinds) {
		return "unknown"
	}
	return eventKinds[k]
}

// Event is something that happened to a session. Fields that its kind does not name are zero.
type Event struct {
	Kind   EventKind
	At     time.Time // by the wall clock, for people
	Name   string    // of the election
	Token  Token
	Lease  string // as Term.Lease has it
	Took   time.Duration
	Reason Reason
	Cause  error
	By     string // who asked for the end of the term, if somebody did
	Text   string // why, in words
	To     string // the ID of the session that the term is handed over to
	Lock   bool   // the term is a lock's
	Missed int    // older events that a slow reader lost before this one
}

// eventsSize is how many events wait for a reader. Ten thousand elections won at once are more: see
// Session.Tallies.
const eventsSize = 4096

// eventReaders sends each event to all who range over [Session.Events].
type eventReaders struct {
	readers atomic.Int32  // as many as feeds has; read without mu
	closed  chan struct{} // closed at the end of the session's Close
	once    sync.Once
	mu      sync.Mutex
	feeds   map[*feed[Event]]struct{}
}

func (r *eventReaders) join(f *feed[Event]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.feeds == nil {
		r.feeds = map[*feed[Event]]struct{}{}
	}
	r.feeds[f] = struct{}{}
	r.readers.Add(1)
}

func (r *eventReaders) quit(f *feed[Event]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, there := r.feeds[f]; there {
		delete(r.feeds, f)
		r.readers.Add(-1)
	}
}

// publish sends an event to all readers. If it costs much to make the event, the caller calls any
// first.
func (r *eventReaders) publish(ev Event) {
	if !r.any() {
		return
	}
	ev.At = time.Now().Round(0)
	r.mu.Lock()
	defer r.mu.Unlock()
	for f := range r.feeds {
		f.push(ev)
	}
}

func (r *eventReaders) any() bool { return r.readers.Load() > 0 }

// end ends the iterators of all readers, also of those that come later.
func (r *eventReaders) end() { r.once.Do(func() { close(r.closed) }) }

// feed is a bounded queue of events for one reader.
type feed[E any] struct {
	size   int
	mu     sync.Mutex
	queue  []E
	missed int
	ready  chan struct{}
}

func newFeed[E any](size int) *feed[E] { return &feed[E]{size: size, ready: make(chan struct{}, 1)} }

// push never blocks: a reader that is slow loses the oldest.
func (f *feed[E]) push(ev E) {
	f.mu.Lock()
	if len(f.queue) == f.size {
		f.queue = f.queue[1:]
		f.missed++
	}
	f.queue = append(f.queue, ev)
	f.mu.Unlock()
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// next returns the oldest event that is left, and how many before it were lost. If none is left it
// waits, until ctx ends or over is closed: then ok is false.
func (f *feed[E]) next(ctx context.Context, over <-chan struct{}) (ev E, missed int, ok bool) {
	for {
		ended := false
		select {
		case <-over:
			ended = true // read before the queue, so that no event pushed before it is lost
		default:
		}
		f.mu.Lock()
		if len(f.queue) > 0 {
			ev, missed, f.missed = f.queue[0], f.missed, 0
			f.queue = f.queue[1:]
			f.mu.Unlock()
			return ev, missed, true
		}
		f.mu.Unlock()
		if ended {
			return ev, 0, false
		}
		select {
		case <-f.ready:
		case <-over:
		case <-ctx.Done():
			return ev, 0, false
		}
	}
}

// Stats counts what a session has done.
type Stats struct {
	Leases   uint64 // granted
	Renewals uint64 // accepted
	Misses   uint64 // renewals refused, late or without an answer
	Late     uint64 // the part of Misses without an answer in time
	Terms    uint64 // won
	Overruns uint64 // work that outlived its right
	// Unreadable is how many records Election.History has left out.
	Unreadable uint64
}

type counters struct{ leases, renewals, otherMisses, late, terms, overruns, unreadable atomic.Uint64 }

// Tally counts the terms of one election. [Session.Tallies] counts those of that session, and
// unlike [Session.Events] misses none. [Election.Tally] counts those of all sessions since the
// history began.
type Tally struct {
	Name    string // empty: all elections beyond the first 100,000 that this session has led
	Elected uint64
	Ended   map[Reason]uint64 // terms whose right is over, by why
}

// maxTallies is how many names have counts of their own, which are kept for ever.
const maxTallies = 100_000

// tallies are the counts of a session's elections.
type tallies struct {
	mu     sync.Mutex
	byName map[string]*tallied
}

type tallied struct {
	elected uint64
	ended   [len(countedReasons)]uint64
}

func (all *tallies) elected(name string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.ofLocked(name).elected++
}

func (all *tallies) ended(name string, r Reason) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.ofLocked(name).ended[slices.Index(countedReasons[:], r)]++
}

// ofLocked returns the counts of a name, made if there is none. The caller holds all.mu.
func (all *tallies) ofLocked(name string) *tallied {
	if all.byName == nil {
		all.byName = map[string]*tallied{}
	}
	t := all.byName[name]
	if t == nil && len(all.byName) >= maxTallies {
		name = ""
		t = all.byName[name]
	}
	if t == nil {
		t = &tallied{}
		all.byName[name] = t
	}
	return t
}

// logQueue writes log lines on a goroutine of its own, which holds no lock. So a handler that
// blocks (its pipe is full) holds up no end of a term, and a handler may call Term.Check, which
// takes locks of its own when the term has expired.
type logQueue struct {
	logger  *slog.Logger
	mu      sync.Mutex
	lines   []slog.Record
	written chan struct{} // closed when all lines are written; nil while no goroutine runs
}

// logQueueSize is how many lines of level Info may wait; further ones are lost.
const logQueueSize = 256

// room is how many lines may wait before one of that level is lost. Higher levels have more room:
// ten thousand elections won at once must not cost the line that a lease is ending.
func room(level slog.Level) int {
	switch {
	case level >= slog.LevelWarn:
		return 2 * logQueueSize
	case level >= slog.LevelInfo:
		return logQueueSize
	}
	return logQueueSize / 2
}

func newLogQueue(l *slog.Logger) *logQueue { return &logQueue{logger: l} }

// log queues a line. It never calls the handler: Enabled may block too.
func (q *logQueue) log(level slog.Level, msg string, args ...any) {
	if q.logger == nil {
		return
	}
	r := slog.NewRecord(time.Now(), level, msg, 0)
	r.Add(args...)
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) < room(level) {
		q.lines = append(q.lines, r)
	}
	if q.written == nil {
		q.written = make(chan struct{})
		go q.run(q.written)
	}
}

func (q *logQueue) run(written chan struct{}) {
	defer close(written)
	h := q.logger.Handler()
	for {
		q.mu.Lock()
		if len(q.lines) == 0 {
			q.written = nil
			q.mu.Unlock()
			return
		}
		r := q.lines[0]
		q.lines = q.lines[1:]
		q.mu.Unlock()
		if h.Enabled(context.Background(), r.Level) {
			_ = h.Handle(context.Background(), r)
		}
	}
}

// flush waits until all lines are written, for 100 ms at most.
func (q *logQueue) flush() {
	q.mu.Lock()
	written := q.written
	q.mu.Unlock()
	if written == nil {
		return
	}
	select {
	case <-written:
	case <-time.After(100 * time.Millisecond):
	}
}
