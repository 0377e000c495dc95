package agent

import (
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// Tally counts what a member has done since its agent began.
type Tally struct {
	Seals uint64 // how often it has stopped listening to a primary, for a new term
	// How often it has begun to follow a primary: with its data as they were, after a rewind, after
	// a clone.
	Follows, Rewinds, Clones uint64
	// For how long the cluster had no primary before this member was promoted last: by a former one
	// that was shut down cleanly, and by any other. 0: it was not.
	Switchover, Failover time.Duration
}

// tally counts.
type tally struct {
	Tally
	madeBy core.Action // how the data were made that no primary was followed with yet: a Rewind, a Clone; nil: neither
}

// note takes the result of an order. A rewind or a clone has brought the member back once it
// follows.
func (t *tally) note(do core.Action, d core.Done) {
	if d.Err != nil {
		return
	}
	switch do.(type) {
	case core.Seal:
		t.Seals++
	case core.Rewind, core.Clone:
		t.madeBy = do
	case core.Follow:
		switch t.madeBy.(type) {
		case core.Rewind:
			t.Rewinds++
		case core.Clone:
			t.Clones++
		default:
			t.Follows++
		}
		t.madeBy = nil
	}
}

func (t *tally) promoted(after time.Duration, clean bool) {
	if clean {
		t.Switchover = after
	} else {
		t.Failover = after
	}
}

// discarded is how many bytes of WAL rewinds have discarded on this machine, as far as that is
// kept.
type discarded struct{ atomic.Uint64 }

// count reads it from the folder beside the data directory: so no loss counts twice whose rewind
// was tried again, by an agent that was started anew too.
func (b *discarded) count(folder string) {
	all, err := clone.Lost(folder)
	if err != nil {
		return
	}
	var sum uint64
	for _, l := range all {
		sum += l.Bytes
	}
	b.Store(sum)
}
