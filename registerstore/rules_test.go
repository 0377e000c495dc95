package registerstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/registerstore"
)

// over returns a store over a register whose reads of lines fail while deaf is set.
func over(t *testing.T, h *hooked, deaf *atomic.Bool) *registerstore.Store {
	t.Helper()
	return storeOver(t, &rigged{hooked: h, get: func(ctx context.Context, key string) ([]byte, string, error) {
		if isLine(key) && deaf.Load() {
			return nil, "", errNoAnswer
		}
		return h.Register.Get(ctx, key)
	}})
}

// endedInLine ends a lease whose claims stay in their lines, as those do that enter while it ends.
func endedInLine(t *testing.T, h *hooked, l driver.Lease, name string, token uint64) {
	t.Helper()
	s := storeOver(t, h)
	if err := s.Revoke(t.Context(), l.ID()); err != nil {
		t.Fatal(err)
	}
	value, _, err := h.Register.Get(t.Context(), "line."+name)
	if err != nil || !strings.Contains(string(value), fmt.Sprintf(`"token":%d,`, token)) &&
		!strings.Contains(string(value), fmt.Sprintf(`"token":%d}`, token)) {
		t.Fatalf("the line = %s, %v, want the claim of the ended lease in it", value, err)
	}
}

// The holder trusts a renewal for 0.9 of the ttl on his clock. The clock of who waits may run
// faster by the drift: then 1 ÷ 0.9 of the ttl have passed on it when the holder's right ends.
func TestASilentLeaseIsNotEndedWhileItsOwnerMayTrustIt(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		const ttl = 9 * time.Second
		claimed(t, granted(t, storeOver(t, h), "silent", ttl), "n")
		begun := time.Now()
		w := granted(t, storeOver(t, h), "waits", time.Hour)
		if _, err := drivertest.Await(t.Context(), w, claimed(t, w, "n")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took <= ttl*10/9 {
			t.Errorf("ended %v after its last renewal, want more than %v", took, ttl*10/9)
		}
	})
}

// The first write is on its way, and the second one is refused: the first may be carried out yet.
func TestARefusalSaysNothingOfAnEarlierWrite(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		l := granted(t, storeOver(t, h), "me", time.Hour)
		writes := 0
		h.bend(func(_ context.Context, key string, _ []byte, _ string) (string, bool, error) {
			if writes++; writes == 1 {
				return "", false, errNoAnswer
			}
			return "", false, fmt.Errorf("no permission: %w", driver.ErrRefused)
		})
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "x"}); err == nil || driver.IsFinal(err) {
			t.Errorf("Claim = %v, want an error that is not final: its first write may be carried out", err)
		}
		h.bend(nil)
	})
}

// A storage may answer that it was about to write something else (409 of S3), and then has not.
func TestARenewalThatMetNoOtherWriteIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		l := granted(t, storeOver(t, h), "me", 10*time.Second)
		h.bend(func(context.Context, string, []byte, string) (string, bool, error) {
			h.bend(nil)
			return "", false, nil
		})
		if err := l.Renew(t.Context()); err != nil {
			t.Errorf("Renew = %v, want nil: nobody has ended the lease", err)
		}
	})
}

func TestTTLsBeyondTheStoresAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		s := storeOver(t, h)
		caps := s.Caps()
		for _, ttl := range []time.Duration{-1, 0, caps.MaxTTL + 1} {
			if _, err := s.Grant(t.Context(), "me", ttl); !errors.Is(err, driver.ErrRefused) {
				t.Errorf("Grant(%v) = %v, want ErrRefused", ttl, err)
			}
		}
		if l := granted(t, s, "me", 1); l.TTL() != caps.MinTTL {
			t.Errorf("ttl = %v, want %v", l.TTL(), caps.MinTTL)
		}
	})
}

// A late release of an earlier term must not hurt the place that stands now under the same ID,
// whether it is carried out or not.
func TestAReleaseOfAnotherTermLeavesThePlaceAlone(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		var deaf atomic.Bool
		l := granted(t, over(t, h, &deaf), "me", time.Hour)
		p := claimed(t, l, "n")
		other := p
		other.Token++
		if err := l.Release(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		again, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: p.ID})
		if err != nil || again[0].Token != p.Token || !again[0].Held {
			t.Errorf("Claim after the release of another term = %+v, %v, want the place that stands", again, err)
		}
		deaf.Store(true)
		if err := l.Release(t.Context(), other); err == nil {
			t.Fatal("a release without an answer is confirmed")
		}
		deaf.Store(false)
		if err := storeOver(t, h).RemoveClaim(t.Context(), "n", p.Token); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		news, err := l.News(ctx)
		if err != nil || len(news) != 1 || !news[0].Gone || news[0].Place.Token != p.Token {
			t.Errorf("News = %+v, %v, want the place gone", news, err)
		}
	})
}

// A call that gives a place up and is refused gives its ID back, but not one that was given up
// before: a write under way may enter that.
func TestARefusedExchangeRevivesNoClaimThatWasGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		l := granted(t, storeOver(t, h), "me", time.Hour)
		both := []driver.Claim{{Name: "n", ID: "1"}, {Name: "n", Seat: "x", ID: "2"}}
		places, err := l.Claim(t.Context(), both...)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), places...); err != nil {
			t.Fatal(err)
		}
		p, want := places[0], both[1]
		if _, err := l.(driver.Exchanger).Exchange(t.Context(), p, want); !errors.Is(err, driver.ErrGone) {
			t.Fatalf("Exchange for a claim that was given up = %v, want ErrGone", err)
		}
		if _, err := l.Claim(t.Context(), both[0]); !errors.Is(err, driver.ErrGone) {
			t.Errorf("Claim of an ID that was given up = %v, want ErrGone", err)
		}
	})
}

// The line says that a claim holds, but its lease has ended, so it counts for nothing: another may
// hold already for those who have looked at the lease.
func TestAPlaceOfAnEndedLeaseIsNotToldAsHeld(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		holder, w := granted(t, storeOver(t, h), "holder", time.Hour), granted(t, storeOver(t, h), "waits", time.Hour)
		p, q := claimed(t, holder, "n"), claimed(t, w, "n")
		w.Follow(q)
		endedInLine(t, h, w, "n", q.Token)
		if err := holder.Release(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if news, err := w.News(ctx); !errors.Is(err, driver.ErrGone) {
			t.Errorf("News of a lease that has ended = %+v, %v, want ErrGone", news, err)
		}
	})
}

// Who hands over to the dead leaves the name without a leader for as long as a dead one is waited
// for.
func TestNobodyHandsOverToTheDead(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		l, heir := granted(t, storeOver(t, h), "leads", time.Hour), granted(t, storeOver(t, h), "heir", time.Hour)
		p, q := claimed(t, l, "n"), claimed(t, heir, "n")
		endedInLine(t, h, heir, "n", q.Token)
		if err := l.(driver.Transferer).Transfer(t.Context(), p, q.Token); !errors.Is(err, driver.ErrNoSuccessor) {
			t.Errorf("Transfer to a claim whose lease has ended = %v, want ErrNoSuccessor", err)
		}
		if n := standing(t, storeOver(t, h), "n"); n != 1 {
			t.Errorf("%d claims stand, want the leader's alone", n)
		}
	})
}

// A request to a leader that is dead would be answered by nobody.
func TestNobodyAsksTheDead(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		dead := granted(t, storeOver(t, h), "dead", time.Hour)
		p := claimed(t, dead, "n")
		endedInLine(t, h, dead, "n", p.Token)
		err := storeOver(t, h).Ask(t.Context(), "n", driver.Request{Token: p.Token})
		if !errors.Is(err, driver.ErrGone) {
			t.Errorf("Ask of a claim whose lease has ended = %v, want ErrGone", err)
		}
	})
}

// The answer to a transfer was lost, and the reads after it. Asked again it finds that it was
// carried out.
func TestATransferWhoseAnswerWasLostIsFoundDone(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		var deaf atomic.Bool
		l, heir := granted(t, over(t, h, &deaf), "leads", time.Hour), granted(t, storeOver(t, h), "heir", time.Hour)
		p, q := claimed(t, l, "n"), claimed(t, heir, "n")
		h.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			h.bend(nil)
			deaf.Store(true)
			_, _, _ = h.Register.Put(ctx, key, value, version)
			return "", false, errNoAnswer
		})
		if err := l.(driver.Transferer).Transfer(t.Context(), p, q.Token); err == nil || driver.IsFinal(err) {
			t.Fatalf("Transfer without an answer = %v, want an unknown outcome", err)
		}
		deaf.Store(false)
		if err := l.(driver.Transferer).Transfer(t.Context(), p, q.Token); err != nil {
			t.Errorf("Transfer again = %v, want nil: it was carried out", err)
		}
	})
}

// A write in the background that hangs must not keep a dead holder's lease from being ended.
func TestADeadLeaseIsEndedAfterAWriteThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		claimed(t, granted(t, storeOver(t, h), "dead", 10*time.Second), "n")
		w := granted(t, storeOver(t, h), "waits", time.Hour)
		q := claimed(t, w, "n")
		var hung atomic.Bool
		h.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			if strings.HasPrefix(key, "lease.") && hung.CompareAndSwap(false, true) {
				<-ctx.Done()
				return "", false, ctx.Err()
			}
			return h.Register.Put(ctx, key, value, version)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if _, err := drivertest.Await(ctx, w, q); err != nil || !hung.Load() {
			t.Errorf("Wait behind the dead = %v (a write hung: %v), want it held", err, hung.Load())
		}
	})
}
