package primacy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// lockNames are the names that TestStress locks, one in each seed, besides those that it elects leaders for.
var lockNames = []string{"m", "rw", "s"}

// stressSlots is how many may hold the semaphore.
const stressSlots = 2

// kinds returns how the actor may lock its name, and whether the name is a lock's.
func (a *actor) kinds() (ways []func(context.Context) (*Term, error), lock bool) {
	s := a.p.sess
	switch a.name {
	case "m":
		m, few := s.Mutex("m", nil), s.Mutex("m", &MutexOptions{Turns: 2})
		return []func(context.Context) (*Term, error){m.Lock, few.Lock, m.Lock, m.TryLock}, true
	case "rw":
		rw := s.RWMutex("rw")
		return []func(context.Context) (*Term, error){rw.Lock, rw.RLock, rw.RLock, rw.TryLock, rw.TryRLock}, true
	case "s":
		sem := s.Semaphore("s", stressSlots)
		return []func(context.Context) (*Term, error){sem.Acquire, sem.Acquire, sem.TryAcquire}, true
	}
	return nil, false
}

// lock locks the actor's name once, works, and gives it back.
func (a *actor) lock(ctx context.Context) {
	ways, _ := a.kinds()
	if a.rnd.IntN(3) == 0 {
		a.do(ctx)
		return
	}
	term, err := ways[a.rnd.IntN(len(ways))](ctx)
	if err != nil {
		a.judged("Lock", err)
		return
	}
	a.serve(term, a.locked(term))
}

// locked tells the judge of a lock that was had.
func (a *actor) locked(term *Term) *reign {
	a.f.judge.count("locks")
	if term.Token() != lockToken(uint64(term.ClaimToken()), 0) {
		a.f.judge.count("locks handed on in a process")
	}
	return a.f.judge.won(term, a.p, a.rnd.IntN(3) == 0)
}

// do is lock in the form that runs a function. That the lock was lost meanwhile is no failure.
func (a *actor) do(ctx context.Context) {
	work := func(ctx context.Context, term *Term) error {
		r := a.locked(term)
		defer a.f.judge.stopped(r)
		a.work(ctx, r)
		return nil
	}
	s, do := a.p.sess, func(context.Context, func(context.Context, *Term) error) error { return nil }
	switch a.name {
	case "m":
		do = s.Mutex("m", nil).Do
	case "rw":
		do = s.RWMutex("rw").RDo
	case "s":
		do = s.Semaphore("s", stressSlots).Do
	}
	err := do(ctx, work)
	if ended := (*EndedError)(nil); !errors.As(err, &ended) {
		a.judged("Do", err)
	}
}

// tooMany says whether so many may not hold one name together: one alone, or readers, or as many as there are slots.
func tooMany(rs []*reign) bool {
	most := 1
	if len(rs) > 0 && !slices.ContainsFunc(rs, func(r *reign) bool { return r.term.c.slots == 0 }) {
		if most = rs[0].term.c.slots; most < 0 {
			most = len(rs)
		}
	}
	return len(rs) > most
}

// span is the time from winning a shared lock to the deadline.
type span struct {
	r        *reign
	from, to time.Duration
}

// checkShared wants never too many at once, on true time.
func checkShared(all []span) error {
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for i, s := range all {
		together := []*reign{s.r}
		for _, o := range all[:i] {
			if o.to > s.from {
				together = append(together, o.r)
			}
		}
		if tooMany(together) {
			return fmt.Errorf("too many at %.3fs: %v", s.from.Seconds(), together)
		}
	}
	return nil
}
