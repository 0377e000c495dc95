package registerstore

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/primacy-go/primacy/driver"
)

// The verbs change a document in place. The caller hands in a clone, and writes it if it differs
// afterwards, also beside an error. No verb reads a clock, a lease or the register.

// self is who changes a document.
type self struct {
	lease, owner string
	spent        func(id string) bool // says whether the lease has given an ID up
	spend        func(id string)      // gives an ID up: it must not enter again
}

// admit returns an error for a claim whose ID was given up or removed. A Claim that was under way
// then arrives here: if it entered, nobody would ever release it.
func (d *document) admit(me self, want driver.Claim) error {
	if me.spent(want.ID) || slices.Contains(d.Deposed, text(want.ID)) {
		return fmt.Errorf("claim %s on %s was given up or removed: %w", want.ID, want.Name, driver.ErrGone)
	}
	return nil
}

// enter enters claims of one lease, or with an error none.
func (d *document) enter(me self, claims []driver.Claim) ([]driver.Place, error) {
	for _, want := range claims {
		if err := d.admit(me, want); err != nil {
			return nil, err
		}
	}
	for _, want := range claims {
		if n := d.misfit(want.Slots); n != 0 {
			return nil, driver.Misfit(want.Name, n, want.Slots)
		}
	}
	before, added := d.clone(), map[string]bool{}
	for _, want := range claims {
		d.displace(me, want)
	}
	for _, want := range claims {
		if d.seat(me.lease, want.Seat) < 0 {
			added[want.Seat] = true
			d.append(me, want)
		}
	}
	places := make([]driver.Place, 0, len(claims))
	for _, want := range claims {
		p := d.place(d.seat(me.lease, want.Seat))
		if want.Try && !p.Held {
			d.withdraw(me, claims, added, before)
			return nil, driver.ErrTaken
		}
		places = append(places, p)
	}
	return places, nil
}

// append puts a claim at the end of the line.
func (d *document) append(me self, want driver.Claim) {
	d.Token++
	d.seen()
	d.Claims = append(d.Claims, claim{
		Lease: me.lease, Owner: text(me.owner), Seat: text(want.Seat), Slots: want.Slots, ID: text(want.ID),
		Token: d.Token, Value: bytes.Clone(want.Value),
	})
}

// displace removes the claim that the lease has on the seat under another ID. If the new claim took
// its place up, it would get a term that is being resigned.
func (d *document) displace(me self, want driver.Claim) {
	if i := d.seat(me.lease, want.Seat); i >= 0 && string(d.Claims[i].ID) != want.ID {
		me.spend(string(d.Claims[i].ID))
		d.cut(i)
	}
}

// withdraw removes the claims of a Try that failed: its caller believes that it has none. Where
// none stood before either, nothing changes at all.
func (d *document) withdraw(me self, claims []driver.Claim, added map[string]bool, before *document) {
	for _, want := range claims {
		if i := d.seat(me.lease, want.Seat); i >= 0 {
			if !added[want.Seat] {
				me.spend(want.ID)
			}
			d.cut(i)
		}
	}
	if slices.EqualFunc(d.Claims, before.Claims, func(a, b claim) bool { return a.Token == b.Token }) {
		*d = *before
	}
}

// misfit returns another number of slots that shared claims of the line have, 0 if there is none.
func (d *document) misfit(slots int) int {
	for _, c := range d.Claims {
		if slots != 0 && c.Slots != 0 && c.Slots != slots {
			return c.Slots
		}
	}
	return 0
}

// cut takes the claim at i out of the line, with the requests for it.
func (d *document) cut(i int) {
	d.Claims = slices.Delete(d.Claims, i, i+1)
	d.seen()
}

// drop gives a place up, and says whether it stood.
func (d *document) drop(me self, p driver.Place) bool {
	i := d.find(me.lease, p)
	if i >= 0 {
		d.cut(i)
	}
	return i >= 0
}

// exchange gives p up and enters want behind all who wait. It says whether p stood.
func (d *document) exchange(me self, p driver.Place, want driver.Claim) (driver.Place, bool, error) {
	if err := d.admit(me, want); err != nil {
		return driver.Place{}, false, err
	}
	stood := d.drop(me, p)
	d.displace(me, want)
	if d.seat(me.lease, want.Seat) < 0 {
		d.append(me, want)
	}
	return d.place(d.seat(me.lease, want.Seat)), stood, nil
}

// transfer gives p up for the claim with the token successor, and removes the claims between them.
func (d *document) transfer(me self, p driver.Place, successor uint64) error {
	own := d.find(me.lease, p)
	if own < 0 {
		return driver.ErrGone
	}
	if d.Claims[own].Slots != 0 || own != 0 {
		return fmt.Errorf("%s under token %d is not held alone: %w", p.Name, p.Token, driver.ErrRefused)
	}
	at := slices.IndexFunc(d.Claims, func(c claim) bool { return c.Token == successor && c.Slots == 0 })
	if at <= 0 {
		return driver.ErrNoSuccessor
	}
	if d.Claims[at].Lease == me.lease {
		return fmt.Errorf("%s: the successor's claim is of the same lease: %w", p.Name, driver.ErrRefused)
	}
	for range at - 1 {
		d.depose(1)
	}
	d.cut(0)
	return nil
}

// depose removes the claim at i, which is not the caller's.
func (d *document) depose(i int) {
	d.Deposed = lastOf(append(d.Deposed, d.Claims[i].ID), deposedKept)
	d.cut(i)
}

// remove deposes the claim with that token.
func (d *document) remove(token uint64) {
	if i := slices.IndexFunc(d.Claims, func(c claim) bool { return c.Token == token }); i >= 0 {
		d.depose(i)
	}
}

// update replaces the value that observers see.
func (d *document) update(me self, p driver.Place, value []byte) error {
	i := d.find(me.lease, p)
	if i < 0 {
		return driver.ErrGone
	}
	d.Claims[i].Value = bytes.Clone(value)
	d.seen()
	return nil
}

// ask leaves a request for the holder. No observer sees it.
func (d *document) ask(r driver.Request) error {
	if len(d.Claims) == 0 || d.Claims[0].Token != r.Token {
		return driver.ErrGone
	}
	c := &d.Claims[0]
	if c.Slots != 0 {
		return fmt.Errorf("%s is shared: nobody holds it alone: %w", d.Name, driver.ErrRefused)
	}
	d.Requests++
	c.Requests = lastOf(append(slices.Clone(c.Requests), storedRequest{d.Requests, r}), requestsKept)
	return nil
}

// purge removes the claims of leases that have ended.
func (d *document) purge(ended func(lease string) bool) {
	before := len(d.Claims)
	d.Claims = slices.DeleteFunc(d.Claims, func(c claim) bool { return ended(c.Lease) })
	if len(d.Claims) != before {
		d.seen()
	}
}
