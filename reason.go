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

// reasons are those of terms that a session has seen end, for counting them.
var reasons = [...]Reason{Resigned, Transferred, Failed, Expired, Deposed, Closed}

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
	switch cause {
	case core.Expired:
		return Expired
	case core.Deposed:
		return Deposed
	case core.Transferred:
		return Transferred
	case core.Closed:
		return Closed
	}
	if c.failed && c.request == nil {
		return Failed
	}
	return Resigned
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
