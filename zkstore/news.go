package zkstore

import (
	"context"
	"errors"
	"slices"
	"sync"

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
		case l.isClosing() || errors.Is(l.reason(), driver.ErrGone):
			return nil, driver.ErrGone
		case len(got) > 0:
			return got, nil
		}
		if err := l.wait(ctx, more); err != nil {
			return nil, err
		}
	}
}

// Follow has News tell when places that wait have come to hold.
func (l *lease) Follow(places ...driver.Place) {
	for _, p := range places {
		if c := l.claims.find(p); c != nil { // otherwise News has told, or its owner released it
			go l.follow(c)
		}
	}
}

// follow has News tell when c holds, or that ZooKeeper refuses to tell us of its line.
func (l *lease) follow(c *claim) {
	for try := 1; ; try++ {
		err := l.hasEntered(context.Background(), c)
		if err == nil {
			err = newTurnWait(l, c).run()
		}
		if l.over() || l.isClosing() || l.claims.followed(c, err) || !l.pause(try) {
			return
		}
	}
}

// followed has News tell what came of following c: it holds if err is nil. False: c must be
// followed again.
func (cs *claims) followed(c *claim, err error) (done bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	switch {
	case c.isGone() || c.givenUp: // that is told already, or was its owner's doing
	case err == nil:
		cs.news.add(driver.News{Place: c.place(true), Held: true})
	case errors.Is(err, driver.ErrRefused):
		cs.news.add(driver.News{Place: c.place(false), Refused: err})
	default:
		return driver.IsFinal(err)
	}
	return true
}

// readMail has News tell the requests in the lease's mail node that are for terms that are not
// over, and empties the node: after that, for told twice is better than not at all.
func (l *lease) readMail(got looked) error {
	letters := readLetters(got.data)
	if len(letters) == 0 {
		return nil
	}
	for _, m := range letters {
		l.claims.request(m)
	}
	_, err := l.set(context.Background(), l.mail, nil, got.stat.version)
	if errors.Is(err, errBadVersion) { // more has come
		err = nil
	}
	return err
}
