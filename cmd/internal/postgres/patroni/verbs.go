package patroni

import (
	"context"
	"time"
)

// Verbs does what people ask for, with the checks of the program's own verbs. Each returns once it
// is done, or ctx ends. An error that is a [Refused] says that nothing was asked of anybody.
type Verbs interface {
	// Switchover has the primary hand over, to that member if the name is not empty, and returns
	// who is the primary then. If from is not empty and another one is the primary by now, it is
	// refused: that one has just been promoted.
	Switchover(ctx context.Context, from, to string) (now string, err error)
	// Pause and Resume do nothing where it is so already, by what the store says now: this member
	// may not have read a pause yet that somebody has asked for.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Restart restarts this member's server. A primary hands over first.
	Restart(ctx context.Context) error
	// Reinit returns when it has been asked for.
	Reinit(ctx context.Context) error
}

// Refused says why something cannot be done now.
type Refused struct{ Why string }

func (r Refused) Error() string { return r.Why }

// verbLimit is how long a verb may take. What was asked for stays asked for after that.
const verbLimit = 2 * time.Minute
