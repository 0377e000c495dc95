package primacy

import (
	"context"

	"github.com/primacy-go/primacy/internal/core"
)

// MutexOptions say how a lock is handed on inside the process. The zero value is that of [Session.Mutex].
type MutexOptions struct {
	// Turns is how many holders of this process one claim serves while others may wait: 1 to 65,535, by default 64. Fewer let other
	// processes in sooner, more cost fewer requests. Each caller's own number counts for its turn.
	Turns int
	// Keep leaves the lock with the process when its holder gives it back and nobody here waits. Until another asks for it the next Lock
	// is a matter of this process alone, and each is a term with a larger token. As soon as another waits for it, in the fleet or by
	// other means in this process, it is given up: at once if it is idle, else after the present hold, or the turns of those who wait here.
	// While nobody else waits it is handed on here without regard to Turns and the 200 ms.
	//
	// Others see it as held, also while it is idle, and a TryLock of theirs gets ErrHeld: a try is no waiting. Each name that is kept is
	// a claim in the store until somebody wants it or the session closes. It needs a store that tells a holder who waits; another refuses with an ErrInvalid.
	//
	// Who asks for Keep has a kept lock again without a look at the clock. After a pause it may be one whose right has ended meanwhile:
	// [Term.Check] says so, as ever, and the next Lock gets a new claim. [Mutex.Do] sees that itself.
	Keep bool
}

// MutexWith returns the lock of that name as [Session.Mutex] does, with options. It does no I/O; what cannot be is told by the first call.
func (s *Session) MutexWith(name string, o MutexOptions) *Mutex {
	return &Mutex{s: s, name: name, o: o}
}

func (m *Mutex) lock(ctx context.Context, try bool) (*Term, error) {
	if m.o.Turns < 0 || m.o.Turns > core.MaxTurns {
		return nil, invalid("lock %s: %d turns: use 1 to %d, or 0 for %d", m.name, m.o.Turns, core.MaxTurns, core.Turns)
	}
	if m.o.Keep {
		if t := m.relock(ctx); t != nil {
			return t, nil
		}
	}
	return m.s.lock(ctx, m.name, want{try: try, turns: m.o.Turns, keep: m.o.Keep})
}

// relock returns the lock if it is kept and idle, otherwise nil. It is what lock does, without what only others need: who finds the lock
// idle in its process waits for nobody, and for itself neither. The clock is not read: the caller's Check does.
func (m *Mutex) relock(ctx context.Context) *Term {
	q := m.last.Load()
	if q == nil {
		m.s.mu.Lock()
		q = m.s.queues[m.name]
		m.s.mu.Unlock()
		if q == nil {
			return nil
		}
		m.last.Store(q)
	}
	if ctx.Err() != nil {
		return nil
	}
	if t := q.retake(ctx); t != nil {
		return t
	}
	m.last.Store(nil) // it may be over, and another in its place
	return nil
}

// retake takes the lock if it is kept and idle.
func (q *queue) retake(ctx context.Context) *Term {
	q.mu.Lock()
	defer q.mu.Unlock()
	tenure, turn, ok := q.core.Retake()
	if !ok {
		return nil
	}
	t := q.claims[tenure].takeShare(ctx, share{q: q, tenure: tenure}, turn)
	if t == nil { // its claim is ending
		q.step(core.QueueEvent{Kind: core.Fade, Tenure: tenure})
		q.step(core.QueueEvent{Kind: core.Unlock, Tenure: tenure})
	}
	return t
}

// keepable returns an ErrInvalid where the store has no line, so that it cannot tell a holder who waits behind it.
func (s *Session) keepable(name string) error {
	if s.store.Caps().FIFO {
		return nil
	}
	return invalid("lock %s: %s cannot tell when another waits, so that no lock can be kept: lock it without Keep", name, s.store.Caps().Store)
}

// watch has the store tell when another waits behind a claim.
func (q *queue) watch(tenure int) {
	c := q.claims[tenure]
	c.mu.Lock()
	p := c.place
	c.mu.Unlock()
	p.Held = true
	c.l.dl.Follow(p)
	if c.l.crowded(c) || q.s.awaited(c.seat) {
		q.carryOut(q.core.Step(q.s.clock(), core.QueueEvent{Kind: core.Wanted, Tenure: tenure}))
	}
}

// crowded says whether this process stands for the claim's name by other means than its queue.
func (l *lease) crowded(c *claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, o := range l.claims {
		if at.name == c.name && o.heard == nil {
			return true
		}
	}
	return false
}

// wanted hears that another claim waits behind the one with that ID.
func (c *claim) wanted(id string) {
	c.mu.Lock()
	mine := id == c.place.ID
	c.mu.Unlock()
	if mine && c.heard != nil {
		c.heard(core.Wanted)
	}
}

// awaited says whether anybody else in this process waits for the seat.
func (s *Session) awaited(at seat) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.locals[at]
	return r != nil && len(r.next) > 0
}

// unkeep lets what is kept of a name go: somebody waits for it in this process by other means than its queue.
func (s *Session) unkeep(name string) {
	s.mu.Lock()
	q := s.queues[name]
	s.mu.Unlock()
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for tenure := range q.claims {
		q.step(core.QueueEvent{Kind: core.Wanted, Tenure: tenure})
	}
}

// over says whether the term is ending or over, by now if that is not 0.
func (t *Term) over(now core.Time) bool {
	switch {
	case t.stopped.Load() != nil || t.ended.Load() != nil:
		return true
	case now >= core.Time(t.l.deadline.Load()):
		return t.Check() != nil
	}
	return false
}
