package httpfence_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/httpfence"
)

func client(token primacy.Token) *http.Client {
	return &http.Client{Transport: &httpfence.Transport{Stamp: stamp(token)}}
}

func TestTheRefusalOnTheWire(t *testing.T) {
	h := (&httpfence.Fence{Name: "x", Memory: &memory{last: stamp(18446744073709551615)}}).Wrap(http.NotFoundHandler())
	w := ask(t.Context(), h, "POST", 18446744073709551614)
	if w.Code != 412 || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"type": "urn:primacy:stale-token", "status": 412.0, "name": "x",
		"token": "18446744073709551614", "largest": "18446744073709551615"} {
		if got[key] != want {
			t.Errorf("%s = %v, want %v", key, got[key], want)
		}
	}
}

func TestBadRequests(t *testing.T) {
	handled := 0
	h := (&httpfence.Fence{Name: "x", Memory: &memory{}}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled++ }))
	const n, tok, o = httpfence.NameHeader, httpfence.TokenHeader, httpfence.OriginHeader
	for what, c := range map[string]struct {
		method  string
		headers [][2]string
		want    int
	}{
		"no token":          {"POST", nil, 428},
		"raise, no token":   {"OPTIONS", [][2]string{{httpfence.FenceHeader, "raise"}}, 428},
		"no name":           {"POST", [][2]string{{tok, "7"}}, 400},
		"name only":         {"GET", [][2]string{{n, "x"}}, 400},
		"origin only":       {"GET", [][2]string{{o, "x"}}, 400},
		"two tokens":        {"POST", [][2]string{{n, "x"}, {tok, "7"}, {tok, "9"}}, 400},
		"two origins":       {"POST", [][2]string{{n, "x"}, {tok, "7"}, {o, "a"}, {o, "b"}}, 400},
		"not a number":      {"POST", [][2]string{{n, "x"}, {tok, "seven"}}, 400},
		"negative":          {"POST", [][2]string{{n, "x"}, {tok, "-7"}}, 400},
		"plus":              {"POST", [][2]string{{n, "x"}, {tok, "+7"}}, 400},
		"a list":            {"POST", [][2]string{{n, "x"}, {tok, "7, 9"}}, 400},
		"zero":              {"POST", [][2]string{{n, "x"}, {tok, "0"}}, 400},
		"too large":         {"POST", [][2]string{{n, "x"}, {tok, "18446744073709551616"}}, 400},
		"empty":             {"POST", [][2]string{{n, "x"}, {tok, ""}}, 400},
		"another election":  {"POST", [][2]string{{n, "y"}, {tok, "7"}}, 400},
		"bad escape":        {"POST", [][2]string{{n, "%zz"}, {tok, "7"}}, 400},
		"control character": {"POST", [][2]string{{n, "%0a"}, {tok, "7"}}, 400},
		"origin with space": {"POST", [][2]string{{n, "x"}, {tok, "7"}, {o, "a b"}}, 400},
	} {
		r := httptest.NewRequest(c.method, "/", nil)
		for _, kv := range c.headers {
			r.Header.Add(kv[0], kv[1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var p struct{ Detail string }
		err := json.Unmarshal(w.Body.Bytes(), &p)
		if w.Code != c.want || err != nil || p.Detail == "" || strings.Contains(p.Detail, "\n") {
			t.Errorf("%s: %d %s, want %d and one line", what, w.Code, w.Body, c.want)
		}
	}
	if handled != 0 {
		t.Errorf("%d bad requests were handled", handled)
	}
	if w := ask(t.Context(), h, "GET", 0); w.Code != 200 || handled != 1 {
		t.Errorf("a reader without a token: %d", w.Code)
	}
	if w := ask(t.Context(), h, "GET", 7); w.Code != 200 {
		t.Errorf("a leader that reads: %d", w.Code)
	}
	if w := ask(t.Context(), h, "GET", 6); w.Code != 412 {
		t.Errorf("a stale leader that reads: %d, want 412: its read raised nothing, and what it would build on it is refused", w.Code)
	}
}

type term struct{ over error }

func (term) Name() string         { return "ünïcode/ name%" }
func (term) Token() primacy.Token { return 1 << 63 }
func (t term) Check() error       { return t.over }

func TestTheClient(t *testing.T) {
	requests := 0
	f := &httpfence.Fence{Name: term{}.Name(), Memory: &memory{}}
	srv := httptest.NewServer(f.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if s, _ := httpfence.StampOf(r.Context()); s.Name != (term{}).Name() || s.Token != 1<<63 {
			t.Errorf("stamp = %+v", s)
		}
		http.Error(w, "the handler's own", http.StatusPreconditionFailed)
	})))
	defer srv.Close()
	if err := httpfence.Raise(t.Context(), httpfence.Client(term{}), srv.URL); err != nil {
		t.Fatal(err)
	}
	resp, err := httpfence.Client(term{}).Post(srv.URL, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 412 || string(text) != "the handler's own\n" || requests != 1 {
		t.Errorf("a 412 of the handler's own: %d %q after %d requests", resp.StatusCode, text, requests)
	}

	over := errors.New("the term is over")
	body := &closer{Reader: strings.NewReader("x")}
	if _, err := httpfence.Client(term{over}).Post(srv.URL, "", body); !errors.Is(err, over) || requests != 1 || !body.closed {
		t.Errorf("after the term: %v, %d requests, body closed: %v", err, requests, body.closed)
	}
	old := &http.Client{Transport: &httpfence.Transport{Stamp: fence.Stamp{Name: term{}.Name(), Token: 3}}}
	var stale *fence.StaleError
	if _, err := old.Post(srv.URL, "", nil); !errors.As(err, &stale) || stale.Token != 3 || stale.Largest != 1<<63 || requests != 1 {
		t.Errorf("a stale client: %v", err)
	}
	if err := httpfence.Raise(t.Context(), old, srv.URL); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a stale Raise: %v", err)
	}
	if _, err := (&http.Client{Transport: &httpfence.Transport{}}).Get(srv.URL); !errors.Is(err, primacy.ErrInvalid) {
		t.Errorf("without a stamp: %v", err)
	}
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

func TestRaiseSaysWhatIsWrong(t *testing.T) {
	bare := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	defer bare.Close()
	if err := httpfence.Raise(t.Context(), client(7), bare.URL); err == nil || !strings.Contains(err.Error(), "no fence answers") {
		t.Errorf("a server without a fence: %v", err)
	}
	other := httptest.NewServer((&httpfence.Fence{Name: "y", Memory: &memory{}}).Wrap(bare.Config.Handler))
	defer other.Close()
	if err := httpfence.Raise(t.Context(), client(7), other.URL); err == nil || !strings.Contains(err.Error(), `election "y"`) {
		t.Errorf("another election's fence: %v", err)
	}
	if err := httpfence.Raise(t.Context(), http.DefaultClient, other.URL); err == nil || !strings.Contains(err.Error(), httpfence.TokenHeader) {
		t.Errorf("a client without a token: %v", err)
	}
	if err := httpfence.Raise(t.Context(), client(7), "::"); err == nil {
		t.Error("a bad URL was taken")
	}
}

func TestNamesOfMemories(t *testing.T) {
	m, err := httpfence.Dir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	names := []string{".", "..", "a/b", "a%2Fb", "A", "\u00e9", strings.Repeat("/", 255), strings.Repeat("/", 254), ".lock"}
	for i, name := range names {
		if err := m.Store(t.Context(), fence.Stamp{Name: name, Token: primacy.Token(i + 1)}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for i, name := range names {
		if s, err := m.Load(t.Context(), name); err != nil || s.Token != primacy.Token(i+1) {
			t.Errorf("%q: %+v, %v, want %d", name, s, err, i+1)
		}
	}
	if _, err := httpfence.Dir("/dev/null/x"); err == nil {
		t.Error("a folder below a file was taken")
	}
}
