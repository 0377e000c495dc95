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

// Executor carries out a will. It is called when the supervisor is gone, in a goroutine of its own, while the command may still run: it
// may prepare what takes time. Gone is closed when nothing of the command is left; before that, nothing may be done that relies on
// it. Ctx ends when the limit of the will is over. Messages is the standard error of the command, for people.
type Executor func(ctx context.Context, text []byte, gone <-chan struct{}, messages io.Writer)
