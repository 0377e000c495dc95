package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/redistest"
)

// Who asks what is left of the lease while its owner gives places up takes nothing of that for the
// work of others.
func TestWhatTheOwnerDoesIsNoNews(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s, err := Open(t.Context(), Config{Addrs: []string{srv.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dl, err := s.Grant(t.Context(), "x", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	l := dl.(*lease)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = l.syncer.now(ctx, s.calls)
		}
	}()
	for i := range 300 {
		p, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: fmt.Sprint(i)})
		if err == nil && i%2 == 0 { // the others are displaced by the next Claim
			err = l.Release(t.Context(), p...)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	<-done
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.news {
		t.Errorf("news of what the owner did: %+v", n)
	}
}
