//go:build linux

package torture

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/redistest"
)

// TestTwoPrimariesOfRedis shows where the promise ends on Redis: a replica is promoted, and the old
// primary lives on and serves those that still reach it. Both lead. Not so where each write must
// have reached a replica to count: an old primary without one renews nothing.
func TestTwoPrimariesOfRedis(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	for _, replicas := range []int{0, 1} {
		t.Run(fmt.Sprintf("replicas=%d", replicas), func(t *testing.T) {
			p := &redisPair{t: t, primary: redistest.Start(t, redistest.Options{})}
			p.follow()
			url := func(s *redistest.Server) string { return fmt.Sprintf("%s?replicas=%d", s.URL(), replicas) }
			older := must(storeSide(storeTTL)([]string{url(p.primary)}, "split", primacy.Options{}))
			defer older.end()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := older.win(ctx); err != nil {
				t.Fatal(err)
			}
			p.replica.Promote()
			// it has no replica of its own
			younger := must(storeSide(storeTTL)([]string{p.replica.URL()}, "split", primacy.Options{}))
			defer younger.end()
			sampling, stop := context.WithCancel(ctx)
			go func() {
				defer stop()
				if err := younger.win(ctx); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
			}()
			s := sample(sampling, older, younger)
			t.Logf("both led in %d of %d samples", s.both, s.asked)
			if both := s.both > 0; both != (replicas == 0) {
				t.Errorf("with %d replicas: both led = %v", replicas, both)
			}
		})
	}
}

// TestAQuorumThatForgets shows where the promise of quorum mode ends: servers come back with
// nothing, and count at once. Both lead. Not so where a server counts only once it has run for
// longer than any lease.
func TestAQuorumThatForgets(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	var both sync.WaitGroup
	for _, guard := range []string{"guard=off", "max-ttl=" + storeTTL.String()} {
		both.Go(func() {
			t.Run(guard, func(t *testing.T) { forgets(t, guard) })
		})
	}
	both.Wait()
}

func forgets(t *testing.T, guard string) {
	var all []*redistest.Server
	store := &installed{url: func(servers []string) string {
		return "redis+quorum://" + strings.Join(servers, ",") +
			"?" + guard
	}}
	for range 5 {
		s := redistest.Start(t, redistest.Options{})
		all, store.servers = append(all, s), append(store.servers, s.Addr())
	}
	w, url := store.way(t)
	s, err := duel([]string{url}, []string{store.url(store.servers)}, "forgets", storeSide(storeTTL),
		primacy.Options{}, func(*contender) error {
			w.silence(0) // or it might take its lease again where it is gone
			for _, s := range all[:3] {
				s.Kill()
				relaunch(t, s)
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("both led in %d of %d samples", s.both, s.asked)
	if both := s.both > 0; both != (guard == "guard=off") {
		t.Errorf("%s: both led = %v", guard, both)
	}
}
