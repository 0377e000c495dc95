package pgstore

import (
	"context"
	"fmt"
	"math/big"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// lease is a lease with what this process knows of its claims.
type lease struct {
	s         *Store
	id, owner string
	ttl       time.Duration
	over      chan struct{} // closed when the lease is known to have ended

	mu      sync.Mutex
	isOver  bool
	stands  map[seat]*stand // at most one for each seat
	calls   map[string]int  // calls under way that may enter a claim, by its ID
	doubt   map[string]bool // claim IDs of which such a call had an unknown outcome: it may still come
	leaving map[string]int  // claim IDs that are being given up without a word to the server against late calls
	spent   ring
	news    []driver.News
	told    chan struct{} // closed when there is news
	heard   int64         // the last request that was told
	seen    string        // what was compared last with the server's count of claims

	due     map[*stand]bool // to be looked at now
	dueSelf bool            // the lease itself
	looking bool
	readers int // calls of News under way
	timer   *time.Timer
}

// seat is what a lease has at most one claim for.
type seat struct{ name, seat string }

var _ driver.Lease = (*lease)(nil)

func newLease(s *Store, id, owner string, ttl time.Duration) *lease {
	return &lease{
		s: s, id: id, owner: owner, ttl: ttl, over: make(chan struct{}), stands: map[seat]*stand{}, calls: map[string]int{},
		doubt: map[string]bool{}, told: make(chan struct{}), leaving: map[string]int{}, due: map[*stand]bool{},
	}
}

// ID implements [driver.Lease].
func (l *lease) ID() string { return l.id }

// TTL implements [driver.Lease].
func (l *lease) TTL() time.Duration { return l.ttl }

// Close implements [driver.Lease].
func (l *lease) Close(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.ended() {
		return nil
	}
	l.mu.Lock()
	for _, st := range l.stands {
		st.leaving = true
	}
	l.mu.Unlock()
	if err := l.s.do(ctx, "close", "SELECT {S}.end_lease($1::text, false)", []any{l.id}, nil); err != nil {
		return err
	}
	l.end()
	return nil
}

func (l *lease) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isOver
}

// gone is the error for a lease that has ended.
func (l *lease) gone(verb string) error {
	l.end()
	return fmt.Errorf("postgres %s: %s: the lease has ended: %w", l.s.hosts, verb, driver.ErrGone)
}

// end notes that the lease has ended: for good.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isOver {
		return
	}
	l.isOver = true
	for _, st := range l.stands {
		l.forget(st)
	}
	l.news = nil
	l.halt()
	close(l.over)
	l.s.forgetLease(l)
}

// stop ends what runs for the lease in this process, which lives on in the store.
func (l *lease) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, st := range l.stands {
		st.halt()
	}
	l.halt()
}

func (l *lease) halt() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// News implements [driver.Lease].
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers++
	defer func() { l.readers-- }()
	l.pollSelf()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if l.isOver {
			return nil, driver.ErrGone
		}
		if len(l.news) > 0 {
			news := l.news
			l.news = nil
			return news, nil
		}
		told := l.told
		l.mu.Unlock()
		var err error
		select {
		case <-told:
		case <-l.over:
		case <-ctx.Done():
		case <-l.s.ctx.Done():
			err = errClosed
		}
		l.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

// pollSelf has the lease itself looked at after a while, as long as somebody reads its news. The caller has the mutex.
func (l *lease) pollSelf() {
	after := min(l.s.ear.poll(), l.ttl)
	if l.timer == nil {
		l.timer = time.AfterFunc(after, func() { l.lookAt(nil) })
	} else {
		l.timer.Reset(after)
	}
}

// tell keeps a piece of news and wakes News. The caller has the mutex.
func (l *lease) tell(n driver.News) {
	l.news = append(l.news, n)
	close(l.told)
	l.told = make(chan struct{})
}

// compare looks closer where the server's claims of this lease are not those that we know of: some may have been removed by hand.
func (l *lease) compare(server string, asked int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.differ(server)
	l.dueSelf = l.dueSelf || asked > l.heard
	l.wakeLooker()
}

// differ has all claims looked at where there are others on the server. The caller has the mutex.
func (l *lease) differ(server string) {
	n, sum := 0, new(big.Int)
	for _, st := range l.stands {
		n++
		sum.Add(sum, new(big.Int).SetUint64(st.place.Token))
	}
	ours := fmt.Sprint(n, " ", sum)
	both := server + " / " + ours
	if server != ours && both != l.seen { // a claim whose call is in doubt makes no question each time
		for _, st := range l.stands {
			l.due[st] = true
		}
	}
	l.seen = both
}

// ring remembers the last claim IDs that were given up. What is still under way under one of them is on the server's list, which forgets nothing
// while the lease lives.
type ring struct {
	ids   map[string]bool
	order []string
	next  int
}

const ringSize = 8192

func (r *ring) has(id string) bool { return r.ids[id] }

func (r *ring) add(id string) {
	if r.ids == nil {
		r.ids = map[string]bool{}
	}
	if r.ids[id] {
		return
	}
	r.ids[id] = true
	if len(r.order) < ringSize {
		r.order = append(r.order, id)
		return
	}
	delete(r.ids, r.order[r.next])
	r.order[r.next] = id
	r.next = (r.next + 1) % ringSize
}
