package primacy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

func TestTransferToOneInTheMiddleOfTheLine(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abcde")
		c.tap.held.Store(true)
		first := c.term("a")
		was := c.token("d")
		if err := first.Transfer(c.soon(), "d"); err != nil {
			t.Fatal(err)
		}
		wantEnded(t, first.Check(), ErrTransferred, "", "")
		wantEnded(t, context.Cause(first.Context()), ErrTransferred, "", "")
		next := c.term("d")
		if next.Check() != nil || uint64(next.Token()) != was || next.Token() <= first.Token() {
			t.Errorf("d leads under token %v, check %v; it stood under %d, and a led under %v", next.Token(), next.Check(), was, first.Token())
		}
		synctest.Wait()
		if got := c.line(); got != "debc" && got != "decb" {
			t.Errorf("the line is %s, want d, e, and then those who stood between", got)
		}
		c.stand("a", c.sessions["a"]) // at the end
		order := ""
		for last := next; ; {
			order += last.l.s.ID()
			if last.Check() != nil {
				t.Errorf("%s leads, but %v", last.l.s.ID(), last.Check())
			}
			line := c.line()
			if len(line) == 1 {
				break
			}
			_ = last.Resign(t.Context())
			after := c.term(line[1:2])
			if after.Token() <= last.Token() {
				t.Errorf("token %v after %v", after.Token(), last.Token())
			}
			last = after
		}
		if order != "debca" && order != "decba" {
			t.Errorf("they led in the order %s", order)
		}
	})
}

func TestTransferToOneWhoDoesNotStandLeavesTheTermAlone(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "ab")
		c.tap.held.Store(true)
		term := c.term("a")
		reads := b.session("reader", c.tap, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = reads.RWMutex("n").RLock(ctx) }()
		synctest.Wait()
		for to, want := range map[string]error{"nobody": ErrNotInLine, "reader": ErrNotInLine, "a": ErrInvalid, "": ErrInvalid, "x\n": ErrInvalid} {
			err := term.Transfer(c.soon(), to)
			if !errors.Is(err, want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("transfer to %q: %v, want %v", to, err, want)
			}
			if want == ErrNotInLine && !strings.Contains(err.Error(), `waiting: "b"`) {
				t.Errorf("it does not name who stands: %v", err)
			}
		}
		if term.Check() != nil || term.Context().Err() != nil || c.line() != "abreader" || c.tap.calls.Load() > 0 {
			t.Errorf("the term was touched: check %v, context %v, line %s", term.Check(), term.Context().Err(), c.line())
		}
		lock := must[*Term](t)(c.sessions["b"].Mutex("m", nil).Lock(t.Context()))
		if err := lock.Transfer(t.Context(), "a"); !errors.Is(err, ErrInvalid) || lock.Check() != nil {
			t.Errorf("a lock: %v, check %v", err, lock.Check())
		}
	})
}

// plain is a store that cannot carry requests or hand over.
type plain struct{ driver.Store }

type plainLease struct{ driver.Lease }

func (s plain) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return plainLease{l}, err
}

func TestAStoreThatCannotHandOverSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", plain{b.store}, Options{})
		term := b.lead(s, "n")
		if err := term.Transfer(t.Context(), "b"); !errors.Is(err, ErrInvalid) || term.Check() != nil {
			t.Errorf("got %v, check %v", err, term.Check())
		}
		if _, err := s.Election("n").Ask(t.Context(), Request{To: "b"}); !errors.Is(err, ErrInvalid) {
			t.Errorf("asked: %v", err)
		}
		for _, o := range []CampaignOptions{{Priority: 1}, {Priority: -1}, {Steady: -1}} {
			err := s.Candidate("m", &o).Run(t.Context(), func(context.Context, *Term) error { return nil })
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		// One who asks over another client of that store changes nothing.
		asks := b.session("b", b.store, Options{})
		go func() { _, _ = asks.Election("n").Campaign(t.Context(), nil) }()
		synctest.Wait()
		must[Token](t)(asks.Election("n").Ask(t.Context(), Request{To: "b"}))
		synctest.Wait()
		if term.Check() != nil || term.Context().Err() != nil {
			t.Errorf("asked for what it cannot do it ended: %v", context.Cause(term.Context()))
		}
	})
}

func TestTransferWhereTheHeirHasGoneMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		c.tap.held.Store(true)
		term := c.term("a")
		c.tap.beforeEach(func(verb, _ string) error {
			if verb == "transfer" {
				c.gone("c") // between the look and the call
			}
			return nil
		})
		err := term.Transfer(c.soon(), "c")
		if !errors.Is(err, ErrNotInLine) || !strings.Contains(err.Error(), "released") {
			t.Errorf("got %v", err)
		}
		wantEnded(t, term.Check(), ErrTransferred, "", "")
		if next := c.term("b"); next.Check() != nil {
			t.Errorf("b leads, but %v", next.Check())
		}
		if c.line() != "b" {
			t.Errorf("the line is %s", c.line())
		}
	})
}

// Whatever the store answers to whichever call, the name goes to the heir or is released, once.
func TestTransferWithLostAnswers(t *testing.T) {
	lost := errors.New("the answer was lost")
	for _, tc := range []struct {
		name            string
		before, after   int // so many calls never arrive, then the answers of so many are lost
		dies            bool
		want            error
		leads           string
		atLeast, atMost int64
	}{
		{"never arrived", 3, 0, false, nil, "c", 4, 4},
		{"answer lost", 0, 1, false, nil, "c", 2, 2},
		{"both", 2, 1, false, nil, "c", 4, 4},
		{"never arrived, and then the heir goes", 2, 0, true, ErrNotInLine, "b", 3, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) {
				c := inLine(t, b, "abc")
				c.tap.held.Store(true)
				term := c.term("a")
				c.tap.beforeEach(func(verb, _ string) error {
					if verb != "transfer" || c.tap.calls.Load() > int64(tc.before) {
						return nil
					}
					if tc.dies && c.tap.calls.Load() == int64(tc.before) {
						c.gone("c")
					}
					return lost
				})
				c.tap.afterEach(func(verb, _ string) error {
					if verb == "transfer" && c.tap.calls.Load() <= int64(tc.before+tc.after) {
						return lost
					}
					return nil
				})
				if err := term.Transfer(c.soon(), "c"); !errors.Is(err, tc.want) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
				if next := c.term(tc.leads); next.Check() != nil {
					t.Errorf("%s leads, but %v", tc.leads, next.Check())
				}
				if n := c.tap.calls.Load(); n < tc.atLeast || n > tc.atMost {
					t.Errorf("%d calls, want %d to %d", n, tc.atLeast, tc.atMost)
				}
				if strings.Contains(c.line(), "a") {
					t.Errorf("a still stands: %s", c.line())
				}
			})
		})
	}
}

// A claim that was removed by hand while it is handed over leads nobody astray: who leads is the store's to say.
func TestTransferOfAClaimThatIsRemovedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		term := c.term("a")
		c.tap.beforeEach(func(verb, _ string) error {
			if verb == "transfer" {
				b.store.Remove("n", uint64(term.Token()))
			}
			return nil
		})
		if err := term.Transfer(c.soon(), "c"); !errors.Is(err, ErrDeposed) {
			t.Errorf("got %v, want ErrDeposed", err)
		}
		c.term("b")
		if c.line() != "bc" {
			t.Errorf("the line is %s", c.line())
		}
	})
}

func TestTheLeaseEndsDuringATransfer(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		term := c.term("a")
		c.tap.beforeEach(func(verb, owner string) error {
			if verb == "transfer" {
				b.store.Partition("a", true)
			}
			return nil
		})
		at := b.clock()
		err := term.Transfer(c.soon(), "c")
		if !errors.Is(err, ErrExpired) {
			t.Errorf("got %v, want ErrExpired", err)
		}
		if took := b.clock() - at; took > 10*time.Second {
			t.Errorf("it took %v, longer than the lease", took)
		}
		wantEnded(t, term.Check(), ErrTransferred, "", "")
		c.term("b") // once the store has ended the lease: the heir was not told to anybody
		b.store.Partition("a", false)
		synctest.Wait()
		time.Sleep(time.Minute)
		if c.line() != "bc" {
			t.Errorf("the line is %s", c.line())
		}
	})
}

func TestTransferThatIsGivenUpGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		c.tap.held.Store(true)
		term := c.term("a")
		c.tap.beforeEach(func(verb, _ string) error {
			if verb == "transfer" && b.clock() < time.Hour+3*time.Second {
				return errors.New("no answer")
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := term.Transfer(ctx, "c"); !errors.Is(err, ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if term.Check() == nil {
			t.Error("Check says yes")
		}
		if next := c.term("c"); next.Check() != nil {
			t.Errorf("c leads, but %v", next.Check())
		}
		if err := term.Transfer(c.soon(), "b"); !errors.Is(err, ErrTransferred) {
			t.Errorf("a second transfer: %v", err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Errorf("resign after it: %v", err)
		}
	})
}

func TestTransferOfATermThatIsEnding(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		for _, tc := range []struct {
			name  string
			end   func(c *crowd, term *Term)
			want  error
			leads string
		}{
			{"asked to resign", func(c *crowd, _ *Term) { must[Token](t)(c.sessions["b"].Election("n").Ask(t.Context(), Request{})) }, nil, "c"},
			{"asked for another", func(c *crowd, _ *Term) {
				must[Token](t)(c.sessions["b"].Election("n").Ask(t.Context(), Request{To: "b"}))
			}, nil, "c"},
			{"its session closes", func(c *crowd, _ *Term) { go c.sessions["a"].Close(context.Background()) }, nil, "c"},
			{"resigned", func(_ *crowd, term *Term) { _ = term.Resign(t.Context()) }, ErrResigned, "b"},
			{"removed by hand", func(_ *crowd, term *Term) { b.store.Remove("n", uint64(term.Token())) }, ErrDeposed, "b"},
		} {
			b.store = memstore.New(memstore.Options{})
			c := inLine(t, b, "abc")
			term := c.term("a")
			tc.end(c, term)
			synctest.Wait()
			if err := term.Transfer(c.soon(), "c"); !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
			}
			if next := c.term(tc.leads); next.Check() != nil {
				t.Errorf("%s: %s leads, but %v", tc.name, tc.leads, next.Check())
			}
		}
	})
}

func TestTwoTransfersAtOnceHandOverOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		c.tap.held.Store(true)
		term := c.term("a")
		errs := make(chan error, 2)
		for _, to := range []string{"b", "c"} {
			go func() { errs <- term.Transfer(context.Background(), to) }()
		}
		one, two := <-errs, <-errs
		if (one == nil) == (two == nil) || !errors.Is(errors.Join(one, two), ErrTransferred) {
			t.Errorf("got %v and %v, want one to succeed", one, two)
		}
		if n := c.tap.calls.Load(); n != 1 {
			t.Errorf("%d hand-overs", n)
		}
		synctest.Wait()
		if len(c.won["b"])+len(c.won["c"]) != 1 {
			t.Errorf("%d lead", len(c.won["b"])+len(c.won["c"]))
		}
	})
}
