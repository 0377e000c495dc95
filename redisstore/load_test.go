package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/redisstore"
)

// What goes wrong in the libraries over Redis, by the number of the finding in the research: each
// is a test that this store passes.

func store(t testing.TB, addr string) *redisstore.Store {
	t.Helper()
	s := openAt(t, redisstore.Config{Addrs: []string{addr}})
	t.Cleanup(func() { s.Close() })
	return s
}

// Finding 1: with a round trip of 30 ms a lock that is free was never had.
func TestAFreeNameOverALongWay(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	far, err := proxy.Listen(srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(far.Close)
	far.Delay(30 * time.Millisecond)
	l := grant(t, store(t, far.Addr()), time.Minute)
	for i := range 3 {
		p := enter(t, l, "n", fmt.Sprint(i))
		if !p.Held {
			t.Errorf("a free name = %+v, want it held", p)
		}
		if err := l.Release(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}

// Finding 2: with many goroutines on one client all of them stopped for good although nobody held.
func TestManyUnderLoadNeverStop(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	l := grant(t, store(t, srv.Addr()), time.Hour/2)
	ctx := soon(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 60 {
				p, err := l.Claim(ctx, driver.Claim{Name: "n", Seat: fmt.Sprint(i), ID: fmt.Sprint(i, "-", k)})
				if err == nil {
					p[0], err = drivertest.Await(ctx, l, p[0])
				}
				if err == nil {
					err = l.Release(ctx, p[0])
				}
				if err != nil {
					t.Errorf("lock %d: %v", k, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// quick is less than what a call takes at the least that waits for a silent server: redisstore's
// callLimit.
const quick = 4 * time.Second

// Findings 3 and 7: a renewal over a silent link took as long as the library pleased, past the
// lease's end. Here it takes as long as its context, and the next one takes another connection.
func TestARenewalOverASilentLink(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	p := drivertest.NewProxy(t, srv.Addr())
	l := grant(t, store(t, p.Addr), time.Minute)
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Cut(true)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := l.Renew(ctx); err == nil || errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew over a silent link = %v, want an error that leaves it unknown", err)
	}
	if took := time.Since(begun); took > quick {
		t.Errorf("Renew returned after %v, its context ended after 300ms", took)
	}
	p.Cut(false)
	begun = time.Now()
	if err := l.Renew(t.Context()); err != nil || time.Since(begun) > quick {
		t.Errorf("the next Renew = %v after %v, want nil at once", err, time.Since(begun))
	}
}

// Finding 4: after a crash the next had to wait for Redis to clean up, minutes where there are many
// keys with a time to live.
func TestATakeOverBesideManyVolatileKeys(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	srv.Do("EVAL", "for i=1,50000 do redis.call('SET','v'..i,'x','PX',3600000) end return 1", 0)
	s := store(t, srv.Addr())
	const ttl = 5 * time.Second
	heir := grant(t, store(t, srv.Addr()), time.Minute)
	dies := grant(t, s, ttl) // last, so that it lives until it has claimed
	asked := time.Now()
	if err := dies.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := enter(t, dies, "n", "1"); !p.Held {
		t.Fatal("not held")
	}
	if _, err := drivertest.Await(soon(t), heir, enter(t, heir, "n", "2")); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(asked); took < ttl || took > 30*time.Second { // a key of Redis lives for a minute longer
		t.Errorf("taken over %v after the last renewal, want the ttl of %v and little more", took, ttl)
	}
}

// Finding 5: expiry was an absolute time on the client's clock. Here no script is given a time but
// a ttl: two stores whose clocks differ send the same.
func TestNoClientSendsATime(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	c := srv.Client()
	s := store(t, srv.Addr())
	srv.Do("CONFIG", "SET", "slowlog-log-slower-than", "0")
	srv.Do("CONFIG", "SET", "slowlog-max-len", "10000")
	l, other := grant(t, s, time.Minute), grant(t, s, time.Minute)
	p := enter(t, l, "n", "1")
	q := enter(t, other, "n", "2")
	_ = l.Renew(t.Context())
	_ = l.Update(t.Context(), p, []byte("x"))
	_ = l.Release(t.Context(), p)
	_, _ = drivertest.Await(soon(t), other, q)
	log, err := c.SlowLogGet(t.Context(), -1).Result()
	if err != nil || len(log) < 6 {
		t.Fatalf("the slow log has %d entries, %v", len(log), err)
	}
	now := regexp.MustCompile(fmt.Sprintf(`^%s\d{5}(\d{3}){0,3}$`, fmt.Sprint(time.Now().Unix())[:5]))
	for _, e := range log {
		for _, arg := range e.Args {
			if strings.HasPrefix(strings.ToLower(e.Args[0]), "eval") && now.MatchString(arg) {
				t.Errorf("a script was given the time %s", arg)
			}
		}
	}
}

// ends has the time of a lease be over.
func ends(srv *redistest.Server, l driver.Lease) { srv.Do("HSET", "{primacy}:lease:"+l.ID(), "x", 1) }

// Finding 6: A's lease ended, B locked and unlocked, and A could extend.
func TestARenewalAfterAnotherHadIt(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s := store(t, srv.Addr())
	a, b := grant(t, s, time.Minute), grant(t, s, time.Minute)
	enter(t, a, "n", "1")
	ends(srv, a)
	q, err := drivertest.Await(soon(t), b, enter(t, b, "n", "2"))
	if err == nil {
		err = b.Release(t.Context(), q)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Renew(t.Context()); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew after another had it = %v, want ErrGone", err)
	}
	if p := enter(t, b, "n", "3"); !p.Held {
		t.Errorf("the name after that = %+v, want it free", p)
	}
}

// The push that grants a place is lost, since its connection is killed: the place is found all the
// same.
func TestALostPush(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	a, b := grant(t, store(t, srv.Addr()), time.Minute), grant(t, store(t, srv.Addr()), time.Minute)
	for i := range 5 {
		p := enter(t, a, "n", fmt.Sprint("a", i))
		q := enter(t, b, "n", fmt.Sprint("b", i))
		got := make(chan error, 1)
		go func() { _, err := drivertest.Await(soon(t), b, q); got <- err }()
		time.Sleep(30 * time.Millisecond)
		srv.Do("CLIENT", "KILL", "TYPE", "pubsub")
		if err := a.Release(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatalf("Wait whose push was lost = %v", err)
		}
		if err := b.Release(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
}

// Redisson's fair lock: dead waiters block the line one by one. Here they are passed over in the
// step that frees the name, a thousand of them.
func TestAThousandDeadWaiters(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s := store(t, srv.Addr())
	const ttl = 10 * time.Minute // outlives the test on a busy machine
	first, last := grant(t, s, ttl), grant(t, s, ttl)
	p := enter(t, first, "n", "1")
	for range 1000 {
		dies := grant(t, s, ttl)
		enter(t, dies, "n", "x")
		ends(srv, dies)
	}
	q := enter(t, last, "n", "2")
	begun := time.Now()
	if err := first.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := drivertest.Await(soon(t), last, q); err != nil { // a second for each of them would be too much
		t.Errorf("Wait behind a thousand dead waiters = %v after %v, want it held at once", err, time.Since(begun))
	}
}

// A long line costs each step no more than a short one, and a release wakes one.
func TestAThousandWaiters(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s := store(t, srv.Addr())
	const n = 1000
	var leases []driver.Lease
	var places []driver.Place
	for i := range n {
		if i%100 == 0 {
			leases = append(leases, grant(t, s, 10*time.Minute)) // outlives the test on a busy machine
		}
		l := leases[len(leases)-1]
		p, err := l.Claim(t.Context(), driver.Claim{Name: "n", Seat: fmt.Sprint(i), ID: fmt.Sprint(i)})
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, p[0])
	}
	srv.Do("CONFIG", "RESETSTAT")
	for i, p := range places {
		l := leases[i/100]
		if _, err := drivertest.Await(soon(t), l, p); err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	stats := fmt.Sprint(srv.Do("INFO", "commandstats"))
	var calls, published int
	_, _ = fmt.Sscanf(regexp.MustCompile(`cmdstat_evalsha:calls=\d+`).FindString(stats), "cmdstat_evalsha:calls=%d", &calls)
	_, _ = fmt.Sscanf(regexp.MustCompile(`cmdstat_publish:calls=\d+`).FindString(stats), "cmdstat_publish:calls=%d", &published)
	if calls > 2*n+50 || published > 2*n+10 {
		t.Errorf("%d waiters took %d calls and %d pushes, want one of each for a release, beside those to who observes", n, calls, published)
	}
}

// All that a crashed fleet left behind vanishes by itself.
func TestEveryKeyVanishes(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s := store(t, srv.Addr())
	a, b := grant(t, s, time.Minute), grant(t, s, time.Minute)
	pa := enter(t, a, "n", "1")
	enter(t, b, "n", "2")
	if err := s.Ask(t.Context(), "n", driver.Request{Token: pa.Token, By: "x"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Append(t.Context(), "n", driver.Record{Key: "k"}, 3); err != nil {
		t.Fatal(err)
	}
	_ = a.Renew(t.Context())
	enter(t, a, "m", "3")
	for _, key := range srv.Do("KEYS", "*").([]any) {
		if key == "{primacy}:server" {
			continue
		}
		if ttl := srv.Do("TTL", key).(int64); ttl < 0 {
			t.Errorf("the key %v has no time to live", key)
		}
	}
}

// Where memory is full and nothing may be evicted, who holds goes on holding and can release.
func TestAFullServerKeepsItsLeases(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	l := grant(t, store(t, srv.Addr()), time.Minute)
	p := enter(t, l, "n", "1")
	srv.Do("CONFIG", "SET", "maxmemory", "1")
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew while memory is full = %v, want nil", err)
	}
	if err := l.Release(t.Context(), p); err != nil {
		t.Errorf("Release while memory is full = %v, want nil", err)
	}
	if _, err := l.Claim(t.Context(), driver.Claim{Name: "m", ID: "2"}); err == nil || errors.Is(err, driver.ErrGone) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Claim while memory is full = %v, want an error that says so", err)
	}
}

// Eviction breaks the promise, and is said: a lease that is evicted is gone, and its holder hears
// so at its next renewal only.
func TestEvictionIsShown(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{Args: []string{"--maxmemory-policy", "volatile-lru", "--maxmemory", "3mb"}})
	s := store(t, srv.Addr())
	if w := strings.Join(s.Caps().Warnings, "; "); !strings.Contains(w, "maxmemory-policy is volatile-lru") {
		t.Errorf("Caps warns of %q, want eviction named", w)
	}
	l := grant(t, s, time.Minute)
	enter(t, l, "n", "1")
	c := srv.Client()
	for i := 0; i < 20000; i++ {
		if c.Set(t.Context(), fmt.Sprint("big", i), strings.Repeat("x", 1000), 0).Err() != nil {
			break
		}
	}
	if err := l.Renew(t.Context()); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew of a lease that was evicted = %v, want ErrGone", err)
	}
}
