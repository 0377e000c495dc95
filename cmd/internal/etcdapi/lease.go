package etcdapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
)

// lease is what a client believes to be a lease of etcd.
//
//	live ──▶ ending ──▶ over   ending: a claim was lost or asked for; the client is told, and may
//	  │                  ▲               not have heard of it until its ttl is over
//	  └──────────────────┘     revoked, or silent for its ttl
type lease struct {
	id      int64
	ttl     time.Duration
	owner   *Server
	session *primacy.Session
	clock   boottime.Clock

	mu       sync.Mutex
	promised time.Duration // until then the client may believe in it: boot clock
	open     int           // calls under way that made the lease themselves: it waits for them
	ending   bool
	closed   bool
	holds    map[string]*hold // by name
	moved    *time.Timer      // looks whether the lease is over

	life   context.Context // ends with the first of ending and closed
	cut    context.CancelFunc
	gone   chan struct{} // closed when nothing is left of it in the store, or as much as could be done is done
	failed error         // why something may be left; set before gone is closed
}

// slack is how long after its ttl a silent client's lease ends: so much slower may its clock run.
func (l *lease) slack() time.Duration { return l.ttl / 10 }

// newLease returns a lease whose session has one in the store. The client's ttl begins with the
// answer.
func newLease(ctx context.Context, o *Server, id int64, ttl time.Duration) (*lease, error) {
	session, err := primacy.NewSession(o.store, &primacy.Options{
		ID:  owner(id, o.o.ID),
		TTL: o.storeTTL(ttl), RenewEvery: ttl / 5,
		Overrun: primacy.OverrunWait, // what a client does cannot be ended by ending this process
		Logger:  o.o.Logger,
	})
	if err != nil {
		return nil, err
	}
	l := &lease{id: id, ttl: ttl, owner: o, session: session, clock: o.clock,
		holds: map[string]*hold{}, gone: make(chan struct{})}
	l.life, l.cut = context.WithCancel(context.Background())
	if err := session.Ready(ctx); err != nil {
		go func() { _ = l.close() }() // a grant may be under way
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.promised = l.clock() + ttl
	l.moved = time.AfterFunc(ttl+l.slack(), l.look)
	return l, nil
}

// look ends the lease if the client has been silent for too long.
func (l *lease) look() {
	l.mu.Lock()
	left := l.promised + l.slack() - l.clock()
	switch {
	case l.closed:
		l.mu.Unlock()
		return
	case l.ending && !l.holding():
		left = 0 // nobody believes to hold anything
	case l.open > 0 && !l.ending:
		left = max(left, l.ttl)
	}
	if left > 0 {
		l.moved.Reset(left)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	_ = l.close() // what is not confirmed runs out in the store
}

// holding says whether the client holds something that another could have.
func (l *lease) holding() bool {
	for _, h := range l.holds {
		if t := h.held(); t != nil && t.Check() == nil {
			return true
		}
	}
	return false
}

// end has the client told, by its next keepalive, that the lease is over. What it holds is given up
// when it must have heard of it.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ending && !l.closed {
		l.ending = true
		l.cut()
		l.moved.Reset(0)
	}
}

// close gives everything up. It returns when the store has confirmed it, or with why it has not.
func (l *lease) close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		<-l.gone
		return l.failed
	}
	l.closed = true
	l.cut()
	holds := slices.Collect(maps.Values(l.holds))
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), l.owner.storeTTL(l.ttl))
	defer cancel()
	for _, h := range holds {
		h.drop()
	}
	l.failed = l.session.Close(ctx)
	l.owner.forget(l)
	close(l.gone)
	return l.failed
}

// keepAlive starts the ttl afresh and returns it, 0 if the lease is over. It waits until every
// claim that the client holds is sure to stand for so long.
func (l *lease) keepAlive(ctx context.Context) time.Duration {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(l.life, stop)()
	for {
		short, until, ok := l.promise()
		if ok {
			return l.ttl
		}
		if short == nil || ctx.Err() != nil {
			return 0
		}
		if next, err := short.NextDeadline(ctx, until); next == 0 || err != nil {
			pause(ctx) // a term that is over ends the lease in a moment, unless the client itself gave it up
		}
	}
}

// promise starts the client's ttl afresh if that is safe. Otherwise it returns the term that does
// not last so long, with its deadline; nil if the lease is over.
func (l *lease) promise() (short *primacy.Term, until time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	if l.ending || l.closed || l.open == 0 && now > l.promised+l.slack() { // the timer that ends it is late
		return nil, 0, false
	}
	for _, h := range l.holds {
		t := h.held()
		if t == nil {
			continue
		}
		if until := t.Deadline(); until < now+l.ttl {
			return t, until, false
		}
	}
	l.promised = now + l.ttl
	return nil, 0, true
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Millisecond):
	}
}

// left returns how much is left for the client, -1 if the lease is over.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending || l.closed {
		return -1
	}
	return max(0, l.promised-l.clock())
}

// names returns what the client holds or waits for.
func (l *lease) names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.holds))
}

// find returns what the lease has or wants of name, nil if nothing.
func (l *lease) find(name string) *hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holds[name]
}

// begin and done frame a call that made the lease itself: nobody keeps it alive meanwhile.
func (l *lease) begin() { l.enter(1) }

func (l *lease) done() { l.enter(-1) }

func (l *lease) enter(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += n
}

// owner is the identity under which the sessions of clients are seen by others. It names the lease,
// so that who asks for the leader gets its key.
func owner(lease int64, id string) string { return fmt.Sprintf("etcd-%x@%s", lease, id) }
