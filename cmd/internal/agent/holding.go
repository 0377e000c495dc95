package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/internal/boottime"
)

// holding is a term that this server holds for a client: an election led, or a lock held.
//
// The client acts in another process, so that ending its right takes more than ending ours: what it
// was promised it may still rely on. Promised is the latest instant that it was given. From freeze
// on it is given no later one, and the term is resigned only when the client has given it up (it
// said so, or closed a connection that is its own) or promised has passed. Whoever resigns earlier
// lets the next one lead beside it.
type holding struct {
	lock  bool
	name  string
	id    string
	term  *primacy.Term
	renew time.Duration // the client has to be heard of again within this; 0: its connection is enough

	mu        sync.Mutex
	renewedAt time.Duration // by the client, on the boot clock
	promised  time.Duration
	frozen    bool
	cause     shown.Ending
	freed     chan struct{} // closed when the client gave it up
	given     bool
}

func newHolding(lock bool, id string, term *primacy.Term, renew time.Duration) *holding {
	return &holding{lock: lock, name: term.Name(), id: id, term: term, renew: renew, renewedAt: boottime.Now(),
		freed: make(chan struct{})}
}

// lease returns until when the client may act, if it may at this instant: what it is told from now
// on it relies on.
func (h *holding) lease() (until time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	deadline := h.term.Deadline()
	if h.given || h.term.Check() != nil {
		return 0, false
	}
	if !h.frozen {
		if h.renew > 0 {
			deadline = min(deadline, h.renewedAt+h.renew)
		}
		h.promised = max(h.promised, deadline)
	}
	return h.promised, boottime.Now() < h.promised
}

// renewed notes that the client renewed it, with a request sent at asked. The error says why that
// is not possible any more.
func (h *holding) renewed(asked time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.given:
		return &primacy.EndedError{Name: h.name, Token: h.term.Token(), Cause: primacy.ErrResigned}
	case h.frozen:
		return errors.New("it is ending: " + string(h.cause.Reason))
	}
	if err := h.term.Check(); err != nil {
		return err
	}
	if h.renew > 0 && asked >= h.renewedAt+h.renew {
		return errors.New("it was not renewed in time")
	}
	h.renewedAt = max(h.renewedAt, asked)
	return nil
}

// freeze gives the client no more time. The first cause stays.
func (h *holding) freeze(why shown.Ending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.frozen {
		h.frozen, h.cause = true, why
	}
}

// giveUp notes that the client has stopped.
func (h *holding) giveUp(why shown.Ending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.frozen {
		h.frozen, h.cause = true, why
	}
	if !h.given {
		h.given = true
		close(h.freed)
	}
}

// why returns what ended it, and until when the client may act.
func (h *holding) why() (shown.Ending, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause, h.promised
}

// silence returns when the client has to be heard of again, 0 if it has not.
func (h *holding) silence() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.renew == 0 {
		return 0
	}
	return h.renewedAt + h.renew
}

// resign gives the term up in the store. It is said when the client has stopped.
func (h *holding) resign() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return h.term.Resign(ctx) // unconfirmed: it goes on in the background until the lease runs out
}

// holdings are all that this server holds, to be found by name and token, never by who holds it.
type holdings struct {
	mu  sync.Mutex
	all map[holdKey]map[primacy.Token]*holding
}

type holdKey struct {
	lock bool
	name string
}

func (s *holdings) add(h *holding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := holdKey{h.lock, h.name}
	if s.all == nil {
		s.all = map[holdKey]map[primacy.Token]*holding{}
	}
	if s.all[key] == nil {
		s.all[key] = map[primacy.Token]*holding{}
	}
	s.all[key][h.term.Token()] = h
}

func (s *holdings) remove(h *holding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := holdKey{h.lock, h.name}
	delete(s.all[key], h.term.Token())
	if len(s.all[key]) == 0 {
		delete(s.all, key)
	}
}

// find returns what is held under that token, nil if nothing is.
func (s *holdings) find(lock bool, name string, token primacy.Token) *holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[holdKey{lock, name}][token]
}

// leads says who of this server's clients leads name at this instant.
func (s *holdings) leads(name string, token primacy.Token) (health.Lead, bool) {
	s.mu.Lock()
	var some []*holding
	for t, h := range s.all[holdKey{false, name}] {
		if token == 0 || t == token {
			some = append(some, h)
		}
	}
	s.mu.Unlock()
	for _, h := range some {
		if until, ok := h.lease(); ok {
			return health.Lead{ID: h.id, Token: h.term.Token(), Until: until}, true
		}
	}
	return health.Lead{}, false
}
