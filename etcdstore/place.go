package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
)

// spotOf returns where a place is, among those of its lease.
func spotOf(p driver.Place) spot { return spot{p.Name, p.Seat} }

// keyOf returns the key of a place.
func (l *lease) keyOf(p driver.Place) string { return l.s.claimKey(spotOf(p), p.Slots, l.stem) }

// known returns p with what is known of its claim: its slots, and where p has no token, that.
func (l *lease) known(p driver.Place) (driver.Place, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sl := l.slots[spotOf(p)]
	ours := sl != nil && sl.id == p.ID
	if ours {
		p.Slots = sl.slots
	}
	if p.Token != 0 {
		return p, nil
	}
	if !ours {
		return p, placeGone("place", p.Name)
	}
	if sl.token == 0 {
		return p, fmt.Errorf("etcd: place %q has no token: claim it again under the same ID first", p.Name)
	}
	p.Token = sl.token
	return p, nil
}

// poll returns how long to wait beside a watch before looking anyway. The spread keeps thousands of waiters apart.
func poll() time.Duration { return 4*time.Second + rand.N(2*time.Second) }

// pollAfter is poll for one who has found, so many times in a row, that nothing had been missed: up to four times as long, or a crowd of waiters
// would keep etcd busy with questions.
func pollAfter(quiet int) time.Duration { return poll() << min(quiet, 2) }

// again is how long to wait after a read that failed.
const again = 500 * time.Millisecond

// Wait implements [driver.Lease]. An exclusive claim is told of by the events of its line (see await), a shared one looks when something happened
// that it may wait for (see verdict).
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	what := verb("wait for", p.Name)
	p, err := l.known(p)
	if err != nil {
		return p, err
	}
	a := l.newAwait(p, make(chan struct{}, 1))
	l.s.hub.enlist(a)
	l.news.cover(a.at, 1)
	kept := false
	defer func() {
		if kept {
			return
		}
		l.s.hub.leave(a)
		l.news.cover(a.at, -1)
		l.news.bear(a.at, uint64(a.token)) // a claim that holds now is watched by itself
	}()
	var guards posts
	defer func() { guards.stop() }()
	var last []string // behind whom the vigil is kept
	for rounds, looks := 0, 0; ; {
		f, unsure, next := l.s.hub.ask(a)
		wake, pause := a.changed, pollAfter(rounds)
		switch {
		case f == holds:
			if kept = l.news.keepHeld(a); !kept && l.hasEnded(a) {
				return p, placeGone("wait for", p.Name)
			}
			p.Held = true
			return p, nil
		case f == ended:
			l.news.add(a.at)
			return p, placeGone("wait for", p.Name)
		case unsure && looks < 3:
			far, err := l.recheck(ctx, what, p, a)
			var st standing
			if !far && err == nil {
				st, err = l.inspect(ctx, what, p)
			}
			switch {
			case far:
				looks, rounds = looks+1, 0
				continue
			case errors.Is(err, driver.ErrRefused):
				return p, err
			case err != nil:
				pause = again
			case !st.stands, st.held && l.hasEnded(a): // by hand, between the read and its answer
				return p, placeGone("wait for", p.Name)
			case st.held:
				l.show(p, st)
				p.Held = true
				return p, nil
			default:
				l.s.hub.learn(a, st)
				looks, rounds = looks+1, 0
				continue
			}
		case unsure: // the line changes faster than we can look
			wake, pause = nil, again/10
		}
		if !slices.Equal(next, last) {
			last, guards = next, l.s.keepVigils(guards, next, func() { l.s.hub.doubt(a) })
		}
		looks = 0
		quiet, err := l.pause(ctx, wake, pause)
		switch {
		case err != nil:
			return p, fmt.Errorf("etcd: %s: %w", what, err)
		case unsure:
			rounds = 0
		case quiet:
			if _, ok, _ := l.still(ctx, what, p, l.s.hub.right(a)); ok {
				rounds++
			} else {
				l.s.hub.doubt(a)
			}
		}
	}
}

// pause waits for a signal, at most for d, and reports whether none came. It returns an error if ctx, the lease or the
// store ends first.
func (l *lease) pause(ctx context.Context, changed <-chan struct{}, d time.Duration) (quiet bool, err error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-changed:
		return false, nil
	case <-t.C:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-l.gone:
		return false, fmt.Errorf("lease %s: %w", l.ID(), driver.ErrGone)
	case <-l.s.ctx.Done():
		return false, errClosed
	}
}

// Update implements [driver.Lease]. Each put compares the key's mod revision too: an earlier Update whose outcome was
// unknown, executed late, would otherwise bring its old value back.
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	what := verb("update", p.Name)
	p, err := l.known(p)
	if err != nil {
		return err
	}
	key, mod := l.keyOf(p), l.modOf(p, 0)
	for {
		resp, _, err := l.s.txn(ctx, what, &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(key, int64(p.Token)), ifMod(key, mod)},
			Success: []*pb.RequestOp{doReplace(key, value)},
			Failure: []*pb.RequestOp{doRange(&pb.RangeRequest{Key: []byte(key), KeysOnly: true})},
		})
		if err != nil {
			return err
		}
		if resp.Succeeded {
			l.modOf(p, resp.Header.Revision)
			return nil
		}
		own := one(resp, 0)
		if own == nil || uint64(own.CreateRevision) != p.Token {
			return placeGone("update", p.Name)
		}
		mod = own.ModRevision
	}
}

// modOf returns the mod revision of a place as last known, after taking over a newer one.
func (l *lease) modOf(p driver.Place, newer int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	sl := l.slots[spotOf(p)]
	if sl == nil || sl.token != p.Token {
		return int64(p.Token)
	}
	sl.mod = max(sl.mod, newer)
	return sl.mod
}

// release gives one place up.
func (l *lease) release(ctx context.Context, p driver.Place) error {
	sl := l.open(spotOf(p))
	defer l.drop(sl)
	l.renounce(sl, p)
	if err := sl.lock(ctx); err != nil {
		return fmt.Errorf("etcd: %s: %w", verb("release", p.Name), err)
	}
	defer sl.unlock()
	return l.releaseIn(ctx, sl, p)
}

// releaseIn is release for who has the slot's turn.
func (l *lease) releaseIn(ctx context.Context, sl *slot, p driver.Place) error {
	switch {
	case l.has(sl, p):
		return l.retract(ctx, sl, l.noteOf(ctx, p))
	case p.Token != 0:
		return l.remove(ctx, p.Name, l.keyOf(p), int64(p.Token), l.noteOf(ctx, p))
	}
	// Nothing under this ID stands or is under way: an ID is forgotten only when that is certain.
	return nil
}

// renounce makes sure that p's claim does not enter from now on, and stops it where it is just entering.
func (l *lease) renounce(sl *slot, p driver.Place) {
	ours := l.has(sl, p)
	l.mu.Lock()
	defer l.mu.Unlock()
	if ours || p.Token == 0 {
		l.spent.add(p.ID)
	}
	if ours {
		sl.leaving = true
		if sl.stop != nil {
			sl.stop()
		}
	}
}

// has reports whether the slot's claim is p's, as far as the token is known.
func (l *lease) has(sl *slot, p driver.Place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return sl.id == p.ID && (p.Token == 0 || sl.token == 0 || p.Token == sl.token)
}
