package agent

import (
	"io"
	"log"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// The page stands behind the guard of the API, but for the bearer token, which it asks for itself.
func TestThePageIsGuarded(t *testing.T) {
	t.Parallel()
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the page") })
	s := newAgent(t, Options{Token: strings.Repeat("t", 20), Page: page})
	l, err := Secured{}.ListenTCP(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, _ := Secured{}.Serve(l, s.Agent, log.New(io.Discard, "", 0))
	defer server.Close()
	addr := l.Addr().String()
	tcp := clientOf("tcp", addr)
	ask := func(method, host string, headers ...string) int {
		r, err := http.NewRequest(method, "http://"+addr+"/ui/act", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		resp, err := tcp.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	for _, c := range []struct {
		what   string
		status int
		method string
		host   string
		header []string
	}{
		{"without a token", 200, "GET", addr, nil},
		{"by a name that was bound to our address", 421, "GET", "evil.example", nil},
		{"by a form of another site", 403, "POST", addr, []string{"Origin", "https://evil.example"}},
		{"by a script of another site", 403, "POST", addr, []string{"Sec-Fetch-Site", "cross-site"}},
		{"by an image of another site", 403, "GET", addr, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest",
			"image"}},
		{"by a link", 200, "GET", addr, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"}},
		{"by its own form", 200, "POST", addr, []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://" + addr}},
	} {
		if got := ask(c.method, c.host, c.header...); got != c.status {
			t.Errorf("%s: %d, want %d", c.what, got, c.status)
		}
	}
}

// A browser reaches a socket only through a port that somebody forwards to it, and so does a page
// whose name was bound to that port: by the page of this server and by the API alike.
func TestAForwardedSocketIsGuarded(t *testing.T) {
	t.Parallel()
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the page") })
	s := newAgent(t, Options{Page: page, Hosts: []string{"side.internal"}})
	l, err := ListenUnix(filepath.Join(t.TempDir(), "d", "s"), false)
	if err != nil {
		t.Fatal(err)
	}
	server, _ := Secured{}.Serve(l, s.Agent, log.New(io.Discard, "", 0))
	defer server.Close()
	socket := clientOf("unix", l.Addr().String())
	for _, c := range []struct {
		what   string
		status int // 200 or what refuses
		host   string
		header []string
	}{
		{"a program", 200, "localhost", nil},
		{"a program, by any word", 200, "primacy", nil},
		{"a program, by the path of the socket", 200, "%2Frun%2Fprimacy%2Fprimacy.sock", nil},
		{"a browser, through a port of its machine", 200, "localhost:8080", []string{"Sec-Fetch-Site", "none",
			"Accept-Language", "de"}},
		{"a form of the page", 200, "127.0.0.1:8080", []string{"Origin", "http://127.0.0.1:8080"}},
		{"by a name that is allowed", 200, "side.internal:8080", []string{"Origin", "http://side.internal:8080"}},
		{"a form of a name that was bound", 421, "evil.example:8080", []string{"Origin", "http://evil.example:8080"}},
		{"a link to a name that was bound", 421, "evil.example", []string{"User-Agent", "Mozilla/5.0 (X11)"}},
		{"a script that hides itself", 421, "evil.example:8080", []string{"User-Agent", "x", "Accept-Language", ""}},
		{"such a script, on port 80", 421, "evil.example", []string{"User-Agent", "x", "Accept-Language", ""}},
		{"such a script, by a name of the own network", 421, "evil:8080", nil},
		{"a form of another site", 403, "localhost:8080", []string{"Origin", "https://evil.example"}},
		{"an image of another site", 403, "localhost:8080", []string{"Sec-Fetch-Site", "cross-site",
			"Sec-Fetch-Dest", "image"}},
		{"a form of a file", 403, "localhost:8080", []string{"Origin", "null"}},
	} {
		for _, path := range []string{"/ui/act", "/v1/fence/n"} {
			r, err := http.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(`{"token":"7"}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Host = c.host
			r.Header.Set("Content-Type", "application/json")
			for i := 0; i < len(c.header); i += 2 {
				r.Header.Set(c.header[i], c.header[i+1])
			}
			resp, err := socket.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != c.status {
				t.Errorf("%s, %s: %d %s, want %d", c.what, path, resp.StatusCode, text, c.status)
			}
		}
	}
}
