package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// lease is a lease with what its owner knows of its claims.
type lease struct {
	s   *Store
	id  string
	ttl time.Duration

	sync chan struct{} // held by whoever asks what is left of the lease

	mu       sync.Mutex
	epoch    string // the history of the server that answered last
	gone     bool
	over     chan struct{}     // closed when gone
	claims   map[string]*claim // by claim ID
	tokens   map[uint64]*claim
	inflight int               // calls of Claim under way
	early    map[uint64]string // pushes that may have overtaken the answer of their Claim
	numbers  numbers
	spent    spent
	news     []driver.News
	told     chan struct{} // closed when there is news
	changes  string        // what others have done to the lease, as the server counts it
	asked    int64         // number of the last request that was told
	wake     chan struct{} // has the vigil look at its times again
	watched  bool          // the vigil runs
	doubt    bool          // pushes may have been lost: everything is to be looked at
	syncing  bool          // a sync runs that nobody waits for
	resync   bool          // and another one is wanted
}

var (
	_ driver.Lease      = (*lease)(nil)
	_ driver.Transferer = (*lease)(nil)
	_ driver.Exchanger  = (*lease)(nil)
	_ driver.LeaseTimer = (*lease)(nil)
)

// claim is what the owner knows of one claim.
type claim struct {
	name, seat, id string
	slots          int
	n              uint64 // its number; see numbers
	token          uint64
	entered        bool // a Claim has found it in the line
	held           bool
	fresh          bool // it came to hold since the last Wait, and no Claim said so: the next Wait needs no read
	stale          bool // pushes may have been lost since its Claim was sent: it is looked at as soon as somebody waits
	busy           int  // calls of Claim under way
	leaving        int  // calls that give it up
	doubt          bool // and one whose outcome is unknown
	moved          chan struct{}
	waits          int  // calls of Wait
	follows, wants bool // News is to tell that it holds, that another waits behind it
	at             time.Time
}

func (c *claim) place() driver.Place {
	return driver.Place{Name: c.name, Seat: c.seat, Slots: c.slots, ID: c.id, Token: c.token, Held: c.held}
}

// stir wakes those who wait for a change of the claim.
func (c *claim) stir() {
	close(c.moved)
	c.moved = make(chan struct{})
}

func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func newLease(s *Store, ttl time.Duration) *lease {
	return &lease{s: s, id: newID(), ttl: ttl, sync: make(chan struct{}, 1), over: make(chan struct{}), claims: map[string]*claim{},
		tokens: map[uint64]*claim{}, early: map[uint64]string{}, told: make(chan struct{}), wake: make(chan struct{}, 1), changes: "0"}
}

func (l *lease) ID() string { return l.id }

func (l *lease) TTL() time.Duration { return l.ttl }

// Renew starts the ttl afresh. It counts on the server only if that goes on with the history in which the lease was last seen (guard.go).
func (l *lease) Renew(ctx context.Context) error {
	got, err := l.ask(ctx, l.s.beats, renewScript, true, nil, nil)
	if err == nil {
		l.counted(got.str(2))
	}
	return err
}

// Close ends the lease at once.
func (l *lease) Close(ctx context.Context) error {
	if err := l.s.end(ctx, l.id); err != nil {
		return err
	}
	l.lost()
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

// ask runs a verb of the lease. A server that goes on with another history does nothing before the lease knows what is left of it there.
// take notes what the answer says, under the mutex and only if the lease still goes by the history that the answer tells of: noted a moment later it
// may be of one that is lost, and nobody would ever compare it with what the server has.
func (l *lease) ask(ctx context.Context, via *link, sc *script, durable bool, args func() []any, take func(reply)) (reply, error) {
	for range 3 {
		l.mu.Lock()
		if l.gone {
			l.mu.Unlock()
			return nil, driver.ErrGone
		}
		epoch := l.epoch
		full := []any{l.id, epoch, l.numbers.settled()}
		if args != nil {
			full = append(full, args()...)
		}
		l.mu.Unlock()
		got, err := l.s.run(ctx, via, sc, durable, full...)
		if err != nil {
			return nil, err
		}
		switch got.str(0) {
		case "LOST":
			l.lost()
			return got, driver.ErrGone
		case "EPOCH":
			if err := l.reconcile(ctx, via); err != nil {
				return nil, err
			}
			continue
		case "NOID":
			return nil, l.s.odd(sc.name, got)
		}
		if l.counts(epoch, got, take) {
			return got, nil
		}
	}
	return nil, fmt.Errorf("redis %s: %s: the server changed meanwhile", l.s.names, sc.name)
}

// counts has take note an answer, unless the lease has left its history while it was on its way.
func (l *lease) counts(epoch string, got reply, take func(reply)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != epoch {
		return false
	}
	if take != nil {
		take(got)
	}
	return true
}

// odd is the error for an answer that the caller does not expect.
func (s *Store) odd(verb string, got reply) error {
	if got.str(0) == "NOID" {
		return fmt.Errorf("redis %s: %s: %w: INFO replication tells no master_replid, without which a failover cannot be noticed", s.names, verb, driver.ErrRefused)
	}
	return fmt.Errorf("redis %s: %s: the script answered %q", s.names, verb, got.str(0))
}

// lost notes that the lease is no more.
func (l *lease) lost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

// end is lost for who has the mutex.
func (l *lease) end() {
	if l.gone {
		return
	}
	l.gone, l.news = true, nil
	close(l.over)
	for _, c := range l.claims {
		c.stir()
	}
	l.claims, l.tokens = map[string]*claim{}, map[uint64]*claim{}
	l.s.hub.drop(l.id)
}

// counted compares how often others have changed the lease with what is known, and asks for the news.
func (l *lease) counted(changes string) {
	l.mu.Lock()
	same := changes == l.changes
	l.mu.Unlock()
	if !same {
		l.learn()
	}
}

// forget drops a claim that is gone for good, with all requests for it: a late one must not reach the next term. The caller has the mutex.
func (l *lease) forget(c *claim) {
	delete(l.claims, c.id)
	delete(l.tokens, c.token)
	l.numbers.settle(c.n)
	l.spent.add(c.id)
	kept := l.news[:0]
	for _, n := range l.news {
		if c.token == 0 || n.Place.Token != c.token {
			kept = append(kept, n)
		}
	}
	l.news = kept
	c.stir()
}

// tell keeps a piece of news and wakes who listens. The caller has the mutex.
func (l *lease) tell(n driver.News) {
	l.news = append(l.news, n)
	close(l.told)
	l.told = make(chan struct{})
}

// News blocks until others have done something to the lease's places.
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	for {
		l.mu.Lock()
		news, told := l.news, l.told
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
		case <-told:
		case <-l.over:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.s.ctx.Done():
			return nil, errClosed
		}
	}
}
