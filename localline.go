package primacy

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/primacy-go/primacy/driver"
)

// seat is the label of one of this process's claims in the line of a name. A lease has at most one
// claim for each seat. These are all the labels:
//
//	""    the claim of an election, or of a lock for writing
//	"w"   a claim of a lock for writing that is made while the one with "" is given up
//	"r7"  a claim of a lock for reading; the lock's queue numbers them
//	"s3"  the claim of one slot of a semaphore
//	"s"   no claim: in seatTable, all slots of a semaphore together
type seat struct{ name, label string }

func readerSeat(name string, n int) seat  { return seat{name, "r" + strconv.Itoa(n)} }
func slotSeat(name string, slot int) seat { return seat{name, "s" + strconv.Itoa(slot)} }
func semaphoreSeat(name string) seat      { return seat{name, "s"} }

// otherWriterSeat returns the second seat for writing, or for that one the first.
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
	// taken has the seats that are not free, with a nil queue until somebody waits: most often
	// nobody does.
	taken map[seat]*seatQueue
}

// seatQueue is a seat, or all those of a semaphore: which are free, and who waits for one.
type seatQueue struct {
	seats   int   // how many there are
	free    []int // the numbers of those that nobody has
	waiting []*seatWaiter
}

// seatWaiter is one who waits for a seat.
type seatWaiter struct {
	given chan struct{} // closed when seat n is his
	n     int
	// attempt, if not nil, is that of an Elections, which is told in place of given.
	attempt interface{ gotSeat() }
}

// takeOrWait returns the number of a free seat, from 0. If there is none, w waits for one, unless w
// is nil. Seats is the semaphore's size, 1 for all else: ErrInvalid if it is not the size under
// which others here hold one.
func (ls *seatTable) takeOrWait(at seat, seats int, w *seatWaiter) (n int, ok bool, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l, taken := ls.taken[at]
	switch {
	case !taken && seats == 1:
		ls.taken[at] = nil
		return 0, true, nil
	case !taken:
		l = &seatQueue{seats: seats}
		for i := range seats {
			l.free = append(l.free, i)
		}
	case l == nil: // w is the first who waits: the seat needs a queue from now on
		l = &seatQueue{seats: 1}
	}
	ls.taken[at] = l
	switch {
	case l.seats != seats:
		return 0, false, invalid("semaphore %s has %d slots here already, not %d", at.name, l.seats, seats)
	case len(l.free) > 0:
		n, l.free = l.free[0], l.free[1:]
		return n, true, nil
	case w != nil:
		l.waiting = append(l.waiting, w)
	}
	return 0, false, nil
}

// cancel takes out one who waits. It returns false if he does not wait any more.
func (ls *seatTable) cancel(at seat, w *seatWaiter) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.taken[at]
	if l == nil {
		return false
	}
	before := len(l.waiting)
	l.waiting = slices.DeleteFunc(l.waiting, func(o *seatWaiter) bool { return *o == *w })
	return len(l.waiting) < before
}

// vacate gives seat n to the first who waits. The caller may hold a claim's lock: gotSeat takes
// that of Elections, which comes after it.
func (ls *seatTable) vacate(at seat, n int) {
	w := ls.passOn(at, n)
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
func (ls *seatTable) passOn(at seat, n int) *seatWaiter {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.taken[at]
	if l != nil && len(l.waiting) > 0 {
		w := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		w.n = n // under the lock: cancel compares values, since an Elections cancels with a fresh seatWaiter
		return w
	}
	if l != nil {
		l.free = append(l.free, n)
	}
	if l == nil || len(l.free) == l.seats {
		delete(ls.taken, at)
	}
	return nil
}

// take waits for a seat, and returns its number and what gives it back. With try it does not wait:
// ErrTaken. When ctx ends the error is its cause.
func (ls *seatTable) take(ctx context.Context, at seat, seats int, try bool) (n int, vacate func(), err error) {
	var w *seatWaiter
	if !try {
		w = &seatWaiter{given: make(chan struct{})}
	}
	n, ok, err := ls.takeOrWait(at, seats, w)
	switch {
	case err != nil:
		return 0, nil, err
	case !ok && try:
		return 0, nil, driver.ErrTaken
	case !ok:
		if n, err = ls.wait(ctx, at, w); err != nil {
			return 0, nil, err
		}
	}
	return n, sync.OnceFunc(func() { ls.vacate(at, n) }), nil
}

// wait waits until w is given a seat.
func (ls *seatTable) wait(ctx context.Context, at seat, w *seatWaiter) (n int, err error) {
	select {
	case <-w.given:
		return w.n, nil
	case <-ctx.Done():
	}
	if !ls.cancel(at, w) { // it is being given a seat
		<-w.given
		ls.vacate(at, w.n)
	}
	return 0, context.Cause(ctx)
}

// announcementTable has, for each name, what Restate and Proclaim set, as long as a campaign, a
// candidate or a claim of this session uses it.
type announcementTable struct {
	mu     sync.Mutex
	byName map[string]*announcements
}

// use returns the value of a name, made if there is none, and what gives it back. When all who use
// it have given it back it is forgotten.
func (vs *announcementTable) use(name string) (v *announcements, drop func()) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v = vs.byName[name]; v == nil {
		v = newAnnouncements()
		vs.byName[name] = v
	}
	v.users++
	return v, sync.OnceFunc(func() { vs.drop(name, v) })
}

func (vs *announcementTable) drop(name string, v *announcements) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v.users--; v.users == 0 {
		delete(vs.byName, name)
		v.end()
	}
}

// find returns the value of a name, nil if nobody uses it.
func (vs *announcementTable) find(name string) *announcements {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.byName[name]
}

// announcement is what Restate and Proclaim have set up to some call of them. It does not change.
type announcement struct {
	n          uint64 // its number: how many calls came up to it
	restated   []byte // for every claim of the name; nil: each shows the value of its campaign
	proclaimed []byte // for the claim with the ID id only, in place of the others
	id         string
}

// value returns what the claim with that ID shows. Own is the value of its campaign.
func (s *announcement) value(id string, own []byte) []byte {
	switch {
	case s.id != "" && s.id == id:
		return s.proclaimed
	case s.restated != nil:
		return s.restated
	}
	return own
}

func notInLine(what string) error {
	return fmt.Errorf("primacy: %s: this session %w", what, ErrNotInLine)
}

// announcements are what Restate and Proclaim set for the claims of one name; a claim of a lock or
// of an Elections has its own. They are numbered. When the store confirms one, all before it count
// as confirmed, since a later one replaces them: confirmed.n ≤ last.n. If the last one is refused,
// last keeps its number and takes the value of confirmed.
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
func (v *announcements) restate(value []byte) uint64 {
	return v.say(func(*announcement) announcement { return announcement{restated: append([]byte{}, value...)} })
}

// proclaim announces value for the claim with that ID only, for Term.Proclaim.
func (v *announcements) proclaim(id string, value []byte) uint64 {
	return v.say(func(last *announcement) announcement {
		return announcement{restated: last.restated, proclaimed: append([]byte{}, value...), id: id}
	})
}

func (v *announcements) say(next func(last *announcement) announcement) uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := next(v.last)
	s.n = v.last.n + 1
	v.last = &s
	return s.n
}

func (v *announcements) get() *announcement {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last
}

// answered takes what the store said to a call that brought it s.
func (v *announcements) answered(s *announcement, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case err == nil:
		v.lastErr = nil
		if s.n > v.confirmed.n {
			v.confirmed = s
		}
	case isRefusal(err):
		v.refused, v.refusal = s, err
		if v.last == s { // else the next claim would enter with it, and be refused
			before := *v.confirmed
			before.n = s.n
			v.last = &before
		}
	default:
		v.lastErr = err
	}
	v.tellLocked()
}

func (v *announcements) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.over = true
	v.tellLocked()
}

func (v *announcements) tellLocked() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// wait waits until the store has confirmed announcement n or a later one. It returns ErrNotInLine
// once nobody uses the value any more.
func (v *announcements) wait(ctx context.Context, what string, n uint64) error {
	for {
		v.mu.Lock()
		confirmed, refused, refusal, over, lastErr := v.confirmed.n, v.refused.n, v.refusal, v.over, v.lastErr
		changed := v.changed
		v.mu.Unlock()
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
