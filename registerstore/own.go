package registerstore

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// ownClaims is what a lease knows of its own claims: which stand, which may enter yet, which must
// not enter any more, and what News has to tell of them. The documents say what is true: each that
// comes is compared with this.
type ownClaims struct {
	s    *Store
	id   string        // the lease's
	gone chan struct{} // closed when the lease has ended

	mu       sync.Mutex
	ended    bool                            // the lease has
	removed  bool                            // and its claims are out of their lines
	names    map[string]map[string]*standing // by name and claim ID
	marks    map[string][]string             // by claim ID: of writes that may have given that place up
	spent    storeutil.SpentIDs              // claim IDs that must not enter again: released, replaced or removed
	entering map[string]*entry               // by claim ID
	waits    map[string]*lineWait            // by name: what News waits for
	news     []driver.News                   // not told yet

	dueMu sync.Mutex
	due   map[string]bool // names that News has to look at
	wake  chan struct{}   // of News
}

func newOwnClaims(s *Store, id string) ownClaims {
	return ownClaims{
		s: s, id: id, gone: make(chan struct{}), names: map[string]map[string]*standing{}, marks: map[string][]string{},
		entering: map[string]*entry{}, waits: map[string]*lineWait{}, due: map[string]bool{}, wake: make(chan struct{}, 1),
	}
}

// standing is a place of this lease.
type standing struct {
	place    driver.Place
	seq      uint64 // of the document in which it was seen: an earlier one says nothing of it
	call     uint64 // the last that had begun by then: what one of these has read may be a line that was removed since
	leaving  bool   // its owner is giving it up: that is no news
	told     uint64 // the last request that was told
	followed bool   // News is to tell that it is held
}

// entry is about a claim that may enter yet.
type entry struct {
	calls   int  // under way
	unknown bool // one ended with an unknown outcome
}

func (o *ownClaims) isSpent(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spent.Has(id)
}

// spend keeps an ID from entering again, and forgets its place: what becomes of it is its owner's
// doing.
func (o *ownClaims) spend(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
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

// forgetLocked forgets a place, and what was to be told of it. The caller holds mu.
func (o *ownClaims) forgetLocked(name, id string) {
	w := o.waits[name]
	if st := o.names[name][id]; st != nil && st.followed && w != nil {
		w.leaveWatches(o.id)
	}
	delete(o.names[name], id)
	o.news = slices.DeleteFunc(o.news, func(n driver.News) bool { return n.Place.ID == id && !n.Gone })
	if len(o.names[name]) > 0 {
		return
	}
	delete(o.names, name)
	if w != nil {
		w.stop()
		delete(o.waits, name)
	}
}

// entered notes that places stand in d.
func (o *ownClaims) entered(d *document, places ...driver.Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range places {
		if o.ended || o.spent.Has(p.ID) { // released meanwhile
			continue
		}
		if o.names[p.Name] == nil {
			o.names[p.Name] = map[string]*standing{}
		}
		if o.names[p.Name][p.ID] == nil {
			o.names[p.Name][p.ID] = &standing{place: p, seq: d.Seq, call: o.s.calls.Load()}
		}
		o.lookAt(p.Name)
	}
}

// wasRemoved says whether a place that stood is known not to stand in d any more.
func (o *ownClaims) wasRemoved(d *document, id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	st := o.names[string(d.Name)][id]
	return st != nil && d.Seq >= st.seq && d.find(o.id, st.place) < 0
}

// beginEntering notes a call that may enter claims with those IDs. Done ends it, with the call's
// answer.
func (o *ownClaims) beginEntering(ids ...string) (done func(err error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return func(error) {}
	}
	for _, id := range ids {
		if o.entering[id] == nil {
			o.entering[id] = &entry{}
		}
		o.entering[id].calls++
	}
	return func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, id := range ids {
			e := o.entering[id]
			if e == nil { // the lease is closed
				continue
			}
			e.calls--
			switch {
			case err == nil:
				e.unknown = false // a write that was carried out leaves no earlier one under way
			case !driver.IsFinal(err):
				e.unknown = true // and a final answer says nothing of the writes of earlier calls
			}
			o.enteredLocked(id, e)
		}
	}
}

// enteredLocked forgets an entry that is settled. The caller holds mu.
func (o *ownClaims) enteredLocked(id string, e *entry) {
	if e.calls == 0 && !e.unknown {
		delete(o.entering, id)
	}
}

// beginRelease notes that a place is being given up: its ID must not enter any more, and its end is
// no news. MayEnter says that a claim with that ID may be about to enter: its write may come after
// what is read from now on. Who asks only after he has read may find that call ended, and the claim
// standing that he did not see.
func (o *ownClaims) beginRelease(p driver.Place) (mayEnter bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	mayEnter = o.entering[p.ID] != nil
	st := o.names[p.Name][p.ID]
	if o.ended || st != nil && p.Token != 0 && st.place.Token != p.Token { // another term's
		return mayEnter
	}
	o.spent.Add(p.ID)
	if st != nil {
		st.leaving = true
	}
	return mayEnter
}

// releaseUnknown notes that a write under mark may have given up a place, which may have a record
// to leave.
func (o *ownClaims) releaseUnknown(mark string, p driver.Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.marks[p.ID] = append(o.marks[p.ID], mark)
	}
}

// releasedBefore says whether such a write was carried out, and forgets about it.
func (o *ownClaims) releasedBefore(d *document, p driver.Place) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	marks := o.marks[p.ID]
	delete(o.marks, p.ID)
	return slices.ContainsFunc(marks, func(m string) bool { return slices.Contains(d.Marks, m) })
}

// releaseFailed notes that a place was not given up.
func (o *ownClaims) releaseFailed(p driver.Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.spent.Remove(p.ID)
	if st := o.names[p.Name][p.ID]; st != nil {
		st.leaving = false
		o.lookAt(p.Name)
	}
}

// released notes that a place does not stand in d, unless it does under another token.
func (o *ownClaims) released(d *document, p driver.Place) {
	if d.find(o.id, driver.Place{Seat: p.Seat, ID: p.ID}) >= 0 {
		o.releaseFailed(p)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.spent.Add(p.ID)
	if e := o.entering[p.ID]; e != nil {
		e.unknown = false
		o.enteredLocked(p.ID, e)
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

// end notes that the lease has ended.
func (o *ownClaims) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.ended = true
	close(o.gone)
	for _, w := range o.waits {
		w.stop()
	}
	o.waits, o.news = map[string]*lineWait{}, nil
}

// lookAt has News look at a name. The caller may hold mu and Store.mu.
func (o *ownClaims) lookAt(name string) {
	o.dueMu.Lock()
	o.due[name] = true
	o.dueMu.Unlock()
	storeutil.Signal(o.wake)
}

// waitFor waits for changes of a name in which the lease has places. It returns nil if it has none.
func (o *ownClaims) waitFor(name string) *lineWait {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended || len(o.names[name]) == 0 {
		return nil
	}
	if o.waits[name] == nil {
		o.waits[name] = o.s.waitForLine(name, func() { o.lookAt(name) })
	}
	return o.waits[name]
}

// isAhead says whether a place may be of a later document than d, which is the latest known: by its
// number, or since d does not have it and was asked for before it was seen. Then the numbers of
// documents may have begun anew: somebody removed the line, or put it back to what it was.
func (o *ownClaims) isAhead(d *document) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, st := range o.names[string(d.Name)] {
		if !st.leaving && (d.Seq < st.seq || d.call <= st.call && d.find(o.id, st.place) < 0) {
			return true
		}
	}
	return false
}

// placesOn returns the places on a name as they are now.
func (o *ownClaims) placesOn(name string) map[string]*standing {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.names[name])
}

// renumber notes that d was read after those places stood: what d says of them counts, whatever its
// number is.
func (o *ownClaims) renumber(d *document, stood map[string]*standing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, st := range stood {
		st.seq = min(st.seq, d.Seq)
	}
}

// learn notes what is news of the places in d. It returns the leases that are to be watched for
// those that are followed, and the rank of the watch.
func (o *ownClaims) learn(d *document) (rank int, leases []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	rank = maxRank
	for id, st := range o.names[string(d.Name)] {
		if o.ended || st.leaving || d.Seq < st.seq {
			continue
		}
		i := d.find(o.id, st.place)
		if i < 0 && d.call <= st.call {
			continue
		}
		if i < 0 {
			o.forgetLocked(string(d.Name), id)
			o.spent.Add(id)
			o.news = append(o.news, driver.News{Place: st.place, Gone: true})
			continue
		}
		o.learnOneLocked(d, i, st)
		if st.followed {
			rank = min(rank, i-1)
			leases = append(leases, d.watchedBy(i)...)
			leases = append(leases, o.id) // nobody else may be waiting for the end of that
		}
	}
	return rank, leases
}

// learnOneLocked notes what is news of a place, which stands at i. The caller holds mu.
func (o *ownClaims) learnOneLocked(d *document, i int, st *standing) {
	p := d.place(i)
	for _, r := range d.Claims[i].Requests {
		if r.N > st.told {
			st.told = r.N
			o.news = append(o.news, driver.News{Place: p, Request: &r.Request})
		}
	}
	if st.followed && p.Held {
		st.followed = false
		o.news = append(o.news, driver.News{Place: p, Held: true})
	}
}

// refuse notes that the register refuses to read the line of name.
func (o *ownClaims) refuse(name string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, st := range o.names[name] {
		if st.followed && !st.leaving {
			st.followed = false
			o.news = append(o.news, driver.News{Place: st.place, Refused: err})
		}
	}
}

// Follow implements [driver.Lease].
func (o *ownClaims) Follow(places ...driver.Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range places {
		st := o.names[p.Name][p.ID]
		if o.ended || st == nil || st.leaving || p.Token != 0 && st.place.Token != p.Token {
			continue // News has told of its end, or its owner gives it up
		}
		st.followed = true
		o.lookAt(p.Name)
	}
}
