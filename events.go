package primacy

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// EventKind is what happened to a session.
type EventKind int

// What each event tells besides its time is said here. Of locks only overruns are told: they come
// and go too often.
const (
	LeaseGranted  EventKind = iota + 1 // Lease; Took: how long the store needed
	LeaseLost                          // Lease, Cause: its terms' contexts are ending. Not of a lease that is closed
	Renewed                            // Lease; Took: from sending the renewal to the store's answer
	RenewalMissed                      // Lease, Took; Cause: what the store said, context.DeadlineExceeded where it said nothing in time
	CampaignBegun                      // Name
	CampaignEnded                      // Name; Took: since it had begun; Cause: why it was given up or refused. Nothing was won
	Elected                            // Name, Token, Lease; Took: since the campaign had begun
	Stopping                           // Name, Token, Lease, Reason, Cause, By, Text, To: the term's context has ended, its work is to stop
	Ended                              // as Stopping, and the right is over; Took: since Stopping. Told once for each Elected
	WorkStopped                        // Name, Token, Lease, Reason; Took: from Stopping until the term was resigned, which says that its work has stopped
	HandedOver                         // Name, Token, Lease; To: whose session leads now
	WorkOverran                        // Name, Token, Lease, Lock: work is still running though its right is over
	NotHandedOver                      // Name, Token, Lease, To; Cause: why the term that was to be handed over is released instead, or why nobody knows whether it was
	GrantFailed                        // Took; Cause: what the store said, or that it said nothing in time
)

var eventKinds = [...]string{LeaseGranted: "lease_granted", LeaseLost: "lease_lost", Renewed: "renewed", RenewalMissed: "renewal_missed",
	CampaignBegun: "campaign_begun", CampaignEnded: "campaign_ended", Elected: "elected", Stopping: "stopping", Ended: "ended",
	WorkStopped: "work_stopped", HandedOver: "handed_over", WorkOverran: "work_overran", NotHandedOver: "not_handed_over", GrantFailed: "grant_failed"}

// String returns the kind as one word that does not change.
func (k EventKind) String() string {
	if k <= 0 || int(k) >= len(eventKinds) {
		return "unknown"
	}
	return eventKinds[k]
}

// Event is something that happened to a session. What its kind does not name is zero.
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

// eventReaders tells readers what happened.
type eventReaders struct {
	readers atomic.Int32
	closed  chan struct{} // closed when the session's Close has returned
	once    sync.Once
	mu      sync.Mutex
	feeds   map[*feed[Event]]struct{}
}

// Events yields what happens to this session from now on, in order. A reader that is slow loses the
// oldest events, counted in Missed, and holds up nothing; what must be exact is in [Session.Stats]
// and [Session.Tallies]. It ends with ctx, and when all was told after Close has returned; range
// over it once. Nothing here says who leads at this instant: that is [Term.Check].
func (s *Session) Events(ctx context.Context) iter.Seq[Event] {
	f := newFeed[Event](eventsSize)
	s.readers.join(f) // now: who looks at what is so after this call misses nothing in between
	context.AfterFunc(ctx, func() { s.readers.quit(f) })
	return func(yield func(Event) bool) {
		defer s.readers.quit(f)
		for {
			ev, missed, ok := f.next(ctx, s.readers.closed)
			if ev.Missed = missed; !ok || !yield(ev) {
				return
			}
		}
	}
}

func (n *eventReaders) join(f *feed[Event]) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.feeds == nil {
		n.feeds = map[*feed[Event]]struct{}{}
	}
	n.feeds[f] = struct{}{}
	n.readers.Add(1)
}

func (n *eventReaders) quit(f *feed[Event]) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, there := n.feeds[f]; there {
		delete(n.feeds, f)
		n.readers.Add(-1)
	}
}

// event tells all readers. It is cheap where there is none, but the caller makes out the event: who
// has much to make out asks any first.
func (n *eventReaders) event(ev Event) {
	if !n.any() {
		return
	}
	ev.At = time.Now().Round(0)
	n.mu.Lock()
	defer n.mu.Unlock()
	for f := range n.feeds {
		f.push(ev)
	}
}

func (n *eventReaders) any() bool { return n.readers.Load() > 0 }

// end ends the iterators of all readers, now and later.
func (n *eventReaders) end() { n.once.Do(func() { close(n.closed) }) }

// notWon tells that a campaign ended without a term.
func (s *Session) notWon(name string, began time.Duration, why error) {
	if s.readers.any() {
		s.readers.event(Event{Kind: CampaignEnded, Name: name, Took: s.uptime() - began, Cause: why})
	}
}

// begunLocked tells readers that a claim leads.
func (n *eventReaders) begunLocked(c *claim, began time.Duration) {
	if n.any() {
		n.event(Event{Kind: Elected, Name: c.name, Token: c.term.token, Lease: c.l.dl.ID(), Took: c.l.s.uptime() - began})
	}
}

// steppedLocked tells readers how far the end of a term has come.
func (n *eventReaders) steppedLocked(c *claim, s step) {
	if s.order.Stop {
		n.endLocked(c, Stopping, s.order.Cause)
	}
	if s.rightEnded {
		n.endLocked(c, Ended, s.order.Cause)
	}
	if s.was == core.Leaving && c.unconfirmedLocked() {
		n.unconfirmedLocked(c)
	}
	if s.event == core.GiveUp && (s.was == core.Leading || s.was == core.Stopping) {
		n.endLocked(c, WorkStopped, c.core.Cause())
	}
}

// unconfirmedLocked says that a hand-over is over and that nobody knows how it ended. The caller
// holds the claim's lock.
func (n *eventReaders) unconfirmedLocked(c *claim) {
	why := ErrExpired
	if c.core.Fate() == core.Vanished {
		why = ErrDeposed
	}
	n.event(Event{Kind: NotHandedOver, Name: c.name, Token: c.term.token, Lease: c.l.dl.ID(), To: c.to, Cause: why})
}

// endLocked tells one step of the end of a term. The caller holds the claim's lock.
func (n *eventReaders) endLocked(c *claim, kind EventKind, cause core.Cause) {
	if !n.any() {
		return
	}
	ev := Event{Kind: kind, Name: c.name, Token: c.term.token, Lease: c.l.dl.ID(), Reason: c.reasonLocked(cause)}
	if kind != Stopping {
		ev.Took = c.l.s.uptime() - c.stopping
	}
	if kind != WorkStopped {
		e := c.endedErrorLocked(c.term.token, cause)
		ev.Cause, ev.By, ev.Text, ev.To = e.Cause, e.By, c.textLocked(cause), c.to
	}
	n.event(ev)
}

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

// next returns the oldest event that is left, and how many before it were lost. It waits for one
// until ctx ends, or last is closed and nothing is left.
func (f *feed[E]) next(ctx context.Context, last <-chan struct{}) (ev E, missed int, ok bool) {
	for {
		ended := false
		select {
		case <-last:
			ended = true // before the queue is looked at: what was pushed before it is told
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
		case <-last:
		case <-ctx.Done():
			return ev, 0, false
		}
	}
}
