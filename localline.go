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
// claim for each seat. These are all the ids:
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

// seatTable give each seat to one claim of this process at a time. The others wait here, first
// come, first served.
type seatTable struct {
	mu sync.Mutex
	// taken has the seats that are not free. Nil stands for one that nobody has waited for.
	taken map[seat]*seatQueue
}

// seatQueue is a seat, or all those of a semaphore, with who waits for one.
type seatQueue struct {
	seats   int   // how many there are
	free    []int // the numbers of those that nobody has
	waiting []*seatWaiter
}

// seatWaiter is one who waits for a seat.
type seatWaiter struct {
	given chan struct{} // closed when seat n is his
	n     int
	// attempt is told instead, if it is not nil: one of an Elections.
	attempt interface{ gotSeat() }
}

// takeOrWait returns the number of a free seat, from 0. If there is none, w waits for one, unless w
// is nil. Seats is how many there are: ErrInvalid if those who have one say another number.
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
	case l == nil:
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

// vacate gives seat n to the first who waits. The caller may hold a claim's lock: gotSeat takes that
// of Elections, which comes after it.
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
		w.n = n // under the lock: cancel compares all of w
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

// announcementTable has for each name what this session says there of itself, while one of its campaigns,
// candidates or claims is there.
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

// said is what was said up to some moment. It does not change.
type announcement struct {
	n          uint64 // how often something was said
	restated   []byte // for every claim; nil: nothing, and a claim has the value of its campaign
	proclaimed []byte // for the claim with that ID, in place of the others
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

// announcements is what was said for the claims of one name, and what of it the store has confirmed. The
// last word counts: who says something later makes what was said before count as confirmed too.
type announcements struct {
	users int // guarded by announcementTable.mu

	mu        sync.Mutex
	last      *announcement
	confirmed *announcement // the last that the store has
	refused   *announcement // the last that the store refused, and why
	refusal   error
	lastErr   error // what the store answered last, if nothing final
	over      bool  // nobody uses it any more
	changed   chan struct{}
}

func newAnnouncements() *announcements {
	return &announcements{last: &announcement{}, confirmed: &announcement{}, refused: &announcement{}, changed: make(chan struct{})}
}

// restate says something for every claim. It returns the number of it.
func (v *announcements) restate(value []byte) uint64 {
	return v.say(func(*announcement) announcement { return announcement{restated: append([]byte{}, value...)} })
}

// proclaim says something for the claim with that ID only.
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
		if v.last == s { // the next claim would be refused as well
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

// wait waits until the store has confirmed what was said as number n, or something said later. It
// returns ErrNotInLine once nobody uses the value any more.
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
