package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
)

// stand is what this process knows of a claim of its own that stands.
type stand struct {
	l       *lease
	place   driver.Place // Held once it is known to have come to hold
	fresh   bool         // it came to hold, and no Wait was told
	leaving bool         // its owner gives it up: its end is no news
	gone    bool
	moved   chan struct{} // closed when it comes to hold or is gone
	looked  int           // how often the server was asked about it
	seen    chan struct{} // closed after the next such answer

	heard   int  // the listening connection, by generation, that would have told us of its turn since it entered
	waits   int  // calls of Wait
	follows bool // News is to tell that it holds, that another waits behind it
	wants   bool
	until   time.Time // nothing to look for before, for what the server said
	again   int       // looks in a row that found nothing out
	timer   *time.Timer
}

func isFinal(err error) bool {
	return errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrTaken) || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrNoHeir) || errors.Is(err, errBusy)
}

// stand notes that a claim stands. The caller has the mutex.
func (l *lease) stand(p driver.Place, remains time.Duration, heard int) *stand {
	at := seat{p.Name, p.Seat}
	st := l.stands[at]
	if st != nil && st.place.Token != p.Token {
		if st.place.Token > p.Token {
			return st // a late answer
		}
		l.spent.add(st.place.ID)
		l.forget(st)
		st = nil
	}
	if st == nil {
		st = &stand{l: l, place: p, moved: make(chan struct{}), seen: make(chan struct{}), heard: heard, until: time.Now().Add(remains)}
		st.place.Record, st.place.Journal = nil, ""
		if p.Held {
			close(st.moved)
		}
		l.stands[at] = st
		switch l.s.keep(st) {
		case 'h':
			l.holds(st)
		case 'g':
			l.lost(st)
		case 'l':
			l.due[st] = true
			l.wakeLooker()
		}
		return st
	}
	if p.Held {
		l.holds(st)
	}
	return st
}

// holds notes that a claim has come to hold. The caller has the mutex.
func (l *lease) holds(st *stand) {
	if st.place.Held || st.gone {
		return
	}
	st.place.Held, st.fresh = true, true
	close(st.moved)
	st.halt()
	if st.follows {
		st.follows = false
		if !st.leaving {
			l.tell(driver.News{Place: st.place, Held: true})
		}
	}
	if st.wants {
		l.due[st] = true
		l.wakeLooker()
	}
}

// lost notes that a claim was removed. The caller has the mutex.
func (l *lease) lost(st *stand) {
	if st.gone {
		return
	}
	told := !st.leaving
	l.spent.add(st.place.ID)
	l.forget(st)
	if told {
		l.tell(driver.News{Place: st.place, Gone: true})
	}
}

// forget drops a claim that does not stand any more. The caller has the mutex.
func (l *lease) forget(st *stand) {
	if st.gone {
		return
	}
	st.gone = true
	st.halt()
	if !st.place.Held {
		close(st.moved)
	}
	delete(l.due, st)
	delete(l.stands, seat{st.place.Name, st.place.Seat})
	l.s.unkeep(st)
	close(st.seen)
	st.seen = make(chan struct{})
	kept := l.news[:0:0]
	for _, n := range l.news { // a late request must not reach the next term
		if n.Place.Token != st.place.Token || n.Gone {
			kept = append(kept, n)
		}
	}
	l.news = kept
}

func (st *stand) halt() {
	if st.timer != nil {
		st.timer.Stop()
	}
}

// attend has the claim looked at when there may be something to see: at the end of the lease in front, and now and then. The caller has the mutex.
func (l *lease) attend(st *stand) {
	if st.gone || !st.wants && (st.place.Held || st.waits == 0 && !st.follows) {
		st.halt()
		return
	}
	poll := min(l.s.ear.poll(), l.ttl)
	after := poll
	if !st.place.Held {
		after = min(poll, max(time.Until(st.until)+500*time.Microsecond, 0))
		if st.again > 0 { // somebody works on the line just now
			after = min(5*time.Millisecond<<min(st.again-1, 3), poll)
		}
	}
	if st.timer == nil {
		st.timer = time.AfterFunc(after, func() { l.lookAt(st) })
	} else {
		st.timer.Reset(after)
	}
}

// attendNow is attend for one that begins to be waited for: what was said before anybody listened is lost. The caller has the mutex.
func (l *lease) attendNow(st *stand) {
	if st.heard != l.s.ear.generation() || !l.s.ear.listening() {
		st.heard = l.s.ear.generation()
		l.due[st] = true
		l.wakeLooker()
		return
	}
	l.attend(st)
}

// Wait implements [driver.Lease]. The notification that ends it was sent by the commit in which the place came to hold.
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	if err := ctx.Err(); err != nil {
		return driver.Place{}, err
	}
	st, err := l.find(ctx, p)
	if err != nil {
		return driver.Place{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	st.waits++
	defer func() { st.waits--; l.attend(st) }()
	seen := make(chan struct{})
	close(seen)
	if st.place.Held && !st.fresh { // known for long: it may have gone since
		seen = st.seen
		l.due[st] = true
		l.wakeLooker()
	} else if !st.place.Held {
		l.attendNow(st)
	}
	for _, ch := range []func() <-chan struct{}{func() <-chan struct{} { return st.moved }, func() <-chan struct{} { return seen }} {
		if err := l.pause(ctx, ch()); err != nil {
			return driver.Place{}, err
		}
	}
	if st.gone || l.isOver {
		return driver.Place{}, fmt.Errorf("claim %s on %s does not stand: %w", p.ID, p.Name, driver.ErrGone)
	}
	st.fresh = false
	return st.place, nil
}

// pause gives the mutex up until ch is closed or there is a reason not to wait for it.
func (l *lease) pause(ctx context.Context, ch <-chan struct{}) error {
	l.mu.Unlock()
	defer l.mu.Lock()
	select {
	case <-ch:
		return nil
	case <-l.over:
		return driver.ErrGone
	case <-ctx.Done():
		return ctx.Err()
	case <-l.s.ctx.Done():
		return errClosed
	}
}

// find returns the claim of a place. One that was entered by a call whose answer was lost is asked for.
func (l *lease) find(ctx context.Context, p driver.Place) (*stand, error) {
	missing := fmt.Errorf("claim %s on %s does not stand: %w", p.ID, p.Name, driver.ErrGone)
	l.mu.Lock()
	st, spent := l.stands[seat{p.Name, p.Seat}], l.spent.has(p.ID) || l.isOver
	l.mu.Unlock()
	if st != nil && st.place.ID == p.ID && (p.Token == 0 || p.Token == st.place.Token) {
		return st, nil
	}
	if err := fit(p.Name, p.Seat, p.ID); err != nil || spent {
		return nil, missing
	}
	found := driver.Place{Name: p.Name, Seat: p.Seat, ID: p.ID}
	err := l.s.do(ctx, "wait", "SELECT token, slots FROM {S}.claims WHERE lease = $1::text AND name = $2::text AND seat = $3::text AND id = $4::text AND $5::bigint IN (0, token)",
		[]any{l.id, p.Name, p.Seat, p.ID, int64(p.Token)}, func(r pgx.Rows) error { return r.Scan(&found.Token, &found.Slots) })
	if err != nil {
		return nil, err
	}
	if found.Token == 0 {
		return nil, missing
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver || l.spent.has(p.ID) {
		return nil, missing
	}
	st = l.stand(found, 0, 0) // whether it holds is for a look to say: a plain read proves nothing of a standby
	if st.place.ID != p.ID {
		return nil, missing
	}
	return st, nil
}

// Follow implements [driver.Lease].
func (l *lease) Follow(places ...driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		st := l.stands[seat{p.Name, p.Seat}]
		switch {
		case st == nil || st.place.ID != p.ID || st.leaving: // News has told, or its owner gives it up
		case p.Held:
			st.wants = true
			l.due[st] = true
			l.wakeLooker()
		case st.place.Held:
			l.tell(driver.News{Place: st.place, Held: true})
		default:
			st.follows = true
			l.attendNow(st)
		}
	}
}
