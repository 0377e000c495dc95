package registerstore

import (
	"fmt"
	"slices"
	"sync"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// ownClaims is what a lease knows of its own claims: which stand, which may enter yet, which must
// not any more, and what News has to tell of them. The documents of the lines say what is true; this
// is compared with each that comes.
type ownClaims struct {
	s  *Store
	id string // the lease's

	mu        sync.Mutex
	ended     bool                            // the lease has
	gone      chan struct{}                   // closed when it has ended
	removed   bool                            // and its claims are out of their lines
	names     map[string]map[string]*standing // by name and claim ID
	marks     map[string][]string             // of writes that may have given up the place with that claim ID
	spent     storeutil.SpentIDs              // claim IDs that may not enter again: released, replaced or removed
	doubts    map[string]*doubt               // by claim ID
	following map[string]*lineWait            // by name: what News listens to
	news      []driver.News                   // not told yet

	dirtyMu sync.Mutex // taken last: also with Store.mu locked
	dirty   map[string]bool
	wake    chan struct{}
}

func newOwnClaims(s *Store, id string) ownClaims {
	return ownClaims{
		s: s, id: id, gone: make(chan struct{}), names: map[string]map[string]*standing{}, marks: map[string][]string{},
		doubts: map[string]*doubt{}, following: map[string]*lineWait{}, dirty: map[string]bool{}, wake: make(chan struct{}, 1),
	}
}

// standing is a place of this lease.
type standing struct {
	place   driver.Place
	seq     uint64 // the document in which it was seen: an earlier one says nothing of it
	leaving bool   // its owner is giving it up: that is no news
	told    uint64 // the last request that was told
	follows bool   // News is to tell that it is held
}

// doubt is about a claim that may enter yet.
type doubt struct {
	flights int  // calls under way
	unknown bool // one ended with an unknown outcome
}

func (o *ownClaims) isSpent(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spent.Has(id)
}

// spend keeps an ID from entering again, and forgets its place: what becomes of it is the owner's
// doing.
func (o *ownClaims) spend(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spendLocked(id)
}

func (o *ownClaims) spendLocked(id string) {
	if o.ended {
		return // none can enter any more
	}
	o.spent.Add(id)
	for name, ids := range o.names {
		if ids[id] != nil {
			o.forgetLocked(name, id)
			return
		}
	}
}

// forgetLocked forgets a place, and what was to be told of it.
func (o *ownClaims) forgetLocked(name, id string) {
	if st, a := o.names[name][id], o.following[name]; st != nil && st.follows && a != nil {
		a.leaveWatches(o.id)
	}
	delete(o.names[name], id)
	o.news = slices.DeleteFunc(o.news, func(n driver.News) bool { return n.Place.ID == id && !n.Gone })
	if len(o.names[name]) > 0 {
		return
	}
	delete(o.names, name)
	if a := o.following[name]; a != nil {
		a.stop()
		delete(o.following, name)
	}
}

// keep takes note of places that stand in a document.
func (o *ownClaims) keep(d *document, places []driver.Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	for _, p := range places {
		if o.spent.Has(p.ID) { // released meanwhile
			continue
		}
		if o.names[p.Name] == nil {
			o.names[p.Name] = map[string]*standing{}
		}
		if o.names[p.Name][p.ID] == nil {
			o.names[p.Name][p.ID] = &standing{place: p, seq: d.Seq}
		}
		o.mark(p.Name)
	}
}

// lost says whether a place that stood is known not to stand in d any more.
func (o *ownClaims) lost(d *document, id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	st := o.names[string(d.Name)][id]
	return st != nil && d.Seq >= st.seq && d.find(o.id, st.place) < 0
}

// enters begins a call that may enter claims with those IDs. Done ends it with the call's answer.
func (o *ownClaims) enters(ids ...string) (done func(err error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		if o.doubts[id] == nil && !o.ended {
			o.doubts[id] = &doubt{}
		}
		if b := o.doubts[id]; b != nil {
			b.flights++
		}
	}
	return func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, id := range ids {
			if b := o.doubts[id]; b != nil {
				b.flights--
				switch {
				case err == nil:
					b.unknown = false // a write that was carried out, or found to be, leaves no earlier one under way
				case !driver.IsFinal(err):
					b.unknown = true // and a final answer says nothing of the writes of earlier calls
				}
				if b.flights == 0 && !b.unknown {
					delete(o.doubts, id)
				}
			}
		}
	}
}

// doubted says whether a claim with that ID may be about to enter.
func (o *ownClaims) doubted(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.doubts[id]
	return b != nil && (b.flights > 0 || b.unknown)
}

// leave takes note that a place is being given up: its ID must not enter any more, and that it goes
// is no news.
func (o *ownClaims) leave(p driver.Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	st := o.names[p.Name][p.ID]
	if st != nil && p.Token != 0 && st.place.Token != p.Token {
		return // another term's
	}
	o.spent.Add(p.ID)
	if st != nil {
		st.leaving = true
	}
}

// may takes note that a write under mark may have given up a place that has a record to leave, if
// it stood.
func (o *ownClaims) may(mark string, p driver.Place, stood bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if stood && !o.ended {
		o.marks[p.ID] = append(o.marks[p.ID], mark)
	}
}

// did says whether such a write was carried out, and forgets about it.
func (o *ownClaims) did(d *document, p driver.Place) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	marks := o.marks[p.ID]
	delete(o.marks, p.ID)
	return slices.ContainsFunc(marks, func(m string) bool { return slices.Contains(d.Marks, m) })
}

// stay takes that back: the place was not given up.
func (o *ownClaims) stay(p driver.Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.spent.Remove(p.ID)
	if st := o.names[p.Name][p.ID]; st != nil {
		st.leaving = false
		o.mark(p.Name)
	}
}

// left takes note that a place does not stand in d, unless it does under another token.
func (o *ownClaims) left(d *document, p driver.Place) {
	if d.find(o.id, driver.Place{Seat: p.Seat, ID: p.ID}) >= 0 {
		o.stay(p)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.spent.Add(p.ID)
	if b := o.doubts[p.ID]; b != nil {
		if b.unknown = false; b.flights == 0 {
			delete(o.doubts, p.ID)
		}
	}
	if o.names[p.Name][p.ID] != nil {
		o.forgetLocked(p.Name, p.ID)
	}
}

// over says whether the lease is known to have ended.
func (o *ownClaims) over() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

func (o *ownClaims) goneErr(what string) error {
	return fmt.Errorf("%s: %s: lease %s: %w", o.s.opts.Name, what, o.id, driver.ErrGone)
}

// end takes note that the lease has ended.
func (o *ownClaims) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.ended = true
	close(o.gone)
	for _, a := range o.following {
		a.stop()
	}
	o.following, o.news = map[string]*lineWait{}, nil
}

// mark has News look at a name. It is called with any lock.
func (o *ownClaims) mark(name string) {
	o.dirtyMu.Lock()
	o.dirty[name] = true
	o.dirtyMu.Unlock()
	storeutil.Signal(o.wake)
}

// listenTo listens to a name in which the lease has places; nil: it has none.
func (o *ownClaims) listenTo(name string) *lineWait {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended || len(o.names[name]) == 0 {
		return nil
	}
	a := o.following[name]
	if a == nil {
		a = o.s.waitForLine(name, func() { o.mark(name) })
		o.following[name] = a
	}
	return a
}

// compare tells what is new of the places in d, and returns the leases that are to be watched
// for those that are followed while they wait.
func (o *ownClaims) compare(d *document) (rank int, leases []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return 0, nil
	}
	rank = maxRank
	for id, st := range o.names[string(d.Name)] {
		if st.leaving || d.Seq < st.seq {
			continue
		}
		i := d.find(o.id, st.place)
		if i < 0 {
			o.forgetLocked(string(d.Name), id)
			o.spent.Add(id)
			o.news = append(o.news, driver.News{Place: st.place, Gone: true})
			continue
		}
		o.compareOne(d, i, st)
		if st.follows {
			rank = min(rank, i-1)
			leases = append(leases, d.watched(i)...)
			leases = append(leases, o.id) // nobody else may be waiting for the end of that
		}
	}
	return rank, leases
}

// compareOne tells what is new of the place of st, which stands at i.
func (o *ownClaims) compareOne(d *document, i int, st *standing) {
	p := d.place(i)
	for _, w := range d.Claims[i].Wishes {
		if w.N > st.told {
			st.told = w.N
			o.news = append(o.news, driver.News{Place: p, Request: &w.Request})
		}
	}
	if st.follows && p.Held {
		st.follows = false
		o.news = append(o.news, driver.News{Place: p, Held: true})
	}
}

// Follow implements [driver.Lease].
func (o *ownClaims) Follow(places ...driver.Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range places {
		st := o.names[p.Name][p.ID]
		if o.ended || st == nil || st.leaving || p.Token != 0 && st.place.Token != p.Token {
			continue // News has told, or its owner released it
		}
		st.follows = true
		o.mark(p.Name)
	}
}
