package registerstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/registerstore"
)

// hooked is a register whose puts a test can bend.
type hooked struct {
	*memstore.Register
	mu  sync.Mutex
	put func(ctx context.Context, key string, value []byte, version string) (string, bool, error) // nil: as ever
}

func (h *hooked) Put(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
	h.mu.Lock()
	put := h.put
	h.mu.Unlock()
	if put != nil {
		return put(ctx, key, value, version)
	}
	return h.Register.Put(ctx, key, value, version)
}

func (h *hooked) bend(put func(ctx context.Context, key string, value []byte, version string) (string, bool, error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.put = put
}

func storeOver(t *testing.T, r registerstore.Register) *registerstore.Store {
	t.Helper()
	s, err := registerstore.FromRegister(r, registerstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func granted(t *testing.T, s *registerstore.Store, owner string, ttl time.Duration) driver.Lease {
	t.Helper()
	l, err := s.Grant(t.Context(), owner, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func claimed(t *testing.T, l driver.Lease, name string) driver.Place {
	t.Helper()
	places, err := l.Claim(t.Context(), driver.Claim{Name: name, ID: l.ID() + name + time.Now().String()})
	if err != nil {
		t.Fatal(err)
	}
	return places[0]
}

// bubble runs a test in fake time over a fresh register.
func bubble(t *testing.T, f func(t *testing.T, r *hooked)) {
	synctest.Test(t, func(t *testing.T) { f(t, &hooked{Register: memstore.NewRegister()}) })
}

func TestARenewalThatTheClientRepeatedCounts(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		l := granted(t, storeOver(t, r), "a", 10*time.Second)
		r.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			_, _, _ = r.Register.Put(ctx, key, value, version)
			return r.Register.Put(ctx, key, value, version) // is told that it lost against itself
		})
		for range 3 {
			if err := l.Renew(t.Context()); err != nil {
				t.Errorf("Renew = %v, want nil: it was carried out", err)
			}
		}
	})
}

func TestARenewalWhoseOutcomeWasUnknownDoesNotCountAndHarmsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		l := granted(t, storeOver(t, r), "a", 10*time.Second)
		lost := errors.New("no answer")
		for _, happens := range []bool{true, false, true} {
			r.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
				if happens {
					_, _, _ = r.Register.Put(ctx, key, value, version)
				}
				return "", false, lost
			})
			if err := l.Renew(t.Context()); !errors.Is(err, lost) || errors.Is(err, driver.ErrGone) {
				t.Errorf("Renew without an answer = %v, want that error", err)
			}
			r.bend(nil)
			if err := l.Renew(t.Context()); err != nil {
				t.Errorf("Renew after one without an answer = %v", err)
			}
		}
	})
}

// A request that was repeated on its way and comes long after the lease was ended and removed must
// not bring it back.
func TestALeaseWhoseRegisterIsMadeAgainIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		var made []byte
		r.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			if version == "" && made == nil {
				made = value
			}
			return r.Register.Put(ctx, key, value, version)
		})
		s := storeOver(t, r)
		l := granted(t, s, "a", 10*time.Second)
		p := claimed(t, l, "n")
		if err := s.Revoke(t.Context(), l.ID()); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := r.Register.Put(t.Context(), "lease."+l.ID(), made, ""); err != nil || !ok {
			t.Fatalf("the late request = %v, %v: the register of the lease was not removed", ok, err)
		}
		if err := l.Renew(t.Context()); !errors.Is(err, driver.ErrGone) {
			t.Errorf("Renew = %v, want ErrGone", err)
		}
		if _, err := drivertest.Await(t.Context(), l, p); !errors.Is(err, driver.ErrGone) {
			t.Errorf("Wait = %v, want ErrGone", err)
		}
	})
}

// keeps is a register that cannot delete, as the contract allows.
type keeps struct{ registerstore.Register }

func (keeps) Delete(context.Context, string, string) error { return nil }

// The owner has never heard that its renewal was carried out, and the lease was ended after it.
func TestALeaseThatEndedAfterARenewalWithoutAnAnswerIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		l := granted(t, storeOver(t, keeps{r}), "a", 10*time.Second)
		r.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			_, _, _ = r.Register.Put(ctx, key, value, version)
			return "", false, errors.New("no answer")
		})
		if err := l.Renew(t.Context()); err == nil {
			t.Fatal("Renew without an answer = nil")
		}
		r.bend(nil)
		if err := storeOver(t, keeps{r}).Revoke(t.Context(), l.ID()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := l.Renew(t.Context()); !errors.Is(err, driver.ErrGone) {
				t.Errorf("Renew of a lease that was ended = %v, want ErrGone", err)
			}
		}
	})
}

// The waiter sleeps when it is about to end the lease, and the owner, who was only slow, renews
// meanwhile.
func TestAWatchThatSleptStrikesInVain(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		l := granted(t, storeOver(t, r), "a", 10*time.Second)
		p := claimed(t, l, "n")
		other := &hooked{Register: r.Register}
		w := granted(t, storeOver(t, other), "b", time.Hour)
		q := claimed(t, w, "n")
		struck := make(chan struct{})
		other.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			if strings.HasPrefix(key, "lease.") {
				other.bend(nil)
				close(struck)
				time.Sleep(5 * time.Second) // and with it all that came meanwhile is unread
			}
			return r.Register.Put(ctx, key, value, version)
		})
		won := make(chan error, 1)
		go func() { _, err := drivertest.Await(t.Context(), w, q); won <- err }()
		<-struck
		if err := l.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		renewed := time.Now()
		time.Sleep(6 * time.Second)
		if got, err := drivertest.Await(t.Context(), l, p); err != nil || !got.Held {
			t.Errorf("the holder who renewed in time = %+v, %v, want it held", got, err)
		}
		if err := <-won; err != nil || time.Since(renewed) < 11*time.Second {
			t.Errorf("the waiter = %v, %v after the renewal, want it held 1.12 of the ttl after that", err, time.Since(renewed))
		}
	})
}

// With a ttl of 5 min the look after it would come 42 s later.
func TestALookAtALeaseThatFailedIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		const ttl = 5 * time.Minute
		var failing atomic.Bool
		get := func(ctx context.Context, key string) ([]byte, string, error) {
			if strings.Contains(key, "lease.") && failing.CompareAndSwap(true, false) {
				return nil, "", errors.New("the network lost it")
			}
			return r.Get(ctx, key)
		}
		waits := storeOver(t, plain{&rigged{hooked: r, get: get}})
		first := granted(t, storeOver(t, r), "a", ttl)
		claimed(t, first, "n")
		l := granted(t, waits, "b", ttl)
		p := claimed(t, l, "n")
		turn := make(chan error, 1)
		go func() {
			_, err := drivertest.Await(t.Context(), l, p)
			turn <- err
		}()
		synctest.Wait()
		time.Sleep(time.Second) // the lease was looked at once
		begun := time.Now()
		if err := waits.Revoke(t.Context(), first.ID()); err != nil {
			t.Fatal(err)
		}
		failing.Store(true)
		if err := <-turn; err != nil {
			t.Fatal(err)
		}
		// One pause is an eighth of the silence, and a fifth more.
		if took := time.Since(begun); failing.Load() || took > ttl/5 {
			t.Errorf("a lease that had ended was seen after %v; no look failed: %v", took, failing.Load())
		}
	})
}

func TestDeadWaitersInTheMiddleCostOneSilence(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		for range 10 {
			claimed(t, granted(t, storeOver(t, r), "dead", 10*time.Second), "n")
		}
		w := granted(t, storeOver(t, r), "alive", time.Hour)
		p := claimed(t, w, "n")
		begun := time.Now()
		if _, err := drivertest.Await(t.Context(), w, p); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 13*time.Second {
			t.Errorf("behind 10 dead it took %v, want little more than 1.12 of their ttl of 10s", took)
		}
	})
}

func TestWhoTriesAgainFindsADeadHolder(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		claimed(t, granted(t, storeOver(t, r), "dead", 10*time.Second), "n")
		w := granted(t, storeOver(t, r), "tries", time.Hour)
		begun := time.Now()
		for i := 0; ; i++ {
			_, err := w.Claim(t.Context(), driver.Claim{Name: "n", ID: fmt.Sprint(i), Try: true})
			if err == nil {
				break
			}
			if !errors.Is(err, driver.ErrTaken) || time.Since(begun) > time.Minute {
				t.Fatalf("try %d after %v = %v", i, time.Since(begun), err)
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(begun); took < 11*time.Second || took > 15*time.Second {
			t.Errorf("it was taken for %v, want little more than 1.12 of the dead holder's ttl of 10s", took)
		}
	})
}

// A write that was under way when the lease was ended enters its claim afterwards.
func TestAClaimThatEntersAfterItsLeaseEndedCountsForNothing(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		s := storeOver(t, r)
		l := granted(t, s, "a", 10*time.Second)
		far := storeOver(t, r.Register)
		r.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			if strings.HasPrefix(key, "line.") {
				r.bend(nil)
				if err := far.Revoke(ctx, l.ID()); err != nil {
					t.Error(err)
				}
			}
			return r.Register.Put(ctx, key, value, version)
		})
		_, _ = l.Claim(t.Context(), driver.Claim{Name: "n", ID: "1"}) // whether it was in time is not known to anybody
		if ln, err := far.Line(t.Context(), "n"); err != nil || ln.Holder != nil {
			t.Errorf("line = %+v, %v, want it empty: the claim's lease has ended", ln, err)
		}
		if p := claimed(t, granted(t, far, "b", 10*time.Second), "n"); !p.Held {
			t.Errorf("the next claim = %+v, want it held", p)
		}
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "2"}); !errors.Is(err, driver.ErrGone) {
			t.Errorf("Claim under a lease that was revoked = %v, want ErrGone", err)
		}
	})
}

// The straggler: a Claim's write is held up on its way until after its Release.
func TestAWriteThatIsHeldUpEntersNothingAfterTheRelease(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		s := storeOver(t, r)
		l := granted(t, s, "a", time.Hour)
		var late func() bool
		r.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			late = func() bool {
				_, ok, err := r.Register.Put(context.Background(), key, value, version)
				return ok && err == nil
			}
			r.bend(nil)
			<-ctx.Done()
			return "", false, ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Claim(ctx, driver.Claim{Name: "n", ID: "1"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Claim = %v", err)
		}
		if err := l.Release(t.Context(), driver.Place{Name: "n", ID: "1"}); err != nil {
			t.Fatal(err)
		}
		if late() {
			t.Error("the write of the Claim was carried out after its Release: it stands in the line, and nobody knows of it")
		}
		if ln, err := s.Line(t.Context(), "n"); err != nil || ln.Holder != nil {
			t.Errorf("line = %+v, %v, want it empty", ln, err)
		}
	})
}

func TestATransferThatWasCarriedOutThoughTheClientWasToldOtherwise(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		s := storeOver(t, r)
		l, heir := granted(t, s, "a", time.Hour), granted(t, storeOver(t, r.Register), "b", time.Hour)
		p, q := claimed(t, l, "n"), claimed(t, heir, "n")
		r.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			_, _, _ = r.Register.Put(ctx, key, value, version)
			return r.Register.Put(ctx, key, value, version)
		})
		p.Journal, p.Record = "j", &driver.Record{Key: "k", Value: []byte("handed over")}
		if err := l.(driver.Transferer).Transfer(t.Context(), p, q.Token); err != nil {
			t.Errorf("Transfer = %v, want nil: it was carried out", err)
		}
		if all, err := s.Records(t.Context(), "j", "", 9); err != nil || len(all) != 1 || string(all[0].Value) != "handed over" {
			t.Errorf("records = %+v, %v, want that of the term", all, err)
		}
	})
}

func TestWhatTheRegisterRefusesIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		s := storeOver(t, r)
		l := granted(t, s, "a", time.Hour)
		r.bend(func(context.Context, string, []byte, string) (string, bool, error) {
			return "", false, fmt.Errorf("the bucket is read-only: %w", driver.ErrRefused)
		})
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "1"}); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("Claim = %v, want ErrRefused", err)
		}
		if _, err := s.Grant(t.Context(), "b", time.Second); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("Grant = %v, want ErrRefused", err)
		}
		r.bend(func(context.Context, string, []byte, string) (string, bool, error) {
			return "", false, fmt.Errorf("a register's own word: %w", driver.ErrGone)
		})
		if err := l.Renew(t.Context()); err == nil || errors.Is(err, driver.ErrGone) {
			t.Errorf("Renew = %v, want an error that is not final: only the adapter knows that a lease is gone", err)
		}
	})
}

func TestNothingOfDeadProcessesIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T, r *hooked) {
		s := storeOver(t, r)
		lives := granted(t, s, "lives", time.Hour)
		claimed(t, lives, "m")
		for i := range 30 {
			l := granted(t, s, "dies", 10*time.Second)
			if i%2 == 0 {
				claimed(t, l, fmt.Sprint("n", i%4))
			}
		}
		for range 12 {
			time.Sleep(20 * time.Minute)
			if err := lives.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		left, err := r.List(t.Context(), "lease.")
		if err != nil || !slices.Equal(left, []string{"lease." + lives.ID()}) {
			t.Errorf("leases that are left = %q, %v, want only the one that is renewed", left, err)
		}
		lines, err := s.Lines(t.Context(), "")
		if err != nil || len(lines) != 1 || lines[0].Name != "m" {
			t.Errorf("lines = %+v, %v, want m alone", lines, err)
		}
	})
}

// A line that this process may not read any more ends the wait for one place, and for no other.
func TestOnePlaceIsRefusedAndTheOthersAreTold(t *testing.T) {
	for _, polls := range []bool{false, true} {
		bubble(t, func(t *testing.T, h *hooked) {
			var deny atomic.Bool
			var r registerstore.Register = &rigged{hooked: h, get: func(ctx context.Context, key string) ([]byte, string, error) {
				if strings.HasSuffix(key, "line.b") && deny.Load() {
					return nil, "", fmt.Errorf("no permission: %w", driver.ErrRefused)
				}
				return h.Register.Get(ctx, key)
			}}
			if polls {
				r = plain{r}
			}
			holder, l := granted(t, storeOver(t, h), "holder", time.Hour), granted(t, storeOver(t, r), "me", time.Hour)
			first := claimed(t, holder, "a")
			claimed(t, holder, "b")
			a, b := claimed(t, l, "a"), claimed(t, l, "b")
			l.Follow(a, b)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			time.AfterFunc(time.Second, func() { deny.Store(true) })
			news, err := l.News(ctx)
			if err != nil || len(news) != 1 || news[0].Place.ID != b.ID || !errors.Is(news[0].Refused, driver.ErrRefused) {
				t.Fatalf("News = %+v, %v, want the place on b refused", news, err)
			}
			if err := holder.Release(ctx, first); err != nil {
				t.Fatal(err)
			}
			if news, err = l.News(ctx); err != nil || len(news) != 1 || news[0].Place.ID != a.ID || !news[0].Held {
				t.Errorf("News = %+v, %v, want the place on a held", news, err)
			}
			deny.Store(false)
			if err := l.Release(ctx, b); err != nil {
				t.Errorf("Release of the place that was refused: %v", err)
			}
		})
	}
}

// The records that many names leave in one journal are one write: where each took turns with the
// others, a slow register kept only some of them.
func TestRecordsOfManyNamesAreOneWrite(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		s := storeOver(t, h)
		l := granted(t, s, "me", 10*time.Second)
		var places []driver.Place
		for i := range 20 {
			p := claimed(t, l, fmt.Sprint("n", i))
			p.Journal, p.Record = "j", &driver.Record{Key: fmt.Sprintf("%02d", i), Value: []byte("v")}
			places = append(places, p)
		}
		var writes atomic.Int64
		h.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			if strings.Contains(key, "journal.") {
				writes.Add(1)
				time.Sleep(time.Second)
			}
			return h.Register.Put(ctx, key, value, version)
		})
		if err := l.Release(t.Context(), places...); err != nil {
			t.Fatal(err)
		}
		all, err := s.Records(t.Context(), "j", "", 100)
		if len(all) != len(places) || err != nil || writes.Load() != 1 {
			t.Errorf("%d records, %v, in %d writes, want %d in one", len(all), err, writes.Load(), len(places))
		}
	})
}
