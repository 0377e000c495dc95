package zkstore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
)

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
			names[c.want.Name], size = true, size+len(c.want.Value)+2*len(c.dir)+330
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
	unknown := false // what became of the last step
	for try := 1; ; try++ {
		l.mu.Lock()
		guard := l.guard
		if !unknown {
			batch = l.stillWanted(batch)
		}
		l.mu.Unlock()
		var err error
		switch {
		case len(batch) == 0:
			with.abandon(l)
			return
		case unknown: // another step now would stand beside this one
			err = l.resolve(batch, with)
			unknown = err != nil
		default:
			var answers []zk.MultiResponse
			answers, err = multi(context.Background(), l.link, l.step(guard, batch, with)...)
			if err == nil {
				stats := answers[len(answers)-len(batch):]
				for i, c := range batch {
					l.stands(c, answers[i+1].String, uint64(stats[i].Stat.Mzxid), stats[i].Stat.NumChildren == 1)
				}
				with.done(l)
				return
			}
			if l.link.over() || errors.Is(err, driver.ErrRefused) {
				l.decline(batch, cmp.Or(l.link.reason(), err))
				with.abandon(l)
				return
			}
			unknown, err = l.recover(batch, with, answers, err)
		}
		if err != nil && !l.link.pause(try) {
			l.decline(batch, l.link.why)
			return
		}
	}
}

// step returns what makes the nodes of claims: it asks for the lease's life in that version, and in the end writes to the nodes of their lines, for the answer to
// that tells the czxid of the claims, which is the same, and how many stand in each line then: who is alone holds. Both would be reads otherwise.
func (l *lease) step(guard int32, batch []*claim, with *swap) []any {
	ops := []any{&zk.CheckVersionRequest{Path: l.life, Version: guard}}
	for _, c := range batch {
		ops = append(ops, l.store.node(c.dir+"/"+nodeName(l.id, c.want), encode(l.owner, c.want.Value), zk.FlagEphemeral|zk.FlagSequence))
	}
	ops = append(ops, with.ops(l.store)...)
	for _, c := range batch {
		ops = append(ops, &zk.SetDataRequest{Path: c.dir, Data: []byte{}, Version: -1})
	}
	return ops
}

// stillWanted returns those that are to be entered: not those that were found to stand already, nor those that were given up meanwhile, which do not stand and
// will not. The caller has the mutex.
func (l *lease) stillWanted(batch []*claim) (wanted []*claim) {
	for _, c := range batch {
		switch {
		case c.isDecided():
		case c.spent:
			l.decide(c, driver.ErrGone)
		default:
			wanted = append(wanted, c)
		}
	}
	return wanted
}

// recover looks into why a step of enter failed, and does what is needed before the next one. An error: not at once. Unknown: the step may have been done.
func (l *lease) recover(batch []*claim, with *swap, answers []zk.MultiResponse, err error) (unknown bool, _ error) {
	at := failed(answers)
	switch {
	case at == 0 && errors.Is(err, zk.ErrBadVersion): // somebody has raised it; nothing was done
		return false, l.readGuard()
	case at == 0: // the lease was ended by another
		if errors.Is(err, zk.ErrNoNode) {
			l.link.end(driver.ErrGone, true)
		}
		return false, err
	case at > 0 && at <= len(batch) && errors.Is(err, zk.ErrNoNode):
		return false, l.store.ensure(context.Background(), l.link, batch[at-1].dir)
	case at > len(batch) && at < len(answers)-len(batch):
		return false, with.failed(l, at-1-len(batch), err)
	}
	return true, nil
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
			l.stands(c, stand[i].path, stand[i].token, false)
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

// stands notes that a claim has its node, alone in its line if so, and removes it again if it was given up meanwhile.
func (l *lease) stands(c *claim, path string, token uint64, alone bool) {
	l.mu.Lock()
	if c.path == "" {
		c.path, c.token, c.alone = path, token, alone
		l.decide(c, nil)
	}
	spent := c.spent
	l.mu.Unlock()
	if spent {
		l.leave([]*claim{c})
		return
	}
	time.AfterFunc(calm, func() { l.guardNode(c) })
}

// calm is how long a claim stands before its node is watched, if nobody waits for it, who sets that watch with others: most locks have been given up by then. If
// somebody removed it meanwhile that is found out then.
const calm = 20 * time.Millisecond

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
	if c.isDecided() {
		return
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

// isDecided says whether it is known if a claim stands.
func (c *claim) isDecided() bool {
	select {
	case <-c.entered:
		return true
	default:
		return false
	}
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
