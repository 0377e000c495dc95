package pgstore

import (
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// ownClaim is what this process knows of a claim of its own that stands. The lease's mutex guards
// it.
type ownClaim struct {
	l       *lease
	place   driver.Place // Held once it is known to have come to hold
	leaving bool         // its owner gives it up: its end is no news
	gone    bool

	generation int       // of the connection that would have told us of its turn since it entered
	followed   bool      // News is to say that it holds
	until      time.Time // before this there is nothing to look for, by the server's answer
	fruitless  int       // looks in a row that found nothing out
	timer      *time.Timer
}

// enterLocked notes that a claim stands. generation is that of the listening connection before the
// claim entered. The caller holds mu.
func (l *lease) enterLocked(p driver.Place, remains time.Duration, generation int) {
	at := storeutil.SeatAt(p)
	o := l.claims[at]
	if o != nil && o.place.Token != p.Token {
		if o.place.Token > p.Token {
			return // a late answer
		}
		l.ids.spent.Add(o.place.ID)
		o.forgetLocked()
		o = nil
	}
	if o == nil {
		p.Record, p.Journal = nil, ""
		o = &ownClaim{l: l, place: p, generation: generation, until: time.Now().Add(remains)}
		l.claims[at] = o
		o.notifiedLocked(l.s.own.addClaim(o))
	} else if p.Held {
		o.holdsLocked()
	}
}

// ownLocked returns the claim of a place, or nil. The caller holds mu.
func (l *lease) ownLocked(p driver.Place) *ownClaim {
	if o := l.claims[storeutil.SeatAt(p)]; o != nil && o.place.ID == p.ID {
		return o
	}
	return nil
}

// notifiedLocked acts on a notification, by its first letter. The caller holds the lease's mu.
func (o *ownClaim) notifiedLocked(word byte) {
	switch word {
	case 'h':
		o.holdsLocked()
	case 'g':
		o.lostLocked()
	case 'l':
		o.lookLocked()
	}
}

// holdsLocked notes that the claim has come to hold. The caller holds the lease's mu.
func (o *ownClaim) holdsLocked() {
	if o.place.Held || o.gone {
		return
	}
	o.place.Held = true
	stop(o.timer)
	if o.followed {
		o.followed = false
		if !o.leaving {
			o.l.addNewsLocked(driver.News{Place: o.place, Held: true})
		}
	}
}

// lostLocked notes that the claim was removed. The caller holds the lease's mu.
func (o *ownClaim) lostLocked() {
	if o.gone {
		return
	}
	o.l.ids.spent.Add(o.place.ID)
	o.forgetLocked()
	if !o.leaving {
		o.l.addNewsLocked(driver.News{Place: o.place, Gone: true})
	}
}

// forgetLocked drops a claim that does not stand any more. The caller holds the lease's mu.
func (o *ownClaim) forgetLocked() {
	if o.gone {
		return
	}
	o.gone = true
	stop(o.timer)
	l := o.l
	delete(l.due, o)
	delete(l.claims, storeutil.SeatAt(o.place))
	l.s.own.removeClaim(o)
	kept := l.news[:0:0]
	for _, n := range l.news { // a late request must not reach the next term
		if n.Place.Token != o.place.Token || n.Gone {
			kept = append(kept, n)
		}
	}
	l.news = kept
}

// lookNow has the claim looked at.
func (o *ownClaim) lookNow() {
	o.l.mu.Lock()
	defer o.l.mu.Unlock()
	o.lookLocked()
}

// lookLocked has the claim looked at now. The caller holds the lease's mu.
func (o *ownClaim) lookLocked() {
	if !o.gone {
		o.l.due[o] = true
		o.l.wakeLookerLocked()
	}
}

// lookLaterLocked has the claim looked at when there may be something to see: at the end of the
// lease in front, and now and then. The caller holds the lease's mu.
func (o *ownClaim) lookLaterLocked() {
	if o.gone || o.place.Held || !o.followed {
		stop(o.timer)
		return
	}
	poll := min(o.l.s.listener.poll(), o.l.ttl)
	after := min(poll, max(time.Until(o.until)+500*time.Microsecond, 0))
	if o.fruitless > 0 { // somebody works on the line just now
		after = min(5*time.Millisecond<<min(o.fruitless-1, 3), poll)
	}
	if o.timer == nil {
		o.timer = time.AfterFunc(after, o.lookNow)
	} else {
		o.timer.Reset(after)
	}
}

// beginWaitingLocked is called when somebody begins to wait for the claim. What was notified before
// the present connection listened is lost, so then the claim is looked at now. The caller holds the
// lease's mu.
func (o *ownClaim) beginWaitingLocked() {
	li := o.l.s.listener
	if now := li.generation(); o.generation != now || !li.works() {
		o.generation = now
		o.lookLocked()
		return
	}
	o.lookLaterLocked()
}

// Follow implements [driver.Lease]. The notification of a hand-over was sent by the commit in
// which the place came to hold.
func (l *lease) Follow(places ...driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		o := l.ownLocked(p)
		switch {
		case o == nil || o.leaving: // its end was news already, or its owner gives it up
		case o.place.Held:
			l.addNewsLocked(driver.News{Place: o.place, Held: true})
		default:
			o.followed = true
			o.beginWaitingLocked()
		}
	}
}
