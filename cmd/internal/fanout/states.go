package fanout

import (
	"context"
	"iter"

	"github.com/primacy-go/primacy"
)

// States returns a hub of who leads, as [primacy.Election.Observe] of the session tells it. The
// session is to be closed after the hub.
func States(s *primacy.Session) *Hub[primacy.State] {
	return New(Source[primacy.State]{
		Observe: func(ctx context.Context, name string) iter.Seq2[primacy.State, error] {
			return s.Election(name).Observe(ctx, primacy.HeedPauses)
		},
		Revision: Revision(s, func(st primacy.State) uint64 { return st.Revision }),
		Same: func(a, b primacy.State) bool {
			if a.Leader == nil || b.Leader == nil {
				return a.Leader == b.Leader
			}
			return a.Leader.Token == b.Leader.Token && a.Leader.ID == b.Leader.ID &&
				string(a.Leader.Value) == string(b.Leader.Value)
		},
	})
}

// Revision is [Source.Revision] of what lines of the session's store show: nil where a line that
// somebody deletes begins anew, with smaller revisions.
func Revision[T any](s *primacy.Session, of func(T) uint64) func(T) uint64 {
	if s.Store().Caps().LinesRestart {
		return nil
	}
	return of
}
