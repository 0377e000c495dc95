package primacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdsim"
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
			t.Errorf("d leads under token %v, check %v; it stood under %d, and a led under %v", next.Token(),
				next.Check(), was, first.Token())
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
		for to, want := range map[string]error{"nobody": ErrNotInLine, "reader": ErrNotInLine, "a": ErrInvalid,
			"": ErrInvalid, "x\n": ErrInvalid} {
			err := term.Transfer(c.soon(), to)
			if !errors.Is(err, want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("transfer to %q: %v, want %v", to, err, want)
			}
			if want == ErrNotInLine && !strings.Contains(err.Error(), `waiting: "b"`) {
				t.Errorf("it does not name who stands: %v", err)
			}
		}
		if term.Check() != nil || term.Context().Err() != nil || c.line() != "abreader" || c.tap.calls.Load() > 0 {
			t.Errorf("the term was touched: check %v, context %v, line %s", term.Check(), term.Context().Err(),
				c.line())
		}
		lock := must[*Term](t)(c.sessions["b"].Mutex("m", nil).Lock(t.Context()))
		if err := lock.Transfer(t.Context(), "a"); !errors.Is(err, ErrInvalid) || lock.Check() != nil {
			t.Errorf("a lock: %v, check %v", err, lock.Check())
		}
	})
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

// Whatever the store answers to whichever call, the name goes to the successor or is released,
// once.
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
		{"never arrived, and then the successor goes", 2, 0, true, ErrNotInLine, "b", 3, 3},
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

// A claim that was removed by hand while it is handed over leads nobody astray: who leads is the
// store's to say.
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
		c.term("b") // once the store has ended the lease: the successor was not told to anybody
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
		if err := term.Transfer(ctx, "c"); !errors.Is(err, ErrUnreachable) ||
			!errors.Is(err, context.DeadlineExceeded) {
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
			{"asked to resign", func(c *crowd, _ *Term) {
				must[Token](t)(c.sessions["b"].Election("n").Ask(t.Context(), Request{}))
			}, nil, "c"},
			{"asked for another", func(c *crowd, _ *Term) {
				must[Token](t)(c.sessions["b"].Election("n").Ask(t.Context(), Request{To: "b"}))
			}, nil, "c"},
			{"its session closes", func(c *crowd, _ *Term) {
				go c.sessions["a"].Close(context.Background())
			}, nil, "c"},
			{"resigned", func(_ *crowd, term *Term) { _ = term.Resign(t.Context()) }, ErrResigned, "b"},
			{"removed by hand", func(_ *crowd, term *Term) {
				b.store.Remove("n", uint64(term.Token()))
			}, ErrDeposed, "b"},
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

func TestALeaderThatIsAskedHandsOverOnceItsWorkHasStopped(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
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
		if r.leaders() != "a" || c.line() != "abcd" {
			t.Errorf("before the work has stopped: %s led, the line is %s", r.leaders(), c.line())
		}
		time.Sleep(time.Second)
		if got := c.line(); r.leaders() != "ac" || len(got) != 4 || got[:2] != "cd" {
			t.Errorf("%s led, the line is %s", r.leaders(), got)
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
		for to, want := range map[string]error{"x": ErrNotInLine, "a": ErrInvalid,
			strings.Repeat("x", 256): ErrInvalid} {
			for _, automatic := range []bool{false, true} { // the admission in a pause, of a person, looks too
				if _, err := e.Ask(t.Context(), Request{To: to, Automatic: automatic}); !errors.Is(err, want) ||
					want == ErrNotInLine && !strings.Contains(err.Error(), `waiting: "b", "c"`) {
					t.Errorf("to %.9q, automatic: %v: %v", to, automatic, err)
				}
			}
		}
		for _, by := range []string{strings.Repeat("x", 256), "x\n"} { // else it would be asked until the context ends
			if _, err := s.Election("n").Ask(t.Context(), Request{To: "b", By: by}); !errors.Is(err, ErrInvalid) {
				t.Errorf("asked by %q: %v", by, err)
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
			if !strings.Contains(log(), "level=WARN") || !strings.Contains(log(), "to="+to+" by=operator") ||
				!strings.Contains(log(), `waiting: \"b\"`) {
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
		next.c.takeRequest(next.c.place.ID, late) // even if it had come through
		synctest.Wait()
		if next.Check() != nil || next.Context().Err() != nil {
			t.Errorf("it reached the successor: %v", context.Cause(next.Context()))
		}
	})
}

// A look at the line that takes its time holds up nothing: neither news nor requests, nor the end
// of the term; and no crowd of requests starts a crowd of looks.
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

// noPush is a store whose news never comes, as when the push is slow.
type noPush struct{ *tapped }

type noPushLease struct{ *tappedLease }

func (s noPush) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.tapped.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return noPushLease{l.(*tappedLease)}, nil
}

func (l noPushLease) News(ctx context.Context) ([]driver.News, error) { return noNews(l, ctx) }

// A leader that has lost its claim and does not know yet finds another one leading. It hands over
// nothing, and says that it was deposed.
func TestTransferByWhoWasDeposedUnheard(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "")
		c.stand("a", b.session("a", noPush{c.tap}, Options{}))
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
		if ended := (*EndedError)(nil); !errors.Is(err, ErrDeposed) || !errors.As(err, &ended) ||
			strings.Contains(err.Error(), "not known") {
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

// Two Transfers have both looked before either of them acts: the second is not told that its
// successor leads.
func TestTransferIsNotToldOfAnothers(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "abc")
		c.tap.held.Store(true)
		term := c.term("a")
		first := must[uint64](t)(term.successorToken(c.soon(), "b"))
		second := must[uint64](t)(term.successorToken(c.soon(), "c"))
		term.c.giveUpTo(first, "b")
		term.c.giveUpTo(second, "c")
		if err := term.c.waitFreed(c.soon(), "transfer"); err != nil {
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
		if n := looks.Load(); n < 2 || n > 1+maxHandOverRequests {
			t.Errorf("%d looks for 200 requests that came during the first one, want %d more at most", n,
				maxHandOverRequests)
		}
		c.tap.onLine(nil)
		c.ask(driver.Request{By: "operator", To: "c"}) // it listens again
		wantEnded(t, context.Cause(term.Context()), ErrTransferred, "operator", "")
		_ = term.Resign(c.soon())
		c.term("c")
	})
}

// A request names a session, and its oldest claim would be the successor. Two sessions of one ID:
// the younger one does not take the lead for the older one, which has no priority.
func TestAPriorityIsForItsOwnClaimOnly(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, CampaignOptions{}, 0)
		elder := c.candidate(r, "h", c.tap, CampaignOptions{}, 0)
		c.candidate(r, "h", c.tap, CampaignOptions{Priority: 5}, 0)
		c.after(r, 10*time.Minute, "a")
		elder()
		c.after(r, steadyHere+lateHere+time.Second, "ah")
	})
}

// simulatedLine is a line on an etcd in memory: a holder, and those who stand behind it, the last
// of them the successor. Before the holder's next removal of others' claims something happens,
// once.
type simulatedLine struct {
	t      *testing.T
	c      *etcdsim.Cluster
	leases []driver.Lease
	places []driver.Place
	then   atomic.Pointer[func()]
}

func newSimulatedLine(t *testing.T, seats int) *simulatedLine {
	l := &simulatedLine{t: t, c: etcdsim.Start(etcdsim.Options{Seed: 1})}
	t.Cleanup(func() { l.c.Heal(); l.c.Close(); synctest.Wait() })
	time.Sleep(5 * time.Second)
	for i, n := range []int{1, seats, 1} {
		client := must[*clientv3.Client](t)(
			clientv3.New(clientv3.Config{Endpoints: l.c.Endpoints(), Logger: zap.NewNop(),
				DialOptions: []grpc.DialOption{l.c.Dialer(i), grpc.WithChainUnaryInterceptor(l.intercept)}}))
		t.Cleanup(func() { _ = client.Close() })
		store := must[*etcdstore.Store](t)(etcdstore.New(l.soon(), client, etcdstore.Options{}))
		t.Cleanup(func() { _ = store.Close() })
		lease := must[driver.Lease](t)(store.Grant(l.soon(), fmt.Sprint(i), time.Minute))
		l.leases = append(l.leases, lease)
		for seat := range n {
			l.enter(i, fmt.Sprint(seat))
		}
	}
	return l
}

func (l *simulatedLine) soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	l.t.Cleanup(cancel)
	return ctx
}

func (l *simulatedLine) enter(i int, seat string) {
	p := must[[]driver.Place](l.t)(
		l.leases[i].Claim(l.soon(), driver.Claim{Name: "x", Seat: seat, ID: fmt.Sprint(len(l.places))}))
	l.places = append(l.places, p[0])
}

func (l *simulatedLine) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	do grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Success) > 0 && txn.Success[0].GetRequestTxn() != nil {
		if f := l.then.Swap(nil); f != nil {
			(*f)()
		}
	}
	return do(ctx, method, req, reply, cc, opts...)
}

// byHand deletes the claim with that token.
func (l *simulatedLine) byHand(token uint64) {
	for _, kv := range l.c.Keys("primacy/x/") {
		if uint64(kv.CreateRevision) == token {
			if err := l.c.Delete(l.soon(), string(kv.Key), kv.CreateRevision); err != nil {
				l.t.Error(err)
			}
		}
	}
}

// tokens returns those of the claims that stand, in their order.
func (l *simulatedLine) tokens() (all []uint64) {
	for _, kv := range l.c.Keys("primacy/x/") {
		all = append(all, uint64(kv.CreateRevision))
	}
	slices.Sort(all)
	return all
}

// The line changes between the holder's look at it and what it then does, be that one transaction
// or several. Nobody is removed for a holder or a successor that is gone, and nobody who stands
// behind the successor meanwhile.
func TestTransferOnEtcdInALineThatChanges(t *testing.T) {
	for _, between := range []int{2, 120} {
		for _, tc := range []struct {
			name  string
			then  func(l *simulatedLine, successor driver.Place)
			err   error
			stand func(was []driver.Place) []driver.Place
		}{
			{"the holder goes", func(l *simulatedLine, _ driver.Place) { l.byHand(l.places[0].Token) }, driver.ErrGone,
				func(was []driver.Place) []driver.Place { return was[1:] }},
			{"the successor goes", func(l *simulatedLine, successor driver.Place) {
				l.byHand(successor.Token)
			}, driver.ErrNoSuccessor,
				func(was []driver.Place) []driver.Place { return was[:len(was)-1] }},
			{"one between stands anew, behind the successor", func(l *simulatedLine, _ driver.Place) {
				l.byHand(l.places[1].Token)
				l.enter(1, "0")
			}, nil,
				func(was []driver.Place) []driver.Place { return was[len(was)-1:] }},
		} {
			t.Run(fmt.Sprintf("%s %d", tc.name, between), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newSimulatedLine(t, between)
					was := slices.Clone(l.places)
					successor := was[len(was)-1]
					changes := func() { tc.then(l, successor) }
					l.then.Store(&changes)
					if err := l.leases[0].(driver.Transferer).Transfer(l.soon(), was[0],
						successor.Token); !errors.Is(err, tc.err) {
						t.Errorf("Transfer = %v, want %v", err, tc.err)
					}
					if l.then.Load() != nil {
						t.Fatal("nothing was removed, so this test shows nothing")
					}
					var want []uint64
					for _, p := range append(slices.Clone(tc.stand(was)), l.places[len(was):]...) {
						want = append(want, p.Token)
					}
					if got := l.tokens(); !slices.Equal(got, want) {
						t.Errorf("%d claims stand: %v\nwant %d: %v", len(got), got, len(want), want)
					}
				})
			})
		}
	}
}

// TestTransfersBehindABadNetwork moves a name about in every way at once while calls are lost, late
// and doubled: by the leaders' own will, by request, by priority, and by resigning. At no instant
// do two say yes, tokens grow, and in the end everybody stands once and nobody else.
func TestTransfersBehindABadNetwork(t *testing.T) {
	const ids = "abcde"
	handOvers := 0
	for seed := range uint64(6) {
		bubble(t, func(t *testing.T, b *world) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			c := inLine(t, b, "")
			var nets []drivertest.FaultyStore
			var right [len(ids)]atomic.Pointer[Term]
			var largest Token
			for i, id := range ids {
				net := drivertest.Faulty(c.tap,
					drivertest.Faults{Seed: seed*100 + uint64(i), Delay: 50 * time.Millisecond, Drop: 0.05, Lose: 0.1,
						Late: 0.05, Twice: 0.05, Lag: 3 * time.Second})
				nets = append(nets, net)
				c.roams(net, i, string(id), seed, &right)
			}
			asks := b.session("operator", c.tap, Options{})
			for end := b.clock() + 5*time.Minute; b.clock() < end; time.Sleep(
				time.Duration(rnd.Int64N(int64(500 * time.Millisecond)))) {
				leads := 0
				for i := range right {
					if term := right[i].Load(); term != nil && term.Check() == nil {
						leads++
						if term.Token() < largest {
							t.Errorf("seed %d: token %v leads after %v", seed, term.Token(), largest)
						}
						largest = max(largest, term.Token())
					}
				}
				if leads > 1 {
					t.Fatalf("seed %d: %d lead", seed, leads)
				}
				if rnd.IntN(40) == 0 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, _ = asks.Election("n").Ask(ctx, Request{To: ids[rnd.IntN(len(ids)):][:1], Reason: "seed"})
					cancel()
				}
			}
			for _, net := range nets {
				net.Set(drivertest.Faults{})
			}
			time.Sleep(time.Minute) // also what was late has arrived
			got := c.line()
			// one who has just handed over stands again in a moment
			for tries := 0; len(got) != len(ids) && tries < 100; tries++ {
				time.Sleep(100 * time.Millisecond)
				got = c.line()
			}
			if len(got) != len(ids) {
				t.Errorf("seed %d: in the end the line is %s", seed, got)
			}
			handOvers += int(c.tap.calls.Load())
		})
	}
	if handOvers < 100 {
		t.Errorf("only %d calls of Transfer", handOvers)
	}
}

// roams runs a candidate that stops in its own way each time.
func (c *crowd) roams(net drivertest.FaultyStore, i int, id string, seed uint64, right *[5]atomic.Pointer[Term]) {
	rnd := rand.New(rand.NewPCG(seed, uint64(i)))
	s := c.session(id, net, Options{Overrun: OverrunWait})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.t.Cleanup(func() { cancel(); <-done })
	work := func(ctx context.Context, term *Term) error {
		right[i].Store(term)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(1+rnd.IntN(20)) * time.Second):
			if rnd.IntN(2) == 0 {
				limit, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = term.Transfer(limit, fmt.Sprintf("%c", 'a'+rnd.IntN(5)))
			}
		}
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		return nil
	}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = s.Candidate("n", &CampaignOptions{Priority: i, Steady: 7 * time.Second}).RunOnce(ctx, work)
		}
	}()
}
