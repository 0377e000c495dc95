package doctor

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// coarse tells what is left in whole steps, after a way there and back of any length, as a server
// does.
type coarse struct {
	driver.LeaseTimer
	step, way time.Duration
	rng       *rand.Rand
}

func (c coarse) Left(ctx context.Context) (time.Duration, time.Duration, error) {
	time.Sleep(time.Duration(c.rng.Int64N(int64(c.way) + 1)))
	left, _, err := c.LeaseTimer.Left(ctx)
	time.Sleep(time.Duration(c.rng.Int64N(int64(c.way) + 1)))
	return left.Truncate(c.step), c.step, err
}

// lease grants one in a store whose clock runs at that rate, and returns a clock that synctest
// moves.
func lease(t *testing.T, rate float64) (driver.LeaseTimer, func() time.Duration) {
	t.Helper()
	l, err := memstore.New(memstore.Options{Rate: rate}).Grant(t.Context(), "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	return l.(driver.LeaseTimer), func() time.Duration { return time.Since(start) }
}

// Whatever the ways take, the bounds hold the true rate; and they are as narrow as the ways are
// short.
func TestTheRateIsWithinItsBounds(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		rate := 0.85 + 0.3*rng.Float64()
		way := time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
		synctest.Test(t, func(t *testing.T) {
			l, clock := lease(t, rate)
			time.Sleep(time.Duration(rng.Int64N(int64(time.Second))))
			r, err := measureRate(t.Context(), coarse{l, time.Second, way, rng}, 6*time.Second, clock)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if rate < r.Low || rate > r.High {
				t.Errorf("seed %d: the rate %v is outside [%v, %v]", seed, rate, r.Low, r.High)
			}
			if width := r.High - r.Low; width > 2*(8*way.Seconds()+0.012)/3 {
				t.Errorf("seed %d: ways up to %v, bounds [%v, %v]: %.4f wide", seed, way, r.Low, r.High, width)
			}
			if r.Over < 3*time.Second {
				t.Errorf("seed %d: watched for %v only", seed, r.Over)
			}
		})
	}
}

func TestTheRateOfAFineClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, clock := lease(t, 1.07)
		r, err := measureRate(t.Context(), l, 4*time.Second, clock)
		if err != nil || r.Low > 1.07+1e-6 || r.High < 1.07-1e-6 || r.High-r.Low > 1e-6 {
			t.Errorf("%+v, %v, want 1.07", r, err)
		}
	})
}

func TestARenewalWhileTheClockIsWatchedIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, clock := lease(t, 1)
		go func() {
			time.Sleep(3500 * time.Millisecond)
			_ = l.(driver.Lease).Renew(t.Context())
		}()
		rng := rand.New(rand.NewPCG(1, 1))
		if _, err := measureRate(t.Context(), coarse{l, time.Second, 0, rng}, 6*time.Second, clock); !errors.Is(err,
			errMoved) {
			t.Errorf("got %v, want %v", err, errMoved)
		}
	})
}

func TestWhatTheRateMeans(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		level     driver.Level
		words     string
	}{
		{0.999, 1.001, driver.Fine, "+0.00 % of ours"},
		{0.97, 0.98, driver.Fine, "-2.50 %"},
		{0.90, 0.91, driver.Warning, "slow"},
		{1.07, 1.08, driver.Warning, "more than half of the bound"},
		{1.10, 1.12, driver.Warning, "more than half of the bound"},
		{1.12, 1.13, driver.Failed, "two may lead"},
		{0.9, 1.1, driver.Warning, "too coarse"},
	} {
		got := judgeRate(Check{Topic: "clock rate", Level: driver.Fine}, Rate{c.low, c.high, 5 * time.Second}, 0.10)
		if got.Level != c.level || !strings.Contains(got.Found+" "+got.Advice, c.words) {
			t.Errorf("[%v, %v]: %+v, want %s with %q", c.low, c.high, got, c.level, c.words)
		}
	}
}

// The whole examination, on the memory store, in fake time; and its clock is 8 % fast.
func TestExamineMemory(t *testing.T) {
	st := memstore.New(memstore.Options{})
	told := 0
	r := Examine(t.Context(), st, Options{Name: "n", TTL: 10 * time.Second, Drift: 0.1,
		Window: 400 * time.Millisecond, Tries: 5, Tell: func(Check) { told++ }})
	if told != len(r.Checks) || told < 12 || r.Count(driver.Failed) > 0 {
		t.Errorf("%d checks told of %+v", told, r.Checks)
	}
	for _, topic := range []string{"boot clock", "memory", `election "n"`, "ttl", "read", "write", "renewal",
		"claim and release", "news of a change", "clock rate", "left behind"} {
		if !hasTopic(r, topic) {
			t.Errorf("nothing on %q", topic)
		}
	}
	if lines, err := st.Lines(t.Context(), ""); err != nil || len(lines) > 0 {
		t.Errorf("left behind: %+v, %v", lines, err)
	}
	if len(r.Can) == 0 || !strings.Contains(strings.Join(r.Cannot, "\n"), "its own restart") {
		t.Errorf("can %q, cannot %q", r.Can, r.Cannot)
	}
}

// longestGrant is a store that notes the largest ttl that it was asked for.
type longestGrant struct {
	*memstore.Store
	ttl time.Duration
}

func (s *longestGrant) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	s.ttl = max(s.ttl, ttl)
	return s.Store.Grant(ctx, owner, ttl)
}

// A Redis that is restarted within two hours lets nobody new lead for the largest ttl that it has
// granted. An examination does not make that longer than it must.
func TestExamineAsksForNoLongLease(t *testing.T) {
	st := &longestGrant{Store: memstore.New(memstore.Options{})}
	o := Options{TTL: 10 * time.Second, Drift: 0.1, Window: 80 * time.Millisecond, Tries: 5}
	if r := Examine(t.Context(), st, o); r.Count(driver.Failed) > 0 {
		t.Errorf("the examination failed: %+v", r.Checks)
	}
	if most := o.Window + 10*time.Second; st.ttl > most {
		t.Errorf("it asked for a lease of %v, and needs at most %v", st.ttl, most)
	}
}

func hasTopic(r *Report, topic string) bool {
	for _, c := range r.Checks {
		if c.Topic == topic {
			return true
		}
	}
	return false
}

// An examination that is interrupted at any point leaves nothing.
func TestExamineInterrupted(t *testing.T) {
	for i := range 20 {
		st := memstore.New(memstore.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		left := i
		r := Examine(ctx, st, Options{TTL: 10 * time.Second, Drift: 0.1, Window: 80 * time.Millisecond, Tries: 5,
			Tell: func(Check) {
				if left--; left == 0 {
					cancel()
				}
			}})
		cancel()
		if lines, err := st.Lines(t.Context(), ""); err != nil || len(lines) > 0 {
			t.Errorf("interrupted after %d checks: left %+v, %v", i, lines, err)
		}
		if c := r.Checks[len(r.Checks)-1]; c.Topic != "left behind" || c.Level != driver.Fine {
			t.Errorf("interrupted after %d checks: the last is %+v", i, c)
		}
	}
}
