package pgstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// lease is a lease with what this process knows of its claims.
type lease struct {
	s         *Store
	id, owner string
	ttl       time.Duration
	over      chan struct{} // closed when the lease is known to have ended

	mu     sync.Mutex
	isOver bool                         // the lease is known to have ended
	claims map[storeutil.Seat]*ownClaim // at most one for each seat
	ids    claimIDs
	news   []driver.News
	added  chan struct{} // closed when there is news

	// What the goroutine of look asks the server about.
	due       map[*ownClaim]bool // claims to be looked at now
	dueSelf   bool               // the lease itself: its requests, and whether claims were removed
	looking   bool               // that goroutine runs
	readers   int                // calls of News under way
	timer     *time.Timer        // has the lease itself looked at
	request   int64              // the last request that became news
	different string             // what was compared last with the server's count of claims
}

var (
	_ driver.Lease      = (*lease)(nil)
	_ driver.LeaseTimer = (*lease)(nil)
)

func newLease(s *Store, id, owner string, ttl time.Duration) *lease {
	return &lease{
		s: s, id: id, owner: owner, ttl: ttl, over: make(chan struct{}), added: make(chan struct{}),
		claims: map[storeutil.Seat]*ownClaim{}, ids: newClaimIDs(), due: map[*ownClaim]bool{},
	}
}

// ID implements [driver.Lease].
func (l *lease) ID() string { return l.id }

// TTL implements [driver.Lease].
func (l *lease) TTL() time.Duration { return l.ttl }

// Renew implements [driver.Lease]. Nil: the primary has the new end on its disk, and the
// synchronous standby has it too where there is one. No other server can have become primary
// without that one.
func (l *lease) Renew(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.ended() {
		return driver.ErrGone
	}
	var lives bool
	var claims, request int64
	var sum string
	limit := min(max(l.ttl/4, 500*time.Millisecond), 3*time.Second)
	sql := l.s.schema.fill.Replace("SELECT * FROM {S}.renew($1::text)")
	err := l.s.renewals.run(ctx, limit, sql, []any{l.id}, into(&lives, &claims, &sum, &request))
	if err != nil {
		return l.s.wrap(ctx, "renew", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !lives {
		return l.goneLocked("renew")
	}
	l.compareLocked(fmt.Sprint(claims, " ", sum))
	l.dueSelf = l.dueSelf || request > l.request
	l.wakeLookerLocked()
	return nil
}

// Left implements [driver.LeaseTimer], to the microsecond.
func (l *lease) Left(ctx context.Context) (left, step time.Duration, err error) {
	if l.ended() {
		return 0, 0, driver.ErrGone
	}
	all, err := l.s.Remaining(ctx, l.id)
	if err != nil {
		return 0, 0, err
	}
	r, there := all[l.id]
	if !there {
		return 0, 0, fmt.Errorf("postgres %s: left: the lease has ended: %w", l.s.hosts, driver.ErrGone)
	}
	return r.Left, r.Step, nil
}

// Close implements [driver.Lease].
func (l *lease) Close(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.ended() {
		return nil
	}
	l.mu.Lock()
	for _, o := range l.claims {
		o.leaving = true
	}
	l.mu.Unlock()
	if err := l.s.do(ctx, "close", "SELECT {S}.end_lease($1::text, false)", []any{l.id}, nil); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked()
	return nil
}

func (l *lease) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isOver
}

// goneLocked ends the lease in this process, and returns the error that says so. The caller holds
// mu.
func (l *lease) goneLocked(verb string) error {
	l.endLocked()
	return fmt.Errorf("postgres %s: %s: the lease has ended: %w", l.s.hosts, verb, driver.ErrGone)
}

// endLocked notes that the lease has ended, for good. The caller holds mu.
func (l *lease) endLocked() {
	if l.isOver {
		return
	}
	l.isOver = true
	for _, o := range l.claims {
		o.forgetLocked()
	}
	l.news = nil
	stop(l.timer)
	close(l.over)
	l.s.own.remove(l)
}

// stopTimers ends what runs for the lease in this process. The lease lives on in the store.
func (l *lease) stopTimers() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.claims {
		stop(o.timer)
	}
	stop(l.timer)
}

func stop(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}

// News implements [driver.Lease].
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers++
	defer func() { l.readers-- }()
	l.lookLaterLocked()
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
		added := l.added
		l.mu.Unlock()
		var err error
		select {
		case <-added:
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

// addNewsLocked keeps a piece of news and wakes News. The caller holds mu.
func (l *lease) addNewsLocked(n driver.News) {
	l.news = append(l.news, n)
	close(l.added)
	l.added = make(chan struct{})
}

// compareLocked has all claims looked at where the server's are others: some may have been removed
// by hand. The server's and ours are given as their number and the sum of their tokens. The caller
// holds mu, and wakes the looker.
func (l *lease) compareLocked(server string) {
	sum := uint64(0)
	for _, o := range l.claims {
		sum += o.place.Token
	}
	ours := fmt.Sprint(len(l.claims), " ", sum)
	both := server + " / " + ours
	if server != ours && both != l.different { // a claim whose outcome is unknown is asked about once
		for _, o := range l.claims {
			l.due[o] = true
		}
	}
	l.different = both
}

// claimIDs knows which claim IDs may still enter, and which must not any more. The lease's mutex
// guards it.
type claimIDs struct {
	calls     map[string]int  // calls under way that may enter a claim, by its ID
	doubt     map[string]bool // IDs of which such a call had an unknown outcome: it may still come to the server
	releasing map[string]int  // IDs that a call gives up without a word against them on the server
	spent     storeutil.SpentIDs
}

func newClaimIDs() claimIDs {
	return claimIDs{calls: map[string]int{}, doubt: map[string]bool{}, releasing: map[string]int{}}
}

// refused says whether an ID was given up, or is being given up now. A call that entered it could
// come to the server after the release.
func (c *claimIDs) refused(id string) bool { return c.spent.Has(id) || c.releasing[id] > 0 }

// entered notes the end of a call that may have entered the ID.
func (c *claimIDs) entered(id string, unknown bool) {
	if c.calls[id]--; c.calls[id] == 0 {
		delete(c.calls, id)
	}
	if unknown {
		c.doubt[id] = true
	}
}

// release notes that an ID is being given up. It returns whether the server must keep a word
// against it, because a call that enters it can still come.
func (c *claimIDs) release(id string, known bool) (spend bool) {
	return c.calls[id] > 0 || c.doubt[id] || !known && !c.spent.Has(id)
}

// released notes the outcome of a call that was to give an ID up. After an unknown outcome the ID
// may not enter any more: the release can come to the server later.
func (c *claimIDs) released(id string, spend bool, err error) {
	if spend || c.releasing[id] == 0 {
		return
	}
	if c.releasing[id]--; c.releasing[id] == 0 {
		delete(c.releasing, id)
	}
	if err != nil && !isFinal(err) {
		c.spent.Add(id)
	}
}
