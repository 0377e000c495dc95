package memstore

import (
	"bytes"
	"slices"

	"github.com/primacy-go/primacy/driver"
)

// line is the state of a name. The first claim holds it, the others wait in the order of their tokens.
type line struct {
	name     string
	revision uint64
	claims   []*claim
	changed  chan struct{} // closed at the next change, for all who observe
}

// claim is a place in a line. Its token is the count at which it entered, so a later claim has a larger one and the
// token is final while the claim still waits.
type claim struct {
	lease *lease
	line  *line
	id    string
	token uint64
	value []byte
	moved chan struct{} // closed when a claim that waits comes to hold or is removed
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
		lease: l, line: ln, id: want.ID, token: ln.revision,
		value: bytes.Clone(want.Value), moved: make(chan struct{}),
	}
	ln.claims = append(ln.claims, c)
	l.claims[want.Name] = c
}

// remove takes a claim out of its line for ever and wakes one waiter: the next, if the claim held. Waking them all would
// cost a crowd of n waiters n² calls.
func (s *Store) remove(c *claim) {
	ln := c.line
	i := slices.Index(ln.claims, c)
	ln.claims = slices.Delete(ln.claims, i, i+1)
	if i > 0 {
		close(c.moved)
	} else if len(ln.claims) > 0 {
		close(ln.claims[0].moved)
	}
	c.lease.forget(c)
	s.touch(ln)
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
		st := driver.Standing{Owner: c.lease.owner, Lease: c.lease.id, Token: c.token, Value: bytes.Clone(c.value)}
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
	return driver.Place{Name: c.line.name, ID: c.id, Token: c.token, Held: c.line.holder() == c}
}
