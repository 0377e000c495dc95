package agent

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/memstore"
)

// fuzzed is an agent whose store can be looked into.
type fuzzed struct {
	*Agent
	st *memstore.Store
}

func newFuzzed(t testing.TB) fuzzed {
	st := memstore.New(memstore.Options{})
	a, err := New(st, Options{Session: primacy.Options{ID: "side"}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // nobody was told of anything that a client would rely on
		a.cancel()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		a.Close(ctx)
	})
	return fuzzed{a, st}
}

// names returns the lines in which somebody stands.
func (f fuzzed) names(t testing.TB) (names []string) {
	lines, err := f.st.Lines(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		names = append(names, l.Name)
	}
	return names
}

// try makes a request whose URL or headers may be anything, and checks that the answer is one.
func (f fuzzed) try(t testing.TB, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := &http.Request{Method: method, URL: &url.URL{}, Host: "localhost", Header: http.Header{}, Body: http.NoBody,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		t.Skip("the server itself refuses it")
	}
	r.URL = u
	if body != "" {
		r = httptest.NewRequest(method, "http://localhost/", strings.NewReader(body))
		r.Host, r.URL = "localhost", u
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	stays := 10 * time.Second
	if strings.HasPrefix(path, "/v1/elections/") && (strings.HasSuffix(path, "/campaign") ||
		strings.HasSuffix(path, "/events")) || strings.Contains(body, "bound") || strings.Contains(body, "wait_ms") {
		stays = 20 * time.Millisecond // the answer is a stream, or a wait
	}
	ctx, cancel := context.WithTimeout(hungUp(), stays)
	defer cancel()
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r.WithContext(ctx))
	checkAnswer(t, method+" "+path, w)
	return w
}

// hungUp returns the context of a connection over TCP whose client closes it.
func hungUp() context.Context {
	c, eof := &conn{uid: -1}, io.EOF
	c.ended.Store(&eof)
	return context.WithValue(context.Background(), connKey{}, c)
}

// checkAnswer holds an answer to what every answer is: no failure of our own, and an error is a
// problem of a kind that is listed.
func checkAnswer(t testing.TB, what string, w *httptest.ResponseRecorder) {
	t.Helper()
	if w.Code < 400 || w.Header().Get("Content-Type") != "application/problem+json" {
		return
	}
	var p health.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Status != w.Code ||
		strings.ContainsAny(p.Detail, "\r\n\x00") {
		t.Fatalf("%s: %d %q: %v", what, w.Code, w.Body, err)
	}
	for _, k := range Problems {
		if health.URN+k.Slug == p.Type && k.Status == w.Code && k.Title == p.Title {
			if k == internal {
				t.Fatalf("%s: %s", what, w.Body)
			}
			return
		}
	}
	t.Fatalf("%s: no such problem: %s", what, w.Body)
}

var oddNames = []string{"n", "a/b", "a//b", "..", "../x", ".", "a%2Fb", "%", "%zz", "ü", "日本", "a\x00b", "a\nb",
	"\xff", " ", "a b", "a?b", "a#b", "a;b", "events", "campaign", "a/campaign",
	strings.Repeat("x", 255), strings.Repeat("x", 256), "@session", "~1", "\u202e", "", "a/", "/a", "{name}", "\\",
	"\"", "'", "-", "+", "a+b", "%2e%2e", "\u0085"}

// FuzzName: what is escaped as one segment is the very name that is locked, or nothing is.
func FuzzName(f *testing.F) {
	for _, name := range oddNames {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		a := newFuzzed(t)
		escaped := url.PathEscape(name)
		w := a.try(t, "POST", "/v1/locks/"+escaped, "")
		names := a.names(t)
		valid := primacy.CheckName(name) == nil
		switch {
		case valid && (w.Code != 200 || len(names) != 1 || names[0] != name):
			t.Fatalf("%q: %d %s; locked: %q", name, w.Code, w.Body, names)
		case !valid && (w.Code != 400 && w.Code != 404 && w.Code != 405 || len(names) != 0):
			t.Fatalf("%q: %d %s; locked: %q", name, w.Code, w.Body, names)
		case !valid:
			return
		}
		var l lockJSON
		if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil || l.Name != name {
			t.Fatalf("%q: %s", name, w.Body)
		}
		if w := a.try(t, "GET", "/leader/"+escaped, ""); w.Code != 503 {
			t.Fatalf("%q: a lock leads: %d", name, w.Code)
		}
		if w := a.try(t, "DELETE", "/v1/locks/"+escaped, "", "Primacy-Token", l.Token.String()); w.Code != 200 ||
			len(a.names(t)) != 0 {
			t.Fatalf("%q: %d %s; left: %q", name, w.Code, w.Body, a.names(t))
		}
	})
}

// FuzzPath: whatever the path is, nothing stands in a line of a name that does not follow from it
// by the one rule there is.
func FuzzPath(f *testing.F) {
	for _, name := range oddNames {
		f.Add("POST", "/v1/locks/"+name)
		f.Add("POST", "/v1/elections/"+name+"/transfer")
		f.Add("GET", "/leader/"+name)
		f.Add("DELETE", "/v1/locks/"+name)
	}
	f.Add("GET", "/v1/locks/../elections")
	f.Add("POST", "/v1//locks/x")
	f.Add("POST", "/v1/locks/a/../b")
	f.Add("TRACE", "/leader/x?election=y&token=1")
	f.Add("GET", "/leader?election=%ff")
	f.Add("GET", "/v1/elections?prefix=%00")
	f.Add("GET", "/v1/cron/%2e%2e?limit=-1")
	f.Fuzz(func(t *testing.T, method, path string) {
		a := newFuzzed(t)
		a.try(t, method, path, "")
		for _, name := range a.names(t) {
			if seg := url.PathEscape(name); !strings.EqualFold(path, "/v1/locks/"+name) && !sameSegment(path, name) {
				t.Fatalf("%s %q locked %q (%s)", method, path, name, seg)
			}
		}
	})
}

// sameSegment says whether the path has one segment behind /v1/locks/, and that is the name.
func sameSegment(path, name string) bool {
	path, _, _ = strings.Cut(path, "?")
	path, _, _ = strings.Cut(path, "#")
	seg, ok := strings.CutPrefix(path, "/v1/locks/")
	got, err := url.PathUnescape(seg)
	return ok && err == nil && got == name && !strings.Contains(seg, "/")
}

// FuzzBody: whatever a body is, there is an answer, and what it says it did is what it did.
func FuzzBody(f *testing.F) {
	for _, body := range []string{`{}`, `null`, `[]`, `{"id":"x"}`,
		`{"id":"x","ttl_ms":2000,"wait_ms":1,"slots":2,"lease_ms":500}`, `{"shared":true}`, `{"token":"5"}`,
		`{"token":5}`,
		`{"to":"x","reason":"y"}`, `{"value":"v"}`, `{"value":null}`, `{"wait_ms":1e3}`,
		`{"wait_ms":9223372036854775807}`, `{"ttl_ms":-9223372036854775808}`, `{"id":"\u0000"}`,
		`{"id":"\ud800"}`,
		`{"meta":{"a":[1,2,{"b":null}]}}`, `{"meta":"x"}`, `{"slots":1,"slots":2}`, `{"ID":"x"}`, "\xff", "{",
		`{"id":"` + strings.Repeat("é", 300) + `"}`, `{} {}`, "\xef\xbb\xbf{}", `{"priority":9}`,
		strings.Repeat("[", 20000), `{"bound":true,"wait_ms":20}`, `{"renew_ms":500,"wait_ms":1}`} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if body == "" {
			return
		}
		a := newFuzzed(t)
		for _, path := range []string{"/v1/locks/n", "/v1/fence/n", "/v1/elections/n/transfer",
			"/v1/elections/n/resign", "/v1/elections/n/proclaim", "/v1/elections/n/renew",
			"/v1/elections/n/campaign"} {
			w := a.try(t, "POST", path, body, "Primacy-Token", "7")
			if w.Code == 200 && w.Body.Len() == 0 {
				t.Fatalf("%s: no answer", path)
			}
		}
		for _, name := range a.names(t) {
			if name != "n" {
				t.Fatalf("%q stands for %q", body, name)
			}
		}
	})
}

// FuzzHeaders: no header is a way around the guard, and none makes a failure of our own.
func FuzzHeaders(f *testing.F) {
	for _, v := range []string{"", "x", "1", "-1", "18446744073709551616", "null", "http://evil.example",
		"http://localhost", "same-origin", "cross-site", "Bearer x", "text/event-stream", "\xff", "*", `"a", W/"b"`,
		"application/json; charset=\xff", "application/json;;", "gzip", "bytes=0-1", "0"} {
		f.Add("localhost", v, v, v)
		f.Add(v, "", "1", "")
	}
	f.Fuzz(func(t *testing.T, host, origin, token, other string) {
		a := newFuzzed(t)
		for _, c := range [][2]string{{"GET", "/leader/n"}, {"GET", "/v1/elections"}, {"POST", "/v1/locks/n"},
			{"DELETE", "/v1/locks/n"}, {"GET", "/v1/elections/n/events"}} {
			r := httptest.NewRequest(c[0], c[1], nil)
			ctx, cancel := context.WithTimeout(hungUp(), 5*time.Millisecond)
			r = r.WithContext(ctx)
			r.Host = host
			r.Header = http.Header{"Origin": {origin}, "Primacy-Token": {token}, "Last-Event-Id": {other},
				"If-None-Match": {other}, "Accept": {other}, "Content-Type": {other}, "Sec-Fetch-Site": {other}}
			w := httptest.NewRecorder()
			a.ServeHTTP(w, r)
			cancel()
			checkAnswer(t, c[0]+" "+c[1], w)
			if c[0] == "POST" && w.Code == 200 && origin != "" && origin != "http://"+host &&
				origin != "https://"+host && other != "same-origin" && other != "none" {
				t.Fatalf("a page of %q did it on %q with Sec-Fetch-Site %q", origin, host, other)
			}
			if !a.guard.answersTo(host) && w.Code != http.StatusMisdirectedRequest {
				t.Fatalf("host %q: %d", host, w.Code)
			}
		}
	})
}
