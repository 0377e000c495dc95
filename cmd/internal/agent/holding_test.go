package agent

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/memstore"
)

// renewedTerm returns a term that the store renews every few milliseconds, and lasts for minutes
// after each.
func renewedTerm(t *testing.T) *primacy.Term {
	t.Helper()
	session, err := primacy.NewSession(memstore.New(memstore.Options{}),
		&primacy.Options{ID: "side", TTL: 5 * time.Minute, RenewEvery: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	term, err := session.Election("n").Campaign(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = term.Resign(context.Background())
		_ = session.Close(context.Background())
	})
	return term
}

// renewedSince waits until the term's deadline is later than d.
func renewedSince(t *testing.T, term *primacy.Term, d time.Duration) time.Duration {
	t.Helper()
	next, err := term.NextDeadline(t.Context(), d)
	if err != nil || next <= d {
		t.Fatalf("NextDeadline = %v, %v, want one later than %v", next, err, d)
	}
	return next
}

// A client that went by the first deadline that it was told would stop though it leads. And what it
// was told last is what it has to be waited for.
func TestTheDeadlineToldMovesWithRenewals(t *testing.T) {
	t.Parallel()
	term := renewedTerm(t)
	h := newHolding(false, "one", term, 0)
	first, _ := h.lease()
	next := renewedSince(t, term, first)
	until, ok := h.lease()
	if !ok || until < next {
		t.Errorf("told %v, %v after a renewal until %v, want no less", until, ok, next)
	}
	if _, waited := h.why(); waited != until {
		t.Errorf("the client was told %v, and is waited for until %v", until, waited)
	}
}

// A client that has to renew is told the end of its own renewal, which moves with each, and never
// more than the store has granted.
func TestTheDeadlineToldMovesWithTheClientsRenewals(t *testing.T) {
	t.Parallel()
	term := renewedTerm(t)
	const every = time.Minute // less than the ttl
	h := newHolding(true, "one", term, every)
	first, ok := h.lease()
	if want := h.renewedAt + every; !ok || first != want {
		t.Errorf("told %v, %v, want the end of the client's own renewal %v", first, ok, want)
	}
	for boottime.Now() <= h.renewedAt { // a clock that stands still would hide what is tested
		time.Sleep(time.Millisecond)
	}
	asked := boottime.Now()
	if err := h.renewed(asked); err != nil {
		t.Fatal(err)
	}
	if until, ok := h.lease(); !ok || until != asked+every {
		t.Errorf("told %v, %v after its renewal, want %v", until, ok, asked+every)
	}
	long := newHolding(true, "two", term, 24*time.Hour)
	if until, ok := long.lease(); !ok || until > term.Deadline() {
		t.Errorf("told %v, %v, want no more than the term's deadline %v", until, ok, term.Deadline())
	}
}

// Who is being stopped gets no more time, though the term is renewed until he has stopped: a
// successor would wait for ever.
func TestWhoIsBeingStoppedIsToldNoLaterDeadline(t *testing.T) {
	t.Parallel()
	term := renewedTerm(t)
	for _, renew := range []time.Duration{0, time.Minute} {
		h := newHolding(false, "one", term, renew)
		told, ok := h.lease()
		if !ok {
			t.Fatal("the term has ended")
		}
		h.freeze(shown.Ending{Reason: shown.Shutdown})
		if err := h.renewed(boottime.Now()); err == nil {
			t.Error("its renewal counts, want an error")
		}
		renewedSince(t, term, term.Deadline())
		if until, ok := h.lease(); !ok || until != told {
			t.Errorf("told %v, %v while it is stopped, want %v as before", until, ok, told)
		}
		h.giveUp(shown.Ending{Reason: shown.Shutdown})
		if until, ok := h.lease(); ok || until != 0 {
			t.Errorf("told %v, %v once it has stopped, want nothing", until, ok)
		}
	}
}
