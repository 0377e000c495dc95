package registerstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/registerstore"
)

// rigged is a register whose reads a test can bend too. Set get before anything runs.
type rigged struct {
	*hooked
	get func(ctx context.Context, key string) ([]byte, string, error)
}

func (r *rigged) Get(ctx context.Context, key string) ([]byte, string, error) { return r.get(ctx, key) }

type put struct {
	key, version string
	value        []byte
}

var errNoAnswer = errors.New("no answer")

func isLine(key string) bool { return strings.Contains(key, "line.") }

func standing(t *testing.T, s *registerstore.Store, name string) (n int) {
	t.Helper()
	ln, err := s.Line(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if ln.Holder != nil {
		n = 1 + len(ln.Waiters)
	}
	return n
}

// Who is told that one of two names is taken believes that neither of his claims stands, also where
// the outcome of the other was unknown.
func TestATryOfTwoNamesLeavesNothingWhereTheOutcomeOfOneIsUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		var deaf atomic.Int64
		r := &rigged{hooked: h}
		r.get = func(ctx context.Context, key string) ([]byte, string, error) {
			if strings.HasSuffix(key, "line.b") && deaf.Add(-1) >= 0 {
				return nil, "", errNoAnswer
			}
			return h.Register.Get(ctx, key)
		}
		s := storeOver(t, r)
		claimed(t, granted(t, storeOver(t, h), "other", 10*time.Second), "a")
		l := granted(t, s, "me", 10*time.Second)
		h.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			next, ok, err := h.Register.Put(ctx, key, value, version)
			if strings.HasSuffix(key, "line.b") {
				h.bend(nil)
				deaf.Store(4)
				return "", false, errNoAnswer
			}
			return next, ok, err
		})
		_, err := l.Claim(t.Context(), driver.Claim{Name: "a", ID: "1", Try: true}, driver.Claim{Name: "b", ID: "2", Try: true})
		if !errors.Is(err, driver.ErrTaken) {
			t.Fatalf("Claim = %v, want ErrTaken", err)
		}
		if n := standing(t, s, "b"); n != 0 {
			t.Errorf("%d claims stand on b, want none: nobody will release it", n)
		}
	})
}

// A Claim that hears that it was given up is over, but its first write may be under way yet: it
// must find another version once Release has answered.
func TestAWriteUnderWayEntersNothingAfterItsClaimHeardOfTheRelease(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		var hold atomic.Bool
		held, released := make(chan struct{}), make(chan error, 1)
		r := &rigged{hooked: h}
		r.get = func(ctx context.Context, key string) ([]byte, string, error) {
			if isLine(key) && hold.CompareAndSwap(true, false) {
				<-held // the release reads it
			}
			return h.Register.Get(ctx, key)
		}
		s := storeOver(t, r)
		l := granted(t, s, "me", 10*time.Second)
		var late put
		h.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			h.bend(nil)
			late = put{key, version, value}
			hold.Store(true)
			go func() { released <- l.Release(t.Context(), driver.Place{Name: "n", ID: "x"}) }()
			synctest.Wait()
			return "", false, errNoAnswer
		})
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "x"}); !errors.Is(err, driver.ErrGone) {
			t.Fatalf("Claim beside its release = %v, want ErrGone", err)
		}
		close(held)
		if err := <-released; err != nil {
			t.Fatal(err)
		}
		if _, ok, err := h.Register.Put(t.Context(), late.key, late.value, late.version); ok || err != nil {
			t.Errorf("the write that was held up = %v, %v; want none: %d claims stand after the release", ok, err, standing(t, s, "n"))
		}
	})
}

// A step that finds nothing left to do, while its own first write may be carried out yet, writes
// all the same: that write must find another version.
func TestAStepAnswersForItsOwnLateWrite(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		s := storeOver(t, h)
		var late put
		h.bend(func(_ context.Context, key string, value []byte, version string) (string, bool, error) {
			h.bend(nil)
			late = put{key, version, value}
			return "", false, errNoAnswer
		})
		if calls, err := registerstore.StepUntilDone(t.Context(), s, "n"); err != nil || calls != 2 {
			t.Fatalf("the step = %v after %d calls, want 2", err, calls)
		}
		if _, ok, err := h.Register.Put(t.Context(), late.key, late.value, late.version); ok || err != nil {
			t.Errorf("the write that was held up = %v, %v; want none: the step has answered without it", ok, err)
		}
	})
}

// A claim's write was carried out and answered while its release still waited for what it had read
// before.
func TestAReleaseThatReadBeforeTheClaimWasWrittenFindsIt(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		var hold atomic.Bool
		held, released := make(chan struct{}), make(chan error, 1)
		r := &rigged{hooked: h}
		r.get = func(ctx context.Context, key string) ([]byte, string, error) {
			value, version, err := h.Register.Get(ctx, key)
			if isLine(key) && hold.CompareAndSwap(true, false) {
				<-held // the answer is on its way
			}
			return value, version, err
		}
		s := storeOver(t, r)
		l := granted(t, s, "me", 10*time.Second)
		h.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			h.bend(nil)
			hold.Store(true)
			go func() { released <- l.Release(t.Context(), driver.Place{Name: "n", ID: "x"}) }()
			synctest.Wait()
			return h.Register.Put(ctx, key, value, version)
		})
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "x"}); err != nil {
			t.Fatal(err)
		}
		close(held)
		if err := <-released; err != nil {
			t.Fatal(err)
		}
		if n := standing(t, s, "n"); n != 0 {
			t.Errorf("%d claims stand after the release, want none", n)
		}
	})
}

// The same where the unknown write was of an earlier call of Claim.
func TestAFinalAnswerSaysNothingOfTheWriteOfAnEarlierCall(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		var deny atomic.Bool
		r := &rigged{hooked: h}
		r.get = func(ctx context.Context, key string) ([]byte, string, error) {
			if isLine(key) && deny.Load() {
				return nil, "", fmt.Errorf("no permission: %w", driver.ErrRefused)
			}
			return h.Register.Get(ctx, key)
		}
		s := storeOver(t, r)
		l := granted(t, s, "me", 10*time.Second)
		var late put
		h.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			late = put{key, version, value}
			deny.Store(true)
			return "", false, errNoAnswer
		})
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "x"}); err == nil || errors.Is(err, driver.ErrRefused) {
			t.Fatalf("Claim whose write may be carried out = %v, want an error that is not final", err)
		}
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "x"}); !errors.Is(err, driver.ErrRefused) {
			t.Fatalf("Claim without permission = %v, want ErrRefused", err)
		}
		deny.Store(false)
		h.bend(nil)
		if err := l.Release(t.Context(), driver.Place{Name: "n", ID: "x"}); err != nil {
			t.Fatal(err)
		}
		if _, ok, _ := h.Register.Put(t.Context(), late.key, late.value, late.version); ok {
			t.Errorf("%d claims stand after the release", standing(t, s, "n"))
		}
	})
}

// Nothing may be called refused that has happened: the lease's register alone cannot be read.
func TestAClaimThatEnteredIsNotRefused(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		var deny atomic.Bool
		r := &rigged{hooked: h}
		r.get = func(ctx context.Context, key string) ([]byte, string, error) {
			if !isLine(key) && deny.Load() {
				return nil, "", fmt.Errorf("no permission: %w", driver.ErrRefused)
			}
			return h.Register.Get(ctx, key)
		}
		s := storeOver(t, r)
		l := granted(t, s, "me", 10*time.Second)
		deny.Store(true)
		_, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "x"})
		deny.Store(false)
		if n := standing(t, s, "n"); n != 1 || errors.Is(err, driver.ErrRefused) {
			t.Errorf("Claim = %v, and %d claims stand; want one and an error that is not final", err, n)
		}
	})
}

// crowdHolds has so many leases hold one slot of n each, the one at dead never renewed. The others
// are renewed until the test ends.
func crowdHolds(t *testing.T, s *registerstore.Store, slots, dead int) {
	for i := range slots {
		l := granted(t, s, fmt.Sprint(i), 4*time.Second)
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", Slots: slots, ID: fmt.Sprint("held", i)}); err != nil {
			t.Fatal(err)
		}
		if i == dead {
			continue
		}
		go func() {
			for t.Context().Err() == nil {
				_ = l.Renew(t.Context())
				select {
				case <-time.After(time.Second):
				case <-t.Context().Done():
				}
			}
		}()
	}
}

// Those who hold wait for nobody: who waits behind a hundred of them is the only one to see that
// one in the middle has died.
func TestADeadHolderOfOneSlotAmongManyIsPassedOver(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		s := storeOver(t, h)
		crowdHolds(t, s, 40, 20)
		l := granted(t, s, "me", 10*time.Minute)
		places, err := l.Claim(t.Context(), driver.Claim{Name: "n", Slots: 40, ID: "x"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := drivertest.Await(ctx, l, places[0]); err != nil {
			t.Errorf("Wait behind 40 holders of which one has died = %v", err)
		}
	})
}

func TestATryFindsTheDeadHolderOfOneSlotAmongMany(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		s := storeOver(t, h)
		crowdHolds(t, s, 40, 20)
		l := granted(t, s, "me", 10*time.Minute)
		for n := 0; ; n++ {
			_, err := l.Claim(t.Context(), driver.Claim{Name: "n", Slots: 40, ID: fmt.Sprint("try", n), Try: true})
			if err == nil {
				return
			}
			if n == 60 || !errors.Is(err, driver.ErrTaken) {
				t.Fatalf("Claim with Try after %d s = %v", n, err)
			}
			time.Sleep(time.Second)
		}
	})
}

// Many who wait for less than the ttl each must see the end of a dead holder together.
func TestShortWaitsPassADeadHolderOver(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		s := storeOver(t, h)
		claimed(t, granted(t, s, "dead", 10*time.Second), "n")
		l := granted(t, s, "me", 10*time.Minute)
		for n := 0; ; n++ {
			places, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: fmt.Sprint("wait", n)})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			_, err = drivertest.Await(ctx, l, places[0])
			cancel()
			if err == nil {
				return
			}
			if n == 30 {
				t.Fatalf("after %d waits of 3 s the dead holder of a lease of 10 s stands: %v", n, err)
			}
			if err := l.Release(t.Context(), places...); err != nil {
				t.Fatal(err)
			}
		}
	})
}

type caller struct{}

// A read in the background that hangs must not keep who tries again and again from finding out that
// the holder is dead.
func TestTriesGoOnAfterAReadInTheBackgroundThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		var hang atomic.Bool
		r := &rigged{hooked: h}
		r.get = func(ctx context.Context, key string) ([]byte, string, error) {
			if ctx.Value(caller{}) == nil && hang.CompareAndSwap(true, false) {
				<-ctx.Done()
				return nil, "", ctx.Err()
			}
			return h.Register.Get(ctx, key)
		}
		s := storeOver(t, r)
		claimed(t, granted(t, s, "dead", 10*time.Second), "n")
		l := granted(t, s, "me", 10*time.Minute)
		ctx := context.WithValue(t.Context(), caller{}, true)
		hang.Store(true)
		for n := 0; ; n++ {
			_, err := l.Claim(ctx, driver.Claim{Name: "n", ID: fmt.Sprint("try", n), Try: true})
			if err == nil {
				return
			}
			if n == 60 {
				t.Fatalf("after %d s the dead holder of a lease of 10 s stands: %v", n, err)
			}
			time.Sleep(time.Second)
		}
	})
}

// A line that was put back to an earlier state, or deleted by hand, is not asked for without a
// pause.
func TestALineThatWasDeletedByHandIsNotReadAllTheTime(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		var line atomic.Value
		r := &rigged{hooked: h, get: func(ctx context.Context, key string) ([]byte, string, error) {
			if isLine(key) {
				line.Store(key)
			}
			time.Sleep(time.Millisecond)
			return h.Register.Get(ctx, key)
		}}
		s := storeOver(t, r)
		l := granted(t, s, "holder", 10*time.Second)
		claimed(t, l, "n")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		go func() { _, _ = s.Next(ctx, "n", 1<<62) }()
		time.Sleep(time.Second)
		_, version, _ := h.Register.Get(ctx, line.Load().(string))
		if err := h.Register.Delete(ctx, line.Load().(string), version); err != nil {
			t.Fatal(err)
		}
		before := h.Calls()
		time.Sleep(5 * time.Second)
		if after := h.Calls(); after.Get-before.Get+after.Watch-before.Watch > 200 {
			t.Errorf("%d reads and %d watches in 5 s", after.Get-before.Get, after.Watch-before.Watch)
		}
	})
}

// Odd seats are kept byte by byte, as names and IDs are.
func TestAnOddSeatIsFoundAgain(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		s := storeOver(t, h)
		l := granted(t, s, "me", 10*time.Second)
		if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", Seat: "\xff", ID: "x"}); err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), driver.Place{Name: "n", Seat: "\xff", ID: "x"}); err != nil || standing(t, s, "n") != 0 {
			t.Errorf("Release = %v, and %d claims stand", err, standing(t, s, "n"))
		}
	})
}

// Lines reads each document once and each lease once, however many lines it stands in.
func TestLinesReadsEachDocumentAndEachLeaseOnce(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		s := storeOver(t, h)
		a, b := granted(t, s, "a", time.Minute), granted(t, s, "b", 2*time.Second)
		for i := range 30 {
			for _, l := range [][]driver.Lease{{a, b}, {b, a}}[i%2] {
				claimed(t, l, fmt.Sprintf("g/%04d", i))
			}
		}
		before := h.Calls()
		all, err := s.Lines(t.Context(), "g/")
		if after := h.Calls(); err != nil || len(all) != 30 || after.Get-before.Get > 30+2 {
			t.Errorf("%d lines, %v, after %d reads; want 30 after 32", len(all), err, after.Get-before.Get)
		}
		keys, err := h.List(t.Context(), "lease.")
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys { // b's lease is gone, and its claims still stand in the documents
			if strings.Contains(key, b.ID()) {
				_, version, _ := h.Get(t.Context(), key)
				err = h.Delete(t.Context(), key, version)
			}
		}
		if left, _ := h.List(t.Context(), "lease."); err != nil || len(left) != 1 {
			t.Fatalf("%v, leases left: %v", err, left)
		}
		all, err = s.Lines(t.Context(), "g/")
		if err != nil || len(all) != 30 {
			t.Fatalf("%d lines, %v", len(all), err)
		}
		for _, ln := range all {
			if n := len(ln.Waiters); ln.Holder.Owner != "a" || n != 0 {
				t.Errorf("%s: %+v, and %d wait: a lease that has ended stands there", ln.Name, ln.Holder, n)
			}
		}
	})
}
