package redlockstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// Release gives places up. Nil: none of them can stand on a majority any more, whatever is still
// under way. Servers that do not answer get their call in the background, until the key there has
// expired.
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	for _, p := range places {
		if c := l.findLocked(p); c != nil {
			c.removeLocked()
		} else if c := l.claims[storeutil.SeatAt(p)]; c == nil || c.ID != p.ID {
			l.spent.Add(p.ID) // nothing stands yet, but the Claim may still be on its way
		}
	}
	leaving := l.leavingLocked(func(c *claim) bool {
		return slices.ContainsFunc(places, func(p driver.Place) bool { return p.ID == c.ID && p.Name == c.Name })
	})
	l.mu.Unlock()
	return l.awaitOff(ctx, "release", leaving)
}

// giveUpLocked gives a try up: its keys are deleted, in the background. The caller holds l.mu.
func (a *attempt) giveUpLocked() {
	if a == nil || a.on[0].given {
		return
	}
	l, now := a.c.l, boottime.Now()
	until := now + l.ttl*11/10 + 2*straying(l.limit) // by then every key of it has expired
	for i := range a.on {
		p := &a.on[i]
		p.given = true
		if !p.set && p.flying == 0 && p.late <= now {
			p.clear = true
			continue
		}
		l.s.servers[i].remove(&removal{a: a, at: i, until: until})
	}
	l.leaving = append(l.leaving, a)
	a.noteOffLocked()
}

// noteOffLocked notes when a try can stand on no majority any more. The caller holds l.mu.
func (a *attempt) noteOffLocked() {
	l := a.c.l
	left := 0
	for _, p := range a.on {
		if !p.clear {
			left++
		}
	}
	if i := slices.Index(l.leaving, a); i >= 0 && left < l.s.quorum {
		l.leaving = slices.Delete(l.leaving, i, i+1)
		close(a.off)
	}
}

// leavingLocked returns the tries given up that may stand on a majority, of the claims that fit.
// The caller holds l.mu.
func (l *lease) leavingLocked(fits func(*claim) bool) (all []*attempt) {
	for _, a := range l.leaving {
		if fits(a.c) {
			all = append(all, a)
		}
	}
	return all
}

// awaitOff waits until none of these tries can stand on a majority. Nobody deletes keys any more
// once the store is closed: who waits then would wait for ever.
func (l *lease) awaitOff(ctx context.Context, what string, all []*attempt) error {
	for _, a := range all {
		if a == nil {
			continue
		}
		select {
		case <-a.off:
		case <-ctx.Done():
			return fmt.Errorf("%s %s: it may still be on a majority: %w", what, a.c.Name, ctx.Err())
		case <-l.s.ctx.Done():
			return fmt.Errorf("%s %s: it may still be on a majority: %w", what, a.c.Name, errClosed)
		}
	}
	return nil
}

// removal is a key to be deleted on one server.
type removal struct {
	a     *attempt
	at    int
	until time.Duration // by the boot clock: after it there is nothing to delete
}

// remove has a key deleted, soon.
func (v *server) remove(p *removal) {
	v.mu.Lock()
	v.removals = append(v.removals, p)
	v.mu.Unlock()
	v.startRemoving()
}

// startRemoving deletes what is to be deleted, in the background, while the server answers; its
// probe calls it when it does again.
func (v *server) startRemoving() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.removing || len(v.removals) == 0 {
		return
	}
	v.removing = v.s.run(v.removeKeys)
}

// batch is how many keys one call deletes at most.
const batch = 100

// removeKeys deletes keys until there are none. While the server is down it lets those go whose
// time has passed.
func (v *server) removeKeys() {
	for {
		v.mu.Lock()
		if len(v.removals) == 0 || v.s.ctx.Err() != nil {
			v.removing = false
			v.mu.Unlock()
			return
		}
		some := v.removals[:min(batch, len(v.removals)):min(batch, len(v.removals))]
		v.removals = v.removals[len(some):]
		v.mu.Unlock()
		failed := v.leave(some)
		if len(failed) == 0 {
			continue
		}
		now := boottime.Now()
		var over []*removal
		v.mu.Lock()
		v.removals = slices.DeleteFunc(append(failed, v.removals...), func(p *removal) bool {
			if p.until <= now {
				over = append(over, p)
			}
			return p.until <= now
		})
		v.mu.Unlock()
		v.noteClear(over)
		_ = storeutil.Sleep(v.s.ctx, 50*time.Millisecond)
	}
}

// leave deletes some keys in one call, and returns those that it could not delete. A call for
// several may be refused because of one whose key is forbidden now: then each gets its own.
func (v *server) leave(some []*removal) (failed []*removal) {
	err := v.leaveOnce(some)
	switch {
	case err == nil:
		return nil
	case len(some) == 1 || !errors.Is(err, driver.ErrRefused):
		return slices.Clone(some)
	}
	for _, p := range some {
		failed = append(failed, v.leave([]*removal{p})...)
	}
	return failed
}

// leaveOnce deletes some keys in one call. Where a call may still be under way that sets one, a
// mark is left, which it will find.
func (v *server) leaveOnce(some []*removal) error {
	var keys []string
	var args []any
	for _, p := range some {
		l := p.a.c.l
		keep := int64(0)
		l.mu.Lock()
		if state := p.a.on[p.at]; state.flying > 0 || state.late > boottime.Now() {
			keep = (2*straying(l.limit) + time.Second).Milliseconds()
		}
		l.mu.Unlock()
		keys = append(keys, v.s.key(p.a.c.Name), v.s.mark(p.a.own))
		args = append(args, p.a.own, keep, v.s.channel(p.a.c.Name))
	}
	if _, err := v.call(leave, maxLimit, keys, args...); err != nil {
		return err
	}
	v.noteClear(some)
	return nil
}

// noteClear notes that nothing of these tries stands on the server, and nothing can come.
func (v *server) noteClear(some []*removal) {
	for _, p := range some {
		l := p.a.c.l
		l.mu.Lock()
		p.a.on[p.at].clear = true
		p.a.noteOffLocked()
		l.mu.Unlock()
	}
}

func isUnsent(err error) bool {
	var u unsent
	return errors.As(err, &u)
}
