package zkstore

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
)

// news is what others did to a lease's places and News has not returned yet.
type news struct {
	mu     sync.Mutex
	untold []driver.News
	more   chan struct{} // closed when there is more, or the lease is closing
}

// add has News return n.
func (q *news) add(n driver.News) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.untold = append(q.untold, n)
	q.wakeLocked()
}

// wake has News look again.
func (q *news) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeLocked()
}

func (q *news) wakeLocked() {
	close(q.more)
	q.more = make(chan struct{})
}

// drop takes out the news of a claim.
func (q *news) drop(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.untold = slices.DeleteFunc(q.untold, func(n driver.News) bool { return n.Place.ID == id })
}

// take returns what there is, and what is closed when there is more.
func (q *news) take() ([]driver.News, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	got := q.untold
	q.untold = nil
	return got, q.more
}

// News returns what others did to the lease's places since the last call, or blocks until there is
// something.
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		got, more := l.claims.news.take()
		switch {
		case l.isClosing() || l.over() && errors.Is(l.why, driver.ErrGone):
			return nil, driver.ErrGone
		case len(got) > 0:
			return got, nil
		}
		if err := l.wait(ctx, more); err != nil {
			return nil, err
		}
	}
}

// Follow has News tell what becomes of places.
func (l *lease) Follow(places ...driver.Place) {
	for _, p := range places {
		c := l.claims.find(p)
		switch {
		case c == nil: // News has told, or its owner released it
		case p.Held:
			go l.follow(c, l.wanted, driver.News{Wanted: true})
		default:
			held := func(c *claim) error { return newTurnWait(l, c).run() }
			go l.follow(c, held, driver.News{Held: true})
		}
	}
}

// follow tells a piece of news when until has returned nil, unless the claim is no more by then.
func (l *lease) follow(c *claim, until func(*claim) error, n driver.News) {
	for try := 1; ; try++ {
		err := l.hasEntered(context.Background(), c)
		if err == nil {
			err = until(c)
		}
		if l.over() || l.isClosing() || l.tellHeld(c, n, err) || driver.IsFinal(err) || !l.pause(try) {
			return
		}
	}
}

// tellHeld tells n of a claim that holds, if err is nil. It says whether there is no more to be
// told.
func (l *lease) tellHeld(c *claim, n driver.News, err error) (done bool) {
	l.claims.mu.Lock()
	defer l.claims.mu.Unlock()
	if c.gone() || c.spent {
		return true
	}
	if err == nil {
		n.Place = c.place(true)
		l.claims.news.add(n)
	}
	return err == nil
}

// wanted returns nil when a claim of another lease waits behind c.
func (l *lease) wanted(c *claim) error {
	for {
		ln, err := l.line(context.Background(), c.want.Name, true)
		if err != nil {
			return err
		}
		at := ln.indexOf(c.path)
		if at < 0 {
			l.claims.removed(c)
			return driver.ErrGone
		}
		for i := at + 1; i < len(ln.nodes); i++ {
			if ln.nodes[i].lease != l.id && !free(ln.nodes, i) {
				return nil
			}
		}
		if err := anyOf(context.Background(), c.left, ln.watch); err != nil {
			return err
		}
	}
}

// readMail has News tell the requests in the lease's mail node that are for terms that are not
// over, and empties the node: after that, for told twice is better than not at all.
func (l *lease) readMail(got looked) (done bool, _ error) {
	letters := open(got.data)
	if len(letters) == 0 {
		return false, nil
	}
	for _, m := range letters {
		l.claims.request(m)
	}
	_, err := l.set(context.Background(), l.mail, []byte{}, got.stat.Version)
	if errors.Is(err, zk.ErrBadVersion) { // more has come
		err = nil
	}
	return false, err
}
