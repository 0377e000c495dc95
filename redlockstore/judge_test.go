package redlockstore_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redlockstore"
)

// rounds is for how long a judge watches: PRIMACY_REDLOCK_JUDGE=1m for longer.
func rounds(t *testing.T) time.Duration {
	if v := os.Getenv("PRIMACY_REDLOCK_JUDGE"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return 4 * time.Second
}

// candidates stand for one name and say when they led, each over ways of its own to the servers.
type candidates struct {
	mu      sync.Mutex
	history []drivertest.Interval
	cuts    []func(bool)
}

// stand campaigns again and again, and leads for a moment each time.
func (c *candidates) stand(ctx context.Context, t *testing.T, config redlockstore.Config, i int) {
	store, cut := behindProxies(t, config)
	c.mu.Lock()
	c.cuts = append(c.cuts, cut)
	c.mu.Unlock()
	s, err := primacy.NewSession(store, &primacy.Options{ID: fmt.Sprint("c", i), TTL: time.Second, Overrun: primacy.OverrunWait})
	if err != nil {
		t.Error(err)
		return
	}
	for ctx.Err() == nil {
		term, err := s.Election("one").Campaign(ctx, nil)
		if err != nil {
			continue
		}
		in := drivertest.Interval{Name: "one", Who: fmt.Sprint("c", i)}
		acted := false
		for end := time.Now().Add(rand.N(400 * time.Millisecond)); time.Now().Before(end); time.Sleep(time.Millisecond) {
			at := boottime.Now()
			if term.Check() != nil {
				break
			}
			if !acted {
				in.From = at
			}
			in.To, acted = at, true
		}
		if acted {
			c.mu.Lock()
			c.history = append(c.history, in)
			c.mu.Unlock()
		}
		rest, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		_ = term.Resign(rest)
		cancel()
	}
	rest, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.Close(rest)
	_ = store.Close()
}

// enough says whether three terms were led, by more than one candidate: in a history of less nobody
// can have led beside another.
func (c *candidates) enough() bool {
	return len(c.history) >= 3 &&
		slices.ContainsFunc(c.history, func(in drivertest.Interval) bool { return in.Who != c.history[0].Who })
}

// judge lets six candidates fight over five servers, of which fail makes some fail, while their
// links are cut now and then. Nobody may lead beside another.
func judge(t *testing.T, c redlockstore.Config, d time.Duration, fail func(n int)) []drivertest.Interval {
	ctx, cancel := context.WithTimeout(t.Context(), max(d, 4*time.Minute))
	defer cancel()
	end := time.Now().Add(d)
	var fight candidates
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() { fight.stand(ctx, t, c, i) })
	}
	for n := 0; ctx.Err() == nil; n++ {
		fail(n)
		fight.mu.Lock()
		if fight.enough() && time.Now().After(end) { // on a busy machine the first terms take a while
			cancel()
		}
		if n%3 == 1 && len(fight.cuts) > 0 {
			cut := fight.cuts[rand.IntN(len(fight.cuts))]
			cut(true)
			time.AfterFunc(rand.N(2*time.Second), func() { cut(false) })
		}
		fight.mu.Unlock()
		select {
		case <-time.After(rand.N(600 * time.Millisecond)):
		case <-ctx.Done():
		}
	}
	all.Wait()
	slices.SortFunc(fight.history, func(a, b drivertest.Interval) int { return cmp.Compare(a.From, b.From) })
	for i := range fight.history {
		fight.history[i].Token = uint64(i + 1)
	}
	t.Logf("%d terms", len(fight.history))
	if !fight.enough() {
		t.Errorf("%d terms in four minutes show nothing: %v", len(fight.history), fight.history)
	}
	return fight.history
}

// Servers are frozen for up to 2 s, two at a time and now and then three.
func TestNobodyLeadsBesideAnotherWhileServersFreeze(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 5)
	var last []*redistest.Server
	history := judge(t, c, rounds(t), func(n int) {
		for _, s := range last {
			s.Cont()
		}
		last = nil
		for _, i := range rand.Perm(5)[:2+n%4/3] {
			servers[i].Stop()
			last = append(last, servers[i])
		}
	})
	for _, s := range servers {
		s.Cont()
	}
	if err := drivertest.Check(history); err != nil {
		t.Error(err)
	}
}

// Servers are killed and come back empty; the guard keeps them out. One at a time, so that a
// majority remains.
func TestNobodyLeadsBesideAnotherWhileServersForget(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 5)
	c.MaxTTL, c.Guard = time.Second, 0
	time.Sleep(2500 * time.Millisecond) // they are young
	restarted := make([]time.Time, len(servers))
	history := judge(t, c, rounds(t), func(n int) {
		out := 0
		for _, at := range restarted {
			if time.Since(at) < 2500*time.Millisecond {
				out++
			}
		}
		if out < 2 {
			i := rand.IntN(len(servers))
			restarted[i] = time.Now()
			servers[i].Restart()
		}
	})
	if err := drivertest.Check(history); err != nil {
		t.Error(err)
	}
}
