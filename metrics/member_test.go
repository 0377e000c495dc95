package metrics

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
)

// Between what the session counts and the event that says of which election it was, a scrape must show neither: under election="" it would go back.
func TestAnOverrunIsShownUnderOneElectionOnly(t *testing.T) {
	store := memstore.New(memstore.Options{})
	s, err := primacy.NewSession(store, &primacy.Options{ID: "a", Overrun: primacy.OverrunWait, TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	runs, stop, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- s.Run(ctx, "n", func(context.Context, *primacy.Term) error {
			close(runs)
			<-stop
			cancel()
			return nil
		})
	}()
	<-runs
	if !locked(c.t, func() bool {
		store.Expire("n")
		return within(20*time.Second, func() bool { return s.Stats().Overruns == 1 }) && c.t.look().overran == 0
	}) {
		t.Error("what no event has told yet is shown")
	}
	if !within(20*time.Second, func() bool {
		return locked(c.t, func() bool { return c.t.look().overran == 1 && c.t.of("n").overruns == 1 })
	}) {
		t.Error("what was told is not shown")
	}
	close(stop)
	<-done
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func locked(t *tally, f func() bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return f()
}

func within(limit time.Duration, f func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f() {
			return true
		}
	}
	return false
}
