package primacy

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/primacy-go/primacy/driver"
)

// This file has what the claims of this process share: the table of seats, for which they wait here
// before they enter a line in the store, and the values that Restate and Proclaim announce.

// seat is the label of one of this process's claims in the line of a name. A lease has at most one
// claim for each seat. These are all the labels:
//
//	""    the claim of an election, or of a lock for writing
//	"w"   a claim of a lock for writing; "" and "w" take turns if one call gives a claim up and
//	      enters the next one (exchange in campaign.go)
//	"r7"  a claim of a lock for reading; the lock's queue numbers them
//	"s3"  the claim of one slot of a semaphore
//	"s"   no claim: in seatTable, all slots of a semaphore together
type seat struct{ name, label string }

func readerSeat(name string, n int) seat  { return seat{name, "r" + strconv.Itoa(n)} }
func slotSeat(name string, slot int) seat { return seat{name, "s" + strconv.Itoa(slot)} }
func semaphoreSeat(name string) seat      { return seat{name, "s"} }

// otherWriterSeat returns the second seat for writing; for the second seat it returns the first.
func (at seat) otherWriterSeat() seat {
	if at.label == "" {
		return seat{at.name, "w"}
	}
	return seat{at.name, ""}
}

// seatTable gives each seat to one claim of this process at a time. The others of this process wait
// here, first come, first served. The line in the store is another queue.
type seatTable struct {
	mu sync.Mutex
	// taken has the seats that are not free.
	taken map[seat]takenSeat
	shut  <-chan struct{} // closed when the session is closed: nobody waits any more
}

// takenSeat is a seat that somebody has.
type takenSeat struct {
	lock       bool // who has it wants a lock, or holds one
	*seatQueue      // nil until somebody waits: most often nobody does
}

// seatQueue is a seat, or all those of a semaphore: which are free, and who waits for one.
type seatQueue struct {
	seats   int   // how many there are
	free    []int // the numbers of those that nobody has
	waiting []*seatWaiter
}

// seatWaiter is one who waits for a seat.
type seatWaiter struct {
	given chan struct{} // closed when seat n is his; nil if an Elections waits
	n     int
	lock  bool // as in takenSeat
	// If an Elections waits: its attempt to lead the name (elections_workers.go); else nil. No
	// goroutine waits then. The attempt's gotSeat is called, and given is not closed.
	attempt interface{ gotSeat() }
}

// same says whether o and w are the same waiter. Of an Elections they are if the attempt is the
// same.
func (w *seatWaiter) same(o *seatWaiter) bool {
	return o == w || w.attempt != nil && o.attempt == w.attempt
}

// takeOrWait takes a seat for an election, or has w wait for it: see takeFor.
func (st *seatTable) takeOrWait(at seat, seats int, w *seatWaiter) (n int, ok bool, err error) {
	return st.takeFor(at, seats, false, w)
}

// takeFor returns the number of a free seat, from 0. If there is none, w waits for one, unless w is
// nil. Seats is the semaphore's size, 1 for all else. If others here use the semaphore with another
// size, the error is the store's for that case: ErrRefused.
func (st *seatTable) takeFor(at seat, seats int, lock bool, w *seatWaiter) (n int, ok bool, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	had, taken := st.taken[at]
	q := had.seatQueue
	switch {
	case !taken && seats == 1:
		st.taken[at] = takenSeat{lock: lock}
		return 0, true, nil
	case !taken:
		q = &seatQueue{seats: seats}
		for i := range seats {
			q.free = append(q.free, i)
		}
	case q == nil: // w is the first who waits: the seat needs a queue from now on
		q = &seatQueue{seats: 1}
	}
	if !taken {
		had.lock = lock
	}
	st.taken[at] = takenSeat{had.lock, q}
	switch {
	case q.seats != seats:
		return 0, false, driver.Misfit(at.name, q.seats, seats)
	case len(q.free) > 0:
		n, q.free = q.free[0], q.free[1:]
		return n, true, nil
	case w != nil:
		q.waiting = append(q.waiting, w)
	}
	return 0, false, nil
}

// cancel takes out one who waits. It returns false if he does not wait any more.
func (st *seatTable) cancel(at seat, w *seatWaiter) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	q := st.taken[at].seatQueue
	if q == nil {
		return false
	}
	before := len(q.waiting)
	q.waiting = slices.DeleteFunc(q.waiting, w.same)
	return len(q.waiting) < before
}

// vacate gives seat n to the first who waits. The caller may hold a claim's lock, but not
// Elections.mu, which gotSeat takes.
func (st *seatTable) vacate(at seat, n int) {
	w := st.passOn(at, n)
	switch {
	case w == nil:
	case w.attempt != nil:
		w.attempt.gotSeat()
	default:
		close(w.given)
	}
}

// passOn returns the first who waits, who has seat n now. If nobody waits the seat is free, and it
// returns nil.
func (st *seatTable) passOn(at seat, n int) *seatWaiter {
	st.mu.Lock()
	defer st.mu.Unlock()
	q := st.taken[at].seatQueue
	if q != nil && len(q.waiting) > 0 {
		w := q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		w.n = n
		st.taken[at] = takenSeat{w.lock, q}
		return w
	}
	if q != nil {
		q.free = append(q.free, n)
	}
	if q == nil || len(q.free) == q.seats {
		delete(st.taken, at)
	}
	return nil
}

// take waits for a seat, and returns its number and what gives it back. Lock says that it is for a
// lock. With try it does not wait: ErrTaken. When ctx ends the error is its cause, when the session
// is closed ErrClosed.
func (st *seatTable) take(ctx context.Context, at seat, seats int, lock, try bool) (n int, vacate func(), err error) {
	n, ok, err := st.takeFor(at, seats, lock, nil)
	var w *seatWaiter
	if err == nil && !ok && !try { // most often the seat is free, and no waiter is made
		w = &seatWaiter{given: make(chan struct{}), lock: lock}
		n, ok, err = st.takeFor(at, seats, lock, w)
	}
	switch {
	case err != nil:
		return 0, nil, err
	case !ok && try:
		return 0, nil, driver.ErrTaken
	case !ok:
		if n, err = st.wait(ctx, at, w); err != nil {
			return 0, nil, err
		}
	}
	return n, sync.OnceFunc(func() { st.vacate(at, n) }), nil
}

// wait waits until w is given a seat.
func (st *seatTable) wait(ctx context.Context, at seat, w *seatWaiter) (n int, err error) {
	select {
	case <-w.given:
		return w.n, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-st.shut:
		err = ErrClosed
	}
	if !st.cancel(at, w) { // it is being given a seat
		<-w.given
		st.vacate(at, w.n)
	}
	return 0, err
}

// announcementTable has, for each name, what Restate and Proclaim set, as long as a campaign, a
// candidate or a claim of this session uses it.
type announcementTable struct {
	mu     sync.Mutex
	byName map[string]*announcements
}

// use returns the announcements of a name, new ones if there are none, and drop, which ends this
// use. After the last use they are forgotten. Each of these is one use: a Candidate, while it runs;
// a call of Campaign, until it returns; a claim, while it has its seat.
func (table *announcementTable) use(name string) (all *announcements, drop func()) {
	table.mu.Lock()
	defer table.mu.Unlock()
	if all = table.byName[name]; all == nil {
		all = newAnnouncements()
		table.byName[name] = all
	}
	all.users++
	return all, sync.OnceFunc(func() { table.drop(name, all) })
}

func (table *announcementTable) drop(name string, all *announcements) {
	table.mu.Lock()
	defer table.mu.Unlock()
	if all.users--; all.users == 0 {
		delete(table.byName, name)
		all.end()
	}
}

// find returns the announcements of a name, nil if nobody uses them.
func (table *announcementTable) find(name string) *announcements {
	table.mu.Lock()
	defer table.mu.Unlock()
	return table.byName[name]
}

// announcement is the state after one call of Restate or Proclaim. It does not change.
type announcement struct {
	n          uint64 // its number: how many calls there were, this one included
	restated   []byte // for every claim of the name; nil: each shows the value of its campaign
	proclaimed []byte // for the claim with the ID id only, in place of restated
	id         string
}

// value returns what the claim with that ID shows. Own is the value of its campaign.
func (a *announcement) value(id string, own []byte) []byte {
	switch {
	case a.id != "" && a.id == id:
		return a.proclaimed
	case a.restated != nil:
		return a.restated
	}
	return own
}

// notInLine says "this session is not waiting for this election" (ErrNotInLine).
func notInLine(what string) error {
	return fmt.Errorf("primacy: %s: this session %w", what, ErrNotInLine)
}

// announcements are what Restate and Proclaim set for the claims of one name; a claim of a lock or
// of an Elections has its own. They are numbered. When the store confirms one, all before it count
// as confirmed, since a later one replaces them: confirmed.n ≤ last.n. When the store refuses the
// last one, last gets the value of confirmed again. It keeps its number n, so that no number is
// given twice.
type announcements struct {
	users int // guarded by announcementTable.mu

	mu        sync.Mutex
	last      *announcement
	confirmed *announcement // the newest that the store has
	refused   *announcement // the newest that the store refused; refusal says why
	refusal   error
	lastErr   error // what the store answered last, if nothing final
	over      bool  // nobody uses it any more
	changed   chan struct{}
}

func newAnnouncements() *announcements {
	return &announcements{last: &announcement{}, confirmed: &announcement{}, refused: &announcement{},
		changed: make(chan struct{})}
}

// restate announces value for every claim, for Election.Restate. It returns the announcement's
// number.
func (all *announcements) restate(value []byte) uint64 {
	return all.say(func(*announcement) announcement { return announcement{restated: append([]byte{}, value...)} })
}

// proclaim announces value for the claim with that ID only, for Term.Proclaim.
func (all *announcements) proclaim(id string, value []byte) uint64 {
	return all.say(func(last *announcement) announcement {
		return announcement{restated: last.restated, proclaimed: append([]byte{}, value...), id: id}
	})
}

func (all *announcements) say(next func(last *announcement) announcement) uint64 {
	all.mu.Lock()
	defer all.mu.Unlock()
	a := next(all.last)
	a.n = all.last.n + 1
	all.last = &a
	return a.n
}

func (all *announcements) get() *announcement {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.last
}

// answered takes the store's answer to the Claim or Update that carried announcement a. claim.show
// calls it without the claim's lock, claim.answeredLocked with it.
func (all *announcements) answered(a *announcement, err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	switch {
	case err == nil:
		all.lastErr = nil
		if a.n > all.confirmed.n {
			all.confirmed = a
		}
	case isRefusal(err):
		all.refused, all.refusal = a, err
		if all.last == a { // take it back: the next claim would enter with it, and be refused
			before := *all.confirmed
			before.n = a.n
			all.last = &before
		}
	default:
		all.lastErr = err
	}
	all.tellLocked()
}

func (all *announcements) end() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.over = true
	all.tellLocked()
}

func (all *announcements) tellLocked() {
	close(all.changed)
	all.changed = make(chan struct{})
}

// wait waits until the store has confirmed announcement n or a later one. It returns ErrNotInLine
// once nobody uses the announcements any more.
func (all *announcements) wait(ctx context.Context, what string, n uint64) error {
	for {
		all.mu.Lock()
		confirmed, refused, refusal, over, lastErr := all.confirmed.n, all.refused.n, all.refusal, all.over, all.lastErr
		changed := all.changed
		all.mu.Unlock()
		switch {
		case confirmed >= n:
			return nil
		case refused >= n:
			return fmt.Errorf("primacy: %s: %w", what, refusal)
		case over:
			return notInLine(what)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return unreachable(ctx, what, lastErr)
		}
	}
}
