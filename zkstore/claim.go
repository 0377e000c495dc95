package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/primacy-go/primacy/driver"
)

// The largest value, and how much goes into one request.
const (
	maxValue = 256 << 10
	maxBatch = 600 << 10
	maxMany  = 200
)

// Claim enters claims. Those of different names enter in one step, up to 200 of them.
func (l *lease) Claim(ctx context.Context, wants ...driver.Claim) ([]driver.Place, error) {
	if err := l.checkClaims(wants...); err != nil {
		return nil, err
	}
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	if err := l.refusedByLine(ctx, wants); err != nil {
		return nil, err
	}
	all, fresh, old, err := l.claims.enlist(l.store, wants...)
	if err != nil {
		return nil, err
	}
	if len(fresh) > 0 {
		go enterAfter(l, old, fresh, nil)
	}
	return l.places(ctx, all)
}

func (l *lease) checkClaims(wants ...driver.Claim) error {
	if err := driver.CheckClaims(wants...); err != nil {
		return err
	}
	for _, c := range wants {
		if err := checkValue(c.Name, c.Value); err != nil {
			return err
		}
		odd := func(r rune) bool { return !('0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') }
		if strings.ContainsFunc(c.Seat, odd) || len(c.Seat) > 16 { // it is part of a path
			return fmt.Errorf("the seat %q of a claim on %q is not at most 16 letters and digits: %w",
				c.Seat, c.Name, driver.ErrRefused)
		}
	}
	return nil
}

func checkValue(name string, value []byte) error {
	if len(value) > maxValue {
		return fmt.Errorf("%s: a value of %d bytes, more than %d: %w", name, len(value), maxValue, driver.ErrRefused)
	}
	return nil
}

// refusedByLine refuses, before anything is done, shared claims that do not fit those in the line,
// and tries of names that are held: these would cost two writes otherwise. It looks a second time
// after a write, for our server may lag behind, and show who has left already.
func (l *lease) refusedByLine(ctx context.Context, wants []driver.Claim) error {
	for _, want := range wants {
		why, err := l.unfit(ctx, want)
		if err == nil && why != nil {
			if err = l.barrier(ctx); err == nil {
				why, err = l.unfit(ctx, want)
			}
		}
		switch {
		case err != nil:
			return err
		case errors.Is(why, driver.ErrTaken):
			return l.withdraw(ctx, l.claims.ofIDs(wants), why)
		case why != nil:
			return why
		}
	}
	return nil
}

// unfit returns why a claim is to be refused as our server shows its line, nil if it is not.
func (l *lease) unfit(ctx context.Context, want driver.Claim) (why, err error) {
	try := want.Try && !l.claims.known(want)
	if !try && want.Slots == 0 {
		return nil, nil
	}
	ln, err := l.line(ctx, want.Name, false)
	if err != nil {
		return nil, err
	}
	if n := misfit(ln.nodes, want.Slots); n != 0 {
		return driver.Misfit(want.Name, n, want.Slots), nil
	}
	if try && !driver.Free(want.Slots, slotsOf(ln.nodes)...) {
		return driver.ErrTaken, nil
	}
	return nil, nil
}

// places returns the places of claims when all have entered. It withdraws all of them if a try does
// not hold or a shared claim does not fit.
func (l *lease) places(ctx context.Context, all []*claim) ([]driver.Place, error) {
	for _, c := range all {
		if err := l.hasEntered(ctx, c); err != nil {
			return nil, err
		}
	}
	places, bad := make([]driver.Place, len(all)), make([]error, len(all))
	gen, _, _ := l.generation()
	err := parallel(len(all), func(i int) error {
		c := all[i]
		if c.alone {
			places[i] = c.place(true)
			return nil
		}
		nodes, at, err := l.position(ctx, c)
		if err != nil {
			return err
		}
		l.claims.mu.Lock()
		c.seen = &sight{nodes, at, gen}
		l.claims.mu.Unlock()
		places[i] = c.place(free(nodes, at))
		if n := misfit(nodes[:at], c.want.Slots); n != 0 {
			bad[i] = driver.Misfit(c.want.Name, n, c.want.Slots)
		} else if c.want.Try && !places[i].Held {
			bad[i] = driver.ErrTaken
		}
		return nil
	})
	if errors.Is(err, driver.ErrRefused) { // we may not read the line; after this answer nothing may stand
		return nil, l.withdraw(ctx, all, err)
	}
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

// withdraw removes the claims of a call that failed with why, and returns why when they are gone.
func (l *lease) withdraw(ctx context.Context, all []*claim, why error) error {
	l.claims.mu.Lock()
	for _, c := range all {
		l.claims.withdrawLocked(c)
	}
	l.claims.mu.Unlock()
	l.removeClaims(all...)
	if err := l.awaitGone(ctx, all); err != nil {
		return err
	}
	return why
}

// hasEntered waits until it is decided whether a claim stands, and returns nil if it does.
func (l *lease) hasEntered(ctx context.Context, c *claim) error {
	if err := l.wait(ctx, c.entered); err != nil {
		return err
	}
	if c.err == nil && c.isGone() {
		return driver.ErrGone
	}
	return c.err
}

// position reads the line of a claim and returns where it stands in it.
func (l *lease) position(ctx context.Context, c *claim) ([]node, int, error) {
	ln, err := l.line(ctx, c.want.Name, false)
	if err != nil {
		return nil, 0, err
	}
	at := ln.indexOf(c.path)
	if at < 0 { // our server has applied its create, so it was removed
		l.claims.tellGone(c)
		return nil, 0, driver.ErrGone
	}
	return ln.nodes, at, nil
}

// Update replaces the value that observers see.
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	if err := checkValue(p.Name, value); err != nil {
		return err
	}
	c, err := l.standingAt(ctx, p)
	if err != nil {
		return err
	}
	_, err = l.set(ctx, c.path, encode(l.owner, value), -1)
	if errors.Is(err, errNoNode) {
		l.claims.tellGone(c)
		return driver.ErrGone
	}
	return err
}

// standingAt returns the claim of a place when it has entered, or ErrGone.
func (l *lease) standingAt(ctx context.Context, p driver.Place) (*claim, error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	c := l.claims.find(p)
	if c == nil {
		return nil, driver.ErrGone
	}
	if err := l.hasEntered(ctx, c); err != nil {
		return nil, err
	}
	if l.claims.find(p) != c { // its token is known now, or it has gone meanwhile
		return nil, driver.ErrGone
	}
	return c, nil
}

// Release gives places up. What it has begun goes on until nothing of them stands, also if ctx
// ends.
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	switch { // the end of the lease removes everything, and nothing can enter any more
	case closed != nil:
		return waitFor(ctx, closed)
	case l.over():
		return l.died()
	}
	var all []*claim
	l.claims.mu.Lock()
	for _, p := range places {
		if c := l.claims.giveUpPlaceLocked(p); c != nil {
			all = append(all, c)
		}
	}
	l.claims.mu.Unlock()
	l.removeClaims(all...)
	return l.awaitGone(ctx, all)
}

// awaitGone waits until claims are gone.
func (l *lease) awaitGone(ctx context.Context, all []*claim) error {
	for _, c := range all {
		err := l.wait(ctx, c.gone)
		if err != nil && l.over() {
			return l.died()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// died returns what a release answers when the link is over: nil only if the session has ended too.
func (l *lease) died() error {
	if errors.Is(l.reason(), driver.ErrGone) {
		return nil
	}
	return l.reason()
}

// removeClaims begins to remove claims that were given up: see [claims.toRemove].
func (l *lease) removeClaims(all ...*claim) {
	for now := l.claims.toRemove(all); len(now) > 0; {
		n, size := 1, len(now[0].path)
		// Half of a request is left for the records.
		for n < min(len(now), maxMany/2) && size+len(now[n].path) < maxBatch/4 {
			size += len(now[n].path)
			n++
		}
		go l.removeBatch(now[:n:n])
		now = now[n:]
	}
}

// removeBatch deletes the nodes of claims in one step, with the records they leave, and repeats
// that until it is done or the session is over.
func (l *lease) removeBatch(batch []*claim) {
	for try := 1; len(batch) > 0; try++ {
		var ops []op
		var with []*claim // a record
		for _, c := range batch {
			ops = append(ops, deleteOp(c.path))
		}
		for _, c := range batch {
			if c.record != nil {
				with, ops = append(with, c), append(ops, c.record.op(l.store))
			}
		}
		var err error
		at := 0
		if len(ops) == 1 { // without what a step of several costs the servers
			_, err = l.request(context.Background(), ops[0])
		} else {
			var answers []result
			answers, err = l.multi(context.Background(), ops...)
			at = failed(answers)
		}
		switch {
		case err == nil:
			l.claims.noteGone(batch...)
			return
		case at >= 0 && at < len(batch) && errors.Is(err, errNoNode): // removed by hand, or by an earlier try
			l.claims.noteGone(batch[at])
			batch = append(batch[:at:at], batch[at+1:]...)
		case at >= 0 && at < len(batch) && len(batch) > 1 && errors.Is(err, driver.ErrRefused): // it holds up no other
			go l.removeBatch(batch[at : at+1 : at+1])
			batch = append(batch[:at:at], batch[at+1:]...)
		case at >= len(batch):
			if c := with[at-len(batch)]; !c.record.learn(context.Background(), l.tree, err) {
				c.record = nil // no record keeps a place from being given up
			}
		case !l.pause(try):
			return
		}
	}
}
