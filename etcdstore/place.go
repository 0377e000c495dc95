package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
)

// standing is what a place looks like in the store.
type standing struct {
	stands bool
	mod    int64  // the key's mod revision
	before string // the key just before it in the line; "" if the place is held
}

// look reads a place, and what stands before it, at one instant.
func (l *lease) look(ctx context.Context, what, name string, token uint64) (standing, error) {
	dir := l.s.lineDir(name)
	resp, _, err := l.s.txn(ctx, what, &pb.TxnRequest{Success: []*pb.RequestOp{
		doRange(&pb.RangeRequest{Key: []byte(dir + l.ID()), KeysOnly: true}),
		doRange(lastBefore(dir, int64(token))),
	}})
	if err != nil {
		return standing{}, err
	}
	own, before := one(resp, 0), one(resp, 1)
	if own == nil || uint64(own.CreateRevision) != token {
		return standing{}, nil
	}
	st := standing{stands: true, mod: own.ModRevision}
	if before != nil {
		st.before = string(before.Key)
	}
	return st, nil
}

// token returns p's token, or the one its claim is known to have.
func (l *lease) token(p driver.Place) (uint64, error) {
	if p.Token != 0 {
		return p.Token, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	sl := l.slots[p.Name]
	if sl == nil || sl.id != p.ID {
		return 0, placeGone("place", p.Name)
	}
	if sl.token == 0 {
		return 0, fmt.Errorf("etcd: place %q has no token: claim it again under the same ID first", p.Name)
	}
	return sl.token, nil
}

// poll returns how long to wait beside a watch before looking anyway. The spread keeps thousands of waiters apart.
func poll() time.Duration { return 4*time.Second + rand.N(2*time.Second) }

// again is how long to wait after a read that failed.
const again = 500 * time.Millisecond

// Wait implements [driver.Lease]. It watches the place just before its own, and its own.
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	what := verb("wait for", p.Name)
	token, err := l.token(p)
	if err != nil {
		return p, err
	}
	p.Token = token
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	own := l.s.hub.watch(span{key: l.s.lineDir(p.Name) + l.ID()}, notify)
	defer own.stop()
	var ahead *sub
	defer func() { ahead.stop() }()
	for {
		st, err := l.look(ctx, what, p.Name, token)
		pause := poll()
		switch {
		case errors.Is(err, driver.ErrRefused):
			return p, err
		case err != nil:
			pause = again
		case !st.stands:
			return p, placeGone("wait for", p.Name)
		case st.before == "":
			p.Held = true
			return p, nil
		case ahead == nil || ahead.w.key != st.before:
			// The watch tells when it stands, and then we look again: what goes before that is not missed.
			ahead.stop()
			ahead = l.s.hub.watch(span{key: st.before}, notify)
			if l.s.hub.stands(ahead) {
				continue // it tells nothing at first: look again
			}
		}
		if _, err := l.pause(ctx, changed, pause); err != nil {
			return p, fmt.Errorf("etcd: %s: %w", what, err)
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
	token, err := l.token(p)
	if err != nil {
		return err
	}
	key := l.s.lineDir(p.Name) + l.ID()
	mod := l.modOf(p.Name, token, 0)
	for {
		resp, _, err := l.s.txn(ctx, what, &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(key, int64(token)), ifMod(key, mod)},
			Success: []*pb.RequestOp{doReplace(key, value)},
			Failure: []*pb.RequestOp{doRange(&pb.RangeRequest{Key: []byte(key), KeysOnly: true})},
		})
		if err != nil {
			return err
		}
		if resp.Succeeded {
			l.modOf(p.Name, token, resp.Header.Revision)
			return nil
		}
		own := one(resp, 0)
		if own == nil || uint64(own.CreateRevision) != token {
			return placeGone("update", p.Name)
		}
		mod = own.ModRevision
	}
}

// modOf returns the mod revision of a place as last known, after taking over a newer one.
func (l *lease) modOf(name string, token uint64, newer int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	sl := l.slots[name]
	if sl == nil || sl.token != token {
		return int64(token)
	}
	sl.mod = max(sl.mod, newer)
	return sl.mod
}

// Release implements [driver.Lease]. Places are released one after another; where one fails, the others are still tried.
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	var errs []error
	for _, p := range places {
		if err := l.release(ctx, p); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// release gives one place up.
func (l *lease) release(ctx context.Context, p driver.Place) error {
	sl := l.open(p.Name)
	defer l.drop(sl)
	l.renounce(sl, p)
	if err := sl.lock(ctx); err != nil {
		return fmt.Errorf("etcd: %s: %w", verb("release", p.Name), err)
	}
	defer sl.unlock()
	switch {
	case l.has(sl, p):
		return l.retract(ctx, sl)
	case p.Token != 0:
		return l.remove(ctx, p.Name, sl.key, int64(p.Token))
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
