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
	"github.com/primacy-go/primacy/registerstore"
)

func TestObserveTellsWhyItEnds(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		st := &refusing{Store: b.store}
		s := b.session("a", st, Options{})
		var last error
		for _, err := range s.Election("n").Observe(context.Background()) {
			last = err
		}
		if !errors.Is(last, ErrRefused) {
			t.Errorf("Observe ended after %v, want ErrRefused", last)
		}
	})
}

type refusing struct {
	driver.Store
	n atomic.Int32
}

func (r *refusing) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	if r.n.Add(1) == 1 {
		return driver.Line{}, errors.New("connection reset")
	}
	return driver.Line{}, driver.ErrRefused
}

func TestObserveOfASilentStoreSaysUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		d := &silentLine{Store: b.store}
		d.down.Store(true)
		s := b.session("a", d, Options{})
		for _, err := range s.Election("n").Observe(context.Background()) {
			if !errors.Is(err, ErrUnreachable) {
				t.Errorf("got %v, want ErrUnreachable", err)
			}
			break
		}
	})
}

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

// silentLine is a store that does not answer while down is set.
type silentLine struct {
	*memstore.Store
	down atomic.Bool
}

func (d *silentLine) Line(ctx context.Context, name string) (driver.Line, error) {
	if d.down.Load() {
		<-ctx.Done()
		return driver.Line{}, ctx.Err()
	}
	return d.Store.Line(ctx, name)
}

func (d *silentLine) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	if d.down.Load() {
		<-ctx.Done()
		return driver.Line{}, ctx.Err()
	}
	return d.Store.Next(ctx, name, after)
}

func TestObserveTellsThatTheStoreDoesNotAnswerAndThatItDoesAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		d := &silentLine{Store: b.store}
		s := b.session("a", d, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var got []string
		var up time.Time
		for st, err := range s.Election("n").Observe(ctx) {
			if err == nil {
				got = append(got, "state")
				if took := time.Since(up); len(got) == 3 && took > 2*answersAgain {
					t.Errorf("it was told %v late that the store answers again", took)
				}
				d.down.Store(!d.down.Load() && len(got) == 1)
			} else {
				got = append(got, "silent")
				if st.Name != "n" {
					t.Errorf("the error came without the last state: %+v", st)
				}
				d.down.Store(false)
				up = time.Now()
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

// Where somebody deletes the object that a line is kept in, the line begins anew, with smaller
// revisions.
func TestObserveGoesOnWhereALineBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, reg := time.Now(), memstore.NewRegister()
		b := &world{t: t, clock: func() time.Duration { return time.Since(start) + time.Hour }}
		open := func(id string) *Session {
			st := must[*registerstore.Store](t)(registerstore.FromRegister(reg, registerstore.Options{}))
			t.Cleanup(func() { _ = st.Close() })
			return b.session(id, st, Options{History: -1})
		}
		first, next := open("a"), open("b")
		for range 20 {
			_ = b.lead(first, "n").Resign(t.Context())
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		led := make(chan string, 100)
		go func() {
			for st, err := range open("c").Election("n").Observe(ctx) {
				if err == nil && st.Leader != nil {
					led <- st.Leader.ID
				}
			}
		}()
		term := b.lead(first, "n")
		for <-led != "a" {
		}
		_, version, err := reg.Get(t.Context(), "line.n")
		if err != nil || reg.Delete(t.Context(), "line.n", version) != nil {
			t.Fatal(err)
		}
		_ = term.Resign(t.Context())
		b.lead(next, "n")
		for {
			select {
			case id := <-led:
				if id == "b" {
					return
				}
			case <-time.After(time.Minute):
				t.Fatal("who leads the line that began anew is not told")
			}
		}
	})
}

// goesBack is a store that was restored from a backup once back is set: revisions are smaller, and
// Next, which is told a revision of before, tells nothing.
type goesBack struct {
	*memstore.Store
	back atomic.Bool
}

func (g *goesBack) Line(ctx context.Context, name string) (driver.Line, error) {
	line, err := g.Store.Line(ctx, name)
	if !g.back.Load() {
		line.Revision += 1000
	}
	return line, err
}

func (g *goesBack) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	line, err := g.Line(ctx, name)
	if err == nil && line.Revision > after {
		return line, nil
	}
	<-ctx.Done()
	return driver.Line{}, ctx.Err()
}

// An answer that is older than what is known is not shown, unless that lasts: then the store has
// gone back, and what was shown is not so any more.
func TestObserveGoesOnWhereTheStoreHasGoneBack(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		g := &goesBack{Store: b.store}
		s := b.session("a", g, Options{})
		term := b.lead(s, "n")
		began, states := time.Now(), 0
		ctx, cancel := context.WithTimeout(t.Context(), 4*freshness)
		defer cancel()
		for st, err := range s.Election("n").Observe(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if states++; states == 1 {
				g.back.Store(true)
				_ = term.Resign(t.Context())
				continue
			}
			if took := time.Since(began); st.Leader != nil || took < freshness || took > 3*freshness {
				t.Errorf("after %v it shows the leader %+v", took, st.Leader)
			}
			break
		}
		if states != 2 {
			t.Errorf("%d states are shown, want that of before and that of after", states)
		}
	})
}
