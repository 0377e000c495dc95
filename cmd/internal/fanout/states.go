package fanout

import (
	"context"
	"iter"

	"github.com/primacy-go/primacy"
)

// States returns a hub of who leads, as [primacy.Election.Observe] of the session tells it. The
// session is to be closed after the hub.
func States(s *primacy.Session) *Hub[primacy.State] {
	revision := func(st primacy.State) uint64 { return st.Revision }
	if s.Store().Caps().LinesRestart {
		revision = nil
	}
	return New(Source[primacy.State]{
		Observe: func(ctx context.Context, name string) iter.Seq2[primacy.State, error] {
			return s.Election(name).Observe(ctx, primacy.HeedPauses)
		},
		Revision: revision,
		Same: func(a, b primacy.State) bool {
			if a.Leader == nil || b.Leader == nil {
				return a.Leader == b.Leader
			}
			return a.Leader.Token == b.Leader.Token && a.Leader.ID == b.Leader.ID &&
				string(a.Leader.Value) == string(b.Leader.Value)
		},
	})
}
