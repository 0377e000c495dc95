package zkstore

import (
	"fmt"
	"sync"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// claim is a claim of a lease, from the call that makes it until nothing of it stands. Its fields
// are guarded by the mutex of claims, but for those that never change and own.
type claim struct {
	want driver.Claim
	dir  string // the line's node

	path    string // of its own node; empty: none that we know of
	token   uint64
	own     ownWatch
	entered chan struct{} // closed when it is decided whether it stands
	err     error         // why it does not. Set before entered is closed
	spent   bool          // given up by its owner: nothing of it may stand
	quiet   bool          // its owner is giving it up by a transfer, so its end is no news
	left    chan struct{} // closed when nothing of it stands any more, and nothing will
	leaving bool          // somebody sees to that already
	record  *partRecord   // what it leaves in a journal
	alone   bool          // nobody else stood in its line when it entered: it held
	seen    *sight        // how its line stood when it entered, until somebody waits
}

// gone says whether nothing of it stands, and nothing will.
func (c *claim) gone() bool { return isClosed(c.left) }

func (c *claim) place(held bool) driver.Place {
	w := c.want
	return driver.Place{Name: w.Name, Seat: w.Seat, Slots: w.Slots, ID: w.ID, Token: c.token, Held: held}
}

// claims are those of a lease, at most one for each seat.
type claims struct {
	news *news

	mu     sync.Mutex
	bySeat map[storeutil.Seat]*claim
	spent  storeutil.SpentIDs // which may not enter again
	parted map[string]*claim  // given up, and not yet known to be gone, by ID
}

// enlist returns the claims of those IDs. Those that are fresh are new: the caller enters them when
// those in old have left, which had their seats under other IDs or are what is left of an earlier
// try of theirs.
func (cs *claims) enlist(s *Store, wants ...driver.Claim) (all, fresh, old []*claim, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, want := range wants {
		if cs.spent.Has(want.ID) {
			return nil, nil, nil, fmt.Errorf("claim %s on %s was given up: %w", want.ID, want.Name, driver.ErrGone)
		}
	}
	for _, want := range wants {
		c := cs.bySeat[storeutil.SeatOf(want)]
		if c != nil && c.want.ID != want.ID {
			cs.giveUpLocked(c)
			old, c = append(old, c), nil
		}
		if c == nil {
			if before := cs.parted[want.ID]; before != nil { // a try that was answered ErrTaken, or is about to be
				old = append(old, before)
			}
			c = newClaim(s, want)
			cs.bySeat[storeutil.SeatOf(want)] = c
			fresh = append(fresh, c)
		}
		all = append(all, c)
	}
	return all, fresh, old, nil
}

func newClaim(s *Store, want driver.Claim) *claim {
	return &claim{want: want, dir: s.pathOf(want.Name), entered: make(chan struct{}), left: make(chan struct{})}
}

// known says whether a claim of that ID stands, may, or was given up.
func (cs *claims) known(want driver.Claim) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.bySeat[storeutil.SeatOf(want)] != nil || cs.spent.Has(want.ID)
}

// find returns the claim of a place if it may still stand.
func (cs *claims) find(p driver.Place) *claim {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.findLocked(p)
}

func (cs *claims) findLocked(p driver.Place) *claim {
	c := cs.bySeat[storeutil.SeatAt(p)]
	if c == nil || c.want.ID != p.ID || c.gone() || p.Token != 0 && c.token != 0 && c.token != p.Token {
		return nil
	}
	return c
}

// ofIDs returns the claims that stand, or may, under the IDs of wants.
func (cs *claims) ofIDs(wants []driver.Claim) (all []*claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, want := range wants {
		if c := cs.bySeat[storeutil.SeatOf(want)]; c != nil && c.want.ID == want.ID {
			all = append(all, c)
		}
	}
	return all
}

// standing returns the claims that have a node.
func (cs *claims) standing() (all []*claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.bySeat {
		if c.path != "" && !c.gone() {
			all = append(all, c)
		}
	}
	return all
}

// partLocked gives one place up and returns its claim, nil if none stands or may stand. The caller
// holds mu.
func (cs *claims) partLocked(p driver.Place) *claim {
	c := cs.bySeat[storeutil.SeatAt(p)]
	if c == nil || c.want.ID != p.ID {
		cs.spent.Add(p.ID)     // the Claim may still be on its way
		return cs.parted[p.ID] // or this is a repetition
	}
	if p.Token != 0 && c.token != 0 && c.token != p.Token {
		return nil
	}
	cs.giveUpLocked(c)
	c.record = recordOf(p)
	return c
}

// partWith gives p up. It returns old, which stood there, if the caller is to remove it, and nil if
// somebody sees to that already.
func (cs *claims) partWith(p driver.Place, old *claim) *claim {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.partLocked(p); c == nil || c != old || c.leaving || c.gone() {
		return nil
	}
	old.leaving = true
	return old
}

// giveUpLocked marks a claim so that nothing of it may stand. The caller holds mu, and has it
// leave.
func (cs *claims) giveUpLocked(c *claim) {
	cs.spent.Add(c.want.ID)
	cs.dismissLocked(c)
}

// dismissLocked marks a claim so that nothing of it may stand until its ID is used again, once
// nothing of it stands. The caller holds mu, and has it leave.
func (cs *claims) dismissLocked(c *claim) {
	c.spent = true
	cs.dropLocked(c)
	if !c.gone() {
		cs.parted[c.want.ID] = c
	}
}

// dropLocked frees the claim's seat and drops its news: a late request must not reach the next
// term. The caller holds mu.
func (cs *claims) dropLocked(c *claim) {
	cs.freeSeatLocked(c)
	cs.news.drop(c.want.ID)
}

// isLeaving says whether somebody sees to a claim's removal.
func (cs *claims) isLeaving(c *claim) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return c.leaving
}

func (cs *claims) freeSeatLocked(c *claim) {
	if at := storeutil.SeatOf(c.want); cs.bySeat[at] == c {
		delete(cs.bySeat, at)
	}
}

// toLeave marks those of all that have a node to be removed by the caller, and returns them. The
// others are removed, or never enter, by who enters them.
func (cs *claims) toLeave(all []*claim) (now []*claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range all {
		if c.path != "" && !c.gone() && !c.leaving {
			c.leaving = true
			now = append(now, c)
		}
	}
	return now
}

// stillWanted returns those that are to be entered: not those that were found to stand already, nor
// those that were given up meanwhile, which do not stand and will not.
func (cs *claims) stillWanted(batch []*claim) (wanted []*claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range batch {
		switch {
		case isClosed(c.entered):
		case c.spent:
			cs.decideLocked(c, driver.ErrGone)
		default:
			wanted = append(wanted, c)
		}
	}
	return wanted
}

// stands notes that a claim has its node, alone in its line if so. It says whether the claim was
// given up meanwhile: then the caller has it leave.
func (cs *claims) stands(c *claim, path string, token uint64, alone bool) (spent bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.path == "" {
		c.path, c.token, c.alone = path, token, alone
		cs.decideLocked(c, nil)
	}
	return c.spent
}

// decline notes that claims do not stand and never will, but for those of which it is known that
// they do.
func (cs *claims) decline(batch []*claim, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range batch {
		cs.decideLocked(c, err)
	}
}

// decideLocked notes whether a claim stands, once. The caller holds mu.
func (cs *claims) decideLocked(c *claim, err error) {
	if isClosed(c.entered) {
		return
	}
	c.err = err
	if err != nil {
		cs.freeSeatLocked(c)
		cs.leftLocked(c)
	}
	close(c.entered)
}

// left notes that nothing of claims stands.
func (cs *claims) left(all ...*claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range all {
		cs.leftLocked(c)
	}
}

// leftLocked notes that nothing of a claim stands. The caller holds mu.
func (cs *claims) leftLocked(c *claim) {
	if !c.gone() {
		if cs.parted[c.want.ID] == c {
			delete(cs.parted, c.want.ID)
		}
		close(c.left)
	}
}

// removed notes that a claim's node has gone, and tells its owner unless that was his doing.
func (cs *claims) removed(c *claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.gone() {
		return
	}
	cs.leftLocked(c)
	cs.dropLocked(c)
	if !c.spent {
		cs.spent.Add(c.want.ID)
		if !c.quiet {
			cs.news.add(driver.News{Place: c.place(false), Gone: true})
		}
	}
}
