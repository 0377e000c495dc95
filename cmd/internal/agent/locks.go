package agent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/internal/boottime"
)

// lockBody says which lock, and how it is held.
type lockBody struct {
	ID      string `json:"id"`
	TTLMS   int64  `json:"ttl_ms"`
	WaitMS  *int64 `json:"wait_ms"`  // none or 0: only if it is free now
	Slots   int    `json:"slots"`    // of a semaphore
	Shared  bool   `json:"shared"`   // for reading
	LeaseMS int64  `json:"lease_ms"` // not renewed within this it is released; for a bound one, 0: not at all
	Bound   bool   `json:"bound"`    // to the connection: the answer is a stream
	Direct  bool   `json:"direct"`   // with Bound: as of a campaign
}

func (b lockBody) check(name string) error {
	switch {
	case b.Slots < 0 || b.Slots > primacy.MaxSlots:
		return errors.New("slots must be 1 to 1000, or 0 for none")
	case b.Slots > 0 && b.Shared:
		return errors.New("give slots or shared, not both")
	case b.TTLMS != 0 && b.ID == "":
		return errors.New("ttl_ms is of a candidate: give an id too")
	}
	return errors.Join(primacy.CheckName(name), checkMS("ttl_ms", b.TTLMS, 0),
		checkMS("lease_ms", b.LeaseMS, minRenew), checkWait(b.WaitMS))
}

func (b lockBody) try() bool { return b.WaitMS == nil || *b.WaitMS == 0 }

// take returns what waits for the lock, or tries.
func (b lockBody) take(s *primacy.Session, name string) func(context.Context) (*primacy.Term, error) {
	type locker func(context.Context) (*primacy.Term, error)
	pick := func(try, wait locker) locker {
		if b.try() {
			return try
		}
		return wait
	}
	switch {
	case b.Slots > 0:
		m := s.Semaphore(name, b.Slots)
		return pick(m.TryAcquire, m.Acquire)
	case b.Shared:
		m := s.RWMutex(name)
		return pick(m.TryRLock, m.RLock)
	}
	m := s.Mutex(name, nil)
	return pick(m.TryLock, m.Lock)
}

// lockJSON is the answer of a lock that was acquired or renewed.
type lockJSON struct {
	Name  string        `json:"name"`
	ID    string        `json:"id"`
	Token primacy.Token `json:"token"`
	*health.Lease
}

// lock answers POST /v1/locks/{name}.
func (a *Agent) lock(w http.ResponseWriter, r *http.Request, name string) {
	var b lockBody
	if !decode(w, r, &b) {
		return
	}
	if err := b.check(name); err != nil {
		health.Invalid.Write(w, "%v", err)
		return
	}
	s, leave, ok := a.joinLock(w, r, b)
	if !ok {
		return
	}
	if b.Bound {
		defer leave()
		c := &contest{a: a, name: name, lock: true, session: s, renew: ms(b.LeaseMS), win: b.take(s, name),
			direct: b.Direct, s: newStream(w, r)}
		if b.try() {
			c.wait = a.o.Timeout
		} else {
			c.wait = ms(*b.WaitMS)
		}
		c.run(r)
		return
	}
	a.lockAlone(w, r, name, b, s, leave)
}

// joinLock is join, but who has no id shares the server's own session.
func (a *Agent) joinLock(w http.ResponseWriter, r *http.Request, b lockBody) (*primacy.Session, func(), bool) {
	if b.ID != "" {
		return a.join(w, r, b.ID, b.TTLMS)
	}
	out, ok := a.admit(w, r, clientsPerDoor)
	return a.own, out, ok
}

// lockAlone takes a lock that no connection holds: it has to be renewed.
func (a *Agent) lockAlone(w http.ResponseWriter, r *http.Request, name string, b lockBody, s *primacy.Session,
	leave func()) {
	h, err := a.takeAlone(r, name, b, s)
	// it has waited for longer than an answer may take
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeLimit))
	if err != nil {
		leave()
		if errors.Is(err, errTooLate) || r.Context().Err() != nil { // who went away reads nothing
			tooLate.Write(w, "%s is held by others", name)
			return
		}
		fail(w, err)
		return
	}
	a.held.add(h)
	a.locks.Add(1)
	go func() {
		defer a.locks.Done()
		defer leave()
		(&keeper{a: a, h: h}).keep()
	}()
	a.answerLock(w, h)
}

func (a *Agent) takeAlone(r *http.Request, name string, b lockBody, s *primacy.Session) (*holding, error) {
	wait, late := a.o.Timeout, error(nil)
	if !b.try() {
		wait, late = ms(*b.WaitMS), errTooLate
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), wait, late)
	defer cancel()
	defer a.onStop(cancel)()
	t, err := b.take(s, name)(ctx)
	if err != nil {
		return nil, lockError(ctx, a, err)
	}
	if r.Context().Err() != nil { // nobody will ever have the token
		resignNow(t)
		return nil, context.Canceled
	}
	renew := ms(b.LeaseMS)
	if renew == 0 {
		renew = t.TTL()
	}
	return newHolding(true, s.ID(), t, renew), nil
}

// onStop has f called when the server begins to stop, until the returned function is called.
func (a *Agent) onStop(f func()) func() {
	done := make(chan struct{})
	go func() {
		select {
		case <-a.stopped:
			f()
		case <-done:
		}
	}()
	return func() { close(done) }
}

// lockError says why a lock was not acquired: another holds it, we are stopping, or the store did
// not answer.
func lockError(ctx context.Context, a *Agent, err error) error {
	if a.hasStopped() {
		return errStopping
	}
	if errors.Is(context.Cause(ctx), errTooLate) && (!errors.Is(err, primacy.ErrUnreachable) ||
		errors.Is(err, errTooLate)) {
		return errTooLate
	}
	return err
}

func (a *Agent) answerLock(w http.ResponseWriter, h *holding) {
	until, ok := h.lease()
	if !ok {
		notHeld.Write(w, "the right to %s under token %d is over already", h.name, h.term.Token())
		return
	}
	health.WriteJSON(w, http.StatusOK, lockJSON{h.name, h.id, h.term.Token(), health.LeaseOf(until)})
}

// renew answers POST …/renew of a lock or of an election that asked for renew_ms.
func (a *Agent) renew(lock bool) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, r *http.Request, name string) {
		asked := boottime.Now()
		if !decode(w, r, &struct{}{}) || !sound(w, name, "") {
			return
		}
		h, ok := a.holder(w, r, lock, name)
		if !ok {
			return
		}
		if a.hasStopped() { // whoever keeps h is told too, but may not have run yet
			h.freeze(shown.Ending{Reason: shown.Shutdown})
		}
		if err := h.renewed(asked); err != nil {
			notHeld.Write(w, "%s under token %d: %v", name, h.term.Token(), err)
			return
		}
		a.answerLock(w, h)
	}
}

// unlock answers DELETE /v1/locks/{name}.
func (a *Agent) unlock(w http.ResponseWriter, r *http.Request, name string) {
	if sound(w, name, "") {
		a.release(w, r, true, name, "")
	}
}
