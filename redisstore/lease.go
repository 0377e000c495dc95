package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// lease is a lease with what its owner knows of its claims.
//
// Lock order: syncer.turn, then lease.mu, then listener.mu or link.mu, then server.mu. Each may be
// taken without those before it. The turn of a finder's dialer, and then finder.mu, are taken while
// none of these is held. Only the two turns are held over a call to a server.
type lease struct {
	s      *Store
	id     string
	ttl    time.Duration
	poller poller
	syncer syncer

	mu        sync.Mutex
	epoch     string // the history of the server that answered last
	gone      bool
	over      chan struct{}        // closed when it is gone
	claims    map[string]*ownClaim // by claim ID
	tokens    map[uint64]*ownClaim
	inflight  int               // calls of Claim under way
	early     map[uint64]string // pushes that may have overtaken the answer of their Claim
	numbers   numbers
	releasing map[string]int // claim IDs, by how many calls under way give them up
	spent     storeutil.SpentIDs
	news      []driver.News
	added     chan struct{} // closed when there is news
	changes   string        // what others have done to the lease, as the server counts it
	request   int64         // the number of the last request that became news
}

var (
	_ driver.Lease      = (*lease)(nil)
	_ driver.Transferer = (*lease)(nil)
	_ driver.Exchanger  = (*lease)(nil)
	_ driver.LeaseTimer = (*lease)(nil)
)

func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func newLease(s *Store, ttl time.Duration) *lease {
	l := &lease{
		s: s, id: newID(), ttl: ttl, over: make(chan struct{}), added: make(chan struct{}), changes: "0",
		claims: map[string]*ownClaim{}, tokens: map[uint64]*ownClaim{}, early: map[uint64]string{},
		releasing: map[string]int{},
	}
	l.poller = poller{l: l, wake: make(chan struct{}, 1)}
	l.syncer = syncer{l: l, turn: make(chan struct{}, 1)}
	return l
}

// ID implements [driver.Lease].
func (l *lease) ID() string { return l.id }

// TTL implements [driver.Lease].
func (l *lease) TTL() time.Duration { return l.ttl }

// Renew implements [driver.Lease]. A server of another history than the lease's renews nothing
// (guard.go).
func (l *lease) Renew(ctx context.Context) error {
	got, err := l.ask(ctx, l.s.renewals, renewScript, true, nil, nil)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if got.str(2) != l.changes {
			l.syncer.laterLocked()
		}
	}
	return err
}

// Close implements [driver.Lease].
func (l *lease) Close(ctx context.Context) error {
	if err := l.s.end(ctx, l.id); err != nil {
		return err
	}
	l.end()
	return nil
}

// Left implements [driver.LeaseTimer].
func (l *lease) Left(ctx context.Context) (left, step time.Duration, err error) {
	all, err := l.s.Remaining(ctx, l.id)
	if err != nil {
		return 0, 0, err
	}
	r, ok := all[l.id]
	if !ok {
		return 0, 0, driver.ErrGone
	}
	return r.Left, r.Step, nil
}

// ask runs a verb of the lease. Where the server goes on with another history, the lease first asks
// what is left of it there, and then runs the verb again.
//
// args and note run under mu. args appends the verb's arguments to those that each verb has. note
// takes the answer in, only if the lease still goes by the history that the answer is of: nobody
// would ever compare one of a lost history with what the server has.
func (l *lease) ask(
	ctx context.Context, via *link, sc *script, durable bool, args func([]any) []any, note func(reply),
) (reply, error) {
	for range 3 {
		l.mu.Lock()
		if l.gone {
			l.mu.Unlock()
			return nil, driver.ErrGone
		}
		epoch := l.epoch
		full := append(make([]any, 0, 16), l.id, epoch, l.numbers.settled()) // the most frequent calls need no more
		if args != nil {
			full = args(full)
		}
		l.mu.Unlock()
		got, err := l.s.run(ctx, via, sc, durable, full...)
		if err != nil {
			return nil, err
		}
		switch got.str(0) {
		case "LOST":
			l.end()
			return got, driver.ErrGone
		case "EPOCH":
			if err := l.syncer.now(ctx, via); err != nil {
				return nil, err
			}
			continue
		case "NOID":
			return nil, l.s.unexpected(sc.name, got)
		}
		if l.note(epoch, got, note) {
			return got, nil
		}
	}
	return nil, fmt.Errorf("redis %s: %s: the server changed meanwhile", l.s.names, sc.name)
}

// note has an answer noted, unless the lease goes by another history than the answer by now.
func (l *lease) note(epoch string, got reply, note func(reply)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != epoch {
		return false
	}
	if note != nil {
		note(got)
	}
	return true
}

// end notes that the lease has ended, for good.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked()
}

// endLocked is end. The caller holds mu.
func (l *lease) endLocked() {
	if l.gone {
		return
	}
	l.gone, l.news = true, nil
	close(l.over)
	l.claims, l.tokens = map[string]*ownClaim{}, map[uint64]*ownClaim{}
	l.s.listener.drop(l.id)
}

// addNewsLocked keeps a piece of news and wakes News. The caller holds mu.
func (l *lease) addNewsLocked(n driver.News) {
	l.news = append(l.news, n)
	close(l.added)
	l.added = make(chan struct{})
}

// News implements [driver.Lease].
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	for {
		l.mu.Lock()
		news, added := l.news, l.added
		if l.gone {
			l.mu.Unlock()
			return nil, driver.ErrGone
		}
		l.news = nil
		l.mu.Unlock()
		if len(news) > 0 {
			return news, nil
		}
		select {
		case <-added:
		case <-l.over:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.s.ctx.Done():
			return nil, errClosed
		}
	}
}

// Follow implements [driver.Lease].
func (l *lease) Follow(places ...driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		c := l.claims[p.ID]
		switch {
		case c == nil || !c.entered || p.Token != 0 && c.token != p.Token:
			continue // its end was news already, or its owner released it
		case c.held:
			l.addNewsLocked(driver.News{Place: c.place(), Held: true})
			continue
		default:
			c.followed = true
		}
		l.poller.wakeLocked()
	}
}

// pushed takes in what the server pushes to the lease: "h <token> <epoch>" says that a claim holds,
// "s" that something else has happened.
func (l *lease) pushed(words []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if words[0] == "s" || len(words) < 3 {
		l.syncer.laterLocked()
		return
	}
	token := uint64(reply{words[1]}.num(0))
	c := l.tokens[token]
	switch {
	case c == nil && l.inflight > 0: // it may have overtaken the answer of its Claim
		l.early[token] = words[2]
	case c == nil:
	case words[2] == l.epoch:
		c.seenLocked(true, 0)
	default:
		l.syncer.laterLocked() // granted by a server of another history
	}
}

// pushesLost has everything looked at: some pushes may not have arrived.
func (l *lease) pushesLost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.claims) == 0 {
		return
	}
	for _, c := range l.claims {
		c.stale = c.entering > 0
	}
	l.syncer.laterLocked()
	l.poller.lookAtAllLocked()
}

// ownClaim is what the owner knows of one claim. The lease's mutex guards it.
type ownClaim struct {
	l              *lease
	name, seat, id string
	slots          int
	n              uint64 // its number; see numbers
	token          uint64
	entered        bool // a Claim has found it in the line
	held           bool
	stale          bool      // pushes may have been lost since its Claim was sent: it is looked at once it has entered
	entering       int       // calls of Claim under way
	doubt          bool      // a call of Claim had an unknown outcome
	followed       bool      // News is to say that it holds
	at             time.Time // when it is to be looked at, if somebody waits for it
}

func (c *ownClaim) place() driver.Place {
	return driver.Place{Name: c.name, Seat: c.seat, Slots: c.slots, ID: c.id, Token: c.token, Held: c.held}
}

// seenLocked notes whether the claim holds, and if not, in how long it is worth to look again. The
// caller holds the lease's mu.
func (c *ownClaim) seenLocked(held bool, again time.Duration) {
	if held && !c.held {
		c.held = true
		if c.followed {
			c.followed = false
			c.l.addNewsLocked(driver.News{Place: c.place(), Held: true})
		}
	}
	if !held {
		c.at = time.Now().Add(min(max(again, 0)+2*time.Millisecond, c.l.ttl+time.Millisecond, pollWaiting))
	}
}

// forgetLocked drops a claim that is gone for good, with all requests for it: a late one must not
// reach the next term. The caller holds the lease's mu.
func (c *ownClaim) forgetLocked() {
	l := c.l
	delete(l.claims, c.id)
	delete(l.tokens, c.token)
	l.numbers.settle(c.n)
	l.spent.Add(c.id)
	kept := l.news[:0]
	for _, n := range l.news {
		if c.token == 0 || n.Place.Token != c.token {
			kept = append(kept, n)
		}
	}
	l.news = kept
}
