package primacy

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// The default Steady is three times the TTL of 10 s; a look every quarter of it may add as much.
const (
	steadyHere = 30 * time.Second
	lateHere   = steadyHere / 4
)

func (c *crowd) after(r *leaderLog, d time.Duration, want string) {
	c.t.Helper()
	time.Sleep(d)
	if got := r.leaders(); got != want {
		c.t.Errorf("%v later they led in the order %q, want %q; the line is %s", d, got, want, c.line())
	}
}

func TestAHigherPriorityIsHandedTheLead(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, CampaignOptions{}, time.Second)
		c.candidate(r, "b", c.tap, CampaignOptions{}, time.Second)
		c.tap.held.Store(true)
		c.candidate(r, "h", c.tap, CampaignOptions{Priority: 5}, time.Second)
		c.after(r, steadyHere-time.Millisecond, "a")
		c.after(r, lateHere+2*time.Second, "ah")
		wantEnded(t, r.ended[0], ErrTransferred, "h", "priority 5")
		c.after(r, 10*time.Minute, "ah") // for good: nobody takes it back
		if n := c.tap.calls.Load(); n != 1 {
			t.Errorf("%d hand-overs", n)
		}
	})
}

func TestEqualPrioritiesNeverTakeFromEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		for _, id := range []string{"a", "b", "c"} {
			c.candidate(r, id, c.tap, CampaignOptions{Priority: 5, Steady: time.Second}, 0)
		}
		c.after(r, 3*time.Minute, "a")
	})
}

func TestThreeLevelsSettle(t *testing.T) {
	for _, order := range []string{"013", "031", "103", "130", "301", "310"} {
		bubble(t, func(t *testing.T, b *world) {
			c, r := inLine(t, b, ""), &leaderLog{t: t}
			for _, id := range order {
				c.candidate(r, string(id), c.tap, CampaignOptions{Priority: int(id - '0')}, time.Second)
			}
			c.tap.held.Store(true)
			time.Sleep(10 * time.Minute)
			got := r.leaders()
			if got[len(got)-1] != '3' || len(got) > 3 {
				t.Errorf("of %s they led in the order %s", order, got)
			}
			c.after(r, 10*time.Minute, got)
		})
	}
}

func TestACandidateThatFlapsIsHandedNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, CampaignOptions{}, time.Second)
		c.candidate(r, "h", c.tap, CampaignOptions{Priority: 5}, time.Second)
		for range 50 { // it loses its place each time, in one way or the other
			time.Sleep(steadyHere * 9 / 10)
			b.store.Remove("n", c.token("h"))
		}
		c.after(r, 0, "a")
		for range 5 {
			time.Sleep(steadyHere / 2)
			b.store.Partition("h", true)
			time.Sleep(steadyHere / 2)
			b.store.Partition("h", false)
		}
		c.after(r, 0, "a")
		c.after(r, steadyHere+lateHere+3*time.Second, "ah") // at last it stands still
	})
}

func TestALeaderOfACampaignHasPriorityZero(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, "a"), &leaderLog{t: t}
		c.candidate(r, "h", c.tap, CampaignOptions{Priority: 1, Steady: 5 * time.Second}, 0)
		term := c.term("a")
		<-term.Context().Done()
		wantEnded(t, context.Cause(term.Context()), ErrTransferred, "h", "priority 1")
		_ = term.Resign(t.Context())
		c.after(r, time.Millisecond, "h")
		// And one that campaigned with a priority has it.
		s := b.session("z", c.tap, Options{})
		mine := must[*Term](t)(s.Election("m").Campaign(t.Context(), &CampaignOptions{Priority: 2}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.sessions["a"].Election("m").Campaign(ctx,
			&CampaignOptions{Priority: 2, Steady: time.Second}); !errors.Is(err, context.DeadlineExceeded) ||
			mine.Context().Err() != nil {
			t.Errorf("got %v, and the leader %v", err, context.Cause(mine.Context()))
		}
	})
}

// A leader that cannot be asked is not asked, and the next one has its time too.
func TestPriorityBehindAForeignLeader(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		foreign := must[driver.Lease](t)(b.store.Grant(t.Context(), "", time.Hour))
		p := must[[]driver.Place](t)(foreign.Claim(t.Context(), driver.Claim{Name: "n", ID: "x"}))
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, CampaignOptions{}, 0)
		c.candidate(r, "h", c.tap, CampaignOptions{Priority: 1}, 0)
		c.after(r, 10*steadyHere, "")
		_ = foreign.Release(t.Context(), p...)
		c.after(r, steadyHere-lateHere, "a")
		c.after(r, 2*lateHere+time.Second, "ah")
	})
}

// Two candidates of one process: the one whose turn has not come asks for nobody.
func TestOnlyAClaimThatStandsAsks(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, CampaignOptions{}, 0)
		c.candidate(r, "b", c.tap, CampaignOptions{}, 0) // of priority 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = c.sessions["b"].Election("n").Campaign(ctx, &CampaignOptions{Priority: 7}) }()
		c.after(r, 10*time.Minute, "a")
	})
}

// What was asked by hand counts more than a priority; the higher one comes back when it has stood
// its time.
func TestByHandAgainstAPriority(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "h", c.tap, CampaignOptions{Priority: 5}, 0)
		c.candidate(r, "a", c.tap, CampaignOptions{}, 0)
		c.tap.held.Store(true)
		must[Token](t)(c.sessions["a"].Election("n").Ask(t.Context(), Request{To: "a", Reason: "now"}))
		c.after(r, time.Second, "ha")
		c.after(r, steadyHere-2*time.Second, "ha")
		c.after(r, lateHere+2*time.Second, "hah")
	})
}

// One who asks in vain costs the store little.
func TestThePressIsPolite(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "a")
		leads := c.term("a")
		var reads atomic.Int64
		go func() { // a leader of priority 0 that does not heed: it only stops, and stays
			<-leads.Context().Done()
		}()
		c.tap.onLine(func() { reads.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			_, _ = b.session("h", c.tap, Options{}).Election("n").Campaign(ctx, &CampaignOptions{Priority: 1})
		}()
		time.Sleep(time.Hour)
		if most := int64(time.Hour/lateHere) + 200; reads.Load() > most { // each request is weighed with one more
			t.Errorf("%d reads of the line in an hour, want at most %d", reads.Load(), most)
		}
	})
}
