package primacy

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// How the scribe works.
const (
	historyDefault = 100 // terms kept
	maxHistory     = 10_000
	noteAfter      = 50 * time.Millisecond  // from a win to its record: a term that is over sooner leaves one, not two, and a hand-over has the store for itself
	noteLimit      = 2 * time.Second        // of one call
	noteRefused    = time.Minute            // without records, where the store takes none
	maxNotes       = 100_000                // that wait; what is beyond them is lost
	closeLimit     = time.Second            // that Close waits for records, and
	closeLimitDown = 100 * time.Millisecond // where the last one failed
)

// scribe writes records of history that do not travel with a release, one after the other, on a goroutine that is there while there are any. Nobody
// waits for it, but for a moment in Close.
type scribe struct {
	s       *Session
	journal driver.Journal // nil: no history
	keep    int            // records

	ctx  context.Context // of all writing
	stop context.CancelFunc

	mu     sync.Mutex
	ends   []endNote
	begins []beginNote   // in the order of due
	busy   chan struct{} // closed when there is nothing to write; nil while no goroutine runs
	wake   chan struct{} // holds a token when there is something new
	tries  int           // failed in a row
	off    time.Duration // nothing is written before, by uptime
	shut   bool
}

// endNote is the end of a term.
type endNote struct {
	journal string
	r       driver.Record
}

// beginNote is a term that was won. It is written unless it is over by then.
type beginNote struct {
	c   *claim
	due time.Duration // by uptime
}

func newScribe(s *Session) *scribe {
	w := &scribe{s: s, keep: 2 * s.o.History, wake: make(chan struct{}, 1)} // a term has two records at most
	w.ctx, w.stop = context.WithCancel(context.Background())
	if j, ok := s.store.(driver.Journal); ok && s.o.History > 0 && s.store.Caps().Token != driver.TokenNone {
		w.journal = j
	}
	return w
}

// began has the beginning of a term written in a moment.
func (w *scribe) began(c *claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.journal != nil && !w.shut && len(w.begins) < maxNotes {
		w.begins = append(w.begins, beginNote{c, w.s.uptime() + noteAfter})
		w.hire()
	}
}

// ended has the end of a term written that could not travel with its release.
func (w *scribe) ended(n endNote) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() == nil && len(w.ends) < maxNotes {
		w.ends = append(w.ends, n)
		w.hire()
	}
}

// hire sees that somebody writes. The lock is held.
func (w *scribe) hire() {
	if w.busy == nil {
		w.busy = make(chan struct{})
		go w.run()
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// close forgets beginnings and waits a moment for the ends. What could not be written by then is lost.
func (w *scribe) close(ctx context.Context) {
	w.mu.Lock()
	limit := closeLimit
	if w.tries > 0 {
		limit = closeLimitDown
	}
	w.shut, w.begins = true, nil
	busy := w.busy
	if busy != nil {
		w.hire()
	}
	w.mu.Unlock()
	defer w.stop()
	if busy == nil {
		return
	}
	select {
	case <-busy:
	case <-time.After(limit):
	case <-ctx.Done():
	}
}

// run writes until there is nothing to write.
func (w *scribe) run() {
	for {
		n, wait, ok := w.next()
		switch {
		case !ok:
			return
		case wait > 0:
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-w.wake:
			case <-w.ctx.Done():
			}
			timer.Stop()
		case n.r.Key != "":
			w.write(n)
		}
	}
}

// next returns the next record, none if it is not needed any more, or how long to wait for it. It says no when nothing is left: then run is over.
func (w *scribe) next() (n endNote, wait time.Duration, ok bool) {
	w.mu.Lock()
	switch {
	case w.ctx.Err() != nil, len(w.ends)+len(w.begins) == 0:
		close(w.busy)
		w.busy, w.ends = nil, nil
		w.mu.Unlock()
		return n, 0, false
	case len(w.ends) > 0:
		n = w.ends[0]
		w.ends = w.ends[1:]
		w.mu.Unlock()
		return n, 0, true
	}
	b := w.begins[0]
	if wait = b.due - w.s.uptime(); wait <= 0 {
		w.begins = w.begins[1:]
	}
	w.mu.Unlock()
	if wait <= 0 {
		n = b.c.beginning() // takes the claim's lock, under which ours is taken
	}
	return n, wait, true
}

// write writes one record, until the store has taken or refused it, or the session is closed.
func (w *scribe) write(n endNote) {
	for try := 0; pause(w.ctx, try) == nil && !w.isOff(); try++ {
		ctx, cancel := context.WithTimeout(w.ctx, noteLimit)
		_, _, err := w.journal.Append(ctx, n.journal, n.r, w.keep) // that it is there already is as good
		cancel()
		final := err != nil && isFinal(err)
		w.mu.Lock()
		if w.tries++; err == nil || final {
			w.tries = 0
		}
		if final {
			w.off = w.s.uptime() + noteRefused
		}
		w.mu.Unlock()
		if final {
			w.s.log.log(slog.LevelWarn, "the store takes no history", "journal", n.journal, "err", err)
		}
		if err == nil || final {
			return
		}
	}
}

// isOff says whether the store has refused a record a short while ago.
func (w *scribe) isOff() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.off > w.s.uptime()
}
