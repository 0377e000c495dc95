package k8sstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/internal/proxy"
)

// A server that is slow is waited for; one that falls silent is left when the caller's time is up,
// with its connections, so that the next try does not wait for them.
func TestASlowAndASilentServer(t *testing.T) {
	both(t, func(t *testing.T, srv *k8stest.Server) {
		p, err := proxy.Listen(srv.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		s := open(t, config(srv, p.Addr()))
		l, err := s.Grant(minute(t), "me", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		p.Delay(100 * time.Millisecond)
		if err := l.Renew(minute(t)); err != nil {
			t.Errorf("a slow server: %v", err)
		}
		p.Heal()
		for range 3 {
			p.Hold()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			err := l.Renew(ctx)
			cancel()
			oneLine(t, err, false, "renew: ", p.Addr())
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a silent server: %v", err)
			}
			// What was sent arrives now, behind the next renewal perhaps: it finds another version.
			p.Heal()
			if err := l.Renew(minute(t)); err != nil {
				t.Errorf("after the silence: %v", err)
			}
		}
		if err := l.Close(minute(t)); err != nil {
			t.Error(err)
		}
		if err := l.Renew(minute(t)); !errors.Is(err, driver.ErrGone) {
			t.Errorf("a lease that was closed: %v", err)
		}
	})
}
