package primacy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// How the historyWriter works.
const (
	recordAfter    = 50 * time.Millisecond  // from a win to its record; a shorter term has only the record of its end
	recordEarly    = recordAfter / 2        // so much earlier a record goes with another one that is due
	maxGroup       = 512                    // how many records are written at a time, if the store gathers calls
	restTimes      = 16                     // so many times as long as a group took nothing is written after it
	restLimit      = time.Second            // but not longer than this
	appendLimit    = 2 * time.Second        // for one call of Append; see groupLimit
	refusedPause   = time.Minute            // after a refused Append: no other one for so long
	pastLimit      = 2 * time.Second        // for reading what is known of the terms before; see groupLimit
	maxPending     = 100_000                // how many records wait; further ones are lost
	aliveEvery     = time.Minute            // from one sign of life of a term to the next, or six TTLs if that is less
	maxAlive       = 100                    // how many terms of a session leave signs of life
	closeLimit     = time.Second            // how long Session.Close waits for records
	closeLimitDown = 100 * time.Millisecond // the same, if the last call failed
)

// historyWriter appends records of history, on a goroutine that ends when there are none. They go
// one after the other, or in groups if the store gathers calls (driver.Caps): then all calls of a
// group are made at once, and between groups the writer rests. Without that 10,000 records would
// take the store's time from the claims and renewals of whoever wins 10,000 elections. Only
// Session.Close waits for it, for a moment. A release or a hand-over carries the record of its
// term's end (driver.Place.Record). It is appended if no such call carried it, or none was
// confirmed: see steppedLocked. Beginnings, signs of life and overruns are always appended.
//
// The caller of a method that ends in Locked holds the lock of the claim that it is about. The one
// exception is startLocked, which needs w.mu. A claim's lock comes before w.mu.
type historyWriter struct {
	s       *Session
	journal driver.Journal // nil: no history
	limit   int            // how many records of an election are kept
	group   int            // how many records are written at a time, at most

	ctx    context.Context // for all calls
	cancel context.CancelFunc

	mu       sync.Mutex
	ends     []journalRecord // of terms, and of overruns
	begins   []dueRecord     // in the order of due
	alive    []dueRecord     // terms that leave signs of life, in the order of due; at most maxAlive
	writing  []journalRecord // those of ends that write is busy with; close adds them to lost
	drop     func()          // ends a write of other records than ends; nil: there is none
	lost     []journalRecord // what close could not write of ends
	written  chan struct{}   // closed when there is nothing to write; nil while no goroutine runs
	wake     chan struct{}   // holds a token when there is something new
	failures int             // how many writes failed in a row
	trusted  bool            // the last write was taken; if not, one record is taken out and written
	resume   time.Duration   // nothing is written before that, by uptime: the store has refused a record
	rested   time.Duration   // nothing is written before that, by uptime, unless the session closes
	closing  bool            // no more beginnings are taken
}

// journalRecord is a record to append.
type journalRecord struct {
	journal, key string
	r            record
	keep         int    // as in driver.Journal.Append; 0: the writer's limit
	once         bool   // write tries it once only
	tried        bool   // the store may have it
	sumUp        *claim // if not nil, write first adds a summary of the terms before this claim's
	unread       bool   // the summary could not be read; write tries that a second time
}

// dueRecord is a term whose beginning, or next sign of life, is recorded when it is due, unless the
// term is over by then.
type dueRecord struct {
	c        *claim
	due      time.Duration // by uptime
	withPast bool          // sum up the terms before, and leave signs of life: see campaignHistory
	t        *Term         // of a sign of life; nil: of a beginning
}

func newHistoryWriter(s *Session) *historyWriter {
	w := &historyWriter{s: s, limit: 3 * s.o.History, wake: make(chan struct{}, 1)} // a term has three records at most
	w.ctx, w.cancel = context.WithCancel(context.Background())
	if j, ok := s.store.(driver.Journal); ok && s.o.History > 0 && s.store.Caps().Token != driver.TokenNone {
		w.journal = j
	}
	if w.group = 1; s.store.Caps().Gathers {
		w.group = maxGroup
	}
	return w
}

// begunLocked has the beginning of a term recorded, after recordAfter.
func (w *historyWriter) begunLocked(c *claim, _ time.Duration) { w.beginLocked(c, false) }

func (w *historyWriter) beginLocked(c *claim, withPast bool) {
	c.record.recordOverrun = w.recordOverrunLocked
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.journal != nil && !w.closing && len(w.begins) < maxPending {
		w.begins = append(w.begins, dueRecord{c: c, due: w.s.uptime() + recordAfter, withPast: withPast})
		w.startLocked()
	}
}

// campaignHistory is the historyWriter as the observer of campaigns' claims. Terms won by Campaign
// also record what is known of the time before, and leave signs of life. Terms of an Elections do
// neither as a rule: there may be thousands, which would burden the store.
type campaignHistory struct{ *historyWriter }

// begunLocked takes what this session knows of the time before the term, and has the beginning of
// the term recorded.
func (w campaignHistory) begunLocked(c *claim, began time.Duration) {
	if w.journal == nil {
		return
	}
	// Uptime stands still while the machine sleeps. If it slept since the campaign began, this
	// instant comes out too late, and an outage before it is left out.
	campaignBegan := w.s.clock() - (w.s.uptime() - began)
	if from, to, ok := w.s.outages.lastOver(campaignBegan); ok {
		c.record.before = &recordBefore{DownFrom: w.wall(from), DownTo: w.wall(to)}
	}
	w.beginLocked(c, true)
}

// startLocked wakes the goroutine that writes, or starts one. The caller holds w.mu.
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

// close drops the beginnings, also those that are being written, and waits a moment for the ends.
// What is not written then is lost.
func (w *historyWriter) close(ctx context.Context) {
	w.mu.Lock()
	limit := closeLimit
	if w.failures > 0 {
		limit = closeLimitDown
	}
	w.closing, w.begins, w.alive = true, nil, nil
	if w.drop != nil {
		w.drop()
	}
	written := w.written
	if written != nil {
		w.startLocked()
	}
	w.mu.Unlock()
	if written != nil {
		select {
		case <-written:
		case <-time.After(limit):
		case <-ctx.Done():
		}
	}
	w.cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = append(w.lost, w.writing...) // the store may have these, or not
	w.lost = append(w.lost, w.ends...)
	w.writing, w.ends = nil, nil
}

// run writes until there is nothing to write.
func (w *historyWriter) run() {
	for {
		group, wait, ok := w.next()
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
		default:
			began := w.s.uptime()
			w.write(group)
			w.rest(len(group), w.s.uptime()-began)
		}
	}
}

// rest notes until when the writer rests, after so many records that took so long.
func (w *historyWriter) rest(n int, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > 1 {
		w.rested = w.s.uptime() + min(restTimes*took, restLimit)
	}
}

// next returns what run does next: it writes the group; it waits, and calls next again; or, if ok
// is false, it returns. A term that was over before its record was due has none in the group.
func (w *historyWriter) next() (group []journalRecord, wait time.Duration, ok bool) {
	group, due, wait, ok := w.take()
	// Signs of life are the first: each has its next one put into alive. Beginnings that came first
	// would take the places there, and terms that lead on would leave no more signs of life.
	slices.SortStableFunc(due, func(a, b dueRecord) int {
		switch {
		case (a.t == nil) == (b.t == nil):
			return 0
		case b.t == nil:
			return -1
		}
		return 1
	})
	for _, b := range due { // mu is not held here: these take the claim's lock
		var n journalRecord
		if b.t == nil {
			n = w.beginning(b)
		} else {
			n = w.signOfLife(b)
		}
		if n.key != "" {
			group = append(group, n)
		}
	}
	return group, wait, ok
}

// take takes out what is to be written next: ends of terms and overruns, or terms whose beginning
// or sign of life is due. If nothing is due, wait is the time until something is.
func (w *historyWriter) take() (ends []journalRecord, due []dueRecord, wait time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() == nil {
		w.writing = nil // but not once ctx has ended: then close reads it
	}
	switch {
	case w.ctx.Err() != nil, len(w.ends)+len(w.begins)+len(w.alive) == 0:
		close(w.written)
		w.written = nil
		return nil, nil, 0, false
	case w.rested > w.s.uptime() && !w.closing:
		return nil, nil, w.rested - w.s.uptime(), true
	case len(w.ends) > 0:
		ends = w.takeEndsLocked()
		w.writing = slices.Clone(ends) // write completes its own
		return ends, nil, 0, true
	}
	due, wait = w.takeDueLocked()
	return nil, due, wait, true
}

// togetherLocked returns how many records are taken out at a time: one while the store is not
// trusted. The others stay in their queues, where terms that end meanwhile are still known to have
// no record.
func (w *historyWriter) togetherLocked() int {
	if !w.trusted {
		return 1
	}
	return w.group
}

// takeEndsLocked takes out the oldest ends, at most one of each journal: a record that sums up the
// terms before it is written when theirs are there.
func (w *historyWriter) takeEndsLocked() (ends []journalRecord) {
	journals := map[string]bool{}
	var later []journalRecord
	for _, n := range w.ends[:min(len(w.ends), w.togetherLocked())] {
		if journals[n.journal] {
			later = append(later, n)
			continue
		}
		journals[n.journal] = true
		ends = append(ends, n)
	}
	w.ends = w.ends[len(ends):]
	copy(w.ends, later)
	return ends
}

// takeDueLocked takes out what is due, and what would be due soon after it. If nothing is due, wait
// is the time until something is.
func (w *historyWriter) takeDueLocked() (due []dueRecord, wait time.Duration) {
	now, early, most := w.s.uptime(), time.Duration(0), w.togetherLocked()
	for len(due) < most && len(w.begins)+len(w.alive) > 0 {
		from := &w.alive
		if len(w.alive) == 0 || len(w.begins) > 0 && w.begins[0].due <= w.alive[0].due {
			from = &w.begins
		}
		first := (*from)[0]
		if left := first.due - now; left > early {
			wait = left
			break
		}
		*from, due, early = (*from)[1:], append(due, first), recordEarly
	}
	if len(due) > 0 {
		wait = 0
	}
	return due, wait
}

// write appends records: it repeats the calls until the store has taken or refused each, or the
// session is closed. While the store does not answer, it tries one record only. After a refusal it
// goes on with those that the store may have or not, and drops the others.
func (w *historyWriter) write(group []journalRecord) {
	ctx, done := w.beginWrite()
	defer done()
	for try := 0; ; try++ {
		if w.refused() {
			group = slices.DeleteFunc(group, func(n journalRecord) bool { return !n.tried })
			w.noteWriting(group)
		}
		if len(group) == 0 || pause(ctx, try) != nil {
			return
		}
		n := len(group)
		if !w.trusts() {
			n = 1
		}
		n = w.addPasts(ctx, group[:n])
		left, ok := w.try(ctx, group[:n])
		if group = append(left, group[n:]...); ok {
			try = -1
		}
		w.noteWriting(group)
	}
}

// beginWrite returns the context of a write, which is over when done is called. Close ends the
// context at once if no ends are written: ends may wait behind what is.
func (w *historyWriter) beginWrite() (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing != nil {
		return ctx, cancel
	}
	if w.closing {
		cancel()
	}
	w.drop = cancel
	return ctx, func() {
		cancel()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.drop = nil
	}
}

// noteWriting notes which ends are still to be written.
func (w *historyWriter) noteWriting(group []journalRecord) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing != nil {
		w.writing = slices.Clone(group) // write goes on to complete its own
	}
}

// groupLimit returns how long so many calls that are made at once may take, if one may take that
// long: they travel some 100 in a request, or fewer, one request after the other. A store that is
// slow and answers each request has not failed.
func groupLimit(one time.Duration, n int) time.Duration { return one * time.Duration(1+n/100) }

// try makes one call of Append for each record, all at once. It returns those that the store may
// have or not, and are to be tried again. Ok says that the store has answered each call.
func (w *historyWriter) try(all context.Context, some []journalRecord) (left []journalRecord, ok bool) {
	ctx, cancel := context.WithTimeout(all, groupLimit(appendLimit, len(some)))
	defer cancel()
	errs := make([]error, len(some))
	atOnce(len(some), func(i int) {
		n := &some[i]
		n.tried = true
		// Append returns no error if the record is there already. The last argument is how many
		// records the journal keeps: the newest.
		_, _, errs[i] = w.journal.Append(ctx, n.journal, n.r.encode(n.key), cmp.Or(n.keep, w.limit))
	})
	ok = true
	var refusal error
	var refused journalRecord // a sign of life is not logged: the next one follows soon
	for i, n := range some {
		switch {
		case isRefusal(errs[i]):
			if refusal = errs[i]; !n.once {
				refused = n
			}
		case errs[i] != nil:
			if ok = false; !n.once {
				left = append(left, n)
			}
		}
	}
	w.mu.Lock()
	if w.failures++; ok || all.Err() != nil { // close has ended the calls: the store has not failed
		w.failures = 0
	}
	if all.Err() == nil {
		w.trusted = ok && refusal == nil
	}
	if refusal != nil {
		w.resume = w.s.uptime() + refusedPause
	}
	w.mu.Unlock()
	if refused.journal != "" {
		w.s.log.log(slog.LevelWarn, "the store takes no history", "journal", refused.journal, "err", refusal)
	}
	return left, ok
}

// trusts says whether several records may be written at a time.
func (w *historyWriter) trusts() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.trusted
}

// atOnce calls do for 0 to n-1, and returns when all have returned.
func atOnce(n int, do func(i int)) {
	if n == 1 {
		do(0)
		return
	}
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

// addPasts completes those records that sum up the terms before theirs. It sorts the records, and
// returns how many of them are to be written now. The others could not be completed, and are tried
// a second time when those are written: the store may be down just now.
func (w *historyWriter) addPasts(ctx context.Context, some []journalRecord) int {
	var open []*journalRecord
	for i := range some {
		if some[i].sumUp != nil {
			open = append(open, &some[i])
		}
	}
	if len(open) == 0 {
		return len(some)
	}
	limit := groupLimit(pastLimit, len(open))
	atOnce(len(open), func(i int) {
		n := open[i]
		if w.addPast(ctx, n, limit) || n.unread {
			n.sumUp = nil
		}
		n.unread = true
	})
	var ready, later []journalRecord
	for _, n := range some {
		if n.sumUp == nil {
			ready = append(ready, n)
		} else {
			later = append(later, n)
		}
	}
	if len(ready) == 0 { // the first one goes without, and so tells when the store answers again
		w.mu.Lock()
		w.trusted = false
		w.mu.Unlock()
		later[0].sumUp = nil
	}
	copy(some[copy(some, ready):], later)
	return max(1, len(ready))
}

// addPast completes a record by what the history knows of the terms before. It reports false if the
// store does not answer.
func (w *historyWriter) addPast(ctx context.Context, n *journalRecord, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := n.sumUp
	token := c.currentTerm().token
	past, last, err := readPast(ctx, w.journal, c.name, recordKey(token))
	if err != nil {
		return isRefusal(err)
	}
	var led time.Time
	if last.token != 0 {
		led, _ = readAlive(ctx, w.journal, c.name, last.token)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.record.past = past
	if !led.IsZero() {
		before := recordBefore{Token: last.token, Led: led}
		if b := c.record.before; b != nil {
			before.DownFrom, before.DownTo = b.DownFrom, b.DownTo
		}
		c.record.before = &before
	}
	n.r.Past, n.r.Before = c.record.past, c.record.before
	return true
}

// unrecorded yields the records that close could not write.
func (w *historyWriter) unrecorded(yield func(string, driver.Record) bool) {
	w.mu.Lock()
	lost := slices.Clone(w.lost)
	w.mu.Unlock()
	for _, n := range lost {
		if !yield(n.journal, n.r.encode(n.key)) {
			return
		}
	}
}

// recordInFlight returns the record of the end that a release carries, if the store has not
// confirmed that release yet.
func (c *claim) recordInFlight() (journal string, r driver.Record, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.termState == nil || c.core.Phase() != core.Leaving || c.record.carried == nil {
		return "", r, false
	}
	r = *c.record.carried
	r.Key += endSuffix // if the release arrives later, both keys exist: readers prefer the one without suffix
	return c.record.journal, r, true
}

// refused says whether the store has refused a record within refusedPause.
func (w *historyWriter) refused() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.resume > w.s.uptime()
}

// beginning returns the record of a term's beginning. It is empty if the right is over: the record
// of the end says when the term began, too.
func (w *historyWriter) beginning(b dueRecord) (n journalRecord) {
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rightOver {
		return n
	}
	c.record.begun = true
	n = journalRecord{journal: historyPrefix + c.name, key: recordKey(c.term.token),
		r: record{ID: w.s.o.ID, Value: announcedLocked(c), From: c.won, Before: c.record.before}}
	if b.withPast || sumsUp(c.term.token) {
		n.sumUp = c
	}
	if b.withPast {
		w.stayAliveLocked(c)
	}
	return n
}

// stayAliveLocked has the claim's next sign of life written when it is due.
func (w *historyWriter) stayAliveLocked(c *claim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.alive) >= maxAlive { // terms that are over still have entries here
		w.alive = slices.DeleteFunc(w.alive, func(b dueRecord) bool { return b.t.rightEnded.Load() != nil })
	}
	if !w.closing && len(w.alive) < maxAlive { // all have the same delay, so append keeps the order
		w.alive = append(w.alive, dueRecord{c: c, t: c.term, due: w.s.uptime() + min(aliveEvery, 6*w.s.o.TTL)})
	}
}

// signOfLife returns a record saying that the term leads now; it is empty if the term does not. If
// the process dies, its last sign of life is what is known of the end of the term.
func (w *historyWriter) signOfLife(b dueRecord) (n journalRecord) {
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now() // before the deadline is looked at: it may pass in between
	if c.rightOver || w.s.clock() >= core.Time(c.l.deadline.Load()) {
		return n
	}
	w.stayAliveLocked(c)
	return journalRecord{journal: alivePrefix + c.name, key: aliveKey(c.term.token, now), keep: 1, once: true}
}

// announcedLocked is the value that observers see.
func announcedLocked(c *claim) []byte {
	if c.shown == nil {
		return c.value
	}
	return c.shown.value(c.place.ID, c.value)
}

// termRecording is what the history has of a term. The claim's lock guards it.
type termRecording struct {
	recordOverrun func(*Term, time.Duration) // recordOverrunLocked of the writer (idle without a journal), or nil
	begun         bool                       // the beginning was appended, or may have been; not of a short term
	before        *recordBefore              // what is known of the time before the term
	past          reasonCounts               // how many terms before it ended, and why; nil: not known
	ledTo         time.Time                  // when the right ended, by the wall clock
	rightEnd      core.Time                  // the same on the boot clock
	carried       *driver.Record             // of the end, for calls that give the place up; replaced, never modified
	journal       string                     // for carried
	appended      bool                       // the writer has the record of the end
}

// steppedLocked has the end of a term recorded once. If the store confirms a call that gives the
// place up, that call has carried the record. In all other cases the writer appends it:
//
//	phase after the step  what happens to the record of the end
//	Leading, Stopping     nothing yet
//	Ended                 it is appended: no call will give the place up
//	Leaving               the calls that give the place up carry it; after NoSuccessor they carry
//	                      another one, which says that the name was released
//	Done                  it is appended, if no call has carried it, or none was confirmed
//
// One short term in sixteen is an exception: no call carries its record, and the writer appends it
// (sumsUp).
func (w *historyWriter) steppedLocked(c *claim, s step) {
	r := &c.record
	if w.journal == nil || r.appended {
		return
	}
	if s.rightEnded {
		r.ledTo, r.rightEnd = rightEndedLocked(c), min(w.s.clock(), core.Time(c.l.lastDeadline.Load()))
	}
	switch phase := c.core.Phase(); {
	case phase == core.Ended:
		w.appendEndLocked(c, s.order.Cause)
	case phase == core.Leaving && !r.begun && sumsUp(c.term.token):
		// no call carries it
	case phase == core.Leaving && (s.event == core.GiveUp || s.event == core.NoSuccessor):
		end := w.endRecordLocked(c, c.core.Cause()).encode(recordKey(c.term.token))
		r.carried, r.journal = &end, historyPrefix+c.name
	case s.was == core.Leaving && phase == core.Done && (s.event != core.Left || r.carried == nil):
		// An unconfirmed call may have left its record. Readers prefer that one to this one.
		w.appendEndLocked(c, s.order.Cause)
	}
}

// appendEndLocked has the record of a term's end appended.
func (w *historyWriter) appendEndLocked(c *claim, cause core.Cause) {
	c.record.appended = true
	n := journalRecord{journal: historyPrefix + c.name, key: recordKey(c.term.token) + endSuffix,
		r: w.endRecordLocked(c, cause)}
	if !c.record.begun && sumsUp(c.term.token) {
		n.sumUp = c
	}
	w.append(n)
}

// append has a record written of how a term ended, or of an overrun.
func (w *historyWriter) append(n journalRecord) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.journal == nil, len(w.ends) >= maxPending:
	case w.ctx.Err() != nil:
		w.lost = append(w.lost, n)
	default:
		w.ends = append(w.ends, n)
		w.startLocked()
	}
}

// recordOverrunLocked records that work was seen alive for so long after the right of its term had
// ended. The record of the end may be in the store already, and cannot be changed, so this is
// another record.
func (w *historyWriter) recordOverrunLocked(t *Term, by time.Duration) {
	if by = by.Truncate(time.Millisecond); by > 0 && !t.c.lock {
		w.append(journalRecord{journal: historyPrefix + t.c.name, key: recordKey(t.token) + overSuffix,
			r: record{ID: w.s.o.ID, From: t.c.won, Outlived: int64(by / time.Millisecond)}})
	}
}

// sumsUp picks one term of sixteen. A record of such a term is appended, also if it was shorter
// than recordAfter, and sums up all terms before it. Without this the only record of a short term
// would be the one that its release carries. Only Append removes old records, so the journal of a
// name with short terms only would grow for ever. The product is a hash: tokens may grow by even
// steps.
func sumsUp(t Token) bool { return uint64(t)*0x9E3779B97F4A7C15>>60 == 0 }

// endRecordLocked returns the record of the end of the claim's term. Cause is why the right ended.
// It is not why the context ended, if the claim was lost while the work stopped.
func (w *historyWriter) endRecordLocked(c *claim, cause core.Cause) record {
	r := record{ID: w.s.o.ID, Value: announcedLocked(c), From: c.won, To: c.record.ledTo,
		Reason: c.reasonLocked(cause), Text: c.textLocked(cause)}
	r.Before, r.Past = c.record.before, c.record.past
	if cause == core.Expired {
		w.explainLocked(c, &r)
	}
	if q := c.requestLocked(cause); q != nil {
		r.By = q.By
	}
	switch {
	case c.core.Successor() == 0 || c.core.Phase() == core.Ended: // no hand-over was tried
	case c.core.Outcome() == core.SuccessorGone:
		r.Reason, r.Text = Resigned, "to be handed over to "+c.successorID+", which stood no more"
	case c.handOverUnknownLocked():
		r.Reason, r.Text = Resigned, "to be handed over to "+c.successorID+", which the store has not confirmed"
	default: // confirmed, or about to be tried by the very call that carries this record
		r.Reason, r.Successor = Transferred, c.successorID
	}
	return r
}

// explainLocked says what kept the lease of an expired term from being renewed, as far as this
// process knows.
func (w *historyWriter) explainLocked(c *claim, r *record) {
	r.Paused = int64(c.l.stalls.paused(w.s.clock()) / time.Millisecond)
	contextEnd := core.Time(c.l.lastDeadline.Load()) - c.l.timing.Grace
	if since := w.s.outages.endedTerm(contextEnd, c.record.rightEnd, c.l.timing.TTL); since != 0 {
		r.DownFrom = w.wall(since)
	}
}

// wall returns what the wall clock showed at that instant of the boot clock, for people.
func (w *historyWriter) wall(at core.Time) time.Time {
	return time.Now().Round(0).Add(at - w.s.clock())
}

// rightEndedLocked returns when the right ended, by the wall clock: now, or at the deadline, if
// that has passed (the process may have been frozen for an hour).
func rightEndedLocked(c *claim) time.Time {
	now := time.Now().Round(0)
	late := max(0, c.l.s.clock()-core.Time(c.l.lastDeadline.Load()))
	if at := now.Add(-late); late == 0 || at.After(c.won) {
		return at
	}
	return c.won // the lease was almost over when the term was won
}

// Names of journals: historyPrefix and the election's name for its terms, alivePrefix and that name
// for the signs of life of the present one.
const (
	historyPrefix = "terms/"
	alivePrefix   = "alive/"
)

// endSuffix is at the end of the key of an appended record of a term's end. The record of the
// beginning has the token alone as key. A call that gives the place up carries the record of the
// end with the same key, and replaces the record of the beginning. Append cannot replace a record,
// so it needs another key.
const endSuffix = "+end"

// overSuffix is at the end of the key of the record that says that work outlived its right.
const overSuffix = "+over"

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

	// Of a term that expired.
	Paused   int64     `json:"paused_ms,string,omitempty"` // for how long, at least, its process did not run
	DownFrom time.Time `json:"down_from,omitzero"`         // since when the store had not answered

	// Work was seen alive so long after the right had ended.
	Outlived int64 `json:"outlived_ms,string,omitempty"`

	Before *recordBefore `json:"before,omitempty"`
	Past   reasonCounts  `json:"past,omitempty"`
}

// recordBefore is what is known of the time before a term.
type recordBefore struct {
	Token    Token     `json:"token"`              // of the term before; 0: not known
	Led      time.Time `json:"led,omitzero"`       // an instant at which that one led: its last sign of life
	DownFrom time.Time `json:"down_from,omitzero"` // when the store did not answer this session, while it waited
	DownTo   time.Time `json:"down_to,omitzero"`
}

// reasonCounts is how many terms ended for each reason.
type reasonCounts map[Reason]textUint64

// textUint64 is a number that is a string in JSON, as 64-bit numbers should be. Token does that.
type textUint64 = Token

func recordKey(t Token) string { return fmt.Sprintf("%020d", uint64(t)) }

// encode makes the record that is kept under the key.
func (r record) encode(key string) driver.Record {
	r.Version = 1
	r.Text, r.By, r.Successor = cut(r.Text), cut(r.By), cut(r.Successor)
	if len(r.Value) > recordValue {
		r.Value = nil
	}
	short := func(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
	r.From, r.To, r.DownFrom = short(r.From), short(r.To), short(r.DownFrom)
	if b := r.Before; b != nil {
		r.Before = &recordBefore{b.Token, short(b.Led), short(b.DownFrom), short(b.DownTo)}
	}
	b, err := json.Marshal(r)
	if err != nil { // a year beyond 9999
		r.From, r.To, r.DownFrom, r.Before = time.Time{}, time.Time{}, time.Time{}, nil
		b, _ = json.Marshal(r)
	}
	if len(b) > driver.MaxRecord { // in JSON a byte may take six, and the store would refuse the record
		r.Value, r.By, r.Text = nil, "", ""
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

// recordKind says what a record is about, by the end of its key.
type recordKind int

const (
	ofTerm    recordKind = iota // its beginning, or all of it
	ofEnd                       // endSuffix
	ofOverrun                   // overSuffix
)

// readRecord reads a record, which anybody who may write to the store may have written.
func readRecord(d driver.Record) (t Token, r record, kind recordKind, ok bool) {
	key, isEnd := strings.CutSuffix(d.Key, endSuffix)
	if isEnd {
		kind = ofEnd
	} else if key, ok = strings.CutSuffix(d.Key, overSuffix); ok {
		kind = ofOverrun
	}
	n, err := strconv.ParseUint(key, 10, 64)
	if err != nil || n == 0 || key != recordKey(Token(n)) || len(d.Value) > driver.MaxRecord {
		return 0, r, kind, false
	}
	if json.Unmarshal(d.Value, &r) != nil || r.Version < 1 {
		return 0, r, kind, false
	}
	if r.Reason == Leads || r.Reason == Unknown {
		r.Reason = "" // readers find these out themselves: no record has them
	}
	if kind == ofEnd && r.Reason == "" || kind == ofOverrun && r.Outlived <= 0 {
		return 0, r, kind, false
	}
	r.From, r.To, r.DownFrom = tellable(r.From), tellable(r.To), tellable(r.DownFrom)
	r.Paused, r.Outlived = tellableMS(r.Paused), tellableMS(r.Outlived)
	if b := r.Before; b != nil {
		b.Led, b.DownFrom, b.DownTo = tellable(b.Led), tellable(b.DownFrom), tellable(b.DownTo)
	}
	return Token(n), r, kind, true
}

// tellableMS returns milliseconds that make a duration.
func tellableMS(ms int64) int64 { return min(max(ms, 0), math.MaxInt64/int64(time.Millisecond)) }

// tellable returns t in UTC, zero if it has a year that no reader could be told.
func tellable(t time.Time) time.Time {
	if t = t.UTC(); t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}

// RecordDeath returns a record for the history of an election, and the name of its journal. It says
// that the process that led under that token has died, at that time of the caller's wall clock. A
// guardian appends it once it has seen the process and all its work die, and before it revokes the
// lease. It gives Append the limit math.MaxInt32, so that no record is removed. A record that the
// leader itself left overrides this one.
func RecordDeath(name string, t Token, id string, at time.Time, text string) (journal string, r driver.Record) {
	return historyPrefix + name, record{ID: id, To: at, Reason: Died, Text: text}.encode(recordKey(t) + endSuffix)
}

// pastTerm is the newest of the terms that readPast has counted.
type pastTerm struct {
	token      Token
	endUnknown bool // nobody has written its end
}

// How many records are read at once.
const (
	historyPage = 256
	pastPage    = 32 // by readPast at first: most often one of them sums up all before it
)

// readPast counts the terms of an election whose records have keys smaller than before, by the
// reason for which they ended, and returns the newest of them. It reads from the newest record back
// to the first one that sums up all terms before it. As a rule each term that Campaign won has such
// a record, unless it was shorter than recordAfter; of all others one in sixteen has.
func readPast(ctx context.Context, j driver.Journal, name, before string) (reasonCounts, pastTerm, error) {
	past, newest := reasonCounts{}, pastTerm{}
	var token Token              // the term whose records are being read
	var why Reason               // why it ended
	var older reasonCounts       // what a record of that term sums up: then no older term is read
	take := func() (done bool) { // counts the term; done: older has the rest
		if token == 0 {
			return false
		}
		past[why]++
		if newest.token == 0 {
			newest = pastTerm{token, why == Unknown}
		}
		for r, n := range older {
			past[r] += n
		}
		return older != nil
	}
	for limit := pastPage; ; limit = historyPage {
		page, err := j.Records(ctx, historyPrefix+name, before, limit)
		if err != nil {
			return nil, newest, err
		}
		for _, d := range page {
			t, r, _, ok := readRecord(d)
			switch {
			case !ok:
				continue
			case t != token && take():
				return past, newest, nil
			case t != token:
				token, why = t, Unknown
			}
			why = cmp.Or(r.Reason, why)
			if r.Past != nil {
				older = r.Past
			}
		}
		if len(page) < limit {
			take()
			return past, newest, nil
		}
		before = page[len(page)-1].Key
	}
}

// aliveKey is the key of a sign of life.
func aliveKey(t Token, at time.Time) string {
	return fmt.Sprintf("%s.%020d", recordKey(t), at.UnixMilli())
}

// readAlive returns the last instant at which the term with that token said that it leads, zero if
// it has not.
func readAlive(ctx context.Context, j driver.Journal, name string, t Token) (at time.Time, err error) {
	page, err := j.Records(ctx, alivePrefix+name, recordKey(t+1), 1)
	if err != nil || len(page) == 0 {
		return at, err
	}
	key, ms, _ := strings.Cut(page[0].Key, ".")
	n, err := strconv.ParseInt(ms, 10, 64)
	if err != nil || key != recordKey(t) {
		return at, nil // of another term, or somebody else's
	}
	return tellable(time.UnixMilli(n)), nil
}
