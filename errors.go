package primacy

import (
	"errors"
	"fmt"

	"github.com/primacy-go/primacy/driver"
)

// Why a term ended. context.Cause of a term's context, Term.Check and Candidate events carry one of these, inside an
// [*EndedError]. Test with errors.Is.
var (
	ErrExpired     = errors.New("the lease ran out: the store did not renew it in time")
	ErrDeposed     = errors.New("the claim was removed by somebody else")
	ErrResigned    = errors.New("resigned")
	ErrTransferred = errors.New("handed over to another candidate")
	ErrClosed      = errors.New("the session was closed")
)

// What else a call can answer. Test with errors.Is.
var (
	// ErrNoLeader says that nobody holds the name.
	ErrNoLeader = errors.New("no leader")
	// ErrUnreachable says that the store did not answer until the context ended. The context's own error is in it too.
	ErrUnreachable = errors.New("the store does not answer")
	// ErrInvalid says that an argument or an option cannot work. Nothing was asked of the store.
	ErrInvalid = errors.New("invalid")
	// ErrHeld answers a try: others hold the lock, or wait for it.
	ErrHeld = errors.New("held by another")
	// ErrReentrant says that the caller's own context holds the lock already, so that it would wait for itself.
	ErrReentrant = errors.New("already held by the caller")
	// ErrUpgrade says that the caller's own context holds the lock for reading and asks for writing. Two that did so would wait for
	// each other for ever: give it back, and lock it for writing.
	ErrUpgrade = errors.New("held for reading by the caller, which cannot become writing")
	// ErrNotStanding says that whom a name should be handed to does not wait in its line.
	ErrNotStanding = driver.ErrNoSuccessor
	// ErrRefused says that the store will not do it, now or when asked again: wrong password, no permission, a server too old.
	ErrRefused = driver.ErrRefused
)

// EndedError says that a term is over, or about to be, and why.
type EndedError struct {
	Name   string
	Token  Token
	Cause  error  // ErrExpired, ErrDeposed, ErrResigned, ErrTransferred, ErrClosed, or the cause of the caller's own context
	By     string // who asked for it, if somebody did
	Reason string // why he did, in his words
	lock   bool
}

// Error returns one line with everything known.
func (e *EndedError) Error() string {
	what := "leadership of"
	if e.lock {
		what = "the lock on"
	}
	s := fmt.Sprintf("%s %q under token %d ended: %v", what, e.Name, e.Token, e.Cause)
	if e.By != "" {
		s += fmt.Sprintf(", asked by %s", e.By)
	}
	if e.Reason != "" {
		s += fmt.Sprintf(" (%s)", e.Reason)
	}
	return s
}

// Unwrap returns the cause.
func (e *EndedError) Unwrap() error { return e.Cause }

func invalid(format string, args ...any) error {
	return fmt.Errorf("primacy: %w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
