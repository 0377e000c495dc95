package primacy

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
)

// unheard is a store whose news never comes, as when the push is slow.
type unheard struct{ *tapped }

type unheardLease struct{ *tappedLease }

func (s unheard) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.tapped.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return unheardLease{l.(*tappedLease)}, nil
}

func (l unheardLease) News(ctx context.Context) ([]driver.News, error) { return noNews(l, ctx) }

// A leader that has lost its claim and does not know yet finds another one leading. It hands over nothing, and says that it was deposed.
func TestTransferByWhoWasDeposedUnheard(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "")
		c.stand("a", b.session("a", unheard{c.tap}, Options{}))
		for _, id := range []string{"b", "c"} {
			c.stand(id, b.session(id, c.tap, Options{}))
		}
		term := c.term("a")
		b.store.Remove("n", uint64(term.Token()))
		synctest.Wait()
		if err := term.Check(); err != nil {
			t.Fatalf("it was told: %v", err)
		}
		err := term.Transfer(c.soon(), "c")
		if ended := (*EndedError)(nil); !errors.Is(err, ErrDeposed) || !errors.As(err, &ended) || strings.Contains(err.Error(), "not known") {
			t.Errorf("got %v, want ErrDeposed", err)
		}
		if n := c.tap.calls.Load(); n != 0 {
			t.Errorf("%d hand-overs of what was lost", n)
		}
		if c.term("b"); c.line() != "bc" {
			t.Errorf("the line is %s", c.line())
		}
		_ = term.Resign(c.soon())
	})
}

// Two Transfers have both looked before either of them acts: the second is not told that its heir leads.
func TestTransferIsNotToldOfAnothers(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		c.tap.held.Store(true)
		term := c.term("a")
		first, second := must[uint64](t)(term.heir(c.soon(), "b")), must[uint64](t)(term.heir(c.soon(), "c"))
		term.c.giveUpTo(first)
		term.c.giveUpTo(second)
		if err := term.c.freeAfter(c.soon(), "transfer"); err != nil {
			t.Fatal(err)
		}
		if err := term.handed(c.soon(), "transfer", first); err != nil {
			t.Errorf("the first: %v", err)
		}
		wantEnded(t, term.handed(c.soon(), "transfer", second), ErrTransferred, "", "")
		if c.term("b"); c.line() != "bc" || c.tap.calls.Load() != 1 {
			t.Errorf("the line is %s after %d hand-overs", c.line(), c.tap.calls.Load())
		}
	})
}

// Whoever sends requests without end makes a leader look at a few of them only.
func TestACrowdOfRequestsIsNotKept(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		term := c.term("a")
		open := make(chan struct{})
		var looks atomic.Int64
		c.tap.onLine(func() { looks.Add(1); <-open })
		for i := range 200 {
			c.ask(driver.Request{Token: uint64(term.Token()), By: fmt.Sprint("operator ", i), To: "nobody"})
		}
		close(open)
		synctest.Wait()
		if n := looks.Load(); n < 2 || n > 1+maxWishes {
			t.Errorf("%d looks for 200 requests that came during the first one, want %d more at most", n, maxWishes)
		}
		c.tap.onLine(nil)
		c.ask(driver.Request{By: "operator", To: "c"}) // it listens again
		wantEnded(t, context.Cause(term.Context()), ErrTransferred, "operator", "")
		_ = term.Resign(c.soon())
		c.term("c")
	})
}

// A request names a session, and its oldest claim would be the heir. Two sessions of one ID: the younger one does not take the lead for the older
// one, which has no priority.
func TestAPriorityIsForItsOwnClaimOnly(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &annals{t: t}
		c.candidate(r, "a", c.tap, CandidateOptions{}, 0)
		elder := c.candidate(r, "h", c.tap, CandidateOptions{}, 0)
		c.candidate(r, "h", c.tap, CandidateOptions{Priority: 5}, 0)
		c.after(r, 10*time.Minute, "a")
		elder()
		c.after(r, steadyHere+lateHere+time.Second, "ah")
	})
}
