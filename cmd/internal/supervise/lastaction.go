package supervise

import (
	"context"
	"io"
	"time"
)

// LastAction is what a guardian does for its supervisor when that has been killed and nothing of
// the command is left. The guardian passes it to the program's [OrphanHandler]. Nothing is done for
// a supervisor that lives or is frozen, or whose guardian is gone too.
type LastAction struct {
	// Payload is for the handler. It may hold secrets: it goes through the socket to the guardian
	// and nowhere else.
	Payload []byte
	// Limit is how long the handler may take. The guardian exits soon after it.
	Limit time.Duration
}

// OrphanHandler carries out a [LastAction]. The guardian calls it when its supervisor is dead and
// nothing of the command is left, never before: a handler can end the guardian, by a panic or
// because the system refuses the Go runtime a new thread. A command that still ran would then have
// no guardian. ctx ends after [LastAction].Limit. What is written to messages goes to the command's
// standard error, for people.
type OrphanHandler func(ctx context.Context, payload []byte, messages io.Writer)
