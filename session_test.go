package primacy

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

func TestCloseWaitsForTheWorkAndTellsErrClosed(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := b.lead(s, "n")
		go func() {
			<-term.Context().Done()
			time.Sleep(2 * time.Second)
			_ = term.Resign(context.Background())
		}()
		at := b.clock()
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := b.clock() - at; got != 2*time.Second {
			t.Errorf("Close took %v, want the 2s that the work took to stop", got)
		}
		if err := context.Cause(term.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("cause %v, want ErrClosed", err)
		}
		if _, err := s.Election("n").Campaign(context.Background(), nil); !errors.Is(err, ErrClosed) {
			t.Errorf("campaign on a closed session: %v", err)
		}
	})
}

func TestCloseThatIsGivenUpLeavesTheLeaseToRunOut(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s1, s2 := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		b.lead(s1, "n") // and never resigns
		at := b.clock()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s1.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		b.lead(s2, "n")
		if got := b.clock() - at; got < 8*time.Second {
			t.Errorf("the next led after %v although the work of the first may still run", got)
		}
	})
}

func TestWorkIsGoneByTheDeadlineAlsoWhileTheSessionCloses(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, next := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		var exited, deadline atomic.Int64
		s.exit = func(int) { exited.CompareAndSwap(0, int64(b.clock())) }
		release := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Run(context.Background(), "n", func(ctx context.Context, term *Term) error { // deaf to its context
				<-ctx.Done()
				b.store.Partition("a", true)
				time.Sleep(time.Second)
				deadline.Store(int64(term.Deadline()))
				<-release
				return nil
			})
		}()
		synctest.Wait()
		led := make(chan time.Duration, 1)
		go func() { b.lead(next, "n"); led <- b.clock() }()
		closed := make(chan struct{})
		go func() { defer close(closed); _ = s.Close(context.Background()) }()
		at := <-led
		time.Sleep(10 * time.Second)
		if exited.Load() != deadline.Load() {
			t.Errorf("deadline %v, next leader from %v, work killed at %v", time.Duration(deadline.Load()), at,
				time.Duration(exited.Load()))
		}
		b.store.Partition("a", false)
		close(release)
		<-done
		<-closed
	})
}

func TestCloseDoesNotHandOverWhileWorkRuns(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, next := b.session("a", b.store, Options{Overrun: OverrunWait}), b.session("b", b.store, Options{})
		release, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Run(context.Background(), "n", func(ctx context.Context, term *Term) error { <-release; return nil })
		}()
		synctest.Wait()
		led := make(chan time.Duration, 1)
		go func() { b.lead(next, "n"); led <- b.clock() - time.Hour }()
		synctest.Wait()
		b.store.Partition("a", true)
		closed := make(chan error, 1)
		go func() { closed <- s.Close(context.Background()) }()
		time.Sleep(9*time.Second + 100*time.Millisecond) // past the deadline; the store keeps the lease until 10s
		b.store.Partition("a", false)
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("Close returned %v while the work runs", err)
		default:
		}
		if at := <-led; at < 10*time.Second {
			t.Errorf("the next led at %v: Close ended the lease in the store beside work that runs", at)
		}
		close(release)
		<-done
	})
}

// The lease lives until the work has stopped. A place that waits under it would come first
// meanwhile, and nobody would lead.
func TestCloseGivesPlacesThatWaitUpAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, holder := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		names := []string{"campaign", "many", "lock", "run"}
		for _, name := range names {
			b.lead(holder, name)
		}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			_ = s.Run(context.Background(), "slow", func(context.Context, *Term) error { <-stop; return nil })
		}()
		errs := make(chan error, 3)
		go func() { _, err := s.Election("campaign").Campaign(context.Background(), nil); errs <- err }()
		go func() { _, err := s.Mutex("lock", nil).Lock(context.Background()); errs <- err }()
		go func() {
			errs <- s.Run(context.Background(), "run", func(context.Context, *Term) error { return nil })
		}()
		es := s.Elections(nil)
		_ = es.Stand("many")
		synctest.Wait()
		for _, name := range names {
			if line, _ := b.store.Line(context.Background(), name); len(line.Waiters) != 1 {
				t.Fatalf("%s before Close: %+v", name, line)
			}
		}
		closed := make(chan error, 1)
		go func() { closed <- s.Close(context.Background()) }()
		time.Sleep(time.Second)
		for _, name := range names {
			if line, _ := b.store.Line(context.Background(), name); len(line.Waiters) > 0 {
				t.Errorf("%s while Close waits for the work: %+v", name, line)
			}
		}
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, ErrClosed) || strings.Count(err.Error(), "primacy:") != 1 {
				t.Errorf("told %v, want ErrClosed", err)
			}
		}
		close(stop)
		<-stopped
		for term, err := range es.Terms(context.Background()) {
			t.Errorf("told of %v, %v", term, err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// keeping is a store that releases nothing: a full etcd does so with a claim whose entry got no
// answer.
type keeping struct{ *memstore.Store }

type keepingLease struct{ driver.Lease }

func (k keeping) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := k.Store.Grant(ctx, owner, ttl)
	return keepingLease{l}, err
}

func (keepingLease) Release(context.Context, ...driver.Place) error { return errors.New("no space") }

// What never led may go with the lease.
func TestCloseDoesNotWaitForPlacesThatTheStoreDoesNotRelease(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, holder := b.session("a", keeping{b.store}, Options{}), b.session("b", b.store, Options{})
		b.lead(holder, "n")
		ended := make(chan error, 1)
		go func() { _, err := s.Election("n").Campaign(context.Background(), nil); ended <- err }()
		synctest.Wait()
		began := time.Now()
		if err := s.Close(context.Background()); err != nil || time.Since(began) > time.Second {
			t.Errorf("Close returned %v after %v", err, time.Since(began))
		}
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("the campaign returned %v", err)
		}
		if line, _ := b.store.Line(context.Background(), "n"); len(line.Waiters) > 0 {
			t.Errorf("%+v", line)
		}
	})
}

func TestRunReturnsWhatTheWorkReturned(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		want := errors.New("done badly")
		if got := s.Run(context.Background(), "n", func(context.Context, *Term) error { return want }); got != want {
			t.Errorf("got %v", got)
		}
		if err := s.Run(context.Background(), "n", func(context.Context, *Term) error { return nil }); err != nil {
			t.Errorf("got %v", err)
		}
		if line, _ := b.store.Line(context.Background(), "n"); line.Holder != nil {
			t.Errorf("still held: %+v", line)
		}
	})
}

func TestWhatCannotWorkIsRefusedWithItsReason(t *testing.T) {
	store := memstore.New(memstore.Options{MinTTL: 2 * time.Second, MaxTTL: time.Hour})
	for name, tc := range map[string]struct {
		o    Options
		want string
	}{
		"ttl too small":       {Options{TTL: time.Millisecond}, "2s to 5m0s"},
		"ttl too large":       {Options{TTL: 365 * 24 * time.Hour}, "2s to 5m0s"},
		"negative ttl":        {Options{TTL: -1}, "2s to 5m0s"},
		"interval over ttl":   {Options{RenewEvery: 11 * time.Second}, "raise the ttl or lower"},
		"drift of nothing":    {Options{Drift: 0.0001}, "drift"},
		"an id with newlines": {Options{ID: "a\nb"}, "control character U+000A at byte 1"},
		"an unknown policy":   {Options{Overrun: 7}, "OverrunExit"},
	} {
		_, err := NewSession(store, &tc.o)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line with %q", name, err, tc.want)
		}
	}
	s, err := NewSession(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", strings.Repeat("x", 10_000), "a\x00b", "a\nb", "\xff"} {
		_, err := s.Election(name).Campaign(context.Background(), nil)
		if !errors.Is(err, ErrInvalid) || len(err.Error()) > 400 {
			t.Errorf("name %.20q: got %v", name, err)
		}
	}
	for _, name := range []string{"a/b", "..", "../../etc", "ünïcode", "a b", "%2F"} {
		if err := CheckName(name); err != nil {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := s.Election("n").Campaign(context.Background(),
		&CampaignOptions{Value: make([]byte, 2<<20)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a value of 2 MB: %v", err)
	}
}

// elsewhere is a store whose leases end by another clock than Go's timers, as all real ones do.
type elsewhere struct{ driver.Store }

func (s elsewhere) Caps() driver.Caps {
	c := s.Store.Caps()
	c.ProcessClock = false
	return c
}

// In a bubble Go's clock is ahead of the boot clock, as the boot clock is of Go's after a suspend:
// deadlines on the wrong one of them outlive the store's leases.
func TestDeadlinesAreOnTheClockThatEndsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		own, boot := clockFor(st), clockFor(elsewhere{st})
		begun, booted := own(), boot()
		time.Sleep(1000 * time.Hour)
		if d := own() - begun; d != 1000*time.Hour {
			t.Errorf("on the memory store %v have passed, want 1000 h", d)
		}
		if d := boot() - booted; d > 100*time.Hour {
			t.Errorf("%v have passed on what is to be the boot clock", d)
		}
	})
}

// A shutdown must not look like a lost lease to whoever reads the log or the events. A lease that
// runs out while Close waits is logged all the same.
func TestCloseIsNoLossOfTheLease(t *testing.T) {
	for what, cutOff := range map[string]bool{"the store answers": false, "the store is cut off": true} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) {
				var lines []string
				s := b.session("a", b.store, Options{Logger: slog.New(gated{enabled: func() {},
					lines: func(msg string) { lines = append(lines, msg) }})})
				events := collectEvents(t, s, Renewed, RenewalMissed)
				term := b.lead(s, "n")
				b.store.Partition("a", cutOff)
				go func() {
					<-term.Context().Done()
					time.Sleep(time.Second)
					if cutOff {
						<-term.contexts().right.Done()
					}
					_ = term.Resign(context.Background())
				}()
				if err := s.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
				for _, ev := range events() {
					if ev.Kind == LeaseLost {
						t.Errorf("told %+v, want no loss of a lease after Close", ev)
					}
				}
				if slices.Contains(lines, "lease ending") != cutOff {
					t.Errorf("logged %q; want a warning only of a lease that ran out", lines)
				}
			})
		})
	}
}

// Close gives up who waits for a seat or a lock inside the process too: work may wait for them
// before it returns.
func TestCloseGivesUpWhoWaitsInTheProcess(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		ctx := context.Background()
		lock := must[*Term](t)(s.Mutex("m", nil).Lock(ctx))
		slot := must[*Term](t)(s.Semaphore("s", 1).Acquire(ctx))
		led := b.lead(s, "e")
		waits := []chan error{
			laterErr(s.Mutex("m", nil).Lock, ctx),
			laterErr(s.RWMutex("m").RLock, ctx),
			laterErr(s.Semaphore("s", 1).Acquire, ctx),
			laterErr(func(ctx context.Context) (*Term, error) { return s.Election("e").Campaign(ctx, nil) }, ctx),
		}
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- s.Close(ctx) }()
		time.Sleep(time.Second)
		for i, w := range waits {
			select {
			case err := <-w:
				if !errors.Is(err, ErrClosed) {
					t.Errorf("who waits, %d: %v, want ErrClosed", i, err)
				}
			default:
				t.Errorf("who waits, %d, has heard nothing a second after Close", i)
			}
		}
		for _, term := range []*Term{lock, slot, led} {
			_ = term.Resign(ctx)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		nothingLeft(t, s)
	})
}

// A lock whose release the store has not confirmed is no election, nor is one that is waited for.
func TestNamesLeavesOutLocksUntilTheirSeatIsFree(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		st := &tapped{Store: b.store}
		var down atomic.Bool
		down.Store(true)
		st.beforeEach(func(verb, _ string) error {
			if verb == "release" && down.Load() {
				return errors.New("no answer")
			}
			return nil
		})
		s := b.session("a", st, Options{})
		lock := must[*Term](t)(s.Mutex("lock", nil).Lock(t.Context()))
		go lock.Unlock()
		elections := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if got := s.Names(); !slices.Equal(got, want) {
				t.Errorf("it stands for %q, want %q", got, want)
			}
		}
		elections()
		next := later(t, s.Mutex("lock", nil).Lock) // waits for the seat
		elections()
		led := b.lead(s, "election")
		elections("election")
		down.Store(false)
		(<-next).Unlock()
		elections("election")
		b.lead(s, "lock") // an election of that name
		if err := led.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		elections("lock")
	})
}
