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
	recordAfter    = 50 * time.Millisecond  // from a win to its record: a term that is over sooner has none
	appendLimit    = 2 * time.Second        // for one call of Append
	refusedPause   = time.Minute            // without any such call, after the store refused one
	maxPending     = 100_000                // how many records wait; further ones are lost
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

	mu       sync.Mutex
	ends     []journalRecord // of terms
	begins   []pendingBegin  // in the order of due
	written  chan struct{}   // closed when there is nothing to write; nil while no goroutine runs
	wake     chan struct{}   // holds a token when there is something new
	failures int             // how many calls failed in a row
	resume   time.Duration   // nothing is written before that, by uptime
	closing  bool            // no more beginnings are taken
}

type journalRecord struct {
	journal string
	r       driver.Record
}

// pendingBegin is a term that was won. Its beginning is recorded when it is due, unless the term is
// over by then.
type pendingBegin struct {
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

// begunLocked has the beginning of a term recorded, after recordAfter.
func (w *historyWriter) begunLocked(c *claim, _ time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.journal != nil && !w.closing && len(w.begins) < maxPending {
		w.begins = append(w.begins, pendingBegin{c, w.s.uptime() + recordAfter})
		w.startLocked()
	}
}

// startLocked wakes the goroutine that writes, or starts one. The caller holds mu.
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

// close drops the beginnings and waits a moment until the ends are written, or lost.
func (w *historyWriter) close(ctx context.Context) {
	w.mu.Lock()
	limit := closeLimit
	if w.failures > 0 {
		limit = closeLimitDown
	}
	w.closing, w.begins = true, nil
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

// next returns the next record, or how long to wait before it asks again. The record is empty where
// a term was over before its beginning was due. Ok is false if there is nothing to write: then run
// has to return.
func (w *historyWriter) next() (n journalRecord, wait time.Duration, ok bool) {
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
		n = w.beginning(b.c) // without mu: it takes the claim's lock, which comes before mu
	}
	return n, wait, true
}

// write appends one record: it repeats the call until the store has taken or refused the record, or
// the session is closed.
func (w *historyWriter) write(n journalRecord) {
	for try := 0; pause(w.ctx, try) == nil && !w.refused(); try++ {
		ctx, cancel := context.WithTimeout(w.ctx, appendLimit)
		_, _, err := w.journal.Append(ctx, n.journal, n.r, w.limit) // no error if the record is there already
		cancel()
		refused := isRefusal(err)
		w.mu.Lock()
		if w.failures++; err == nil || refused {
			w.failures = 0
		}
		if refused {
			w.resume = w.s.uptime() + refusedPause
		}
		w.mu.Unlock()
		if refused {
			w.s.log.log(slog.LevelWarn, "the store takes no history", "journal", n.journal, "err", err)
		}
		if err == nil || refused {
			return
		}
	}
}

// refused says whether the store has refused a record within refusedPause.
func (w *historyWriter) refused() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.resume > w.s.uptime()
}

// beginning returns the record of a term's beginning. It is empty if the right is over: the record
// of the end says when the term began, too.
func (w *historyWriter) beginning(c *claim) (n journalRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rightOver {
		return n
	}
	c.record.begun = true
	r := record{ID: w.s.o.ID, Value: announcedLocked(c), From: c.won}
	return journalRecord{historyPrefix + c.name, r.encode(recordKey(c.term.token))}
}

// announcedLocked is the value that observers see. The caller holds the claim's lock.
func announcedLocked(c *claim) []byte {
	if c.proclaimed != nil {
		return c.proclaimed
	}
	return c.value
}

// termRecording is what the history has of a term. The claim's lock guards it.
type termRecording struct {
	begun    bool           // the beginning was appended, or may have been
	ledTo    time.Time      // when the right ended, by the wall clock
	carried  *driver.Record // of the end, in calls that give the place up; nil: none; replaced, never changed
	journal  string         // for carried
	appended bool           // the writer has the record of the end
}

// steppedLocked has the end of a term recorded once: by the call that gives the place up, or else
// by the writer.
//
//	phase of the claim         record of the end
//	Leading, Stopping          none yet
//	Stopping, the right over   appended: the claim is gone, so no call gives its place up
//	Leaving                    carried by the calls that give the place up, or left for Done
//	Done, after Leaving        appended, unless the store confirmed a call that carried it
func (w *historyWriter) steppedLocked(c *claim, s step) {
	r := &c.record
	if w.journal == nil || r.appended {
		return
	}
	if s.rightEnded {
		r.ledTo = rightEndedLocked(c)
	}
	switch phase := c.core.Phase(); {
	case phase == core.Stopping && c.rightOver:
		w.appendEndLocked(c, s.order.Cause)
	case phase == core.Leaving && !r.begun && trims(c.term.token):
		// left for Done
	case phase == core.Leaving && (s.event == core.GiveUp || s.event == core.NoSuccessor):
		// After NoSuccessor the place is released and not handed over: that is another record.
		end := w.endLocked(c, c.core.Cause()).encode(recordKey(c.term.token))
		r.carried, r.journal = &end, historyPrefix+c.name
	case s.was == core.Leaving && phase == core.Done && (s.event != core.Left || r.carried == nil):
		// A call that was not confirmed may have left its record all the same: readers prefer that.
		w.appendEndLocked(c, s.order.Cause)
	}
}

// appendEndLocked has the record of a term's end appended. The caller holds the claim's lock.
func (w *historyWriter) appendEndLocked(c *claim, cause core.Cause) {
	c.record.appended = true
	r := w.endLocked(c, cause).encode(recordKey(c.term.token) + endSuffix)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() == nil && len(w.ends) < maxPending {
		w.ends = append(w.ends, journalRecord{historyPrefix + c.name, r})
		w.startLocked()
	}
}

// trims picks one term of sixteen. Only Append removes old records, and a short term appends no
// beginning: those that trims picks append their end, so that the journal is bounded.
func trims(t Token) bool { return uint64(t)*0x9E3779B97F4A7C15>>60 == 0 }

// endLocked returns the record of the end of the claim's term. Cause is why the right is over: the
// context may have ended before, for another cause. The caller holds the claim's lock.
func (w *historyWriter) endLocked(c *claim, cause core.Cause) record {
	r := record{ID: w.s.o.ID, Value: announcedLocked(c), From: c.won, To: c.record.ledTo,
		Reason: c.reasonLocked(cause), Text: c.textLocked(cause)}
	if q := c.requestLocked(cause); q != nil {
		r.By = q.By
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
	return r
}

// rightEndedLocked returns when the right ended, by the wall clock: now, or at the deadline, if
// that has passed (the process may have been frozen for an hour).
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

// endSuffix tells the keys of a term's records apart. The record of its beginning has its token as
// key. A call that gives the place up replaces that record by the one of the end. Append cannot
// replace a record, so an end that is appended has the token and endSuffix as key.
const endSuffix = "+end"

// Limits of what a record keeps: one request may carry hundreds of records.
const (
	recordText  = 512 // bytes of what people said
	recordValue = 512 // bytes of a value; a larger one is left out
)

// record is the JSON of a record. Readers ignore fields that they do not know, and no field ever
// gets another meaning.
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

// cut returns s, cut to recordText bytes.
func cut(s string) string {
	if len(s) <= recordText {
		return s
	}
	return strings.ToValidUTF8(s[:recordText-len("…")], "") + "…"
}

// readRecord reads a record, which anybody who may write to the store may have written. End says
// that its key has endSuffix.
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

// RecordDeath returns a record for the history of an election, and the name of its journal. It says
// that the process that led under that token has died, at that time of the caller's wall clock. A
// guardian appends it once it has seen the process and all its work die, before it revokes the
// lease, and with math.MaxInt32 as the limit of Append, which removes no record. A record that the
// leader itself left overrides it.
func RecordDeath(name string, t Token, id string, at time.Time, text string) (journal string, r driver.Record) {
	return historyPrefix + name, record{ID: id, To: at, Reason: Died, Text: text}.encode(recordKey(t) + endSuffix)
}
