package primacy

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// lockToken is the fencing token of a lock: the claim's token times 65,536, plus how many in this
// process had the lock under that claim before. A later claim has a larger number, so each holder
// has a larger token than every earlier one.
//
// It is a number of its own scale: compare it with tokens of the same lock only, not with those of
// an [Election] of that name.
func lockToken(claim uint64, turn int) Token {
	if claim == 0 {
		return 0 // the store has none: a number that goes back would be worse
	}
	return Token(claim<<turnBits | uint64(turn))
}

const (
	turnBits = 16 // of a lock's token: core.MaxTurns fits in
)

// Mutex is a lock on a name that at most one holds in the whole fleet. What is held is a [Term]:
// ask [Term.Check] before each act, and give it back with [Term.Resign]. It is safe for concurrent
// use and keeps nothing; two of one name are the same lock, which an [Election] of that name
// excludes too.
//
// First come, first served. Goroutines of one process stand behind one claim and hand it on among
// themselves, at most 64 times and for 200 ms after it was won; then it is the others' turn.
// [MutexOptions] has other bounds.
type Mutex struct {
	s    *Session
	name string
	o    MutexOptions
}

// MutexOptions say how a lock is handed on inside the process. The zero value works.
type MutexOptions struct {
	// Turns is how many holders of this process one claim serves while others may wait: 1 to
	// 65,535, by default 64. Fewer let other processes in sooner, more cost fewer requests. Each
	// caller's own number counts for its turn.
	Turns int
}

// Name returns the lock's name.
func (m *Mutex) Name() string { return m.name }

// Lock waits until the lock is held. When ctx ends before that it returns its cause, and nothing is
// left in the line; what the store has not confirmed by then goes on in the background. A place
// that is lost while it waits, with the lease or without, is taken again at the end of the line. A
// store that does not answer is asked until ctx ends (ErrUnreachable); ErrRefused is returned at
// once. ErrReentrant or ErrUpgrade if ctx is, or comes from, the context of a term that holds this
// lock.
//
// The answer may be old by the time it arrives: ask [Term.Check] before each act.
func (m *Mutex) Lock(ctx context.Context) (*Term, error) { return m.lock(ctx, false) }

// TryLock returns the lock if it is free now, otherwise ErrHeld, with nothing left in the line. For
// the rest see [Mutex.Lock].
func (m *Mutex) TryLock(ctx context.Context) (*Term, error) {
	return m.lock(ctx, true)
}

func (m *Mutex) lock(ctx context.Context, try bool) (*Term, error) {
	if m.o.Turns < 0 || m.o.Turns > core.MaxTurns {
		return nil, invalid("lock %s: %d turns: use 1 to %d, or 0 for %d", m.name, m.o.Turns, core.MaxTurns, core.Turns)
	}
	return m.s.lock(ctx, m.name, want{try: try, turns: m.o.Turns})
}

// Do runs work while holding the lock, on this goroutine, and gives it back when work has returned.
// Work gets the term's context, which ends when the lock is lost or ctx ends; what happens to work
// that does not stop by [Term.Deadline] is Options.Overrun. Do returns what work returned, joined
// with the *EndedError if the lock was lost, or given back by work itself, before that. Work that
// asks for the same lock with its context gets ErrReentrant.
func (m *Mutex) Do(ctx context.Context, work func(ctx context.Context, t *Term) error) error {
	t, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	return hold(ctx, t, work)
}

// RWMutex is a lock that many hold for reading, or one for writing. A writer that waits lets no
// reader overtake it, and readers that wait behind a writer get the lock together. For writing it
// is the [Mutex] of that name.
type RWMutex struct{ Mutex }

// RLock waits until the lock is held for reading. The rules are those of [Mutex.Lock]. A reader's
// token is larger than that of every writer before it and smaller than that of every writer after
// it.
func (m *RWMutex) RLock(ctx context.Context) (*Term, error) {
	return m.s.lock(ctx, m.name, want{read: true})
}

// TryRLock returns the lock for reading if that is possible now, otherwise ErrHeld.
func (m *RWMutex) TryRLock(ctx context.Context) (*Term, error) {
	return m.s.lock(ctx, m.name, want{read: true, try: true})
}

// RDo is [Mutex.Do] for reading.
func (m *RWMutex) RDo(ctx context.Context, work func(ctx context.Context, t *Term) error) error {
	t, err := m.RLock(ctx)
	if err != nil {
		return err
	}
	return hold(ctx, t, work)
}

// LockAll locks several names and returns their terms in the order given: all or, with an error,
// none. It takes them in one order everywhere, so that callers of LockAll never wait for each other
// in a circle; a caller that holds other locks meanwhile may.
func (s *Session) LockAll(ctx context.Context, names ...string) ([]*Term, error) {
	return s.lockAll(ctx, false, names)
}

// TryLockAll locks several names if all are free now, otherwise none: ErrHeld.
func (s *Session) TryLockAll(ctx context.Context, names ...string) ([]*Term, error) {
	return s.lockAll(ctx, true, names)
}

func (s *Session) lockAll(ctx context.Context, try bool, names []string) ([]*Term, error) {
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	if len(sorted) != len(names) || len(names) == 0 {
		return nil, invalid("%d names to lock, %d of them different: name each lock once", len(names), len(sorted))
	}
	for tries := 0; ; tries++ {
		if err := pause(ctx, tries); err != nil {
			return nil, unreachableOr(ctx, "lock "+sorted[0], nil)
		}
		held, err := s.lockSorted(ctx, try, sorted)
		if err != nil {
			resignAll(ctx, held)
			return nil, err
		}
		if slices.ContainsFunc(held, func(t *Term) bool { return t.Check() != nil || t.stopping() != nil }) {
			resignAll(ctx, held) // the first were lost while the last was waited for
			continue
		}
		inOrder := make([]*Term, len(names))
		for i, name := range names {
			j, _ := slices.BinarySearch(sorted, name)
			inOrder[i] = held[j]
		}
		return inOrder, nil
	}
}

func (s *Session) lockSorted(ctx context.Context, try bool, sorted []string) (held []*Term, err error) {
	for _, name := range sorted {
		t, err := s.lock(ctx, name, want{try: try})
		if err != nil {
			return held, err
		}
		held = append(held, t)
	}
	return held, nil
}

// resignAll gives locks back, all at once. What is not confirmed in time goes on in the background.
func resignAll(ctx context.Context, held []*Term) error {
	errs := make([]error, len(held))
	var all sync.WaitGroup
	for i, t := range held {
		all.Go(func() {
			limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*t.l.timing.Attempt)
			defer cancel()
			errs[i] = t.Resign(limit)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// DoAll runs work while holding all the names, as [Mutex.Do] does for one. The context ends when
// any of them is lost.
func (s *Session) DoAll(ctx context.Context, names []string, work func(ctx context.Context, held []*Term) error) error {
	held, err := s.LockAll(ctx, names...)
	if err != nil {
		return err
	}
	run := func(ctx context.Context, _ *Term) error {
		for _, t := range held {
			ctx = holding(ctx, t)
		}
		return work(ctx, held)
	}
	for _, t := range held[1:] {
		inner := run
		run = func(outer context.Context, _ *Term) error {
			return hold(outer, t, func(ctx context.Context, _ *Term) error { return inner(ctx, t) })
		}
	}
	return hold(ctx, held[0], run)
}

// hold runs work in a term and gives it back.
func hold(ctx context.Context, t *Term, work func(context.Context, *Term) error) (err error) {
	if refused := t.c.beginWork(t); refused != nil {
		return errors.Join(refused, resignAll(ctx, []*Term{t}))
	}
	unhook := context.AfterFunc(ctx, func() { t.stop(context.Cause(ctx)) })
	defer unhook()
	defer func() { // also when the work panics: it has stopped, so the next one may have the lock
		t.c.endWork(t)
		lost := t.Check()
		if lost == nil && ctx.Err() == nil { // else its context ended by the caller's
			lost = t.stopping()
		}
		if lost != nil {
			err = errors.Join(err, lost)
		}
		_ = resignAll(ctx, []*Term{t})
	}()
	return work(t.Context(), t)
}

// heldKey finds, in a term's context, what its holder holds.
type heldKey struct{}

// holds is one term that a context was made for. Outer are the terms that the context around it was
// made for.
type holds struct {
	t     *Term
	outer *holds
}

// holding returns a context that knows of t.
func holding(ctx context.Context, t *Term) context.Context {
	outer, _ := ctx.Value(heldKey{}).(*holds)
	return context.WithValue(ctx, heldKey{}, &holds{t, outer})
}

// reentry refuses a wait that could only be for the caller itself. Several slots of a semaphore may
// be held by one, but not all.
func reentry(ctx context.Context, s *Session, name string, slots int) error {
	h, _ := ctx.Value(heldKey{}).(*holds)
	for taken := 0; h != nil; h = h.outer {
		t := h.t
		if t.c.l.s != s || t.c.name != name || t.ended.Load() != nil {
			continue
		}
		if slots > 0 && t.c.slots > 0 {
			if taken++; taken < slots {
				continue
			}
		}
		err := ErrReentrant
		if t.c.slots == driver.Unlimited && slots == 0 {
			err = ErrUpgrade
		}
		return &heldError{name, t.token, err}
	}
	return nil
}

// heldError says which term is in the way.
type heldError struct {
	name  string
	token Token
	err   error
}

func (e *heldError) Error() string {
	return "primacy: lock " + e.name + ": " + e.err.Error() + ", under token " + e.token.String()
}

func (e *heldError) Unwrap() error { return e.err }
