package primacy

import (
	"context"
	"errors"
	"testing"
)

// The claim was removed by hand and the push has not come. The answer to Proclaim tells as well: the term must not go on after it.
func TestProclaimThatFindsTheClaimGoneEndsTheTerm(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		term := b.lead(b.session("a", &hooked{Store: b.store, news: noNews}, Options{}), "n")
		if !b.store.Remove("n", uint64(term.Token())) {
			t.Fatal("nothing was removed")
		}
		if err := term.Proclaim(context.Background(), []byte("x")); !errors.Is(err, ErrDeposed) {
			t.Errorf("Proclaim = %v, want ErrDeposed", err)
		}
		if err := term.Check(); !errors.Is(err, ErrDeposed) || term.Context().Err() == nil {
			t.Errorf("afterwards Check = %v, context %v; want ErrDeposed and an end", err, term.Context().Err())
		}
	})
}
