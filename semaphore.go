package primacy

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/primacy-go/primacy/driver"
)

// Semaphore is a name that a limited number hold at once. What is held is a [Term] with a token of
// its own, larger than those of all who came before it. First come, first served; there is no
// handing on inside a process, for its tokens would not grow.
type Semaphore struct {
	s     *Session
	name  string
	slots int
}

// Name returns the semaphore's name.
func (m *Semaphore) Name() string { return m.name }

// Acquire waits for a slot. The rules are those of [Mutex.Lock], but one caller may hold several
// slots: ErrReentrant only where it holds all.
func (m *Semaphore) Acquire(ctx context.Context) (*Term, error) { return m.acquire(ctx, false) }

// TryAcquire returns a slot if one is free now and nobody waits, otherwise ErrHeld.
func (m *Semaphore) TryAcquire(ctx context.Context) (*Term, error) { return m.acquire(ctx, true) }

// Do runs work while holding a slot, as [Mutex.Do] does.
func (m *Semaphore) Do(ctx context.Context, work func(ctx context.Context, t *Term) error) error {
	t, err := m.Acquire(ctx)
	if err != nil {
		return err
	}
	return hold(ctx, t, work)
}

// MaxSlots is the largest number of slots of a semaphore: whoever enters the line reads as many
// claims.
const MaxSlots = 1000

func (m *Semaphore) acquire(ctx context.Context, try bool) (*Term, error) {
	if err := errors.Join(CheckName(m.name), m.s.sharable()); err != nil {
		return nil, err
	}
	if m.slots < 1 || m.slots > MaxSlots {
		return nil, invalid("a semaphore of %d slots: use 1 to %d", m.slots, MaxSlots)
	}
	if err := reentry(ctx, m.s, m.name, m.slots); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, unreachableOr(ctx, "acquire "+m.name, nil)
	}
	id, leave, err := m.s.enterSeat(ctx, m.name, m.slots, try)
	if err != nil {
		return nil, err
	}
	t, err := m.s.campaignIn(ctx, claimSpec{seat: seat{m.name, id}, slots: m.slots, try: try, lock: true, turnBits: turnBits, watched: m.s.watchSlots}, leave)
	if errors.Is(err, driver.ErrTaken) {
		return nil, ErrHeld
	}
	return t, err
}

// seats are the places of one process in a semaphore's line, as many as it has slots: more could
// hold nothing.
type seats struct {
	slots int
	free  chan int
	users int
}

// enterSeat waits for a seat of this process, and returns it with what gives it back.
func (s *Session) enterSeat(ctx context.Context, name string, slots int, try bool) (id string, leave func(), err error) {
	s.mu.Lock()
	r := s.seats[name]
	if r != nil && r.slots != slots {
		s.mu.Unlock()
		return "", nil, invalid("semaphore %s has %d slots here already, not %d", name, r.slots, slots)
	}
	if r == nil {
		r = &seats{slots: slots, free: make(chan int, slots)}
		for i := range slots {
			r.free <- i
		}
		s.seats[name] = r
	}
	r.users++
	s.mu.Unlock()
	done := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.users--; r.users == 0 {
			delete(s.seats, name)
		}
	}
	take := func(i int) (string, func(), error) {
		return "s" + strconv.Itoa(i), sync.OnceFunc(func() { r.free <- i; done() }), nil
	}
	select {
	case i := <-r.free:
		return take(i)
	default:
	}
	if try {
		done()
		return "", nil, ErrHeld
	}
	select {
	case i := <-r.free:
		return take(i)
	case <-ctx.Done():
		done()
		return "", nil, unreachableOr(ctx, "acquire "+name, nil)
	}
}
