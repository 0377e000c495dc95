package primacy

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// renewing is a store whose renewals can be answered otherwise.
type renewing struct {
	driver.Store
	renew func(ctx context.Context, l driver.Lease) error
}

type renewingLease struct {
	driver.Lease
	s *renewing
}

func (s *renewing) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return &renewingLease{l, s}, err
}

func (l *renewingLease) Renew(ctx context.Context) error { return l.s.renew(ctx, l.Lease) }

// A renewal arrives in time, and the goroutine that is to move the deadline is stopped just when it has read the clock. Meanwhile the old
// deadline passes and Check says no. When the goroutine goes on it moves the deadline, rightly by its own reading: what was said stays.
func TestCheckThatSaidNoStaysThoughTheDeadlineMovesLater(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var stopped atomic.Pointer[chan struct{}] // where the heartbeat waits once it has read the clock
		real := b.clock
		b.clock = func() time.Duration {
			at := real()
			if c := stopped.Load(); c != nil && calledBy("(*lease).beat") {
				<-*c
			}
			return at
		}
		var cut atomic.Bool
		goOn := make(chan struct{})
		store := &renewing{Store: b.store, renew: func(ctx context.Context, l driver.Lease) error {
			if cut.Load() {
				return errors.New("no answer")
			}
			if err := l.Renew(ctx); err != nil || real() < time.Hour+20*time.Second {
				return err
			}
			stopped.Store(&goOn)
			return nil
		}}
		term := b.lead(b.session("a", store, Options{}), "n")
		time.Sleep(19 * time.Second)
		cut.Store(true)
		deadline := term.Deadline()
		time.Sleep(deadline - real() - 1500*time.Millisecond) // half a second before the context would end
		cut.Store(false)
		time.Sleep(deadline - real() - 500*time.Millisecond)
		if stopped.Load() == nil || term.Deadline() != deadline {
			t.Fatalf("the heartbeat was not stopped before it moved the deadline from %v; it is %v", deadline, term.Deadline())
		}
		if err := term.Check(); err != nil {
			t.Errorf("before the deadline: %v, want nil", err)
		}
		time.Sleep(time.Second)
		if err := term.Check(); !errors.Is(err, ErrExpired) {
			t.Errorf("after the deadline: %v, want ErrExpired", err)
		}
		stopped.Store(nil)
		close(goOn)
		time.Sleep(time.Millisecond)
		if moved := time.Duration(term.l.deadline.Load()); moved <= real() {
			t.Fatalf("the deadline has not moved beyond %v, so that nothing was tested", real())
		}
		if err := term.Check(); !errors.Is(err, ErrExpired) {
			t.Errorf("after the deadline has moved: %v, want still ErrExpired", err)
		}
		<-term.Context().Done()
	})
}
