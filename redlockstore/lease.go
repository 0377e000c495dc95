package redlockstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// lease is a lease with its claims, at most one for each seat. The servers know only its claims'
// keys.
type lease struct {
	s     *Store
	owner string
	id    string
	ttl   time.Duration
	limit time.Duration // of one call on one server
	gate  chan struct{} // a lock: no renewal begins while it is held

	mu       sync.Mutex
	claims   map[storeutil.Seat]*claim
	spent    storeutil.SpentIDs
	tries    int           // of all its claims
	leaving  []*attempt    // given up, and may still stand on a majority
	renewed  time.Duration // by the boot clock, when the last accepted renewal was called
	renewals int           // begun so far
	checked  time.Duration // when the held claims were last known to stand
	ended    bool
	done     chan struct{} // closed when it has ended
	news     []driver.News
	added    chan struct{} // closed when there is news
}

func (l *lease) ID() string { return l.id }

func (l *lease) TTL() time.Duration { return l.ttl }

// errLost says that a claim is gone and that its owner has not heard of it: nothing is renewed
// until he has.
var errLost = errors.New("a claim has lost its majority, and its owner was not told yet")

// Renew starts the ttl of every held claim afresh. Nil: each stands on a majority since before the
// call, and was extended there within it.
func (l *lease) Renew(ctx context.Context) error {
	called := boottime.Now()
	held, err := l.begin(ctx, called)
	if err != nil {
		return fmt.Errorf("renew: %w", err)
	}
	lost, err := l.prolong(ctx, held)
	if err == nil && len(lost) > 0 {
		err = errLost
	}
	if err == nil || errors.Is(err, driver.ErrGone) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ended {
			err = driver.ErrGone
		} else if err == nil {
			l.renewed, l.checked = max(l.renewed, called), called
		}
	}
	if err != nil {
		return fmt.Errorf("renew: %w", err)
	}
	return nil
}

// begin begins a renewal, and returns the claims that it has to extend. A claim that is being
// entered meanwhile is extended once more before it counts as held.
func (l *lease) begin(ctx context.Context, now time.Duration) (held []*claim, err error) {
	select {
	case l.gate <- struct{}{}:
		defer func() { <-l.gate }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overLocked(now) {
		return nil, driver.ErrGone
	}
	if l.hasLossLocked() {
		return nil, errLost
	}
	l.renewals++
	for _, c := range l.claims {
		if c.held {
			held = append(held, c)
		}
	}
	return held, nil
}

// hasLossLocked says whether there is news of a claim that is gone. The caller holds l.mu.
func (l *lease) hasLossLocked() bool {
	return slices.ContainsFunc(l.news, func(n driver.News) bool { return n.Gone })
}

// overLocked says whether the lease is over, and ends it when its time has come. The caller holds
// l.mu.
func (l *lease) overLocked(now time.Duration) bool {
	if !l.ended && now >= l.renewed+l.ttl {
		l.endLocked()
	}
	return l.ended
}

// left is how long the lease lasts without another renewal.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewed + l.ttl - boottime.Now()
}

// endLocked ends the lease and gives every claim up. The caller holds l.mu.
func (l *lease) endLocked() {
	if l.ended {
		return
	}
	l.ended = true
	for _, c := range l.claims {
		c.removeLocked()
	}
	l.news = nil
	close(l.done)
}

// prolong starts the ttl of these held claims afresh on all servers. It returns those that have
// certainly lost their majority, whose owner is told, and an error unless each of the others was
// extended on a majority that counts. What a minority has lost is set there again.
func (l *lease) prolong(ctx context.Context, held []*claim) (lost []*claim, err error) {
	_ = l.s.again(ctx, func() error {
		if lost, err = l.prolongOnce(ctx, held); len(lost) > 0 {
			return nil // no second try finds them again; err is of the others
		}
		return err
	})
	return lost, err
}

func (l *lease) prolongOnce(ctx context.Context, held []*claim) (lost []*claim, err error) {
	keys, args := []string{l.s.revoked(l.id)}, []any{l.ttl.Milliseconds()}
	l.mu.Lock()
	for _, c := range held {
		keys, args = append(keys, l.s.key(c.Name)), append(args, c.cur.own)
	}
	l.mu.Unlock()
	answers := askAll(l.s, func(v *server) ([]any, error) { return v.call(extend, l.limit, keys, args...) })
	count, revoked := newCount(l.s, len(held)), false
	err = gather(ctx, l.s, answers, func(a values) bool {
		revoked = revoked || a.err == nil && len(a.got) > 0 && a.got[0] == int64(1)
		count.add(a, 1)
		return revoked || count.enough()
	})
	if revoked {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.endLocked()
		return nil, fmt.Errorf("the lease was revoked: %w", driver.ErrGone)
	}
	if err != nil {
		return nil, count.error(err)
	}
	lost, short := l.judge(held, count)
	if short {
		err = count.error(nil)
	}
	if len(lost) == 0 && !short {
		l.repair(held, count, answers)
	}
	return lost, err
}

// judge tells the owner of claims that have certainly lost their majority, and returns them. Short
// says that of another it is not known to be kept, or that too few servers count at all.
func (l *lease) judge(held []*claim, n *count) (lost []*claim, short bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range held {
		switch {
		case c.out: // its owner has given it up meanwhile
		case n.not[i] > len(l.s.servers)-l.s.quorum:
			c.loseLocked()
			lost = append(lost, c)
		case n.own[i] < l.s.quorum:
			short = true
		}
	}
	return lost, short || n.counting < l.s.quorum
}

// repair sets keys again where a minority of the servers has lost them. It is called when a
// majority was just extended, so nobody else can hold them; and it sets only what is free.
func (l *lease) repair(held []*claim, count *count, answers <-chan values) {
	if count.answered == len(l.s.servers) && len(count.free) == 0 {
		return
	}
	l.s.run(func() {
		for count.answered < len(l.s.servers) {
			count.add(<-answers, 1)
		}
		for at, free := range count.free {
			var again []*attempt
			for _, i := range free {
				again = append(again, held[i].cur)
			}
			if len(again) > 0 {
				_, _ = l.enterAt(l.s.servers[at], again) // if not now, after the next renewal
			}
		}
	})
}

// Close ends the lease and waits until none of its claims can stand on a majority.
func (l *lease) Close(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	over := boottime.Now() >= l.renewed+l.ttl
	l.endLocked()
	leaving := l.leavingLocked(func(*claim) bool { return true })
	l.mu.Unlock()
	if over {
		return nil // it ended by itself, and so do its keys
	}
	return l.awaitOff(ctx, "close", leaving)
}

// Update replaces the value that observers see: on all servers where the claim is held, else from
// when it is.
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	c := l.findLocked(p)
	over := l.overLocked(boottime.Now())
	l.mu.Unlock()
	if c == nil || over {
		return fmt.Errorf("update: %w", driver.ErrGone)
	}
	done, err := takeTurns(ctx, []*claim{c})
	if err != nil {
		return err
	}
	defer done()
	l.mu.Lock()
	if c.out {
		l.mu.Unlock()
		return fmt.Errorf("update: %w", driver.ErrGone)
	}
	c.Value = bytes.Clone(value)
	c.updates++
	held := c.held
	var text string
	if held {
		text = c.cur.valueLocked()
	}
	l.mu.Unlock()
	if !held {
		return nil
	}
	return l.announce(ctx, c, text)
}

// announce brings a new value to a majority.
func (l *lease) announce(ctx context.Context, c *claim, text string) error {
	key, channel := l.s.key(c.Name), l.s.channel(c.Name)
	answers := askAll(l.s, func(v *server) ([]any, error) {
		return v.call(update, l.limit, []string{key}, text,
			channel)
	})
	n := newCount(l.s, 1)
	err := gather(ctx, l.s, answers, func(a values) bool { n.add(a, 0); return n.enough() })
	if err != nil {
		return fmt.Errorf("update: %w", n.error(err))
	}
	if n.enough() {
		return nil
	}
	lost, _ := l.judge([]*claim{c}, n)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(lost) > 0 || c.out {
		return fmt.Errorf("update: %w", driver.ErrGone)
	}
	return fmt.Errorf("update: %w", n.error(nil))
}
