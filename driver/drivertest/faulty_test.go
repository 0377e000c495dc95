package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
)

// rig is a store behind a network that is good until told otherwise, and a lease made through it.
func rig(t *testing.T) (*memstore.Store, drivertest.FaultyStore, driver.Lease) {
	t.Helper()
	s := memstore.New(memstore.Options{})
	f := drivertest.Faulty(s, drivertest.Faults{})
	l, err := f.Grant(t.Context(), "a", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return s, f, l
}

// value returns what the holder of "n" announces, or "-" if there is none.
func value(t *testing.T, s driver.Store) string {
	t.Helper()
	ln, err := s.Line(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	if ln.Holder == nil {
		return "-"
	}
	return string(ln.Holder.Value)
}

func TestFaultsDoWhatTheySay(t *testing.T) {
	for name, test := range map[string]struct {
		faults      drivertest.Faults
		now, settle string // who holds when the call has returned, and when all that is late is done
	}{
		"drop":  {drivertest.Faults{Drop: 1}, "-", "-"},
		"lose":  {drivertest.Faults{Lose: 1}, "v", "v"},
		"late":  {drivertest.Faults{Late: 1, Lag: time.Second}, "-", "v"},
		"twice": {drivertest.Faults{Twice: 1, Lag: time.Second}, "v", "v"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, f, l := rig(t)
			f.Set(test.faults)
			_, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "1", Value: []byte("v")})
			if !errors.Is(err, drivertest.ErrUnknown) {
				t.Errorf("%s: Claim = %v, want ErrUnknown", name, err)
			}
			if got := value(t, s); got != test.now {
				t.Errorf("%s: holder after the call = %s, want %s", name, got, test.now)
			}
			f.Settle()
			if got := value(t, s); got != test.settle {
				t.Errorf("%s: holder in the end = %s, want %s", name, got, test.settle)
			}
		})
	}
}

func TestWhatComesTwiceMayComeBehindALaterCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, l := rig(t)
		places, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "1"})
		if err != nil {
			t.Fatal(err)
		}
		f.Set(drivertest.Faults{Twice: 1, Lag: time.Second})
		if err := l.Update(t.Context(), places[0], []byte("old")); !errors.Is(err, drivertest.ErrUnknown) {
			t.Errorf("Update = %v, want ErrUnknown: nil would mean that it is over", err)
		}
		f.Set(drivertest.Faults{})
		if err := l.Update(t.Context(), places[0], []byte("new")); err != nil {
			t.Fatal(err)
		}
		f.Settle()
		if got := value(t, s); got != "old" {
			t.Errorf("value = %q, want the old one: its second Update came late", got)
		}
		f.Set(drivertest.Faults{Twice: 1})
		if err := l.Release(t.Context(), places[0]); err != nil {
			t.Errorf("Release = %v, want nil: by its clause it may come again", err)
		}
	})
}

func TestFaultsFollowTheirSeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outcomes := func(seed uint64) (out string, failed int) {
			_, f, l := rig(t)
			f.Set(drivertest.Faults{Seed: seed, Drop: 0.2, Lose: 0.1})
			for range 1000 {
				err := l.Renew(t.Context())
				if err != nil {
					failed++
				}
				out += fmt.Sprint(err != nil)
			}
			return out, failed
		}
		first, failed := outcomes(7)
		if again, _ := outcomes(7); again != first {
			t.Error("the same seed gave other faults")
		}
		if other, _ := outcomes(8); other == first {
			t.Error("another seed gave the same faults")
		}
		if failed < 240 || failed > 360 {
			t.Errorf("%d of 1000 calls failed, want about 300", failed)
		}
	})
}

func TestDelaysAreRandomBelowTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, l := rig(t)
		f.Set(drivertest.Faults{Delay: time.Second})
		begun := time.Now()
		for range 100 {
			one := time.Now()
			if err := l.Renew(t.Context()); err != nil || time.Since(one) >= time.Second {
				t.Fatalf("Renew = %v after %v, want nil within 1s", err, time.Since(one))
			}
		}
		if sum := time.Since(begun); sum < 30*time.Second || sum > 70*time.Second {
			t.Errorf("100 delays took %v, want about 50s", sum)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		defer cancel()
		if err := l.Renew(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Renew given up while delayed = %v, want the context's error", err)
		}
	})
}

func TestHangObeysTheContextAndDeafDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, l := rig(t)
		claim := func() chan error {
			done := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			go func() {
				defer cancel()
				_, err := l.Claim(ctx, driver.Claim{Name: "n", ID: "1", Value: []byte("v")})
				done <- err
			}()
			return done
		}
		f.Hang(true)
		if err := <-claim(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Claim while the network hangs = %v, want the context's error", err)
		}
		f.Hang(false)
		if got := value(t, s); got != "-" {
			t.Errorf("holder after a call that hung was given up = %s, want none", got)
		}
		f.Deaf(true)
		done := claim()
		time.Sleep(time.Minute)
		select {
		case err := <-done:
			t.Fatalf("Claim of a client that is deaf returned %v a minute after its context ended, or before", err)
		default:
		}
		f.Deaf(false)
		if err := <-done; err != nil {
			t.Errorf("Claim that was deaf to its context = %v, want nil: it was done afterwards", err)
		}
		if got := value(t, s); got != "v" {
			t.Errorf("holder = %s, want v", got)
		}
	})
}

func TestAnswersHangToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, l := rig(t)
		places, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "1"})
		if err != nil {
			t.Fatal(err)
		}
		news := make(chan []driver.News, 1)
		first, giveUp := context.WithCancel(t.Context())
		go func() {
			got, err := l.News(first)
			if err == nil {
				t.Errorf("News that was given up = %v, want an error", got)
			}
			got, err = l.News(t.Context())
			if err != nil {
				t.Errorf("News asked again: %v", err)
			}
			news <- got
		}()
		synctest.Wait()
		f.Hang(true)
		s.Remove("n", places[0].Token)
		synctest.Wait()
		giveUp() // with the answer on its way
		synctest.Wait()
		f.Hang(false)
		if got := <-news; len(got) != 1 || !got[0].Gone {
			t.Errorf("News = %+v, want the place that was removed: what the store told must not be lost", got)
		}
	})
}

func TestFaultyHasWhatTheStoreHas(t *testing.T) {
	s := memstore.New(memstore.Options{})
	type bare struct{ driver.Store }
	type journal struct {
		driver.Store
		driver.Journal
	}
	type asker struct {
		driver.Store
		driver.Asker
	}
	for _, test := range []struct {
		store         driver.Store
		records, asks bool
	}{{s, true, true}, {bare{s}, false, false}, {journal{s, s}, true, false}, {asker{s, s}, false, true}} {
		f := drivertest.Faulty(test.store, drivertest.Faults{})
		_, records := f.(driver.Journal)
		_, asks := f.(driver.Asker)
		if records != test.records || asks != test.asks {
			t.Errorf("%T behind the network: records %v, asks %v, want %v, %v", test.store, records, asks, test.records, test.asks)
		}
	}
}
