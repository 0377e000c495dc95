package zkstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

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
	note    *note         // what it leaves in a journal
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

// enterAfter enters claims when those on their seats have left.
func (l *lease) enterAfter(old, fresh []*claim) {
	l.makeRoom(old)
	for len(fresh) > 0 {
		var batch, rest []*claim
		names, size := map[string]bool{}, 0
		for _, c := range fresh {
			// Two of one name in one step would have one token.
			if names[c.want.Name] || len(batch) == maxMany || len(batch) > 0 && size+len(c.want.Value) > maxBatch {
				rest = append(rest, c)
				continue
			}
			names[c.want.Name], size = true, size+len(c.want.Value)+len(c.dir)+300
			batch = append(batch, c)
		}
		l.enter(batch, nil)
		fresh = rest
	}
}

// enter makes the nodes of claims in one step, together with what else is in ops (see Exchange), and decides for each of them whether it stands: it goes on until it knows, or
// the session is over. It is the only place where nodes of claims are made, and no context ends it.
//
// A create whose answer was lost may have been done, and may even be done later: the request may lie in the buffers of a connection that we have given up. So each
// create asks for a version of the lease's life node, and who does not know what became of one raises that version first: after that answer, a late create fails,
// and what stands is found by its claim ID among the children.
func (l *lease) enter(batch []*claim, with *swap) {
	for try := 1; ; try++ {
		l.mu.Lock()
		guard := l.guard
		batch = l.stillWanted(batch)
		l.mu.Unlock()
		if len(batch) == 0 {
			with.abandon(l)
			return
		}
		answers, err := multi(context.Background(), l.link, append(l.step(guard, batch), with.ops(l.store)...)...)
		if err == nil {
			for i, c := range batch {
				l.stands(c, answers[i+2].String, uint64(answers[1].Stat.Mzxid))
			}
			with.done(l)
			return
		}
		if l.link.over() || errors.Is(err, driver.ErrRefused) {
			if l.link.over() {
				err = l.link.why
			}
			l.decline(batch, err)
			with.abandon(l)
			return
		}
		if err = l.recover(batch, with, answers, err); err != nil && !l.link.pause(try) {
			l.decline(batch, l.link.why)
			return
		}
	}
}

// step returns what makes the nodes of claims: it asks for the lease's life in that version, and writes to the beat node, for the answer to that tells the
// czxid of the nodes too, which saves a read.
func (l *lease) step(guard int32, batch []*claim) []any {
	ops := []any{&zk.CheckVersionRequest{Path: l.life, Version: guard}, &zk.SetDataRequest{Path: l.beat, Data: []byte{}, Version: -1}}
	for _, c := range batch {
		ops = append(ops, l.store.node(c.dir+"/"+nodeName(l.id, c.want), encode(l.owner, c.want.Value), zk.FlagEphemeral|zk.FlagSequence))
	}
	return ops
}

// stillWanted returns those that were not given up meanwhile; the others do not stand, and will not. The caller has the mutex.
func (l *lease) stillWanted(batch []*claim) (wanted []*claim) {
	for _, c := range batch {
		if c.spent {
			l.decide(c, driver.ErrGone)
		} else {
			wanted = append(wanted, c)
		}
	}
	return wanted
}

// recover looks into why a step of enter failed, and does what is needed before the next one. Nil: go on at once.
func (l *lease) recover(batch []*claim, with *swap, answers []zk.MultiResponse, err error) error {
	at := failed(answers)
	switch {
	case at == 0 && errors.Is(err, zk.ErrBadVersion): // somebody has raised it; nothing was done
		return l.readGuard()
	case at == 0 || at == 1 && errors.Is(err, zk.ErrNoNode): // the lease was ended by another
		if errors.Is(err, zk.ErrNoNode) {
			l.link.end(driver.ErrGone, true)
		}
		return err
	case at > 1 && at < 2+len(batch) && errors.Is(err, zk.ErrNoNode):
		return l.store.ensure(context.Background(), l.link, batch[at-2].dir)
	case at >= 2+len(batch):
		return with.failed(l, at-2-len(batch), err)
	}
	return l.resolve(batch, with)
}

// resolve finds out what became of a step whose answer is not known. Nothing of it can happen any more when it returns nil.
func (l *lease) resolve(batch []*claim, with *swap) error {
	if err := l.raise(); err != nil {
		return err
	}
	type found struct {
		path  string
		token uint64
	}
	stand := make([]found, len(batch))
	for i, c := range batch {
		dir, _, err := l.link.look(context.Background(), ofChildren, c.dir, false)
		if err != nil {
			return err
		}
		for _, child := range dir.children {
			n, ok := parse(c.dir, child)
			if !ok || n.lease != l.id || n.hash != hashOf(c.want.ID) {
				continue
			}
			got, _, err := l.link.look(context.Background(), ofNode, n.path, false)
			if err != nil {
				return err
			}
			if got.exists {
				stand[i] = found{n.path, uint64(got.stat.Czxid)}
			}
		}
	}
	any := false
	for i, c := range batch {
		if stand[i].path != "" {
			l.stands(c, stand[i].path, stand[i].token)
			any = true
		}
	}
	if !any {
		return nil
	}
	// It was done as a whole: who is missing was removed since.
	l.mu.Lock()
	for _, c := range batch {
		l.decide(c, driver.ErrGone)
	}
	l.mu.Unlock()
	with.done(l)
	return nil
}

// raise gives the life node a new version, which no create under way has asked for.
func (l *lease) raise() error {
	l.guarding.Lock()
	defer l.guarding.Unlock()
	data, _, err := l.link.look(context.Background(), ofNode, l.life, false)
	if err != nil {
		return err
	}
	if !data.exists {
		l.link.end(driver.ErrGone, true)
		return driver.ErrGone
	}
	stat, err := call(context.Background(), l.link, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(l.life, data.data, -1) })
	if errors.Is(err, zk.ErrNoNode) {
		l.link.end(driver.ErrGone, true)
		return driver.ErrGone
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.guard = max(l.guard, stat.Version)
	return nil
}

// readGuard takes the life node's version as it is.
func (l *lease) readGuard() error {
	got, _, err := l.link.look(context.Background(), ofNode, l.life, false)
	if err == nil && got.exists {
		l.mu.Lock()
		l.guard = max(l.guard, got.stat.Version)
		l.mu.Unlock()
	}
	return err
}

// stands notes that a claim has its node, and removes it again if it was given up meanwhile.
func (l *lease) stands(c *claim, path string, token uint64) {
	l.mu.Lock()
	if c.path == "" {
		c.path, c.token = path, token
		l.decide(c, nil)
	}
	spent := c.spent
	l.mu.Unlock()
	if spent {
		l.leave([]*claim{c})
		return
	}
	go l.guardNode(c)
}

// decline notes that claims do not stand and never will.
func (l *lease) decline(batch []*claim, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range batch {
		l.decide(c, err)
	}
}

// decide notes whether a claim stands, once. The caller has the mutex.
func (l *lease) decide(c *claim, err error) {
	select {
	case <-c.entered:
		return
	default:
	}
	c.err = err
	if err != nil {
		if at := (seat{c.want.Name, c.want.Seat}); l.claims[at] == c {
			delete(l.claims, at)
		}
		l.hasLeft(c)
	}
	close(c.entered)
}

// hasLeft notes that nothing of a claim stands. The caller has the mutex.
func (l *lease) hasLeft(c *claim) {
	if !c.isGone {
		c.isGone = true
		if l.parted[c.want.ID] == c {
			delete(l.parted, c.want.ID)
		}
		close(c.left)
	}
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
	err := each(len(all), func(i int) error {
		c := all[i]
		nodes, at, err := l.position(ctx, c)
		if err != nil {
			return err
		}
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
