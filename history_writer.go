package primacy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// How the historyWriter works.
const (
	noteAfter      = 50 * time.Millisecond  // from a win to its record: a term that is over sooner has no such record
	noteLimit      = 2 * time.Second        // for one call
	noteRefused    = time.Minute            // after the store refused a record none is written for so long
	maxNotes       = 100_000                // how many records wait; further ones are lost
	closeLimit     = time.Second            // how long Session.Close waits for records
	closeLimitDown = 100 * time.Millisecond // the same, if the last call failed
)

// historyWriter writes the records of history that no release carries, one after the other, on a
// goroutine that ends when there are none. Only Session.Close waits for it, for a moment.
type historyWriter struct {
	s       *Session
	journal driver.Journal // nil: no history
	limit   int            // how many records of an election are kept

	ctx    context.Context // for all calls
	cancel context.CancelFunc

	mu      sync.Mutex
	ends    []endNote
	begins  []beginNote   // in the order of due
	written chan struct{} // closed when there is nothing to write; nil while no goroutine runs
	wake    chan struct{} // holds a token when there is something new
	tries   int           // how many calls failed in a row
	off     time.Duration // nothing is written before that, by uptime
	shut    bool          // no more beginnings are taken
}

// endNote is the end of a term.
type endNote struct {
	journal string
	r       driver.Record
}

// beginNote is a term that was won. Its record is written when it is due, unless the term is over.
type beginNote struct {
	c   *claim
	due time.Duration // by uptime
}

func newHistoryWriter(s *Session) *historyWriter {
	w := &historyWriter{s: s, limit: 2 * s.o.History, wake: make(chan struct{}, 1)} // a term has two records at most
	w.ctx, w.cancel = context.WithCancel(context.Background())
	if j, ok := s.store.(driver.Journal); ok && s.o.History > 0 && s.store.Caps().Token != driver.TokenNone {
		w.journal = j
	}
	return w
}

// began has the record of a term's beginning written, after noteAfter.
func (w *historyWriter) began(c *claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.journal != nil && !w.shut && len(w.begins) < maxNotes {
		w.begins = append(w.begins, beginNote{c, w.s.uptime() + noteAfter})
		w.startLocked()
	}
}

// ended has the record of a term's end written.
func (w *historyWriter) ended(n endNote) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() == nil && len(w.ends) < maxNotes {
		w.ends = append(w.ends, n)
		w.startLocked()
	}
}

// startLocked has the records written on a goroutine of their own. The caller holds mu.
func (w *historyWriter) startLocked() {
	if w.written == nil {
		w.written = make(chan struct{})
		go w.run()
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// close forgets beginnings and waits a moment for the ends. What could not be written by then is
// lost.
func (w *historyWriter) close(ctx context.Context) {
	w.mu.Lock()
	limit := closeLimit
	if w.tries > 0 {
		limit = closeLimitDown
	}
	w.shut, w.begins = true, nil
	written := w.written
	if written != nil {
		w.startLocked()
	}
	w.mu.Unlock()
	defer w.cancel()
	if written == nil {
		return
	}
	select {
	case <-written:
	case <-time.After(limit):
	case <-ctx.Done():
	}
}

// run writes until there is nothing to write.
func (w *historyWriter) run() {
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

// next returns the next record, or how long to wait for it. The record is empty if nobody needs it
// any more. Ok is false if there is nothing to write: then run returns.
func (w *historyWriter) next() (n endNote, wait time.Duration, ok bool) {
	w.mu.Lock()
	switch {
	case w.ctx.Err() != nil, len(w.ends)+len(w.begins) == 0:
		close(w.written)
		w.written, w.ends = nil, nil
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
		n = w.beginning(b.c) // without our lock: it takes the claim's, which comes before
	}
	return n, wait, true
}

// write writes one record, until the store has taken or refused it, or the session is closed.
func (w *historyWriter) write(n endNote) {
	for try := 0; pause(w.ctx, try) == nil && !w.isOff(); try++ {
		ctx, cancel := context.WithTimeout(w.ctx, noteLimit)
		_, _, err := w.journal.Append(ctx, n.journal, n.r, w.limit) // that it is there already is as good
		cancel()
		final := err != nil && isRefusal(err)
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
func (w *historyWriter) isOff() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.off > w.s.uptime()
}

// beginning returns the record of a term that was won. It is empty if the right is over: the record
// of the end says all.
func (w *historyWriter) beginning(c *claim) (n endNote) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rightOver {
		return n
	}
	c.record.begun = true
	return endNote{historyPrefix + c.name, record{ID: w.s.o.ID, Value: announcedLocked(c), From: c.won}.encode(recordKey(c.term.token))}
}

// announcedLocked is the value that observers see. The caller holds the claim's lock.
func announcedLocked(c *claim) []byte {
	if c.proclaimed != nil {
		return c.proclaimed
	}
	return c.value
}

func (w *historyWriter) begunLocked(c *claim, _ time.Duration) { w.began(c) }

// termRecording is what was recorded of a term. There is a record of its beginning, if it lasted
// for noteAfter, and one of its end. The call that gives the place up carries the record of the
// end. If there is no such call, or the store does not confirm it, the writer appends that record.
// The claim's lock guards it.
type termRecording struct {
	ledTo       time.Time     // when the right ended, by the wall clock
	begun       bool          // the beginning was written, or may have been
	end         driver.Record // the record of the end
	withRelease bool          // the call that gives the place up carries end, for journal
	journal     string
	finished    bool // the writer has the end
}

// steppedLocked sees that the end of the term is recorded once.
func (w *historyWriter) steppedLocked(c *claim, s step) {
	if w.journal == nil || c.record.finished {
		return
	}
	if s.rightEnded {
		c.record.ledTo = rightEndedLocked(c)
	}
	switch phase := c.core.Phase(); {
	case phase == core.Leaving && (s.event == core.GiveUp || s.event == core.NoSuccessor):
		// A call that gives the place up follows.
		c.record.end = w.endLocked(c, c.core.Cause())
		c.record.withRelease, c.record.journal = c.record.begun || !sweeps(c.term.token), historyPrefix+c.name
	case phase == core.Stopping && c.rightOver: // the claim is gone, so no such call follows
		c.record.end = w.endLocked(c, s.order.Cause)
		w.appendLocked(c)
	case s.was == core.Leaving && phase == core.Done && (s.event != core.Left || !c.record.withRelease):
		// No such call was confirmed, or it carried nothing.
		if c.unconfirmedLocked() {
			// If the name was handed over all the same, readers prefer the record of that call.
			c.record.end = w.endLocked(c, c.core.Cause())
		}
		w.appendLocked(c)
	}
}

// appendLocked leaves the end of the term to the writer. The caller holds the claim's lock.
func (w *historyWriter) appendLocked(c *claim) {
	c.record.finished = true
	end := c.record.end
	w.ended(endNote{historyPrefix + c.name, driver.Record{Key: end.Key + endSuffix, Value: end.Value}})
}

// sweeps picks one term of sixteen. A release adds a record and removes none; only an append
// removes old ones. Short terms append no beginning, so one in sixteen appends its end, or the
// journal would grow without bound.
func sweeps(t Token) bool { return uint64(t)*0x9E3779B97F4A7C15>>60 == 0 }

// endLocked makes the record of the end of the claim's term. Cause is why its right is over, which
// need not be why its context ended. The caller holds the claim's lock.
func (w *historyWriter) endLocked(c *claim, cause core.Cause) driver.Record {
	r := record{ID: w.s.o.ID, Value: announcedLocked(c), From: c.won, To: c.record.ledTo,
		Reason: c.reasonLocked(cause), Text: c.textLocked(cause)}
	if c.request != nil && (cause == core.Resigned || cause == core.Transferred) {
		r.By = c.request.By
	}
	switch {
	case c.core.Successor() == 0 || c.core.Phase() == core.Stopping: // no hand-over was tried
	case c.core.Outcome() == core.SuccessorGone:
		r.Reason, r.Text = Resigned, "to be handed over to "+c.successorID+", which stood no more"
	case c.unconfirmedLocked():
		r.Reason, r.Text = Resigned, "to be handed over to "+c.successorID+", which the store has not confirmed"
	default:
		r.Reason, r.Successor = Transferred, c.successorID
	}
	return r.encode(recordKey(c.term.token))
}

// rightEndedLocked returns when the right ended, by the wall clock. That is the deadline at the
// latest, also for a process that was frozen then and runs again an hour later.
func rightEndedLocked(c *claim) time.Time {
	now := time.Now().Round(0)
	late := max(0, c.l.s.clock()-core.Time(c.l.trusted.Load()))
	if at := now.Add(-late); late == 0 || at.After(c.won) {
		return at
	}
	return c.won // the lease was almost over when the term was won
}

// historyPrefix is what the journals of elections begin with.
const historyPrefix = "terms/"

// A term has one record under its token, from a moment after it was won; the release replaces it by
// one with the end. What could not travel with a release is kept beside it, under the token with
// endSuffix, since a journal takes nothing back.
const endSuffix = "+end"

// Limits of what a record keeps: it travels with a release, beside hundreds of others.
const (
	recordText  = 512 // bytes of what people said
	recordValue = 512 // bytes of a value; a larger one is left out
)

// record is a term as it is kept. A reader ignores fields that he does not know, and a field is
// never given another meaning.
type record struct {
	Version   int       `json:"v"`
	ID        string    `json:"id,omitempty"`
	Value     []byte    `json:"value,omitempty"`
	From      time.Time `json:"from,omitzero"`
	To        time.Time `json:"to,omitzero"`
	Reason    Reason    `json:"why,omitempty"` // empty while it leads
	By        string    `json:"by,omitempty"`
	Text      string    `json:"text,omitempty"`
	Successor string    `json:"heir,omitempty"`
}

func recordKey(t Token) string { return fmt.Sprintf("%020d", uint64(t)) }

// encode makes the record that is kept under the key.
func (r record) encode(key string) driver.Record {
	r.Version = 1
	r.Text, r.By, r.Successor = cut(r.Text), cut(r.By), cut(r.Successor)
	if len(r.Value) > recordValue {
		r.Value = nil
	}
	r.From, r.To = r.From.UTC().Truncate(time.Millisecond), r.To.UTC().Truncate(time.Millisecond)
	b, err := json.Marshal(r)
	if err != nil { // a year beyond 9999
		r.From, r.To = time.Time{}, time.Time{}
		b, _ = json.Marshal(r)
	}
	return driver.Record{Key: key, Value: b}
}

// cut shortens what people said.
func cut(s string) string {
	if len(s) <= recordText {
		return s
	}
	return strings.ToValidUTF8(s[:recordText-len("…")], "") + "…"
}

// readRecord reads a record; anybody who may write to the store may have written it.
func readRecord(d driver.Record) (t Token, r record, end, ok bool) {
	key, end := strings.CutSuffix(d.Key, endSuffix)
	n, err := strconv.ParseUint(key, 10, 64)
	if err != nil || n == 0 || key != recordKey(Token(n)) || len(d.Value) > driver.MaxRecord {
		return 0, r, false, false
	}
	if json.Unmarshal(d.Value, &r) != nil || r.Version < 1 {
		return 0, r, false, false
	}
	if r.Reason == Leads || r.Reason == Unknown {
		r.Reason = "" // no record says that: the line does
	}
	if end && r.Reason == "" {
		return 0, r, false, false
	}
	r.From, r.To = tellable(r.From), tellable(r.To)
	return Token(n), r, end, true
}

// tellable returns t in UTC, zero if it has a year that no reader could be told.
func tellable(t time.Time) time.Time {
	if t = t.UTC(); t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}

// RecordDeath returns the record by which the history of an election says that the process which
// led under that token died, and the name of the journal for it. It is for who has seen that
// process and all its work die, as the guardian of a command has: he appends it before he revokes
// the lease, with a keep that removes nothing (math.MaxInt32). What the leader itself has said
// counts first. At is by his wall clock.
func RecordDeath(name string, t Token, id string, at time.Time, text string) (journal string, r driver.Record) {
	return historyPrefix + name, record{ID: id, To: at, Reason: Died, Text: text}.encode(recordKey(t) + endSuffix)
}
