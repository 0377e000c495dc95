package registerstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// lease is a lease that this process owns. Its register is rewritten at each renewal; what it has
// claimed stands in documents, and is known here too.
type lease struct {
	ownClaims
	owner string
	ttl   time.Duration

	turn     chan struct{} // has one who renews, and what follows
	version  string        // of the register, as known last
	accepted uint64        // the last beat that is known to have been written
	sent     uint64        // the last beat that was sent

	asks chan struct{} // has one who asks for news
}

var (
	_ driver.Lease      = (*lease)(nil)
	_ driver.Transferer = (*lease)(nil)
	_ driver.Exchanger  = (*lease)(nil)
)

// namesKept is how many names a lease's register tells.
const namesKept = 64

// Grant implements [driver.Store].
func (s *Store) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 || ttl > s.opts.MaxTTL {
		return nil, fmt.Errorf("ttl %v is not between 0 and %v: %w", ttl, s.opts.MaxTTL, driver.ErrRefused)
	}
	l := &lease{
		ownClaims: newOwnClaims(s, newID()), owner: owner, ttl: max(ttl, s.opts.MinTTL),
		turn: make(chan struct{}, 1), asks: make(chan struct{}, 1),
	}
	s.sweeps.Do(s.sweepNowAndThen)
	version, ok, err := s.reg.Put(ctx, s.leaseKey(l.id), l.beat(0).stored(), "")
	if err == nil && !ok { // by a repetition of the request, for nobody else has this ID
		var st leaseState
		if st, err = s.leaseNow(ctx, l.id); err == nil && st.over() {
			err = fmt.Errorf("a lease that was just made is not there")
		}
		version = st.version
	}
	if err != nil {
		return nil, s.wrap("make a lease", err)
	}
	l.version = version
	return l, nil
}

func (l *lease) ID() string { return l.id }

func (l *lease) TTL() time.Duration { return l.ttl }

// beat returns what the register of the lease contains at that renewal.
func (l *lease) beat(n uint64) beat {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := beat{Owner: text(l.owner), TTL: int64(l.ttl), Beat: n}
	for name := range l.names {
		if len(b.Lines) < namesKept {
			b.Lines = append(b.Lines, text(name))
		}
	}
	slices.Sort(b.Lines)
	return b
}

// Renew implements [driver.Lease]: it rewrites the register under the version known. A write that
// came through though its caller was told otherwise is found by its number: each is sent once. What
// has a number that was accepted before, under another version, is a register that was made again:
// the lease has ended.
func (l *lease) Renew(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return l.s.wrap("renew", ctx.Err())
	}
	l.sent++
	for try := 0; ; try++ {
		if l.over() {
			return l.goneErr("renew")
		}
		if err := ctx.Err(); err != nil {
			return l.s.wrap("renew", err)
		}
		next, ok, err := l.s.reg.Put(ctx, l.s.leaseKey(l.id), l.beat(l.sent).stored(), l.version)
		if err == nil && ok {
			l.version, l.accepted = next, l.sent
			return nil
		}
		if err != nil {
			return l.s.wrap("renew", err)
		}
		done, err := l.recover(ctx)
		if done || err != nil {
			return err
		}
		if err := storeutil.Sleep(ctx, backoff(try)); err != nil {
			return l.s.wrap("renew", err)
		}
	}
}

// recover looks what is in the register after a renewal found another version there. Done says that
// it is the renewal itself.
func (l *lease) recover(ctx context.Context) (done bool, err error) {
	st, err := l.s.leaseNow(ctx, l.id)
	if err != nil {
		return false, err
	}
	switch {
	case st.over():
	case st.Beat == l.sent:
		l.version, l.accepted = st.version, l.sent
		return true, nil
	case st.Beat > l.accepted: // an earlier renewal, whose outcome was unknown
		l.version, l.accepted = st.version, st.Beat
		return false, nil
	case st.version == l.version: // somebody else was about to write, and did not
		return false, nil
	}
	l.end()
	return false, l.goneErr("renew")
}

// check asks the storage whether the lease lives.
func (l *lease) check(ctx context.Context) error {
	if l.over() {
		return l.goneErr("look at the lease")
	}
	st, err := l.s.leaseNow(ctx, l.id)
	if err == nil && st.over() {
		l.end()
		err = l.goneErr("look at the lease")
	}
	return err
}

// alive runs f, which is under the lease, and beside it asks whether that lives. If it was ended
// then what f did counts for nothing: it is as if it had been done just before.
func (l *lease) alive(ctx context.Context, f func() error) error {
	if l.over() {
		return l.goneErr("call")
	}
	checked := make(chan error, 1)
	go func() { checked <- l.check(ctx) }()
	err := f()
	switch c := <-checked; {
	case l.over():
		return l.goneErr("call")
	case err == nil:
		return unsettled(c, true)
	}
	return err
}

// Close implements [driver.Lease].
func (l *lease) Close(ctx context.Context) error {
	l.mu.Lock()
	done := l.removed
	l.mu.Unlock()
	if done {
		return ctx.Err()
	}
	st, err := l.s.endLease(ctx, l.id)
	if err != nil {
		return err
	}
	l.end()
	l.mu.Lock()
	var names []string
	for name := range l.names {
		names = append(names, name)
	}
	l.mu.Unlock()
	if err := l.s.removeLease(ctx, l.id, st, names...); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removed, l.names, l.doubts, l.marks = true, nil, nil, nil
	l.spent = storeutil.SpentIDs{}
	return nil
}
