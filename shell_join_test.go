package primacy

import (
	"context"
	"testing"

	"github.com/primacy-go/primacy/internal/core"
)

// The lease ends in the moment between a campaign's look at it and its claim. The claim would not hear that the terms have to end, and
// Close would not wait for its work.
func TestALeaseThatIsEndingTakesNoClaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		l, err := s.live(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		k := newCampaign(context.Background(), l, claimSpec{seat: seat{name: "n"}}, func() {})
		l.end(core.Closed)
		if l.join(k.c) {
			t.Error("join = true under a lease that is ending, want false")
		}
		if l.alive() {
			t.Error("alive = true while the lease is ending, want false")
		}
	})
}
