package fanout

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/registerstore"
)

// store has one value, which observers follow. A read takes a second.
type store struct {
	mu      sync.Mutex
	value   int
	err     error
	changed chan struct{}
	reads   int // observers that began
	open    atomic.Int64
	over    error // ends observers
}

func newStore(v int) *store { return &store{value: v, changed: make(chan struct{})} }

func (s *store) set(v int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.err = v, err
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *store) begun() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func (s *store) observe(ctx context.Context, _ string) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		s.open.Add(1)
		defer s.open.Add(-1)
		s.mu.Lock()
		s.reads++
		s.mu.Unlock()
		for first := true; ; first = false {
			s.mu.Lock()
			v, err, changed, over := s.value, s.err, s.changed, s.over
			s.mu.Unlock()
			if first {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
					return
				}
			}
			if over != nil {
				yield(0, over)
				return
			}
			if !yield(v, err) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (s *store) hub() *Hub[int] {
	return New(Source[int]{Observe: s.observe, Revision: func(v int) uint64 { return uint64(v) },
		Same: func(a, b int) bool { return a/10 == b/10 }}) // tens are told, units are not
}

// wait returns the next news, which must come.
func wait(t *testing.T, r *Reader[int]) *News[int] {
	t.Helper()
	for {
		select {
		case <-r.Changed():
			if n := r.Take(); n != nil {
				return n
			}
		case <-time.After(time.Minute):
			t.Fatal("no news")
		}
	}
}

// quiet checks that there is nothing new.
func quiet(t *testing.T, r *Reader[int]) {
	t.Helper()
	synctest.Wait()
	if n := r.Take(); n != nil {
		t.Fatalf("there is news: %v %v", n.Value, n.Err)
	}
}

func TestOneObserverForAllReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(10)
		h := s.hub()
		defer h.Close()
		var all []*Reader[int]
		for range 500 {
			all = append(all, h.Join("n"))
		}
		for _, r := range all {
			if n := wait(t, r); n.Value != 10 || n.Err != nil {
				t.Fatalf("got %+v", n)
			}
		}
		for v := 20; v < 100; v += 10 {
			s.set(v, nil)
			for _, r := range all {
				if n := wait(t, r); n.Value != v {
					t.Fatalf("got %d, want %d", n.Value, v)
				}
			}
		}
		if n := s.begun(); n > 2 || s.open.Load() != 1 { // all came while the first observer had told nothing
			t.Errorf("%d observers were begun, %d run", n, s.open.Load())
		}
		other := h.Join("m")
		wait(t, other)
		if s.open.Load() != 2 {
			t.Errorf("%d observers of two names", s.open.Load())
		}
	})
}

func TestASlowReaderGetsTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(10)
		h := s.hub()
		defer h.Close()
		slow, fast := h.Join("n"), h.Join("n")
		wait(t, slow)
		wait(t, fast)
		for v := 20; v <= 200; v += 10 {
			s.set(v, nil)
			if n := wait(t, fast); n.Value != v {
				t.Fatalf("got %d, want %d", n.Value, v)
			}
			synctest.Wait()
		}
		if n := wait(t, slow); n.Value != 200 {
			t.Errorf("the slow one got %d", n.Value)
		}
		quiet(t, slow)
	})
}

// What an observer told before a reader came may be old: the line may have changed since, and the
// push may be lost.
func TestTheFirstNewsIsReadAfterTheReaderCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(10)
		h := s.hub()
		defer h.Close()
		early := h.Join("n")
		wait(t, early)
		s.mu.Lock()
		s.value = 20 // nobody is told
		s.mu.Unlock()
		late := h.Join("n")
		quiet(t, late)
		if n := wait(t, late); n.Value != 20 {
			t.Errorf("the late one got %d", n.Value)
		}
		if n := wait(t, early); n.Value != 20 {
			t.Errorf("the early one got %d", n.Value)
		}
		// One that comes while a turn reads waits for the next, which is one for all such.
		began := s.begun()
		first := h.Join("n")
		time.Sleep(time.Second / 2)
		s.mu.Lock()
		s.value = 30
		s.mu.Unlock()
		var all []*Reader[int]
		for range 100 {
			all = append(all, h.Join("n"))
		}
		wait(t, first)
		for _, r := range all {
			if n := wait(t, r); n.Value != 30 {
				t.Fatalf("got %d", n.Value)
			}
		}
		if n := s.begun() - began; n != 2 {
			t.Errorf("%d observers for readers who came during one read", n)
		}
	})
}

func TestWhatTellsNothingNewWakesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(11)
		h := s.hub()
		defer h.Close()
		r := h.Join("n")
		wait(t, r)
		s.set(12, nil)
		quiet(t, r)
		if n := wait(t, h.Join("n")); n.Value != 12 {
			t.Errorf("a new reader got %d", n.Value)
		}
		quiet(t, r)
		s.set(9, nil) // an old answer, of a store that is not linearizable
		quiet(t, r)
		if n := wait(t, h.Join("n")); n.Value != 12 {
			t.Errorf("a new reader got %d", n.Value)
		}
	})
}

// Where somebody deletes the object that a line is kept in, the line begins anew, with smaller
// revisions.
func TestALineThatBeginsAnewIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines, err := registerstore.FromRegister(memstore.NewRegister(), registerstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		session, err := primacy.NewSession(lines, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := newStore(200)
		h := New(Source[int]{Observe: s.observe, Same: func(a, b int) bool { return a == b }})
		if States(session).src.Revision != nil {
			t.Error("a line may begin anew there")
		}
		defer h.Close()
		r := h.Join("n")
		wait(t, r)
		s.set(1, nil)
		if n := wait(t, r); n.Value != 1 {
			t.Errorf("a reader got %d", n.Value)
		}
		if n := wait(t, h.Join("n")); n.Value != 1 {
			t.Errorf("a new reader got %d", n.Value)
		}
		_, _ = session.Close(t.Context()), lines.Close()
	})
}

func TestAStoreThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, down := newStore(10), errors.New("down")
		h := s.hub()
		defer h.Close()
		r := h.Join("n")
		wait(t, r)
		s.set(10, down)
		if n := wait(t, r); n.Err != down {
			t.Fatalf("got %+v", n)
		}
		late := h.Join("n")
		synctest.Wait() // at once: it may take long until the store does not answer again
		if n := late.Take(); n == nil || n.Err != down {
			t.Fatalf("got %+v", n)
		}
		time.Sleep(2 * time.Second)
		quiet(t, r) // once
		s.set(10, nil)
		for _, r := range []*Reader[int]{r, late} {
			if n := wait(t, r); n.Err != nil || n.Value != 10 {
				t.Fatalf("got %+v", n)
			}
		}
	})
}

func TestAnObserverEndsWithItsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(10)
		h := s.hub()
		one, two := h.Join("n"), h.Join("n")
		wait(t, one)
		one.Close()
		time.Sleep(2 * Linger)
		if s.open.Load() != 1 {
			t.Fatal("it ended before its last reader")
		}
		two.Close()
		time.Sleep(Linger / 2)
		three := h.Join("n")
		wait(t, three)
		time.Sleep(2 * Linger)
		if s.open.Load() != 1 {
			t.Fatal("it ended beside a reader")
		}
		three.Close()
		time.Sleep(Linger + time.Millisecond)
		synctest.Wait()
		if s.open.Load() != 0 || len(h.topics) != 0 {
			t.Fatalf("%d observers of %d names without readers", s.open.Load(), len(h.topics))
		}
		if n := wait(t, h.Join("n")); n.Value != 10 {
			t.Errorf("got %d", n.Value)
		}
		h.Close()
		if s.open.Load() != 0 {
			t.Error("an observer outlived its hub")
		}
		quiet(t, h.Join("n"))
	})
}

func TestAnObserverThatEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, refused := newStore(10), errors.New("refused")
		h := s.hub()
		defer h.Close()
		r := h.Join("n")
		wait(t, r)
		s.over = refused
		s.set(20, nil)
		if n := wait(t, r); n.Err != refused {
			t.Fatalf("got %+v", n)
		}
		synctest.Wait()
		s.mu.Lock()
		s.over = nil
		s.mu.Unlock()
		late := h.Join("n") // asks anew
		if n := wait(t, late); n.Value != 20 || n.Err != nil {
			t.Fatalf("got %+v", n)
		}
		r.Close()
		quiet(t, r)
		s.set(30, nil)
		if n := wait(t, late); n.Value != 30 {
			t.Fatalf("got %+v", n)
		}
	})
}

// The store does not answer, and then refuses: the second error ends the observer, and is told.
func TestAnObserverThatEndsAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, down, refused := newStore(10), errors.New("unreachable"), errors.New("refused")
		h := s.hub()
		defer h.Close()
		r := h.Join("n")
		defer r.Close()
		wait(t, r)
		s.set(10, down)
		if n := wait(t, r); n.Err != down {
			t.Fatalf("got %+v", n)
		}
		s.set(10, errors.New("another way of not answering"))
		quiet(t, r)
		s.mu.Lock()
		s.over = refused
		s.mu.Unlock()
		s.set(10, down)
		if n := wait(t, r); n.Err != refused {
			t.Fatalf("got %+v", n)
		}
		quiet(t, r)
	})
}

// Else a renewal waits until all have written, and on a busy machine for longer.
func TestAHubRestsBetweenReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(10)
		h := s.hub()
		defer h.Close()
		const readers = 10 * wokenAtOnce
		var mu sync.Mutex
		woken, total := map[time.Time]int{}, 0
		stop := make(chan struct{})
		defer close(stop)
		for i := range readers {
			r := h.Join([]string{"n", "m"}[i%2])
			go func() {
				for {
					select {
					case <-r.Changed():
					case <-stop:
						return
					}
					if n := r.Take(); n != nil && n.Value == 20 {
						mu.Lock()
						woken[time.Now()]++
						total++
						mu.Unlock()
					}
				}
			}()
		}
		time.Sleep(time.Minute)
		s.set(20, nil)
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if total != readers {
			t.Errorf("%d of %d were told", total, readers)
		}
		for at, n := range woken {
			if n > wokenAtOnce {
				t.Errorf("%d were woken at once at %v", n, at)
			}
		}
	})
}

func TestAnEncodingIsMadeOnce(t *testing.T) {
	n, made := &News[string]{Value: "x"}, 0
	encode := func(n *News[string]) []byte { made++; return []byte(strings.ToUpper(n.Value)) }
	for range 100 {
		if string(n.Encoded(0, encode)) != "X" || string(n.Encoded(1, encode)) != "X" {
			t.Fatal("wrong")
		}
	}
	if made != Forms {
		t.Errorf("encoded %d times", made)
	}
}

// Readers come and go, values change: each reader ends with the latest.
func TestReadersThatComeAndGo(t *testing.T) {
	s := newStore(0)
	h := New(Source[int]{Observe: func(ctx context.Context, _ string) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for ctx.Err() == nil {
				s.mu.Lock()
				v, changed := s.value, s.changed
				s.mu.Unlock()
				if !yield(v, nil) {
					return
				}
				select {
				case <-changed:
				case <-ctx.Done():
				}
			}
		}
	}, Revision: func(v int) uint64 { return uint64(v) }, Same: func(a, b int) bool { return a == b }})
	defer h.Close()
	const last = 500
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for n := 0; n < 20; n++ {
				least := func() int { s.mu.Lock(); defer s.mu.Unlock(); return s.value }()
				r := h.Join("n")
				<-r.Changed()
				if got := r.Take(); got == nil || got.Value < least {
					t.Errorf("reader %d came at %d and got %+v", i, least, got)
				}
				r.Close()
			}
			r := h.Join("n")
			defer r.Close()
			for {
				<-r.Changed()
				if n := r.Take(); n != nil && n.Value == last {
					return
				}
			}
		})
	}
	for v := 1; v <= last; v++ {
		s.set(v, nil)
	}
	all.Wait()
}
