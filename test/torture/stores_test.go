//go:build linux

package torture

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/open"
)

// storeUnder is a store set up in one way, and what to expect of it under the faults of TestRun.
type storeUnder struct {
	name  string
	ttl   time.Duration
	spare time.Duration                 // for how much longer it keeps a lease than it tells the holder
	start func(t testing.TB) *installed // until the test ends

	// noTokens: the store has none, nor a line that one could read. Terms are told apart by when
	// their command began, and judged by instants alone.
	noTokens bool
	timed    bool // candidates time each other: the store has no clock
	long     bool // only in long runs, or when asked for, where something cheaper shows nearly the same
}

// installed is a store that runs.
type installed struct {
	servers  []string                      // host:port; each candidate has a proxy to each
	url      func(servers []string) string // for --store
	troubles []trouble
}

// trouble is something that the servers of a store can have.
type trouble struct {
	name  string
	whole bool // nobody is served meanwhile
	// begin does it, and returns what ends it.
	begin func(rng *rand.Rand) (end func())
}

// checked is the trouble as TestRun has it.
func (tr trouble) checked() checkedFault {
	return checkedFault{tr.name, func(a *run, v *victim) []any {
		if tr.whole {
			return a.outage(v, tr)
		}
		return a.hiccup(v, tr)
	}}
}

// testServer is what the servers of all stores have in common.
type testServer interface {
	Kill()
	Launch() error
	Ready(limit time.Duration) error
	Stop()
	Cont()
}

// kill and freeze are the troubles of one of several servers, or of the only one.
func kill(t testing.TB, name string, whole bool, which func(*rand.Rand) testServer) trouble {
	return trouble{name, whole, func(rng *rand.Rand) func() {
		s := which(rng)
		s.Kill()
		return func() { relaunch(t, s) }
	}}
}

// relaunch starts a server again, and waits until it serves. PostgreSQL needs some tries while what
// it left of the last time still ends.
func relaunch(t testing.TB, s testServer) {
	var err error
	for range 20 {
		onethread.Do(func() { err = s.Launch() })
		if err == nil {
			err = s.Ready(time.Minute)
		}
		if err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("a server does not start again: %v", err)
}

func stop(name string, whole bool, which func(*rand.Rand) testServer) trouble {
	return trouble{name, whole, func(rng *rand.Rand) func() {
		s := which(rng)
		s.Stop()
		return s.Cont
	}}
}

// troublesOf are those of a store that is one server.
func troublesOf(t testing.TB, name string, s testServer) []trouble {
	it := func(*rand.Rand) testServer { return s }
	return []trouble{kill(t, "restart "+name, true, it), stop("freeze "+name, true, it)}
}

// outage takes the whole store away, for a moment, so that the term may live on, or until the term
// is over.
func (a *run) outage(v *victim, tr trouble) []any {
	a.Helper()
	if !v.aim(a, a.rng.Float64(), a.renewEvery()) {
		return missed
	}
	begin := boottime.Now()
	up := tr.begin(a.rng)
	if a.rng.IntN(2) == 0 {
		time.Sleep(time.Duration(a.rng.Int64N(int64(a.ttl / 4))))
		up()
		away := boottime.Now() - begin
		return []any{"away for", away, "term lives on", a.livesOn(v)}
	}
	spare := a.gaveUp(v)
	up()
	away := boottime.Now() - begin
	a.next(v)
	a.wantExit(v, exitLost)
	return []any{"away for", away, "acted last before the deadline", spare}
}

// hiccup takes a part of the store away that it should be able to do without, in the end, and
// brings it back. The term may end.
func (a *run) hiccup(v *victim, tr trouble) []any {
	a.Helper()
	if !v.aim(a, a.rng.Float64(), a.renewEvery()) {
		return missed
	}
	begin := boottime.Now()
	up := tr.begin(a.rng)
	time.Sleep(between(a.rng, a.ttl/4, a.ttl*3/2))
	up()
	away := boottime.Now() - begin
	lives := a.livesOn(v)
	if !lives {
		a.next(v)
	}
	return []any{"away for", away, "term lives on", lives}
}

// open opens the store under its own addresses.
func (i *installed) open() (driver.Store, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return open.Open(ctx, i.url(i.servers))
}

// session returns a session to see who stands.
func (i *installed) session(t testing.TB, ttl time.Duration) *primacy.Session {
	t.Helper()
	st, err := i.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	s, err := primacy.NewSession(st, &primacy.Options{ID: "judge", TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		s.Close(ctx)
	})
	return s
}

// ghosts looks that nobody is left in any line, now that every candidate has ended: those that were
// killed are gone with their leases.
func (a *run) ghosts() {
	a.Helper()
	st, err := a.store.open()
	if err != nil {
		a.Errorf("the store does not open in the end: %v", err)
		return
	}
	defer st.Close()
	var left []driver.Line
	begin := boottime.Now()
	if !within(time.Minute, func() bool {
		left, err = standing(st)
		return err == nil && len(left) == 0
	}) {
		a.Errorf("left in the store: %+v, %v", left, err)
	}
	a.Logf("no claim is left in the store %v after the last candidate",
		(boottime.Now() - begin).Round(time.Millisecond))
}

// standing returns the lines in which somebody stands.
func standing(st driver.Store) ([]driver.Line, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return st.Lines(ctx, "")
}

// links returns a proxy to each server, and the URL of the store behind them.
func (i *installed) links(t testing.TB) (proxies []*etcdtest.Proxy, url string) {
	t.Helper()
	var addrs []string
	for _, s := range i.servers {
		p := etcdtest.NewProxy(t, s)
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	return proxies, i.url(addrs)
}

func onEtcd() *storeUnder {
	return &storeUnder{name: "etcd", ttl: runTTL, start: func(t testing.TB) *installed {
		etcd := etcdtest.Start(t, etcdtest.Options{})
		return &installed{servers: []string{etcd.Addr()}, troubles: troublesOf(t, "etcd", etcd),
			url: func(servers []string) string { return "etcd://" + servers[0] }}
	}}
}
