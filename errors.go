package primacy

import (
	"context"
	"errors"
	"fmt"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
	pauses "github.com/primacy-go/primacy/pause"
)

// Why a term ended. context.Cause of a term's context, Term.Check and Candidate events carry one of
// these inside an [*EndedError]; in its place stands the cause of the caller's own context, if that
// ended the term. Test with errors.Is.
var (
	ErrExpired     = errors.New("the lease was not renewed in time")
	ErrDeposed     = errors.New("the claim was removed by somebody else")
	ErrResigned    = errors.New("resigned")
	ErrTransferred = errors.New("handed over to another candidate")
	ErrClosed      = errors.New("the session was closed")
)

// What else a call can answer. Test with errors.Is.
var (
	// ErrNoLeader says that nobody holds the name.
	ErrNoLeader = errors.New("no leader")
	// ErrUnreachable says that the store did not answer until the context ended. The context's own
	// error is in it too.
	ErrUnreachable = errors.New("the store does not answer")
	// ErrInvalid says that an argument or an option cannot work. No line was changed.
	ErrInvalid = errors.New("invalid")
	// ErrHeld answers a try: others hold the lock, or wait for it.
	ErrHeld = errors.New("held by another")
	// ErrReentrant says that the caller's own context holds the lock already, so that it would wait
	// for itself.
	ErrReentrant = errors.New("already held by the caller")
	// ErrUpgrade says that the caller's own context holds the lock for reading and asks for
	// writing. Two that did so would wait for each other for ever: give it back, and lock it for
	// writing.
	ErrUpgrade = errors.New("held for reading by the caller, which cannot become writing")
	// ErrNotInLine says that the successor named in a transfer does not wait in the line, or that
	// [Election.Restate] was called while this session neither waits nor leads.
	ErrNotInLine = driver.ErrNoSuccessor
	// ErrDuplicateID says that several processes wait under the ID to which a name should be
	// handed: nobody can say which of them is meant.
	ErrDuplicateID = errors.New("several processes have this ID")
	// ErrRefused says that the store will not do it, now or when asked again: wrong password, no
	// permission, a server too old, a semaphore that others use with another number of slots.
	ErrRefused = driver.ErrRefused
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("primacy: %w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Reason is why a term of an election ended, as one word that does not change. EndedError.Reason
// and Request.Reason are not this word: they are free text, which Event and TermRecord call Text.
// (Of a term that expired TermRecord has Paused and DownFrom instead.)
type Reason string

// The reasons. The leader's session tells the first six, the guardian of a command tells Died, and
// [Election.History] tells the last two.
const (
	Resigned    Reason = "resigned"    // given up by its owner, or because somebody asked for it
	Transferred Reason = "transferred" // handed over to another candidate
	Failed      Reason = "failed"      // its work ended with an error of its own
	Expired     Reason = "expired"     // the lease was not renewed in time
	Deposed     Reason = "deposed"     // the claim was removed by somebody else
	Closed      Reason = "closed"      // the session was closed
	Died        Reason = "died"        // the process died, and its guardian gave the name up
	Unknown     Reason = "unknown"     // no end was recorded: the lease ran out, or the process died
	Leads       Reason = "leading"     // it has not ended
)

// Reasons returns every reason, in the order above.
func Reasons() []Reason {
	return []Reason{Resigned, Transferred, Failed, Expired, Deposed, Closed, Died, Unknown, Leads}
}

// countedReasons are the first six: a session counts its terms by them.
var countedReasons = [...]Reason{Resigned, Transferred, Failed, Expired, Deposed, Closed}

// causes has for each cause of the core the error that a term ends with, and the reason that its
// history tells. No term ends for None. A new cause also needs its word in core, and its Reason in
// Reasons, countedReasons, package metrics (tally.go), package trace (trace.go) and, for people, in
// cmd/internal/shown (reason.go).
var causes = [core.CauseCount]struct {
	err    error
	reason Reason
}{
	core.Resigned:    {ErrResigned, Resigned},
	core.Transferred: {ErrTransferred, Transferred},
	core.Expired:     {ErrExpired, Expired},
	core.Deposed:     {ErrDeposed, Deposed},
	core.Closed:      {ErrClosed, Closed},
}

// causeError is the error that a term ends with.
func causeError(cause core.Cause) error { return causes[cause].err }

// ReasonOf returns why a term ended, given what [Term.Check] or the cause of its context says:
// Resigned, Transferred, Expired, Deposed or Closed. It returns "" for any other error, also for a
// term that ended because the caller's own context did.
func ReasonOf(err error) Reason {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.reason
		}
	}
	return ""
}

// What follows an error of a store:
//
//	                 Refused, Taken   ErrInvalid, ErrClosed   Gone   NoSuccessor   any other
//	driver.IsFinal   yes              no                      yes    yes           no
//	isRefusal        yes              yes                     no     no            no
//	isFinalForBatch  yes              yes                     yes    no            no
//
// A pause.ErrInvalid counts as an ErrInvalid. After what IsFinal names, the call is not repeated.
// After what isRefusal names, the user gets the error, since the same call would get the same
// answer again. After Gone the caller goes on with a new claim, after NoSuccessor with a release.
// isFinalForBatch is for a call on behalf of many claims: what it names is the answer for one of
// them, and does not say for which. So the call is repeated for each half of the claims.
func isRefusal(err error) bool {
	for _, final := range []error{driver.ErrRefused, driver.ErrTaken, ErrInvalid, pauses.ErrInvalid, ErrClosed} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}

// unreachable is the error of a call that needs an answer of the store, once ctx has ended. Last is
// the store's last error.
func unreachable(ctx context.Context, what string, last error) error {
	if last == nil || errors.Is(last, context.Cause(ctx)) {
		return fmt.Errorf("primacy: %s: %w: %w", what, ErrUnreachable, context.Cause(ctx))
	}
	return fmt.Errorf("primacy: %s: %w: %w; last: %w", what, ErrUnreachable, context.Cause(ctx), last)
}

// ctxEnded is the error of a wait whose ctx has ended. It is ErrUnreachable only if last is an
// error of the store.
func ctxEnded(ctx context.Context, what string, last error) error {
	if last == nil || errors.Is(last, context.Canceled) || errors.Is(last, context.DeadlineExceeded) {
		return fmt.Errorf("primacy: %s: %w", what, context.Cause(ctx))
	}
	return unreachable(ctx, what, last)
}
