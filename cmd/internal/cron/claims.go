package cron

import (
	"context"
	"errors"

	"github.com/primacy-go/primacy"
)

// SessionClaims are the claims of a session: locks, which leave no history.
type SessionClaims struct{ Session *primacy.Session }

// Try returns the lock if it is free now.
func (c SessionClaims) Try(ctx context.Context, name string) (Hold, error) {
	t, err := c.Session.Mutex(name, nil).TryLock(ctx)
	switch {
	case errors.Is(err, primacy.ErrHeld):
		return nil, ErrHeld
	case err != nil:
		return nil, err
	}
	return TermHold{t}, nil
}

// Standing says whether somebody has the lock, as the store has it.
func (c SessionClaims) Standing(ctx context.Context, name string) (bool, error) {
	st, err := c.Session.Election(name).State(ctx)
	return st.Leader != nil, err
}

// Ask asks who has the lock to give it up.
func (c SessionClaims) Ask(ctx context.Context, name, why string) error {
	_, err := c.Session.Election(name).Ask(ctx, primacy.Request{Reason: why, Automatic: true})
	return err
}

// TermHold is a [Hold] of a session.
type TermHold struct{ Term *primacy.Term }

// Check implements [Hold].
func (h TermHold) Check() error { return h.Term.Check() }

// Ending implements [Hold].
func (h TermHold) Ending() <-chan struct{} { return h.Term.Context().Done() }

// Cause implements [Hold].
func (h TermHold) Cause() error { return context.Cause(h.Term.Context()) }

// Token implements [Hold].
func (h TermHold) Token() string { return h.Term.Token().String() }

// Release implements [Hold].
func (h TermHold) Release(ctx context.Context) error { return h.Term.Resign(ctx) }
