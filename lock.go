package primacy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// Mutex is a lock on a name that at most one holds in the whole fleet. What is held is a [Term]:
// ask [Term.Check] before each act, and give it back with [Term.Unlock] or [Term.Resign]. It is
// safe for concurrent use. Two Mutexes of one name are the same lock. A lock and an [Election] of
// one name exclude each other.
//
// First come, first served. Goroutines of one process share one claim. They hand it on among
// themselves for at most 200 ms after it was won, to at most 64 holders ([MutexOptions].Turns).
// Then it is the turn of other processes.
type Mutex struct {
	s    *Session
	name string
	o    MutexOptions
}

// MutexOptions say how a lock is handed on inside the process. The zero value works.
type MutexOptions struct {
	// Turns is how many holders of this process one claim serves while others may wait: 1 to
	// 65,535, by default 64. Fewer turns let other processes in sooner. More turns cost fewer
	// requests. The Turns of the Mutex on which Lock is called count for that call: it gets the
	// lock under the present claim if fewer than Turns holders have had it there.
	Turns int
}

// Name returns the lock's name.
func (m *Mutex) Name() string { return m.name }

// Lock waits until the lock is held. If ctx ends before that, Lock returns its cause and gives its
// place in the line up, in the background if the store has not confirmed that yet. If it loses
// its place while it waits, with the lease or without, it waits again at the end of the line. A
// store that does not answer is asked until ctx ends (ErrUnreachable); ErrRefused is returned at
// once. If ctx is the context of a term that holds this lock already, or is made from it, the error
// is ErrReentrant, or ErrUpgrade if that term holds it for reading.
//
// The answer may be old by the time it arrives: ask [Term.Check] before each act.
func (m *Mutex) Lock(ctx context.Context) (*Term, error) { return m.lock(ctx, false) }

// TryLock returns the lock if it is free now, otherwise ErrHeld, with nothing left in the line. For
// the rest see [Mutex.Lock].
func (m *Mutex) TryLock(ctx context.Context) (*Term, error) { return m.lock(ctx, true) }

func (m *Mutex) lock(ctx context.Context, try bool) (*Term, error) {
	if m.o.Turns < 0 || m.o.Turns > core.MaxTurns {
		return nil, invalid("lock %s: %d turns: use 1 to %d, or 0 for %d", m.name, m.o.Turns, core.MaxTurns, core.Turns)
	}
	return m.s.lock(ctx, m.name, lockRequest{try: try, turns: m.o.Turns})
}

// Do runs work while holding the lock, on this goroutine, and gives it back when work has returned.
// Work gets the term's context, which ends when the lock is lost or ctx ends. Options.Overrun says
// what happens to work that does not stop by [Term.Deadline]. Do returns what work returned, joined
// with the *EndedError if the lock was lost, or given back by work, before work returned. Work that
// asks for the same lock with its context gets ErrReentrant.
func (m *Mutex) Do(ctx context.Context, work func(ctx context.Context, t *Term) error) error {
	return lockAndHold(ctx, m.Lock, work)
}

func lockAndHold(
	ctx context.Context, lock func(context.Context) (*Term, error), work func(context.Context, *Term) error,
) error {
	t, err := lock(ctx)
	if err != nil {
		return err
	}
	return t.hold(ctx, work)
}

// RWMutex is a lock that many hold for reading, or one for writing. A writer that waits lets no
// reader overtake it, and readers that wait behind a writer get the lock together. For writing it
// is the [Mutex] of that name.
type RWMutex struct{ Mutex }

// RLock waits until the lock is held for reading. The rules are those of [Mutex.Lock]. A reader's
// token is larger than that of every writer before it and smaller than that of every writer after
// it.
func (m *RWMutex) RLock(ctx context.Context) (*Term, error) {
	return m.s.lock(ctx, m.name, lockRequest{read: true})
}

// TryRLock returns the lock for reading if that is possible now, otherwise ErrHeld.
func (m *RWMutex) TryRLock(ctx context.Context) (*Term, error) {
	return m.s.lock(ctx, m.name, lockRequest{read: true, try: true})
}

// RDo is [Mutex.Do] for reading.
func (m *RWMutex) RDo(ctx context.Context, work func(ctx context.Context, t *Term) error) error {
	return lockAndHold(ctx, m.RLock, work)
}

// LockAll locks several names and returns their terms in the order given: all or, with an error,
// none. It waits for the names in sorted order, so that no two callers of LockAll wait for each
// other. A caller that holds another lock already can still be part of a deadlock.
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
			return nil, ctxEnded(ctx, "lock "+sorted[0], nil)
		}
		held, err := s.lockSorted(ctx, try, sorted)
		if err != nil {
			resignAll(ctx, held)
			return nil, err
		}
		if slices.ContainsFunc(held, func(t *Term) bool { return t.Check() != nil || t.contextError() != nil }) {
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
		t, err := s.lock(ctx, name, lockRequest{try: try})
		if err != nil {
			return held, err
		}
		held = append(held, t)
	}
	return held, nil
}

// DoAll runs work while holding all the names, as [Mutex.Do] does for one. The context ends when
// any of them is lost.
func (s *Session) DoAll(ctx context.Context, names []string, work func(ctx context.Context, held []*Term) error) error {
	held, err := s.LockAll(ctx, names...)
	if err != nil {
		return err
	}
	return holdAll(ctx, held, func(ctx context.Context) error {
		// Each term's context has the heldTerms of LockAll's ctx and that term (Term.contexts). So
		// ctx, the context of the last term, lacks the other terms. CheckReentry needs them all.
		for _, t := range held {
			ctx = holding(ctx, t)
		}
		return work(ctx, held)
	})
}

// holdAll runs work in the first term, in it the second, and so on. If the context of one term
// ends, so do those of all after it: work gets the context of the last. If one is lost before work
// begins, holdAll resigns those after it too: nobody else would.
func holdAll(ctx context.Context, held []*Term, work func(context.Context) error) error {
	if len(held) == 0 {
		return work(ctx)
	}
	begun := false
	err := held[0].hold(ctx, func(ctx context.Context, _ *Term) error {
		begun = true
		return holdAll(ctx, held[1:], work)
	})
	if !begun {
		resignAll(ctx, held[1:])
	}
	return err
}

// RWMutex returns the lock of that name. It does no I/O. A store that has no shared locks refuses
// to read, with an ErrInvalid.
func (s *Session) RWMutex(name string) *RWMutex { return &RWMutex{Mutex{s: s, name: name}} }

// Mutex returns the lock of that name; nil options are the zero value. It does no I/O; a name or an
// option that cannot be used is told by the first call.
func (s *Session) Mutex(name string, o *MutexOptions) *Mutex {
	if o == nil {
		o = &MutexOptions{}
	}
	return &Mutex{s: s, name: name, o: *o}
}

// Semaphore returns the semaphore of that name. It does no I/O. All who use it must name the same
// number of slots. While somebody holds a slot or waits for one, in this process or in another,
// another number is ErrRefused.
func (s *Session) Semaphore(name string, slots int) *Semaphore { return &Semaphore{s, name, slots} }

// lock waits for the lock and returns its term, which is given back by Resign.
func (s *Session) lock(ctx context.Context, name string, o lockRequest) (*Term, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	slots := 0
	if o.read {
		if err := s.sharable(); err != nil {
			return nil, err
		}
		slots = driver.Unlimited // readers
	}
	if err := s.checkReentry(ctx, name, slots); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, ctxEnded(ctx, "lock "+name, nil)
	}
	q := s.openQueue(name)
	defer q.unref()
	w := &waiter{lockRequest: o, ctx: ctx}
	q.mu.Lock()
	q.lastID++
	w.id = q.lastID
	q.waiting[w.id] = w
	q.stepLocked(w.event(core.Arrive, 0))
	if q.waiting[w.id] == nil { // it has its answer already
		q.mu.Unlock()
		return w.term, w.err
	}
	w.ready = make(chan struct{})
	q.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
		q.quit(w, ctxEnded(ctx, "lock "+name, nil))
	case <-s.shut:
		q.quit(w, fmt.Errorf("primacy: lock %s: %w", name, ErrClosed))
	}
	return w.term, w.err
}

// sharable returns an error if the store has no shared locks.
func (s *Session) sharable() error {
	if caps := s.store.Caps(); !caps.Shared {
		return invalid("%s has no shared locks: only exclusive ones", caps.Store)
	}
	return nil
}

// Semaphore is a name that a limited number hold at once. What is held is a [Term]. First come,
// first served. Each holder, also of one process, has a claim of its own: its token is larger than
// those of all who came before it.
type Semaphore struct {
	s     *Session
	name  string
	slots int
}

// Name returns the semaphore's name.
func (m *Semaphore) Name() string { return m.name }

// Acquire waits for a slot. The rules are those of [Mutex.Lock], but one caller may hold several
// slots: ErrReentrant only if it holds all.
func (m *Semaphore) Acquire(ctx context.Context) (*Term, error) { return m.acquire(ctx, false) }

// TryAcquire returns a slot if one is free now and nobody waits, otherwise ErrHeld.
func (m *Semaphore) TryAcquire(ctx context.Context) (*Term, error) { return m.acquire(ctx, true) }

// Do runs work while holding a slot, as [Mutex.Do] does.
func (m *Semaphore) Do(ctx context.Context, work func(ctx context.Context, t *Term) error) error {
	return lockAndHold(ctx, m.Acquire, work)
}

// MaxSlots is the largest number of slots of a semaphore. To enter a claim the store reads up to so
// many others.
const MaxSlots = 1000

func (m *Semaphore) acquire(ctx context.Context, try bool) (*Term, error) {
	if err := errors.Join(CheckName(m.name), m.s.sharable()); err != nil {
		return nil, err
	}
	if m.slots < 1 || m.slots > MaxSlots {
		return nil, invalid("a semaphore of %d slots: use 1 to %d", m.slots, MaxSlots)
	}
	if err := m.s.checkReentry(ctx, m.name, m.slots); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctxEnded(ctx, "acquire "+m.name, nil)
	}
	n, vacate, err := m.s.seats.take(ctx, semaphoreSeat(m.name), m.slots, true, try)
	switch {
	case errors.Is(err, driver.ErrTaken):
		return nil, ErrHeld
	case errors.Is(err, driver.ErrRefused), errors.Is(err, ErrClosed) && ctx.Err() == nil:
		return nil, fmt.Errorf("primacy: acquire %s: %w", m.name, err)
	case err != nil:
		return nil, ctxEnded(ctx, "acquire "+m.name, nil)
	}
	spec := claimSpec{slots: m.slots, try: try, lock: true, turnBits: turnBits, observers: m.s.semaphoreObservers}
	t, err := m.s.campaignSeated(ctx, slotSeat(m.name, n), spec, vacate, nil)
	if errors.Is(err, driver.ErrTaken) {
		return nil, ErrHeld
	}
	return t, err
}

// openQueue returns the queue of name, made if there is none. Each call needs an unref.
func (s *Session) openQueue(name string) *queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[name]
	if q == nil {
		q = &queue{s: s, name: name, waiting: map[int]*waiter{}, claims: map[int]*claim{}}
		s.queues[name] = q
	}
	q.refs++
	return q
}
