package zkstore

import (
	"fmt"
	"sync"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// claim is a claim of a lease, from the call that makes it until it is gone: it has no node, and
// none can come any more.
type claim struct {
	want    driver.Claim
	dir     string        // the line's node
	own     ownWatch      // on its own node
	entered chan struct{} // closed when it is decided whether it stands
	gone    chan struct{} // closed when it is gone

	// Guarded by claims.mu.
	path     string // of its own node; empty: none that we know of
	token    uint64
	err      error       // why it does not stand; set before entered is closed
	givenUp  bool        // by its owner: it is to be removed
	quiet    bool        // its owner is giving it up by a transfer, so its end is no news
	removing bool        // somebody sees to its removal
	record   *partRecord // what it leaves in a journal
	alone    bool        // nobody else stood in its line when it entered: it held
	seen     *sight      // how its line stood when it entered, until somebody waits
}

func (c *claim) isGone() bool { return isClosed(c.gone) }

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
	going  map[string]*claim  // given up, and not yet known to be gone, by ID
}

// enlist returns the claims of those IDs. The fresh ones are new: the caller enters them when the
// old ones are gone, which had the same seats, or the same IDs in an earlier try.
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
			if before := cs.going[want.ID]; before != nil {
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
	return &claim{want: want, dir: s.pathOf(want.Name), entered: make(chan struct{}), gone: make(chan struct{})}
}

// known says whether want's seat is taken or its ID was given up.
func (cs *claims) known(want driver.Claim) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.bySeat[storeutil.SeatOf(want)] != nil || cs.spent.Has(want.ID)
}

// find returns the claim of a place, nil if it was given up or is gone.
func (cs *claims) find(p driver.Place) *claim {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.findLocked(p)
}

func (cs *claims) findLocked(p driver.Place) *claim {
	c := cs.bySeat[storeutil.SeatAt(p)]
	if c == nil || c.want.ID != p.ID || c.isGone() || p.Token != 0 && c.token != 0 && c.token != p.Token {
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
		if c.path != "" && !c.isGone() {
			all = append(all, c)
		}
	}
	return all
}

// giveUpPlaceLocked gives a place up and returns its claim, for the caller to remove; nil if there
// is none. The caller holds mu.
func (cs *claims) giveUpPlaceLocked(p driver.Place) *claim {
	c := cs.bySeat[storeutil.SeatAt(p)]
	if c == nil || c.want.ID != p.ID {
		cs.spent.Add(p.ID)    // the Claim may still be on its way
		return cs.going[p.ID] // or this is a repetition
	}
	if p.Token != 0 && c.token != 0 && c.token != p.Token {
		return nil
	}
	cs.giveUpLocked(c)
	c.record = recordOf(p)
	return c
}

// giveUpForExchange gives p up. It returns old, which stood there, for the caller to remove; nil if
// somebody else sees to that.
func (cs *claims) giveUpForExchange(p driver.Place, old *claim) *claim {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.giveUpPlaceLocked(p); c == nil || c != old || c.removing || c.isGone() {
		return nil
	}
	old.removing = true
	return old
}

// giveUpLocked gives a claim up for good. The caller holds mu, and removes it.
func (cs *claims) giveUpLocked(c *claim) {
	cs.spent.Add(c.want.ID)
	cs.withdrawLocked(c)
}

// withdrawLocked gives a claim up, whose ID may be used again. The caller holds mu, and removes it.
func (cs *claims) withdrawLocked(c *claim) {
	c.givenUp = true
	cs.dropLocked(c)
	if !c.isGone() {
		cs.going[c.want.ID] = c
	}
}

// dropLocked frees a claim's seat and drops its news: a late request must not reach the next term.
// The caller holds mu.
func (cs *claims) dropLocked(c *claim) {
	cs.freeSeatLocked(c)
	cs.news.drop(c.want.ID)
}

func (cs *claims) isBeingRemoved(c *claim) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return c.removing
}

// freeSeatLocked frees a claim's seat. The caller holds mu.
func (cs *claims) freeSeatLocked(c *claim) {
	if at := storeutil.SeatOf(c.want); cs.bySeat[at] == c {
		delete(cs.bySeat, at)
	}
}

// toRemove returns those of all that the caller is to remove. Those without a node are removed by
// who enters them, or never enter.
func (cs *claims) toRemove(all []*claim) (now []*claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range all {
		if c.path != "" && !c.isGone() && !c.removing {
			c.removing = true
			now = append(now, c)
		}
	}
	return now
}

// stillWanted returns those that are to be entered: not those that stand already, nor those that
// were given up meanwhile, which are gone now.
func (cs *claims) stillWanted(batch []*claim) (wanted []*claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range batch {
		switch {
		case isClosed(c.entered):
		case c.givenUp:
			cs.decideLocked(c, driver.ErrGone)
		default:
			wanted = append(wanted, c)
		}
	}
	return wanted
}

// stands notes that a claim has its node, alone in its line if so. If it was given up meanwhile,
// the caller removes it.
func (cs *claims) stands(c *claim, path string, token uint64, alone bool) (givenUp bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.path == "" {
		c.path, c.token, c.alone = path, token, alone
		cs.decideLocked(c, nil)
	}
	return c.givenUp
}

// decline notes why claims are gone before they stood. Those that stand are left as they are.
func (cs *claims) decline(batch []*claim, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range batch {
		cs.decideLocked(c, err)
	}
}

// decideLocked notes whether a claim stands (err is nil) or is gone, once. The caller holds mu.
func (cs *claims) decideLocked(c *claim, err error) {
	if isClosed(c.entered) {
		return
	}
	c.err = err
	if err != nil {
		cs.freeSeatLocked(c)
		cs.noteGoneLocked(c)
	}
	close(c.entered)
}

// noteGone notes that claims are gone.
func (cs *claims) noteGone(all ...*claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range all {
		cs.noteGoneLocked(c)
	}
}

// noteGoneLocked notes that a claim is gone. The caller holds mu.
func (cs *claims) noteGoneLocked(c *claim) {
	if !c.isGone() {
		if cs.going[c.want.ID] == c {
			delete(cs.going, c.want.ID)
		}
		close(c.gone)
	}
}

// tellGone notes that a claim is gone, and tells its owner unless that was his doing.
func (cs *claims) tellGone(c *claim) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.isGone() {
		return
	}
	cs.noteGoneLocked(c)
	cs.dropLocked(c)
	if !c.givenUp {
		cs.spent.Add(c.want.ID)
		if !c.quiet {
			cs.news.add(driver.News{Place: c.place(false), Gone: true})
		}
	}
}
