package primacy

import (
	"context"
	"errors"

	"github.com/primacy-go/primacy/internal/core"
)

// Reason is why a term of an election ended, as one word that does not change.
type Reason string

// The reasons. Who leads tells the first six; Died is told by a guardian that saw it, and the last two by who reads the history.
const (
	Resigned    Reason = "resigned"    // given up by its owner, or because somebody asked for it
	Transferred Reason = "transferred" // handed over to another candidate
	Failed      Reason = "failed"      // its work ended with an error of its own
	Expired     Reason = "expired"     // the lease was not renewed in time
	Deposed     Reason = "deposed"     // the claim was removed by somebody else
	Closed      Reason = "closed"      // the session was closed
	Died        Reason = "died"        // the process died, and its guardian gave the name up
	Unknown     Reason = "unknown"     // nobody said: the lease ran out, or the process died
	Leads       Reason = "leading"     // it has not ended
)

// Reasons returns every reason, in the order above.
func Reasons() []Reason {
	return []Reason{Resigned, Transferred, Failed, Expired, Deposed, Closed, Died, Unknown, Leads}
}

// reasons are those of terms that a session has seen end, for counting them.
var reasons = [...]Reason{Resigned, Transferred, Failed, Expired, Deposed, Closed}

// causes says for each cause of the core with which error a term's context ends, and which reason its history tells.
var causes = [...]struct {
	cause  core.Cause
	err    error
	reason Reason
}{
	{core.Resigned, ErrResigned, Resigned},
	{core.Transferred, ErrTransferred, Transferred},
	{core.Expired, ErrExpired, Expired},
	{core.Deposed, ErrDeposed, Deposed},
	{core.Closed, ErrClosed, Closed},
}

// causeError is the error that a term's context ends with.
func causeError(cause core.Cause) error {
	for _, c := range causes {
		if c.cause == cause {
			return c.err
		}
	}
	return ErrResigned // of a claim that was given up before it led
}

// ReasonOf returns why a term ended, given what [Term.Check] or the cause of its context says; "" where err is not the end of a term.
func ReasonOf(err error) Reason {
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.reason
		}
	}
	return ""
}

// Explain says in words why the term is about to end, for its history and for [Session.Events]; failed marks that its work has failed. Call it before
// [Term.Resign]. The last words count; what others asked for, or the store did, keeps its own reason. A candidate explains what its work returned by itself. Of locks nothing is kept.
func (t *Term) Explain(text string, failed bool) {
	c := t.c
	if c.lock {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.words, c.failed = text, failed
	}
}

// reason is the word for the end of the claim's term. The claim's lock is held, as in what follows.
func (c *claim) reason(cause core.Cause) Reason {
	r := ReasonOf(causeError(cause))
	if r == Resigned && c.failed && c.request == nil {
		return Failed
	}
	return r
}

// text is why the term ended in the words of who ended it.
func (c *claim) text(cause core.Cause) string {
	switch {
	case c.request != nil && (cause == core.Resigned || cause == core.Transferred):
		return c.request.Reason
	case c.words != "":
		return c.words
	case c.why != nil && cause == core.Resigned && !errors.Is(c.why, context.Canceled):
		return c.why.Error()
	}
	return ""
}
