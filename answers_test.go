package primacy

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

func TestProclaimReturnsWhenTheTermIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := b.lead(s, "n")
		b.store.Partition("a", true)
		done := make(chan error, 1)
		go func() { done <- term.Proclaim(context.Background(), []byte("x")) }()
		select {
		case err := <-done:
			t.Log(err)
		case <-time.After(time.Hour):
			t.Errorf("an hour later Proclaim has not returned; Check: %v", term.Check())
			b.store.Partition("a", false)
			<-done
		}
	})
}

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
		d := &deaf{Store: b.store}
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

func TestNextDeadlineTellsTheEndAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{RenewEvery: 500 * time.Millisecond, TTL: 20 * time.Second})
		term := b.lead(s, "n")
		b.store.Partition("a", true)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		at := b.clock()
		got := make(chan time.Duration, 1)
		go func() { _, _ = term.NextDeadline(context.Background(), term.Deadline()); got <- b.clock() }()
		synctest.Wait()
		_ = term.Resign(ctx)
		if late := <-got - at; late > 0 {
			t.Errorf("told %v after Resign", late)
		}
		b.store.Partition("a", false)
	})
}

func TestResignOfATermThatIsOverIsNilWhateverTheContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		term := b.lead(s, "n")
		_ = term.Resign(context.Background())
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for range 50 {
			if err := term.Resign(ctx); err != nil {
				t.Fatalf("it is over, yet: %v", err)
			}
		}
	})
}
