package zkstore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// enterAfter enters the fresh claims when those before are gone. With instead, which is given up,
// there is one fresh claim, and the two change places in one step.
func enterAfter(l *lease, before, fresh []*claim, instead *claim) {
	l.removeClaims(before...)
	_ = l.awaitGone(context.Background(), before)
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
		(&entry{l: l, batch: batch, old: instead}).run()
		fresh = rest
	}
}

// entry enters claims in one step, in which it also removes another one (see Exchange). It is the
// only place where nodes of claims are made, and no context ends it.
//
// A create whose answer was lost may have been done, and may even be done later: the request may
// lie in the buffers of a connection that we have given up. So each create asks for a version of
// the lease's life node, and who does not know what became of one raises that version first: after
// that answer, a late create fails, and what stands is found by its claim ID among the children.
type entry struct {
	l       *lease
	batch   []*claim
	old     *claim // the one to be removed; nil: none
	oldGone bool   // it has no node any more
	unknown bool   // what became of the last step
	done    bool   // it was done: a claim without a node was removed since
}

// run decides for each claim whether it stands: it goes on until it knows, or the session is over.
func (e *entry) run() {
	l := e.l
	for try := 1; ; try++ {
		version := l.life.version.Load()
		if !e.unknown {
			e.batch = l.claims.stillWanted(e.batch)
		}
		var err error
		switch {
		case len(e.batch) == 0:
			e.releaseOld()
			return
		case e.unknown: // another step now would stand beside this one
			err = e.resolve()
			e.unknown = err != nil
		default:
			var answers []result
			answers, err = l.multi(context.Background(), e.step(version)...)
			if err == nil {
				e.succeeded(answers)
				return
			}
			if !l.over() && !errors.Is(err, driver.ErrRefused) {
				e.unknown, err = e.recover(answers, err)
				break
			}
			l.claims.decline(e.batch, cmp.Or(l.reason(), err))
			e.releaseOld()
			return
		}
		if err != nil && !l.pause(try) {
			l.claims.decline(e.batch, l.reason())
			return
		}
	}
}

// step returns what makes the nodes of claims, if the lease's life node has that version. In the
// end it writes to the nodes of their lines: the answer tells the czxid of the claims, which is the
// same, and how many stand in each line. Who is alone holds. It would take two reads otherwise.
func (e *entry) step(version int32) []op {
	l := e.l
	ops := []op{checkOp(l.life.path, version)}
	for _, c := range e.batch {
		ops = append(ops, createOp(c.dir+"/"+nodeName(l.id, c.want), encode(l.owner, c.want.Value),
			l.store.acl, ephemeral|sequential))
	}
	if e.old != nil && !e.oldGone {
		ops = append(ops, deleteOp(e.old.path))
		if e.old.record != nil {
			ops = append(ops, e.old.record.op(l.store))
		}
	}
	for _, c := range e.batch {
		ops = append(ops, setOp(c.dir, nil, -1))
	}
	return ops
}

// succeeded reads what answers a step.
func (e *entry) succeeded(answers []result) {
	stats := answers[len(answers)-len(e.batch):]
	for i, c := range e.batch {
		st := stats[i].stat
		e.stands(c, answers[i+1].path, uint64(st.mzxid), st.children == 1)
	}
	e.removedOld()
}

// recover does what is needed after a step that failed, before the next one. After an error that
// comes after a pause. Unknown: the step may have been done.
func (e *entry) recover(answers []result, err error) (unknown bool, _ error) {
	l, at, n := e.l, failed(answers), len(e.batch)
	noNode := errors.Is(err, errNoNode)
	switch {
	case at == 0 && errors.Is(err, errBadVersion): // somebody has raised it; nothing was done
		return false, l.life.reread()
	case at == 0:
		if noNode { // the lease was ended by another
			l.end(driver.ErrGone, true)
		}
		return false, err
	case at > 0 && at <= n && noNode:
		return false, l.ensure(context.Background(), e.batch[at-1].dir)
	case at == n+1 && at < len(answers)-n: // to remove the old claim
		if !noNode {
			return false, err
		}
		e.oldGone = true
		e.removedOld()
		return false, nil
	case at > n && at < len(answers)-n: // to leave its record
		if !e.old.record.learn(context.Background(), l.tree, err) {
			e.old.record = nil
		}
		return false, nil
	}
	return true, nil
}

// resolve finds out what became of a step whose answer is not known. When it returns nil, the step
// was done or never will be. A name that may not be read holds up no other: an entry of its own
// goes on asking for it.
func (e *entry) resolve() error {
	l := e.l
	if err := l.life.raise(); err != nil {
		return err
	}
	stand := map[*claim]node{}
	var read, refused []*claim
	for _, c := range e.batch {
		n, err := e.nodeOf(c)
		switch {
		case errors.Is(err, driver.ErrRefused) && len(e.batch) > 1:
			refused = append(refused, c)
			continue
		case err != nil:
			return err
		case n.path != "":
			stand[c] = n
		}
		read = append(read, c)
	}
	for c, n := range stand {
		e.stands(c, n.path, uint64(n.czxid), false)
		e.done = true
	}
	if e.done { // as a whole
		l.claims.decline(read, driver.ErrGone)
		e.removedOld()
	}
	e.batch = read
	for _, c := range refused {
		go (&entry{l: l, batch: []*claim{c}, unknown: true, done: e.done}).run()
	}
	return nil
}

// nodeOf returns the node that stands for a claim, found by its ID; one without a path if none
// does.
func (e *entry) nodeOf(c *claim) (found node, err error) {
	dir, err := e.l.look(context.Background(), ofChildren, c.dir)
	if err != nil {
		return node{}, err
	}
	for _, child := range dir.children {
		n, ok := parse(c.dir, child)
		if !ok || n.lease != e.l.id || n.hash != hashOf(c.want.ID) {
			continue
		}
		got, err := e.l.look(context.Background(), ofNode, n.path)
		if err != nil {
			return node{}, err
		}
		if got.exists {
			n.czxid = got.stat.czxid
			found = n
		}
	}
	return found, nil
}

// stands notes that a claim has its node, alone in its line if so.
func (e *entry) stands(c *claim, path string, token uint64, alone bool) {
	if givenUp := e.l.claims.stands(c, path, token, alone); givenUp {
		e.l.removeClaims(c)
		return
	}
	time.AfterFunc(holdOff, func() { e.l.guardNode(c) })
}

// holdOff is how long a claim stands before its node is watched: most locks have been given up by
// then. Who waits for its turn watches it at once. A removal in between is found out then.
const holdOff = 20 * time.Millisecond

// removedOld notes that the old claim is gone.
func (e *entry) removedOld() {
	if e.old != nil {
		e.l.claims.noteGone(e.old)
	}
}

// releaseOld gives the old claim up by itself: nothing enters in its place.
func (e *entry) releaseOld() {
	if e.old != nil {
		e.l.claims.mu.Lock()
		e.old.removing = false
		e.l.claims.mu.Unlock()
		e.l.removeClaims(e.old)
	}
}
