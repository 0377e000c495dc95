package supervise

import (
	"context"
	"io"
	"time"
)

// Will is what is left to do for a supervisor that died. Its guardian has it done by the program's [Executor], once nothing of the command
// is left. A supervisor that lives, or is frozen, has no will carried out; nor has one whose guardian is gone too.
type Will struct {
	Text  []byte        // for the executor; secrets may be in it: it goes through the socket to the guardian, and nowhere else
	Limit time.Duration // what the executor gets, from when nothing of the command is left; then the guardian ends
}

// Executor carries out a will. It is called when the supervisor is gone and nothing of the command is left, and not before: it takes the
// guardian with it where it panics, or where the system gives it no thread. Ctx ends when the limit of the will is over. Messages is the
// standard error of the command, for people.
type Executor func(ctx context.Context, text []byte, messages io.Writer)
