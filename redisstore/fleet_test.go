package redisstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/redisstore"
)

// long skips a test that takes much time and processor, unless it is asked for.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("TORTURE_REDIS") == "" {
		t.Skip("takes long: TORTURE_REDIS=1 asks for it")
	}
}

// board is an address behind which the server changes, as that of a primary does at a failover.
type board struct {
	ln    net.Listener
	mu    sync.Mutex
	to    string
	conns map[net.Conn]bool
}

func newBoard(t *testing.T, to string) *board {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &board{ln: ln, to: to, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { ln.Close(); b.point("") })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go b.serve(c)
		}
	}()
	return b
}

func (b *board) serve(c net.Conn) {
	b.mu.Lock()
	to := b.to
	b.mu.Unlock()
	s, err := net.Dial("tcp", to)
	if err != nil {
		c.Close()
		return
	}
	b.mu.Lock()
	b.conns[c], b.conns[s] = true, true
	b.mu.Unlock()
	go func() { _, _ = io.Copy(s, c); s.Close(); c.Close() }()
	_, _ = io.Copy(c, s)
	s.Close()
	c.Close()
}

// point sends everybody to another server.
func (b *board) point(to string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = to
	for c := range b.conns {
		c.Close()
	}
	b.conns = map[net.Conn]bool{}
}

// reign is a time in which a worker believed to hold: until its deadline, or until it began to
// release.
type reign struct {
	who      string
	from, to time.Time
	token    uint64
}

// fleet is some processes that want one name, and what each of them believed when.
type fleet struct {
	t    *testing.T
	ttl  time.Duration
	name string

	mu     sync.Mutex
	reigns []reign
	all    sync.WaitGroup
	cancel context.CancelFunc
}

// startFleet runs n workers against a server at addr.
func startFleet(t *testing.T, c redisstore.Config, n int, ttl time.Duration) *fleet {
	t.Helper()
	f := &fleet{t: t, ttl: ttl, name: "singleton"}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	for i := range n {
		s := openAt(t, c)
		f.all.Go(func() {
			defer s.Close()
			for ctx.Err() == nil {
				f.session(ctx, s, fmt.Sprint("worker ", i))
			}
		})
	}
	t.Cleanup(func() { cancel(); f.all.Wait() })
	return f
}

// worker is one session.
type worker struct {
	f  *fleet
	l  driver.Lease
	mu sync.Mutex
	by time.Time // its deadline
	up bool      // it lives
}

func (f *fleet) session(ctx context.Context, s driver.Store, who string) {
	asked := time.Now()
	l, err := s.Grant(ctx, who, f.ttl)
	if err != nil {
		pauseFor(ctx, 20*time.Millisecond)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &worker{f: f, l: l, by: asked.Add(l.TTL()), up: true}
	var beats sync.WaitGroup
	beats.Go(func() { w.beat(ctx); cancel() })
	for k := 0; ctx.Err() == nil; k++ {
		if err := w.term(ctx, who, k); errors.Is(err, driver.ErrGone) {
			pauseFor(ctx, 10*time.Millisecond)
		} else if err != nil {
			pauseFor(ctx, 20*time.Millisecond)
		}
	}
	cancel()
	beats.Wait()
}

// beat renews until the lease is gone, or the deadline has passed.
func (w *worker) beat(ctx context.Context) {
	for {
		pauseFor(ctx, w.f.ttl/6)
		asked := time.Now()
		try, cancel := context.WithTimeout(ctx, w.f.ttl/3)
		err := w.l.Renew(try)
		cancel()
		w.mu.Lock()
		over := !time.Now().Before(w.by)
		if err == nil && !over {
			w.by = asked.Add(w.l.TTL())
		}
		w.mu.Unlock()
		if over || errors.Is(err, driver.ErrGone) || ctx.Err() != nil {
			return
		}
	}
}

// deadline returns until when the worker may act.
func (w *worker) deadline() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by
}

// term claims, believes for a while, and releases. Whoever loses its session believes until its
// deadline.
func (w *worker) term(ctx context.Context, who string, k int) error {
	c := driver.Claim{Name: w.f.name, ID: fmt.Sprint(w.l.ID(), "-", k), Try: k%4 == 3}
	try, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p, err := w.l.Claim(try, c)
	var held driver.Place
	if err == nil {
		held, err = drivertest.Await(try, w.l, p[0])
	}
	from := time.Now()
	if err != nil || !from.Before(w.deadline()) {
		_ = w.l.Release(context.WithoutCancel(try), driver.Place{Name: c.Name, ID: c.ID})
		return cmp.Or(err, context.DeadlineExceeded)
	}
	work := time.Duration(50+k%5*30) * time.Millisecond
	if k%3 == 2 {
		work = w.f.ttl * 2 / 3 // so that most faults meet somebody who holds, and will for a while
	}
	pauseFor(ctx, work)
	to := time.Now()
	if ctx.Err() != nil { // the session is over, or the test: it believes on
		to = w.deadline()
	} else if end := w.deadline(); end.Before(to) {
		to = end
	}
	w.f.mu.Lock()
	w.f.reigns = append(w.f.reigns, reign{who, from, to, held.Token})
	w.f.mu.Unlock()
	if time.Now().Before(to) { // whoever believes on does not release: others of the test may not have heard yet that it ends
		return ctx.Err()
	}
	give, cancel2 := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel2()
	return w.l.Release(give, driver.Place{Name: c.Name, ID: c.ID})
}

// soon returns a context for what must not hang.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// terms counts them so far.
func (f *fleet) terms() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.reigns)
}

// goesOn waits until there are n more terms.
func (f *fleet) goesOn(n int) {
	f.t.Helper()
	for want, end := f.terms()+n, time.Now().Add(time.Minute); f.terms() < want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("no %d terms in a minute: nobody leads any more", n)
		}
	}
}

// judge stops the fleet and looks for two who believed at once, and for tokens that went back.
func (f *fleet) judge() {
	f.t.Helper()
	f.cancel()
	f.all.Wait()
	for _, text := range contradictions(f.reigns) {
		f.t.Error(text)
	}
	f.t.Logf("%d terms", len(f.reigns))
}

// contradictions returns which workers believed at once, and which tokens went back. Who has lost
// its session believes on until its deadline, while it may win again: what one worker believes
// twice contradicts nothing, but each later reign of another is compared with all that it believes.
func contradictions(reigns []reign) (all []string) {
	slices.SortFunc(reigns, func(a, b reign) int { return a.from.Compare(b.from) })
	longest := map[string]reign{} // of each worker, the one that ends last
	for i, b := range reigns {
		for who, a := range longest {
			if who != b.who && b.from.Before(a.to) {
				all = append(all, fmt.Sprintf("%s held token %d until %v, and %s token %d from %v before that", a.who, a.token, a.to.Format("05.000"), b.who, b.token, a.to.Sub(b.from)))
			}
		}
		if !b.to.Before(longest[b.who].to) {
			longest[b.who] = b
		}
		if i > 0 && b.token <= reigns[i-1].token {
			all = append(all, fmt.Sprintf("the token went from %d back to %d", reigns[i-1].token, b.token))
		}
	}
	return all
}

// A worker that lost its session believes on and is the first to win again. Another that leads
// before the deadline of the lost one is found all the same.
func TestAReignBesideALostOneIsFound(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(0, int64(s*1e9)) }
	reigns := []reign{{"w1", at(0.5), at(3), 1}, {"w1", at(1.2), at(1.3), 2}, {"w2", at(2), at(2.5), 3}}
	if all := contradictions(reigns); len(all) != 1 {
		t.Errorf("found %q, want that w2 led beside w1", all)
	}
	reigns[2] = reign{"w2", at(3), at(3.5), 3}
	if all := contradictions(reigns); len(all) != 0 {
		t.Errorf("found %q, where w2 led after w1", all)
	}
}
