//go:build linux

package interop

import (
	"context"

	"github.com/primacy-go/primacy"
)

var ourElection = kind{name: "Election", join: func(w *world, id string) stander {
	s := w.newSession(id)
	return func(tn *turn) error {
		term, err := s.Election(lineName).Campaign(tn.ctx, []byte("of "+id))
		if err != nil {
			return tn.gaveUp(err)
		}
		return w.holdTerm(tn, term, scale(uint64(term.Token())))
	}
}}

// holdTerm acts while the term's Check says yes, and resigns it.
func (w *world) holdTerm(tn *turn, term *primacy.Term, token uint64) error {
	if err := w.holds(tn, token, func() bool { return term.Check() == nil }); err != nil {
		return err
	}
	return term.Resign(context.Background())
}
