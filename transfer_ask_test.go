package primacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

func TestALeaderThatIsAskedHandsOverOnceItsWorkHasStopped(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &annals{t: t}
		for _, id := range []string{"a", "b", "c", "d"} {
			c.candidate(r, id, c.tap, CampaignOptions{}, 3*time.Second)
		}
		c.tap.held.Store(true)
		asks := b.session("operator", c.tap, Options{})
		was := c.token("a")
		token, err := asks.Election("n").Ask(t.Context(), Request{To: "c", Reason: "maintenance"})
		if err != nil || uint64(token) != was {
			t.Fatalf("asked the term %v, %v; a leads under %d", token, err, was)
		}
		time.Sleep(3*time.Second - 1)
		if r.told() != "a" || c.line() != "abcd" {
			t.Errorf("before the work has stopped: %s led, the line is %s", r.told(), c.line())
		}
		time.Sleep(time.Second)
		if got := c.line(); r.told() != "ac" || len(got) != 4 || got[:2] != "cd" {
			t.Errorf("%s led, the line is %s", r.told(), got)
		}
		wantEnded(t, r.ended[0], ErrTransferred, "operator", "maintenance")
		if n := c.tap.calls.Load(); n != 1 {
			t.Errorf("%d hand-overs", n)
		}
	})
}

func TestAskTransferLooksFirst(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("operator", b.store, Options{})
		e := s.Election("n")
		if _, err := e.Ask(t.Context(), Request{To: "b"}); !errors.Is(err, ErrNoLeader) {
			t.Errorf("nobody leads: %v", err)
		}
		c := inLine(t, b, "abc")
		for to, want := range map[string]error{"x": ErrNotInLine, "a": ErrInvalid, strings.Repeat("x", 256): ErrInvalid} {
			if _, err := e.Ask(t.Context(), Request{To: to}); !errors.Is(err, want) || want == ErrNotInLine && !strings.Contains(err.Error(), `waiting: "b", "c"`) {
				t.Errorf("to %.9q: %v", to, err)
			}
		}
		if _, err := s.Election("").Ask(t.Context(), Request{To: "b"}); !errors.Is(err, ErrInvalid) {
			t.Errorf("no name: %v", err)
		}
		if term := c.term("a"); term.Context().Err() != nil {
			t.Errorf("the leader was asked: %v", context.Cause(term.Context()))
		}
		foreign := must[driver.Lease](t)(b.store.Grant(t.Context(), "", time.Hour))
		must[[]driver.Place](t)(foreign.Claim(t.Context(), driver.Claim{Name: "m", ID: "x"}))
		if _, err := s.Election("m").Ask(t.Context(), Request{To: "b"}); !errors.Is(err, ErrInvalid) {
			t.Errorf("a leader of another program: %v", err)
		}
	})
}

// logged is a session whose log can be read.
func (c *crowd) logged(id string) (*Session, func() string) {
	var mu sync.Mutex
	var text bytes.Buffer
	s := c.session(id, c.tap, Options{Logger: slog.New(slog.NewTextHandler(locked{&mu, &text}, nil))})
	return s, func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return text.String()
	}
}

type locked struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// ask brings a request to the leader as another program would: without a look.
func (c *crowd) ask(r driver.Request) {
	if r.Token == 0 {
		r.Token = c.state().Holder.Token
	}
	if err := c.store.Ask(context.Background(), "n", r); err != nil {
		c.t.Errorf("ask: %v", err)
	}
	synctest.Wait()
}

func TestALeaderAskedForOneWhoDoesNotStandLeadsOn(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "")
		s, log := c.logged("a")
		c.stand("a", s)
		c.stand("b", b.session("b", c.tap, Options{}))
		term := c.term("a")
		for _, to := range []string{"gone", "a"} {
			c.ask(driver.Request{By: "operator", To: to})
			if term.Check() != nil || term.Context().Err() != nil {
				t.Errorf("asked for %s it ended: %v", to, context.Cause(term.Context()))
			}
			if !strings.Contains(log(), "level=WARN") || !strings.Contains(log(), "to="+to+" by=operator") || !strings.Contains(log(), `waiting: \"b\"`) {
				t.Errorf("the log says %s", log())
			}
		}
		// It can be asked again, and a plain request is a plain resignation.
		c.ask(driver.Request{By: "operator", Reason: "stop"})
		wantEnded(t, context.Cause(term.Context()), ErrResigned, "operator", "stop")
		_ = term.Resign(t.Context())
		c.term("b")
		if c.tap.calls.Load() != 0 {
			t.Error("it was handed over")
		}
	})
}

func TestTheHeirGoesWhileTheWorkStops(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "")
		s, log := c.logged("a")
		c.stand("a", s)
		for _, id := range []string{"b", "c"} {
			c.stand(id, b.session(id, c.tap, Options{}))
		}
		c.tap.held.Store(true)
		term := c.term("a")
		c.ask(driver.Request{By: "operator", To: "c"})
		wantEnded(t, context.Cause(term.Context()), ErrTransferred, "operator", "")
		c.gone("c")
		if err := term.Resign(t.Context()); err != nil {
			t.Errorf("resign: %v", err)
		}
		if next := c.term("b"); next.Check() != nil {
			t.Errorf("b leads, but %v", next.Check())
		}
		if !strings.Contains(log(), "not handed over but released") {
			t.Errorf("the log says %s", log())
		}
	})
}

func TestARequestToHandOverDoesNotReachASuccessor(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		term := c.term("a")
		old := uint64(term.Token())
		_ = term.Resign(t.Context())
		next := c.term("b")
		late := driver.Request{Token: old, By: "operator", To: "c"}
		if err := b.store.Ask(t.Context(), "n", late); !errors.Is(err, driver.ErrGone) {
			t.Errorf("the store took it: %v", err)
		}
		next.c.asked(next.c.place.ID, late) // even if it had come through
		synctest.Wait()
		if next.Check() != nil || next.Context().Err() != nil {
			t.Errorf("it reached the successor: %v", context.Cause(next.Context()))
		}
	})
}

// A look at the line that takes its time holds up nothing: neither news nor requests, nor the end of the term; and no crowd of requests
// starts a crowd of looks.
func TestALeaderThatLooksHearsTheNews(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		term := c.term("a")
		open := make(chan struct{})
		var looks atomic.Int64
		c.tap.onLine(func() { looks.Add(1); <-open })
		for i := range 100 {
			c.ask(driver.Request{Token: uint64(term.Token()), By: fmt.Sprint("operator ", i), To: "c"})
		}
		if looks.Load() != 1 {
			t.Errorf("%d looks at once", looks.Load())
		}
		at := b.clock()
		b.store.Remove("n", uint64(term.Token()))
		<-term.Context().Done()
		if took := b.clock() - at; took > 0 || !errors.Is(term.Check(), ErrDeposed) {
			t.Errorf("deposed after %v: %v", took, term.Check())
		}
		c.tap.onLine(nil)
		close(open)
		_ = term.Resign(t.Context())
		next := c.term("b")
		synctest.Wait()
		if next.Context().Err() != nil || c.tap.calls.Load() > 0 {
			t.Error("what was asked of the one before was done by the next")
		}
	})
}

func TestAskedTwice(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abcd")
		c.tap.held.Store(true)
		term := c.term("a")
		for _, to := range []string{"c", "c", "d", ""} {
			c.ask(driver.Request{By: "for " + to, To: to})
		}
		wantEnded(t, context.Cause(term.Context()), ErrTransferred, "for c", "")
		if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		c.term("c")
		if c.tap.calls.Load() != 1 {
			t.Errorf("%d hand-overs", c.tap.calls.Load())
		}
	})
}

func TestWhoHoldsALockIsNotMovedByName(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "")
		lock := must[*Term](t)(b.session("a", c.tap, Options{}).Mutex("n", nil).Lock(t.Context()))
		c.stand("b", b.session("b", c.tap, Options{}))
		must[Token](t)(c.sessions["b"].Election("n").Ask(t.Context(), Request{To: "b"}))
		c.ask(driver.Request{By: "b", To: "b", Priority: 9})
		if lock.Check() != nil || lock.Context().Err() != nil {
			t.Errorf("the lock was lost: %v", context.Cause(lock.Context()))
		}
		_ = lock.Resign(t.Context())
		c.term("b")
	})
}

// A campaign that is asked before it knows that it has won hands over as soon as it does.
func TestAskedBeforeTheWinIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "")
		c.tap.held.Store(true)
		once := true
		c.tap.afterEach(func(verb, owner string) error {
			if verb != "claim" || owner != "a" || !once {
				return nil
			}
			once = false
			time.Sleep(500 * time.Millisecond) // the answer is late: meanwhile b stands, and a is asked
			return nil
		})
		c.stand("a", b.session("a", c.tap, Options{}))
		c.stand("b", b.session("b", c.tap, Options{}))
		c.ask(driver.Request{By: "b", To: "b"})
		term := c.term("a")
		wantEnded(t, context.Cause(term.Context()), ErrTransferred, "b", "")
		if term.Check() != nil {
			t.Errorf("its right ended before the work had a chance to stop: %v", term.Check())
		}
		_ = term.Resign(t.Context())
		c.term("b")
		if c.tap.calls.Load() != 1 {
			t.Errorf("%d hand-overs", c.tap.calls.Load())
		}
	})
}
