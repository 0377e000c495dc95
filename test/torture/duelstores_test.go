//go:build linux

package torture

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/open"
)

// TestCheckOnStores is TestSilentLink, TestLateReply and TestPause on every other store: never two
// whose Check says yes, and no Check that says yes after a thaw.
func TestCheckOnStores(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	n := rounds(t, 1)
	var all sync.WaitGroup
	for _, under := range chosen(t) {
		if under.long && os.Getenv("TORTURE_STORE") == "" {
			continue
		}
		all.Go(func() {
			t.Run(under.name, func(t *testing.T) {
				store := under.start(t)
				var duels sync.WaitGroup
				duels.Go(func() { t.Run("frozen", func(t *testing.T) { pauses(t, store, 2*n) }) })
				for what, harm := range map[string]func(*way, time.Duration){"silence": (*way).silence,
					"late, then silence": (*way).late} {
					for i := range n {
						duels.Go(func() { duelOn(t, store, under.ttl, fmt.Sprintf("%s/%d", what, i), harm) })
					}
				}
				duels.Wait()
			})
		})
	}
	all.Wait()
}

func duelOn(t *testing.T, store *installed, ttl time.Duration, name string, harm func(*way, time.Duration)) {
	w, url := store.way(t)
	by := storeSide(ttl)
	s, err := duel([]string{url}, []string{store.url(store.servers)}, "duel/"+name, by, primacy.Options{},
		func(*contender) error {
			harm(w, ttl)
			return nil
		})
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	t.Logf("%s: %d samples (widest %v), both led in %d; between them nobody for %v", name, s.asked,
		s.widest.Round(10*time.Microsecond), s.both,
		(s.youngFirst - s.oldLast).Round(time.Millisecond))
	wantOneLeader(t, []samples{s})
}

// way leads to a store: replies can be held apart from requests, also those of new connections.
type way struct {
	replies, requests []*etcdtest.Proxy
}

// way returns a way to the store, and its URL there.
func (i *installed) way(t testing.TB) (w *way, url string) {
	t.Helper()
	w = &way{}
	var addrs []string
	for _, s := range i.servers {
		requests := etcdtest.NewProxy(t, s)
		replies := etcdtest.NewProxy(t, requests.Addr())
		w.requests, w.replies, addrs = append(w.requests, requests), append(w.replies, replies),
			append(addrs, replies.Addr())
	}
	return w, i.url(addrs)
}

func (w *way) silence(time.Duration) {
	for _, p := range w.replies {
		p.Hold()
	}
}

// late keeps the replies to at least one renewal back, and delivers them more than half a ttl
// later, when the store hears nothing any more. What counts a lease from the reply believes in it
// for as much longer than the store does.
func (w *way) late(ttl time.Duration) {
	for _, p := range w.replies {
		p.Hold(etcdtest.Down)
	}
	time.Sleep(ttl / 4) // sessions renew every fifth
	for _, p := range w.requests {
		p.Hold(etcdtest.Up)
	}
	time.Sleep(ttl / 2)
	for _, p := range w.replies {
		p.Heal()
	}
}

// storeSide is a contender by this library, on the store of a URL.
func storeSide(ttl time.Duration) side {
	return func(urls []string, name string, o primacy.Options) (*contender, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		store, err := open.Open(ctx, urls[0])
		if err != nil {
			return nil, err
		}
		return contend(store, name, ttl, o)
	}
}
