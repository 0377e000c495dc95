package httpfence_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/httpfence"
)

func TestTheTokenIsStoredBeforeTheHandlerRuns(t *testing.T) {
	m := &memory{}
	h := (&httpfence.Fence{Name: "x", Memory: m}).Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s, ok := httpfence.StampOf(r.Context())
		if got := m.stored(); !ok || got != s.Token {
			t.Errorf("a handler runs under %+v (%v) while %d is stored", s, ok, got)
		}
	}))
	for _, token := range []primacy.Token{3, 3, 7} {
		if w := ask(t.Context(), h, "POST", token); w.Code != 200 {
			t.Errorf("token %d: %d %s", token, w.Code, w.Body)
		}
	}
	if w := ask(t.Context(), h, "POST", 6); w.Code != 412 {
		t.Errorf("a smaller token: %d", w.Code)
	}
}

func TestAServerThatComesBackRemembers(t *testing.T) {
	dir := t.TempDir()
	handled := 0
	for life, c := range []struct {
		token primacy.Token
		want  int
	}{{9, 200}, {8, 412}, {9, 200}, {10, 200}, {9, 412}} {
		m, err := httpfence.Dir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := httpfence.Dir(dir); err == nil {
			t.Fatal("two servers share one memory")
		}
		h := (&httpfence.Fence{Name: "x", Memory: m}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ }))
		if w := ask(t.Context(), h, "POST", c.token); w.Code != c.want {
			t.Errorf("life %d, token %d: %d %s, want %d", life, c.token, w.Code, w.Body, c.want)
		}
		m.Close()
	}
	if handled != 3 {
		t.Errorf("%d requests were handled, want 3", handled)
	}
}

func TestAMemoryThatFailsLetsNobodyIn(t *testing.T) {
	m := &memory{}
	m.failing(errors.New("disk full"))
	handled := 0
	h := (&httpfence.Fence{Name: "x", Memory: m}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ }))
	none := (&httpfence.Fence{Name: "x"}).Wrap(h)
	if w := ask(t.Context(), h, "POST", 3); w.Code != 503 || handled != 0 {
		t.Errorf("memory that cannot be read: %d, handled %d", w.Code, handled)
	}
	if w := ask(t.Context(), none, "POST", 3); w.Code != 503 || handled != 0 {
		t.Errorf("no memory: %d, handled %d", w.Code, handled)
	}
	m.failing(nil)
	ask(t.Context(), h, "POST", 3)
	m.failing(errors.New("disk full"))
	if w := ask(t.Context(), h, "POST", 4); w.Code != 503 || handled != 1 {
		t.Errorf("memory that cannot be written: %d, handled %d", w.Code, handled)
	}
	m.failing(nil)
	if w := ask(t.Context(), h, "POST", 4); w.Code != 200 || handled != 2 {
		t.Errorf("afterwards: %d, handled %d", w.Code, handled)
	}
}

// A handler under a smaller token is told to stop, and the newer one waits until it has.
func TestANewerLeaderWaitsForHandlersOfTheOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var olderGone atomic.Bool
		var cause error
		h := (&httpfence.Fence{Name: "x", Memory: &memory{}}).Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if s, _ := httpfence.StampOf(r.Context()); s.Token == 9 {
				if !olderGone.Load() {
					t.Error("the newer handler runs beside the older")
				}
				return
			}
			<-r.Context().Done()
			cause = context.Cause(r.Context())
			time.Sleep(3 * time.Second) // its last effects
			olderGone.Store(true)
		}))
		var wg sync.WaitGroup
		wg.Go(func() { ask(t.Context(), h, "POST", 7) })
		synctest.Wait()
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wg.Go(func() {
			if w := ask(hasty, h, "POST", 9); w.Code != 503 {
				t.Errorf("the request that gave up: %d %s", w.Code, w.Body)
			}
		})
		synctest.Wait()
		if w := ask(t.Context(), h, "POST", 7); w.Code != 412 {
			t.Errorf("the older token, while the newer waits: %d, want 412", w.Code)
		}
		if w := ask(t.Context(), h, "POST", 9); w.Code != 200 {
			t.Errorf("the newer token: %d %s", w.Code, w.Body)
		}
		wg.Wait()
		var stale *fence.StaleError
		if !errors.As(cause, &stale) || stale.Token != 7 || stale.Largest != 9 {
			t.Errorf("the older handler's cause = %v, want a StaleError", cause)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestHandlersUnderOneTokenRunSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := (&httpfence.Fence{Name: "x", Memory: &memory{}}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(time.Second) }))
		began := time.Now()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { ask(t.Context(), h, "POST", 5) })
		}
		wg.Wait()
		if took := time.Since(began); took != time.Second {
			t.Errorf("20 requests took %v", took)
		}
	})
}

// Many goroutines, tokens of all sizes, handlers with two steps: no step under a smaller token
// follows one under a larger.
func TestManyRequests(t *testing.T) {
	var turn, largest, handled, refused atomic.Int64
	step := func(token int64) {
		if before := largest.Load(); before > token {
			t.Errorf("an effect under %d after one under %d", token, before)
		}
		largest.Store(token)
	}
	h := (&httpfence.Fence{Name: "x", Memory: &memory{}}).Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s, _ := httpfence.StampOf(r.Context())
		step(int64(s.Token))
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		step(int64(s.Token))
		handled.Add(1)
		if rand.IntN(10) == 0 {
			panic(http.ErrAbortHandler)
		}
	}))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 100 {
				func() {
					defer func() { _ = recover() }()
					if ask(t.Context(), h, "POST", primacy.Token(1+turn.Add(1)/32+rand.Int64N(4))).Code == 412 {
						refused.Add(1)
					}
				}()
			}
		})
	}
	wg.Wait()
	if handled.Load() < 100 || refused.Load() < 100 {
		t.Errorf("%d handled, %d refused: the test shows nothing", handled.Load(), refused.Load())
	}
}

// A client that is stopped in the middle of its body holds its handler in a read; the next leader
// gets in all the same.
func TestAStoppedClientDoesNotKeepTheNextLeaderOut(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) { stoppedClient(t, proto) })
	}
}

func stoppedClient(t *testing.T, proto string) {
	reading := make(chan struct{}, 1)
	ended := make(chan error, 2)
	f := &httpfence.Fence{Name: "x", Memory: &memory{}}
	srv := httptest.NewUnstartedServer(f.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Proto != proto {
			t.Errorf("the request is %s", r.Proto)
		}
		reading <- struct{}{}
		_, err := io.ReadAll(r.Body)
		ended <- err
	})))
	srv.EnableHTTP2 = proto == "HTTP/2.0"
	srv.StartTLS()
	defer srv.Close()
	client := func(token primacy.Token) *http.Client {
		return &http.Client{Transport: &httpfence.Transport{Stamp: stamp(token), Base: srv.Client().Transport}}
	}
	body, hold := io.Pipe()
	defer hold.Close()
	go func() {
		resp, err := client(7).Post(srv.URL, "text/plain", body)
		if err == nil {
			resp.Body.Close()
		}
	}()
	if _, err := hold.Write([]byte("half of it")); err != nil {
		t.Fatal(err)
	}
	receive(t, "request", reading)
	if err := httpfence.Raise(t.Context(), client(9), srv.URL); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "end of the older handler", ended); err == nil {
		t.Error("the older handler read a whole body")
	}
}

func TestAdopt(t *testing.T) {
	f := &httpfence.Fence{Name: "x", Memory: &memory{last: fence.Stamp{Name: "x", Token: 100, Origin: "etcd/a"}}}
	srv := httptest.NewServer(f.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer srv.Close()
	restored := fence.Stamp{Name: "x", Token: 50, Origin: "etcd/b"}
	write := func(s fence.Stamp) error {
		resp, err := (&http.Client{Transport: &httpfence.Transport{Stamp: s}}).Post(srv.URL, "", nil)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	var other *fence.OriginError
	if err := write(restored); !errors.As(err, &other) || other.Known != "etcd/a" || other.Origin != "etcd/b" || other.Largest != 100 || other.Token != 50 {
		t.Errorf("a token of another store: %v", err)
	}
	if err := f.Adopt(t.Context(), fence.Stamp{Name: "y", Token: 1}); !errors.Is(err, primacy.ErrInvalid) {
		t.Errorf("Adopt of another election = %v", err)
	}
	if err := f.Adopt(t.Context(), restored); err != nil {
		t.Fatal(err)
	}
	if err := write(restored); err != nil {
		t.Errorf("after Adopt: %v", err)
	}
	if err := write(fence.Stamp{Name: "x", Token: 101, Origin: "etcd/a"}); !errors.Is(err, fence.ErrOrigin) {
		t.Errorf("a larger token of the old store: %v", err)
	}
}
