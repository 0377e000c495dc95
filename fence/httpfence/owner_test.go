package httpfence_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/httpfence"
)

func folder(t *testing.T, dir string) *httpfence.Folder {
	t.Helper()
	m, err := httpfence.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// Two Fences over one memory are one: what the first refuses the second does not let in, and
// neither sets the disk back.
func TestFencesOfOneMemoryAreOne(t *testing.T) {
	for what, m := range map[string]httpfence.Memory{"folder": folder(t, t.TempDir()), "own": &memory{}} {
		handled := 0
		work := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ })
		accounts := (&httpfence.Fence{Name: "x", Memory: m}).Wrap(work)
		orders := (&httpfence.Fence{Name: "x", Memory: m}).Wrap(work)
		other := (&httpfence.Fence{Name: "y", Memory: m}).Wrap(work)
		for i, c := range []struct {
			h     http.Handler
			token primacy.Token
			want  int
		}{{accounts, 7, 200}, {orders, 7, 200}, {accounts, 9, 200}, {orders, 7, 412}, {orders, 8, 412}, {orders, 9, 200}, {other, 9, 400}} {
			if w := ask(t.Context(), c.h, "POST", c.token); w.Code != c.want {
				t.Errorf("%s %d: token %d: %d, want %d", what, i, c.token, w.Code, c.want)
			}
		}
		if s, err := m.Load(t.Context(), "x"); s.Token != 9 || err != nil || handled != 4 {
			t.Errorf("%s: %d is stored (%v), %d were handled", what, s.Token, err, handled)
		}
	}
}

// Handlers behind another Fence of the same memory are waited for, too.
func TestANewerLeaderWaitsForTheOtherFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		var gone atomic.Bool
		old := (&httpfence.Fence{Name: "x", Memory: m}).Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			time.Sleep(time.Second)
			gone.Store(true)
		}))
		next := (&httpfence.Fence{Name: "x", Memory: m}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if !gone.Load() {
				t.Error("the newer handler runs beside the older")
			}
		}))
		go ask(t.Context(), old, "POST", 7)
		synctest.Wait()
		if w := ask(t.Context(), next, "POST", 9); w.Code != 200 {
			t.Error(w.Code, w.Body)
		}
	})
}

func TestAClosedFolderLetsNobodyIn(t *testing.T) {
	dir := t.TempDir()
	first := folder(t, dir)
	handled := 0
	work := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ })
	old := (&httpfence.Fence{Name: "x", Memory: first}).Wrap(work)
	ask(t.Context(), old, "POST", 7)
	first.Close()
	first.Close()
	second := folder(t, dir)
	if w := ask(t.Context(), (&httpfence.Fence{Name: "x", Memory: second}).Wrap(work), "POST", 9); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	for _, token := range []primacy.Token{7, 8, 10} {
		if w := ask(t.Context(), old, "POST", token); w.Code != 503 {
			t.Errorf("token %d at the closed folder: %d %s", token, w.Code, w.Body)
		}
	}
	_, loadErr := first.Load(t.Context(), "x")
	if err := first.Store(t.Context(), stamp(8)); err == nil || loadErr == nil {
		t.Errorf("after Close: Store = %v, Load = %v, want errors", err, loadErr)
	}
	if s, err := second.Load(t.Context(), "x"); s.Token != 9 || err != nil || handled != 2 {
		t.Errorf("%d is stored (%v), %d were handled", s.Token, err, handled)
	}
}

// Who waits for the older handlers while the folder is closed is not let in when they have
// returned.
func TestAFolderThatIsClosedWhileALeaderWaits(t *testing.T) {
	m := folder(t, t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		h := (&httpfence.Fence{Name: "x", Memory: m}).Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if s, _ := httpfence.StampOf(r.Context()); s.Token == 9 {
				t.Error("a handler runs on a closed folder")
			}
			time.Sleep(time.Second)
		}))
		go ask(t.Context(), h, "POST", 7)
		synctest.Wait()
		next := make(chan int, 1)
		go func() { next <- ask(t.Context(), h, "POST", 9).Code }()
		synctest.Wait()
		m.Close()
		if code := <-next; code != 503 {
			t.Errorf("the leader that waited: %d, want 503", code)
		}
	})
}

// weak is a memory whose Store may fail when the stamp is to be seen, but not yet safe from a
// crash.
type weak struct {
	visible, durable fence.Stamp
	fail             bool
}

func (m *weak) Load(context.Context, string) (fence.Stamp, error) { return m.visible, nil }

func (m *weak) Store(_ context.Context, s fence.Stamp) error {
	if m.visible = s; m.fail {
		m.fail = false
		return errors.New("fsync of the folder: EIO")
	}
	m.durable = s
	return nil
}

func TestAStampThatIsOnlyVisibleIsStoredAgain(t *testing.T) {
	for what, fail := range map[string]bool{"failed store": true, "killed before the sync": false} {
		m := &weak{visible: stamp(9), durable: stamp(7), fail: fail}
		h := (&httpfence.Fence{Name: "x", Memory: m}).Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if s, _ := httpfence.StampOf(r.Context()); m.durable != s {
				t.Errorf("%s: a handler under %d while %d is safe", what, s.Token, m.durable.Token)
			}
		}))
		if w := ask(t.Context(), h, "POST", 8); w.Code != 412 { // the stamp has been read now, and not stored
			t.Errorf("%s: a stale token: %d", what, w.Code)
		}
		var codes []int
		for range 3 {
			codes = append(codes, ask(t.Context(), h, "POST", 9).Code)
		}
		if !slices.Equal(codes[1:], []int{200, 200}) || (codes[0] == 503) != fail {
			t.Errorf("%s: answers %v", what, codes)
		}
	}
}

// stuck is a memory that does not answer, or panics, when 9 is stored.
type stuck struct {
	memory
	panics, deaf bool
	free         chan struct{}
}

func (m *stuck) Store(ctx context.Context, s fence.Stamp) error {
	switch {
	case s.Token != 9:
		return m.memory.Store(ctx, s)
	case m.panics:
		panic("broken")
	case m.deaf:
		<-m.free
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestAMemoryThatHangsHoldsNobody(t *testing.T) {
	for what, m := range map[string]*stuck{"slow": {}, "deaf": {deaf: true}, "panics": {panics: true}} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m.free = make(chan struct{})
				defer func() { close(m.free); synctest.Wait() }()
				began, returned := time.Now(), make(chan int, 1)
				h := (&httpfence.Fence{Name: "x", Memory: m}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(2 * time.Second) }))
				go func() { returned <- ask(t.Context(), h, "POST", 7).Code }()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if w := ask(ctx, h, "POST", 9); w.Code != 503 || time.Since(began) > time.Second {
					t.Errorf("the next leader: %d after %v, want 503 when its context ends", w.Code, time.Since(began))
				}
				if code := <-returned; code != 200 || time.Since(began) != 2*time.Second {
					t.Errorf("the handler of the older: %d after %v", code, time.Since(began))
				}
				if m.deaf {
					return
				}
				if w := ask(t.Context(), h, "POST", 10); w.Code != 200 || time.Since(began) > 15*time.Second {
					t.Errorf("a later leader: %d %s after %v", w.Code, w.Body, time.Since(began))
				}
			})
		})
	}
}

// many is a memory that cannot be compared.
type many []httpfence.Memory

func (m many) Load(ctx context.Context, name string) (fence.Stamp, error) {
	return m[0].Load(ctx, name)
}
func (m many) Store(ctx context.Context, s fence.Stamp) error { return m[0].Store(ctx, s) }

func TestAMemoryThatCannotBeToldApartIsRefused(t *testing.T) {
	h := (&httpfence.Fence{Name: "x", Memory: many{&memory{}}}).Wrap(http.NotFoundHandler())
	if w := ask(t.Context(), h, "POST", 7); w.Code != 503 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
