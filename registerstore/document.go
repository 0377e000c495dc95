package registerstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/primacy-go/primacy/driver"
)

// document is the whole state of a name. It is written as one value.
type document struct {
	Name     text     `json:"name"`
	Seq      uint64   `json:"seq"`   // counts writes: of two documents the one with the larger is the later
	Rev      uint64   `json:"rev"`   // the Seq of the last change that observers see
	Token    uint64   `json:"token"` // the last one given out; never goes back, so a document is never deleted
	Requests uint64   `json:"wishes,omitempty"`
	Claims   []claim  `json:"claims,omitempty"`  // in the order of their tokens
	Deposed  []text   `json:"deposed,omitempty"` // IDs of the last claims that others removed: they must not enter again
	Marks    []string `json:"marks,omitempty"`   // of the last writes
	call     uint64   // the number that Store.calls gave to the call which has read or written it, as that began
}

// claim is a place in a line.
type claim struct {
	Lease    string          `json:"lease"`
	Owner    text            `json:"owner,omitempty"`
	Seat     text            `json:"seat,omitempty"`
	Slots    int             `json:"slots,omitempty"`
	ID       text            `json:"id"`
	Token    uint64          `json:"token"`
	Value    []byte          `json:"value,omitempty"`
	Requests []storedRequest `json:"wishes,omitempty"`
}

// storedRequest is a request to the holder. N is document.Requests when it was made.
type storedRequest struct {
	N       uint64         `json:"n"`
	Request driver.Request `json:"request"`
}

const (
	// firstRev is the revision of a name that was never used: revision 0 is older than every line.
	firstRev = 1
	// A document keeps the last so many of each.
	marksKept    = 24
	deposedKept  = 64
	requestsKept = 16
)

// parse reads a document. Version "" is that of a name never used.
func parse(name string, value []byte, version string) (*document, error) {
	if version == "" {
		return &document{Name: text(name), Seq: firstRev, Rev: firstRev}, nil
	}
	d := &document{}
	if err := json.Unmarshal(value, d); err != nil {
		return nil, fmt.Errorf("the queue of %q cannot be read, something else has written to it: %w: %w",
			name, err, driver.ErrRefused)
	}
	if d.Name != text(name) || d.Rev == 0 || d.Seq < d.Rev {
		return nil, fmt.Errorf("the queue of %q cannot be read: there is one of %q in its place: %w",
			name, d.Name, driver.ErrRefused)
	}
	return d, nil
}

// stored returns a value as it is written to the register.
func stored(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // there is nothing in our values that cannot be written
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

// next makes d, a changed clone of before, the document after it. The step that writes it has that
// mark.
func (d *document) next(before *document, mark string) {
	d.Seq = before.Seq + 1
	if d.Rev != before.Rev {
		d.Rev = d.Seq
	}
	d.Marks = lastOf(append(d.Marks, mark), marksKept)
}

// seen notes that the document changes in the eyes of observers.
func (d *document) seen() { d.Rev = d.Seq + 1 }

func lastOf[T any](s []T, n int) []T { return s[max(0, len(s)-n):] }

// holding returns how many claims hold: the first so many.
func (d *document) holding() (n int) {
	if len(d.Claims) > 0 && d.Claims[0].Slots == 0 {
		return 1
	}
	for _, c := range d.Claims {
		if c.Slots == 0 || c.Slots != driver.Unlimited && n >= c.Slots {
			break
		}
		n++
	}
	return n
}

// held says whether the claim at i holds.
func (d *document) held(i int) bool { return i < d.holding() }

// seat returns where the claim of a lease on a seat stands, -1 if it has none.
func (d *document) seat(lease, seat string) int {
	return slices.IndexFunc(d.Claims, func(c claim) bool { return c.Lease == lease && string(c.Seat) == seat })
}

// find returns where a place stands, by its claim ID, and by its token if the caller knows it; -1
// if it does not stand.
func (d *document) find(lease string, p driver.Place) int {
	i := d.seat(lease, p.Seat)
	if i < 0 || string(d.Claims[i].ID) != p.ID || p.Token != 0 && d.Claims[i].Token != p.Token {
		return -1
	}
	return i
}

// place returns the claim at i as its owner sees it.
func (d *document) place(i int) driver.Place {
	c := d.Claims[i]
	return driver.Place{
		Name: string(d.Name), Seat: string(c.Seat), Slots: c.Slots, ID: string(c.ID), Token: c.Token, Held: d.held(i),
	}
}

// leasesOf returns the leases of the claims, each once, in their order.
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
		e := driver.Entry{
			Owner: string(c.Owner), Lease: c.Lease, Slots: c.Slots, Held: d.held(i), Token: c.Token, Value: bytes.Clone(c.Value),
		}
		if i == 0 {
			ln.Holder = &e
		} else {
			ln.Waiters = append(ln.Waiters, e)
		}
	}
	return ln
}

// text is a string in JSON that is kept byte by byte: JSON's own strings would replace what is not
// UTF-8, and two names would become one.
type text string

// raw is how a text is written that is not UTF-8.
type raw struct {
	Bytes []byte `json:"bytes"`
}

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(raw{[]byte(t)})
}

func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '{' {
		return json.Unmarshal(b, (*string)(t))
	}
	var r raw
	err := json.Unmarshal(b, &r)
	*t = text(r.Bytes)
	return err
}
