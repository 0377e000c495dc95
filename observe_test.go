package primacy

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

func TestObserveYieldsTheStateThenEachChangeAndNoLeader(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		seen := make(chan string, 10)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for st, err := range s.Election("n").Observe(ctx) {
				switch {
				case err != nil:
					seen <- err.Error()
				case st.Leader == nil:
					seen <- "nobody"
				default:
					seen <- st.Leader.ID + " " + string(st.Leader.Value)
				}
			}
		}()
		want := func(w string) {
			t.Helper()
			synctest.Wait()
			select {
			case got := <-seen:
				if got != w {
					t.Errorf("observed %q, want %q", got, w)
				}
			default:
				t.Errorf("observed nothing, want %q", w)
			}
		}
		want("nobody")
		term := b.lead(s, "n")
		want("a v-a")
		if err := term.Proclaim(context.Background(), []byte("there")); err != nil {
			t.Fatal(err)
		}
		want("a there")
		if err := term.Resign(context.Background()); err != nil {
			t.Fatal(err)
		}
		want("nobody")
		if len(seen) != 0 {
			t.Errorf("and then %q", <-seen)
		}
		cancel()
		<-done
	})
}

func TestASlowObserverBlocksNobodyAndSeesTheLatest(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := b.lead(s, "n")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var states int
		for st, err := range s.Election("n").Observe(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if states++; states == 1 {
				at := b.clock()
				for range 500 { // nobody reads meanwhile
					if err := term.Proclaim(ctx, []byte("x")); err != nil {
						t.Fatal(err)
					}
				}
				_ = term.Proclaim(ctx, []byte("last"))
				if b.clock() != at {
					t.Error("a slow observer slowed the leader down")
				}
				continue
			}
			if string(st.Leader.Value) != "last" {
				t.Errorf("got %q, want the latest value", st.Leader.Value)
			}
			break
		}
	})
}

// deaf is a store that does not answer while down is set.
type deaf struct {
	*memstore.Store
	down atomic.Bool
}

func (d *deaf) Line(ctx context.Context, name string) (driver.Line, error) {
	if d.down.Load() {
		<-ctx.Done()
		return driver.Line{}, ctx.Err()
	}
	return d.Store.Line(ctx, name)
}

func (d *deaf) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	if d.down.Load() {
		<-ctx.Done()
		return driver.Line{}, ctx.Err()
	}
	return d.Store.Next(ctx, name, after)
}

func TestObserveTellsThatTheStoreDoesNotAnswerAndThatItDoesAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		d := &deaf{Store: b.store}
		s := b.session("a", d, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var got []string
		for st, err := range s.Election("n").Observe(ctx) {
			if err == nil {
				got = append(got, "state")
				d.down.Store(!d.down.Load() && len(got) == 1)
			} else {
				got = append(got, "silent")
				if st.Name != "n" {
					t.Errorf("the error came without the last state: %+v", st)
				}
				d.down.Store(false)
			}
			if len(got) == 3 {
				break
			}
		}
		if w := strings.Join(got, " "); w != "state silent state" {
			t.Errorf("got %q", w)
		}
	})
}

func TestCandidateTellsElectedDeposedAndLeaderChanged(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s, other := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		c := s.Candidate("n", nil)
		ctx, cancel := context.WithCancel(context.Background())
		events := make(chan CandidateEvent, 100)
		listening := make(chan struct{})
		go func() {
			defer close(listening)
			for ev := range c.Events(ctx) {
				events <- ev
			}
		}()
		running := make(chan error)
		var terms []Token
		go func() {
			running <- c.Run(ctx, func(ctx context.Context, term *Term) error {
				terms = append(terms, term.Token())
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		time.Sleep(time.Second * 2)
		go func() { // takes over when the first loses its lease, and lets go again
			term := b.lead(other, "n")
			time.Sleep(5 * time.Second)
			_ = term.Resign(context.Background())
		}()
		synctest.Wait()
		b.store.Expire("n")
		time.Sleep(10 * time.Second)
		cancel()
		if err := <-running; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		<-listening
		close(events)
		var elected, deposed, changed bool
		for ev := range events {
			elected = elected || ev.State == StateLeader && ev.Term != nil
			deposed = deposed || ev.State != StateLeader && errors.Is(ev.Cause, ErrDeposed)
			changed = changed || ev.Leader != nil && ev.Leader.ID == "b"
		}
		if !elected || !deposed || !changed {
			t.Errorf("elected %v, deposed with its cause %v, leader changed %v", elected, deposed, changed)
		}
		if len(terms) != 2 || terms[1] <= terms[0] {
			t.Errorf("terms %v, want two with growing tokens", terms)
		}
	})
}

func TestTwoCandidatesOfOneProcessTakeTurns(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		first := b.lead(s, "n")
		won := make(chan *Term)
		go func() { won <- b.lead(s, "n") }()
		synctest.Wait()
		if line, _ := b.store.Line(context.Background(), "n"); len(line.Waiters) != 0 {
			t.Errorf("one lease has two claims for one name: %+v", line)
		}
		if err := first.Resign(context.Background()); err != nil {
			t.Fatal(err)
		}
		second := <-won
		if first.Check() == nil || second.Check() != nil || second.Token() <= first.Token() {
			t.Errorf("first %v, second %v, tokens %d, %d", first.Check(), second.Check(), first.Token(), second.Token())
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
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
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
	if _, err := s.Election("n").Campaign(context.Background(), &CampaignOptions{Value: make([]byte, 2<<20)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a value of 2 MB: %v", err)
	}
}

func TestCheckAllocatesNothing(t *testing.T) {
	s, err := NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	term, err := s.Election("n").Campaign(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { _ = term.Check() }); n != 0 {
		t.Errorf("Check allocates %v times", n)
	}
	_ = term.Resign(context.Background())
}

func BenchmarkCheck(b *testing.B) {
	s, err := NewSession(memstore.New(memstore.Options{}), &Options{TTL: MaxTTL})
	if err != nil {
		b.Fatal(err)
	}
	term, err := s.Election("n").Campaign(context.Background(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if term.Check() != nil {
			b.Fatal("lost")
		}
	}
}
