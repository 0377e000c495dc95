package memstore

import (
	"bytes"
	"slices"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// line is the state of a name: its claims in the order of their tokens. The first holds it, and
// others beside it where they share it.
type line struct {
	name     string
	revision uint64
	claims   []*claim
	changed  chan struct{} // closed at the next change, for all who observe
}

// claim is a place in a line. Its token is the count at which it entered, so a later claim has a
// larger one and the token is final while the claim still waits.
type claim struct {
	lease *lease
	line  *line
	seat  string
	slots int
	id    string
	token uint64
	value []byte
	held  bool

	follows bool // News is to tell that it holds
}

// line returns the line of name, an empty one if the name was never used.
func (s *Store) line(name string) *line {
	ln := s.lines[name]
	if ln == nil {
		ln = &line{name: name, revision: s.count, changed: make(chan struct{})}
		s.lines[name] = ln
	}
	return ln
}

// touch gives the line a new revision and wakes its observers.
func (s *Store) touch(ln *line) {
	ln.revision = s.next()
	close(ln.changed)
	ln.changed = make(chan struct{})
}

// enter puts a claim at the end of its line.
func (s *Store) enter(l *lease, want driver.Claim) {
	ln := s.line(want.Name)
	s.touch(ln)
	c := &claim{
		lease: l, line: ln, seat: want.Seat, slots: want.Slots, id: want.ID, token: ln.revision,
		value: bytes.Clone(want.Value), held: ln.free(want.Slots, len(ln.claims)),
	}
	ln.claims = append(ln.claims, c)
	l.claims[storeutil.SeatOf(want)] = c
}

// remove takes a claim out of its line for ever and wakes those who come to hold by it: one, or the
// readers behind a writer. Waking them all would cost a crowd of n waiters n² calls.
func (s *Store) remove(c *claim) {
	ln := c.line
	i := slices.Index(ln.claims, c)
	ln.claims = slices.Delete(ln.claims, i, i+1)
	for n, next := range ln.claims { // those who hold are the first ones, always
		if next.held {
			continue
		}
		if !ln.free(next.slots, n) {
			break
		}
		next.held = true
		next.tellHeld()
	}
	c.lease.forget(c)
	s.touch(ln)
}

// depose removes a claim and tells its owner.
func (s *Store) depose(c *claim) {
	gone := c.place()
	s.remove(c)
	c.lease.tell(driver.News{Place: gone, Gone: true})
}

// free says whether a claim with so many slots holds when n claims stand before it.
func (ln *line) free(slots, n int) bool {
	if slots == 0 {
		return n == 0 // without looking at a long line
	}
	before := make([]int, 0, 8)
	for _, c := range ln.claims[:n] {
		before = append(before, c.slots)
	}
	return driver.Free(slots, before...)
}

// misfit returns another number of slots that shared claims of the line have, 0 if there is none.
// One is left out: the claim that the new one finds again, or displaces.
func (ln *line) misfit(slots int, own *claim) int {
	for _, c := range ln.claims {
		if c != own && slots != 0 && c.slots != 0 && c.slots != slots {
			return c.slots
		}
	}
	return 0
}

// holder returns the claim that holds the name, or nil.
func (ln *line) holder() *claim {
	if len(ln.claims) == 0 {
		return nil
	}
	return ln.claims[0]
}

// show returns the line as observers see it. It shares no memory with the store.
func (ln *line) show() driver.Line {
	out := driver.Line{Name: ln.name, Revision: ln.revision}
	for i, c := range ln.claims {
		st := driver.Entry{Owner: c.lease.owner, Lease: c.lease.id, Slots: c.slots, Held: c.held, Token: c.token, Value: bytes.Clone(c.value)}
		if i == 0 {
			out.Holder = &st
		} else {
			out.Waiters = append(out.Waiters, st)
		}
	}
	return out
}

// place returns the claim as its owner sees it.
func (c *claim) place() driver.Place {
	return driver.Place{Name: c.line.name, Seat: c.seat, Slots: c.slots, ID: c.id, Token: c.token, Held: c.held}
}
