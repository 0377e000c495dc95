package etcdapi

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy"
)

// hold is what a lease has or wants of one name: one claim, however many calls wait for it.
type hold struct {
	l       *lease
	name    string
	waiting int           // calls that wait for it: lease.mu
	kept    bool          // a call was told that it is held: lease.mu
	won     chan struct{} // closed when term or err is there
	err     error
	stop    context.CancelFunc
	saying  chan *shownValue // holds what others see of it; who has taken that may replace it

	term     atomic.Pointer[primacy.Term]
	resigned atomic.Bool // by the client
}

// shownValue is the value that others see of a claim.
type shownValue struct {
	value []byte
	known bool // false: a call failed, and its value may have come, or come yet
}

// held returns the term, nil if there is none yet or the client has given it up.
func (h *hold) held() *primacy.Term {
	if h.resigned.Load() {
		return nil
	}
	return h.term.Load()
}

// campaign waits until the lease holds the name, whose value is then the one given. The lease keeps
// it if it returns the term.
func (l *lease) campaign(ctx context.Context, name string, o primacy.CampaignOptions) (*primacy.Term, error) {
	h, err := l.stand(name, o)
	if err != nil {
		return nil, err
	}
	select {
	case <-h.won:
	case <-ctx.Done():
	case <-l.life.Done():
	}
	t, err := h.answer(ctx)
	if err == nil {
		err = h.proclaim(ctx, t, o.Value)
	}
	l.leave(h, err == nil)
	return t, err
}

// answer returns the term once its claim stands for as long as the client has been promised its
// lease.
func (h *hold) answer(ctx context.Context) (*primacy.Term, error) {
	for {
		t := h.held()
		var until time.Duration
		if t != nil {
			until = t.Deadline()
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case h.l.life.Err() != nil:
			return nil, rpctypes.ErrGRPCLeaseNotFound
		case t == nil && !h.resigned.Load():
			return nil, h.err
		case t == nil || t.Check() != nil: // with it the lease
			return nil, rpctypes.ErrGRPCLeaseNotFound
		case until-h.l.clock() >= h.l.left():
			return t, nil
		}
		if _, err := t.NextDeadline(ctx, until); err != nil {
			return nil, err
		}
	}
}

// proclaim has others see the value. Calls of one claim wait for each other.
func (h *hold) proclaim(ctx context.Context, t *primacy.Term, value []byte) error {
	var last *shownValue
	select {
	case last = <-h.saying:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { h.saying <- last }()
	if last.known && bytes.Equal(last.value, value) {
		return t.Check()
	}
	err := t.Proclaim(ctx, value)
	last = &shownValue{slices.Clone(value), err == nil}
	return err
}

// stand returns the lease's claim on name, a new one if there is none.
func (l *lease) stand(name string, o primacy.CampaignOptions) (*hold, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending || l.closed {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	h := l.holds[name]
	if h == nil || h.resigned.Load() {
		ctx, stop := context.WithCancel(context.Background())
		h = &hold{l: l, name: name, won: make(chan struct{}), stop: stop, saying: make(chan *shownValue, 1)}
		h.saying <- &shownValue{slices.Clone(o.Value), true}
		l.holds[name] = h
		go h.live(ctx, o)
	}
	h.waiting++
	return h, nil
}

// live is the claim's life: it stands, leads until ctx ends, and is given up. A term that ends
// before that ends the lease.
func (h *hold) live(ctx context.Context, o primacy.CampaignOptions) {
	t, err := h.l.session.Election(h.name).Campaign(ctx, &o)
	h.term.Store(t)
	h.err = err
	close(h.won)
	defer h.l.forget(h)
	if err != nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-t.Context().Done():
		if !h.resigned.Load() {
			h.l.end()
		}
	}
	<-ctx.Done() // the client may act until it has heard of it
	h.resigned.Store(true)
	_ = t.Resign(context.Background()) // until the store has confirmed it or the lease has run out
}

// leave says that a call does not wait any more. Where nobody does, and nobody was told that it is
// held, it is given up.
func (l *lease) leave(h *hold, kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.waiting--
	h.kept = h.kept || kept
	if h.waiting == 0 && !h.kept {
		h.drop()
	}
}

// forget takes out a claim that is gone.
func (l *lease) forget(h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending && !l.closed {
		l.moved.Reset(0) // it may have been the last
	}
	if l.holds[h.name] == h {
		delete(l.holds, h.name)
	}
}

// drop gives the claim up, whatever its state.
func (h *hold) drop() {
	h.resigned.Store(true)
	h.stop()
}

// resign gives the name up for the client. It returns when the store has confirmed it.
func (h *hold) resign(ctx context.Context) error {
	h.drop()
	t := h.term.Load()
	if t == nil {
		return nil
	}
	return t.Resign(ctx)
}
