package zkstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/primacy-go/primacy/driver"
)

// claim is a claim of a lease, from the call that makes it until nothing of it stands. Its fields are guarded by the lease's mutex.
type claim struct {
	want  driver.Claim
	dir   string // the line's node
	path  string // of its own node; empty: none that we know of
	token uint64

	entered chan struct{} // closed when it is decided whether it stands
	err     error         // why it does not
	spent   bool          // given up by its owner: nothing of it may stand
	quiet   bool          // its owner is giving it up by a transfer, so its end is no news
	left    chan struct{} // closed when nothing of it stands any more, and nothing will
	isGone  bool          // left is closed
	leaving bool          // somebody sees to that already
	arm     uint64        // differs for each watch set on its node; 0: none is set
	armGen  uint64        // the connection by which that was set
	note    *note         // what it leaves in a journal
	alone   bool          // nobody else stood in its line when it entered: it held
	seen    *sight        // how its line stood when it entered, until somebody waits
	follows bool          // News is to tell that it holds,
	wants   bool          // or that another waits behind it
}

// The largest value, and how much goes into one request.
const (
	maxValue = 256 << 10
	maxBatch = 600 << 10
	maxMany  = 200
)

// Claim enters claims. Those of different names enter in one step, up to 200 of them.
func (l *lease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if err := l.checkClaims(claims); err != nil {
		return nil, err
	}
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	if err := l.fits(ctx, claims); err != nil {
		return nil, err
	}
	if err := l.taken(ctx, claims); err != nil {
		return nil, err
	}
	all, err := l.enlist(ctx, claims)
	if err != nil {
		return nil, err
	}
	return l.places(ctx, all)
}

func (l *lease) checkClaims(claims []driver.Claim) error {
	if err := driver.CheckClaims(claims...); err != nil {
		return err
	}
	for _, c := range claims {
		if len(c.Value) > maxValue {
			return fmt.Errorf("%s: a value of %d bytes, more than %d: %w", c.Name, len(c.Value), maxValue, driver.ErrRefused)
		}
		odd := strings.ContainsFunc(c.Seat, func(r rune) bool { return !('0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') })
		if odd || len(c.Seat) > 16 { // it is part of a path
			return fmt.Errorf("the seat %q of a claim on %q is not at most 16 letters and digits: %w", c.Seat, c.Name, driver.ErrRefused)
		}
	}
	return nil
}

// fits refuses shared claims that do not fit those in the line, before anything is done.
func (l *lease) fits(ctx context.Context, claims []driver.Claim) error {
	for _, c := range claims {
		if c.Slots == 0 {
			continue
		}
		nodes, _, _, _, err := l.store.children(ctx, l.link, c.Name, false)
		if err != nil {
			return err
		}
		if n := misfit(nodes, c.Slots); n != 0 {
			return driver.Misfit(c.Name, n, c.Slots)
		}
	}
	return nil
}

// taken answers tries of names that others stand in, without entering: that would cost two writes. It asks a second time behind a write, for our server may lag behind.
func (l *lease) taken(ctx context.Context, claims []driver.Claim) error {
	for _, want := range claims {
		l.mu.Lock()
		has := l.claims[seat{want.Name, want.Seat}] != nil || l.spent[want.ID]
		l.mu.Unlock()
		if !want.Try || has {
			continue
		}
		for look := range 2 {
			nodes, _, _, _, err := l.store.children(ctx, l.link, want.Name, false)
			if err != nil {
				return err
			}
			if driver.Free(want.Slots, slotsOf(nodes)...) {
				break
			}
			if look == 1 {
				return l.withdraw(ctx, l.those(claims), driver.ErrTaken)
			}
			if err := l.store.barrier(ctx, l.link); err != nil {
				return err
			}
		}
	}
	return nil
}

// those returns the claims that stand, or may, under the IDs of claims.
func (l *lease) those(claims []driver.Claim) (all []*claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, want := range claims {
		if c := l.claims[seat{want.Name, want.Seat}]; c != nil && c.want.ID == want.ID {
			all = append(all, c)
		}
	}
	return all
}

// enlist notes the claims and begins to enter those that are new, after what their seats had under other IDs is gone. A try of a name that others stand
// in is answered without entering.
func (l *lease) enlist(ctx context.Context, claims []driver.Claim) (all []*claim, err error) {
	l.mu.Lock()
	for _, want := range claims {
		if l.spent[want.ID] {
			l.mu.Unlock()
			return nil, fmt.Errorf("claim %s on %s was given up: %w", want.ID, want.Name, driver.ErrGone)
		}
	}
	var fresh, old []*claim
	for _, want := range claims {
		at := seat{want.Name, want.Seat}
		c := l.claims[at]
		if c != nil && c.want.ID != want.ID {
			l.giveUp(c)
			old, c = append(old, c), nil
		}
		if c == nil {
			if before := l.parted[want.ID]; before != nil { // a try that was answered ErrTaken, or is about to be
				old = append(old, before)
			}
			c = l.newClaim(want)
			l.claims[at] = c
			fresh = append(fresh, c)
		}
		all = append(all, c)
	}
	l.mu.Unlock()
	if len(fresh) > 0 {
		go l.enterAfter(old, fresh)
	}
	return all, nil
}

// giveUp marks a claim so that nothing of it may stand. The caller has the mutex, and sees to it that it leaves.
func (l *lease) giveUp(c *claim) {
	l.spent[c.want.ID] = true
	l.dismiss(c)
}

// dismiss is giveUp of a claim whose ID may be used again, once nothing of it stands. The caller has the mutex.
func (l *lease) dismiss(c *claim) {
	c.spent = true
	if at := (seat{c.want.Name, c.want.Seat}); l.claims[at] == c {
		delete(l.claims, at)
	}
	if !c.isGone {
		l.parted[c.want.ID] = c
	}
	l.forget(c)
}

// forget drops the news of a claim that was given up or removed: a late request must not reach the next term. The caller has the mutex.
func (l *lease) forget(c *claim) {
	l.news = slices.DeleteFunc(l.news, func(n driver.News) bool { return n.Place.ID == c.want.ID })
}

func (l *lease) newClaim(want driver.Claim) *claim {
	return &claim{want: want, dir: l.store.at(escape(want.Name)), entered: make(chan struct{}), left: make(chan struct{})}
}

// makeRoom removes claims that were given up and waits until nothing of them stands.
func (l *lease) makeRoom(old []*claim) {
	l.leave(old)
	_ = l.haveLeft(context.Background(), old)
}

// places returns the places of claims when all have entered, and undoes tries that do not hold and shared claims that do not fit.
func (l *lease) places(ctx context.Context, all []*claim) ([]driver.Place, error) {
	for _, c := range all {
		if err := l.hasEntered(ctx, c); err != nil {
			return nil, err
		}
	}
	places := make([]driver.Place, len(all))
	bad := make([]error, len(all))
	gen, _, _ := l.link.generation()
	err := each(len(all), func(i int) error {
		c := all[i]
		if c.alone {
			places[i] = l.place(c, true)
			return nil
		}
		nodes, at, err := l.position(ctx, c)
		if err != nil {
			return err
		}
		l.mu.Lock()
		c.seen = &sight{nodes, at, gen}
		l.mu.Unlock()
		if n := misfit(nodes[:at], c.want.Slots); n != 0 {
			bad[i] = driver.Misfit(c.want.Name, n, c.want.Slots)
		}
		places[i] = l.place(c, free(nodes, at))
		if c.want.Try && !places[i].Held && bad[i] == nil {
			bad[i] = driver.ErrTaken
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, err := range bad {
		if err != nil {
			return nil, l.withdraw(ctx, all, err)
		}
	}
	return places, nil
}

// withdraw removes the claims of a call that failed with why, and returns that when nothing of them stands.
func (l *lease) withdraw(ctx context.Context, all []*claim, why error) error {
	l.mu.Lock()
	for _, c := range all {
		l.dismiss(c)
	}
	l.mu.Unlock()
	l.leave(all)
	if err := l.haveLeft(ctx, all); err != nil {
		return err
	}
	return why
}

func (l *lease) hasEntered(ctx context.Context, c *claim) error {
	select {
	case <-c.entered:
	case <-ctx.Done():
		return ctx.Err()
	case <-l.link.dead:
		return l.link.why
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.err == nil && c.isGone {
		return driver.ErrGone
	}
	return c.err
}

// position reads the line of a claim and returns where it stands in it.
func (l *lease) position(ctx context.Context, c *claim) ([]node, int, error) {
	nodes, _, _, _, err := l.store.children(ctx, l.link, c.want.Name, false)
	if err != nil {
		return nil, 0, err
	}
	at := slices.IndexFunc(nodes, func(n node) bool { return n.path == c.path })
	if at < 0 { // our server has applied its create, so it was removed
		l.removed(c)
		return nil, 0, driver.ErrGone
	}
	return nodes, at, nil
}

func (l *lease) place(c *claim, held bool) driver.Place {
	return driver.Place{Name: c.want.Name, Seat: c.want.Seat, Slots: c.want.Slots, ID: c.want.ID, Token: c.token, Held: held}
}

// find returns the claim of a place if it may still stand.
func (l *lease) find(p driver.Place) *claim {
	c := l.claims[seat{p.Name, p.Seat}]
	if c == nil || c.want.ID != p.ID || c.isGone || p.Token != 0 && c.token != 0 && c.token != p.Token {
		return nil
	}
	return c
}
