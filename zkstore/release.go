package zkstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
)

// Release gives places up. What it has begun goes on until nothing of them stands, also if ctx ends.
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if over, err := l.isOver(ctx); over {
		return err
	}
	l.mu.Lock()
	var all []*claim
	for _, p := range places {
		if c := l.part(p); c != nil {
			all = append(all, c)
		}
	}
	l.mu.Unlock()
	l.leave(all)
	return l.haveLeft(ctx, all)
}

// isOver says whether the lease has ended or is about to, and then waits until that is done: its end removes everything, and nothing can enter any more.
func (l *lease) isOver(ctx context.Context) (bool, error) {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	switch {
	case closed != nil:
		select {
		case <-closed:
			return true, nil
		case <-ctx.Done():
			return true, ctx.Err()
		}
	case l.link.over():
		return true, l.died()
	}
	return false, nil
}

// part gives one place up and returns its claim, nil if none stands or may stand. The caller has the mutex.
func (l *lease) part(p driver.Place) *claim {
	c := l.claims[seat{p.Name, p.Seat}]
	if c == nil || c.want.ID != p.ID {
		l.spent[p.ID] = true  // the Claim may still be on its way
		return l.parted[p.ID] // or this is a repetition
	}
	if p.Token != 0 && c.token != 0 && c.token != p.Token {
		return nil
	}
	l.giveUp(c)
	c.note = l.store.note(p)
	return c
}

// haveLeft waits until nothing of claims stands.
func (l *lease) haveLeft(ctx context.Context, all []*claim) error {
	for _, c := range all {
		select {
		case <-c.left:
		case <-ctx.Done():
			return ctx.Err()
		case <-l.link.dead:
			return l.died()
		}
	}
	return nil
}

// died returns what a release answers when the link is no more: nil if the session ended, and not if only we have let go of it.
func (l *lease) died() error {
	if errors.Is(l.link.why, driver.ErrGone) {
		return nil
	}
	return l.link.why
}

// leave begins to remove claims that were given up. Those that are still on their way are removed, or never enter, by who enters them.
func (l *lease) leave(all []*claim) {
	l.mu.Lock()
	var now []*claim
	for _, c := range all {
		if c.path != "" && !c.isGone && !c.leaving {
			c.leaving = true
			now = append(now, c)
		}
	}
	l.mu.Unlock()
	for len(now) > 0 {
		n, size := 1, len(now[0].path)
		for n < min(len(now), maxMany/2) && size+len(now[n].path) < maxBatch/4 { // beside them there is room for the records
			size += len(now[n].path)
			n++
		}
		go l.erase(now[:n:n])
		now = now[n:]
	}
}

// erase deletes the nodes of claims in one step, with the records they leave, and goes on until that is done or the session is over.
func (l *lease) erase(batch []*claim) {
	for try := 1; len(batch) > 0; try++ {
		var ops []any
		var notes []*claim
		for _, c := range batch {
			ops = append(ops, &zk.DeleteRequest{Path: c.path, Version: -1})
		}
		for _, c := range batch {
			if c.note != nil {
				notes, ops = append(notes, c), append(ops, c.note.op(l.store))
			}
		}
		var answers []zk.MultiResponse
		var err error
		if len(ops) == 1 { // without what a step of several costs the servers
			_, err = l.link.beside(context.Background(), deletePacket(batch[0].path))
			answers = []zk.MultiResponse{{Error: err}}
		} else {
			answers, err = multi(context.Background(), l.link, ops...)
		}
		if err == nil {
			l.haveGone(batch)
			return
		}
		switch at := failed(answers); {
		case at >= 0 && at < len(batch) && errors.Is(err, zk.ErrNoNode): // removed by hand, or by a try whose answer was lost
			l.haveGone(batch[at : at+1])
			batch = append(batch[:at:at], batch[at+1:]...)
			continue
		case at >= len(batch):
			if c := notes[at-len(batch)]; !c.note.learn(context.Background(), l, err) {
				c.note = nil // no record keeps a place from being given up
			}
			continue
		}
		if !l.link.pause(try) {
			return
		}
	}
}

func (l *lease) haveGone(batch []*claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range batch {
		l.hasLeft(c)
	}
}

// Update replaces the value that observers see.
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	if len(value) > maxValue {
		return fmt.Errorf("%s: a value of %d bytes, more than %d: %w", p.Name, len(value), maxValue, driver.ErrRefused)
	}
	c, err := l.standingAt(ctx, p)
	if err != nil {
		return err
	}
	_, err = call(ctx, l.link, func(k *zk.Conn) (*zk.Stat, error) { return k.Set(c.path, encode(l.owner, value), -1) })
	if errors.Is(err, zk.ErrNoNode) {
		l.removed(c)
		return driver.ErrGone
	}
	return err
}

// standingAt returns the claim of a place when it has entered, or ErrGone.
func (l *lease) standingAt(ctx context.Context, p driver.Place) (*claim, error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	c := l.find(p)
	l.mu.Unlock()
	if c == nil {
		return nil, driver.ErrGone
	}
	if err := l.hasEntered(ctx, c); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.find(p) != c { // its token is known now, or it has gone meanwhile
		return nil, driver.ErrGone
	}
	return c, nil
}
