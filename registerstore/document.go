package registerstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/primacy-go/primacy/driver"
)

// document is the state of a name. It is all there is of it, and is written as a whole.
type document struct {
	Name    text     `json:"name"`
	Seq     uint64   `json:"seq"`   // counts writes: of two documents the one with the larger is the later
	Rev     uint64   `json:"rev"`   // the Seq of the last change that observers see
	Token   uint64   `json:"token"` // the last one given out; never goes back, so a document is never deleted
	Wishes  uint64   `json:"wishes,omitempty"`
	Claims  []claim  `json:"claims,omitempty"`  // in the order of their tokens
	Deposed []text   `json:"deposed,omitempty"` // IDs of the last claims that others removed: they must not enter again
	Marks   []string `json:"marks,omitempty"`   // of the last writes
}

// claim is a place in a line.
type claim struct {
	Lease  string          `json:"lease"`
	Owner  text            `json:"owner,omitempty"`
	Seat   text            `json:"seat,omitempty"`
	Slots  int             `json:"slots,omitempty"`
	ID     text            `json:"id"`
	Token  uint64          `json:"token"`
	Value  []byte          `json:"value,omitempty"`
	Wishes []storedRequest `json:"wishes,omitempty"`
}

// storedRequest is a request to the holder.
type storedRequest struct {
	N       uint64         `json:"n"`
	Request driver.Request `json:"request"`
}

const (
	// firstRev is the revision of a name that was never used: revision 0 is older than every line.
	firstRev = 1
	// A document remembers so many of each, the last ones.
	marksKept   = 24
	deposedKept = 64
	wishesKept  = 16
)

// parse reads a document; version "" is a name never used.
func parse(name string, value []byte, version string) (*document, error) {
	d := &document{Name: text(name), Seq: firstRev, Rev: firstRev}
	if version == "" {
		return d, nil
	}
	*d = document{}
	if err := json.Unmarshal(value, d); err != nil {
		return nil, fmt.Errorf("the line of %q cannot be read, something else has written to it: %w: %w", name, err, driver.ErrRefused)
	}
	if d.Name != text(name) || d.Rev == 0 || d.Seq < d.Rev {
		return nil, fmt.Errorf("the line of %q cannot be read: there is one of %q in its place: %w", name, d.Name, driver.ErrRefused)
	}
	return d, nil
}

// stored returns the document as it is stored.
func (d *document) stored() []byte {
	b, err := json.Marshal(d)
	if err != nil { // there is nothing in it that cannot be written
		panic(err)
	}
	return b
}

// clone returns a document to change. Claims are values, and what they point to is replaced, never
// changed.
func (d *document) clone() *document {
	c := *d
	c.Claims, c.Deposed, c.Marks = slices.Clone(d.Claims), slices.Clone(d.Deposed), slices.Clone(d.Marks)
	return &c
}

// next makes the clone the document after d, written by the step with that mark.
func (d *document) next(after *document, mark string) {
	d.Seq = after.Seq + 1
	if d.Rev != after.Rev {
		d.Rev = d.Seq
	}
	d.Marks = lastOf(append(d.Marks, mark), marksKept)
}

// seen notes that the document changes in the eyes of observers.
func (d *document) seen() { d.Rev = d.Seq + 1 }

func lastOf[T any](s []T, n int) []T { return s[max(0, len(s)-n):] }

// held says whether the claim at i holds.
func (d *document) held(i int) bool {
	if d.Claims[i].Slots == 0 {
		return i == 0
	}
	before := make([]int, 0, 8)
	for _, c := range d.Claims[:i] {
		if c.Slots == 0 {
			return false
		}
		before = append(before, c.Slots)
	}
	return driver.Free(d.Claims[i].Slots, before...)
}

// holding returns how many claims hold: the first so many.
func (d *document) holding() (n int) {
	for n < len(d.Claims) && d.held(n) {
		n++
	}
	return n
}

// seat returns where the claim of a lease on a seat stands, -1 if it has none.
func (d *document) seat(lease, seat string) int {
	return slices.IndexFunc(d.Claims, func(c claim) bool { return c.Lease == lease && string(c.Seat) == seat })
}

// find returns where a place stands: under its claim ID, and under its token if the caller knows
// it; -1 if it stands no more.
func (d *document) find(lease string, p driver.Place) int {
	i := d.seat(lease, p.Seat)
	if i < 0 || string(d.Claims[i].ID) != p.ID || p.Token != 0 && d.Claims[i].Token != p.Token {
		return -1
	}
	return i
}

// place returns a claim as its owner sees it.
func (d *document) place(i int) driver.Place {
	c := d.Claims[i]
	return driver.Place{Name: string(d.Name), Seat: string(c.Seat), Slots: c.Slots, ID: string(c.ID), Token: c.Token, Held: d.held(i)}
}

// leases returns the leases of the claims, each once, in their order.
func leasesOf(claims []claim) (ids []string) {
	seen := map[string]bool{}
	for _, c := range claims {
		if !seen[c.Lease] {
			seen[c.Lease] = true
			ids = append(ids, c.Lease)
		}
	}
	return ids
}

// show returns the line as observers see it.
func (d *document) show() driver.Line {
	ln := driver.Line{Name: string(d.Name), Revision: d.Rev}
	for i, c := range d.Claims {
		st := driver.Entry{Owner: string(c.Owner), Lease: c.Lease, Slots: c.Slots, Held: d.held(i), Token: c.Token, Value: bytes.Clone(c.Value)}
		if i == 0 {
			ln.Holder = &st
		} else {
			ln.Waiters = append(ln.Waiters, st)
		}
	}
	return ln
}
