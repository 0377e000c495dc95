package httpfence_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/httpfence"
)

func stamp(token primacy.Token) fence.Stamp { return fence.Stamp{Name: "x", Token: token} }

// memory is a Memory that shows what was asked of it, and fails on demand.
type memory struct {
	mu   sync.Mutex
	last fence.Stamp
	fail error
}

func (m *memory) Load(context.Context, string) (fence.Stamp, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, m.fail
}

func (m *memory) Store(_ context.Context, s fence.Stamp) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail == nil {
		m.last = s
	}
	return m.fail
}

func (m *memory) failing(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

func (m *memory) stored() primacy.Token {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last.Token
}

// ask serves one request under a token, 0 for none, and returns the answer.
func ask(ctx context.Context, h http.Handler, method string, token primacy.Token) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, "/", nil)
	if token != 0 {
		r.Header.Set(httpfence.NameHeader, "x")
		r.Header.Set(httpfence.TokenHeader, token.String())
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("no %s after 20 s", what)
		panic("unreachable")
	}
}
