package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
)

// respond makes one request of an agent without a connection, as TCP is treated.
func respond(a *Agent, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "localhost"
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w
}

func TestHostsOfOtherNamesAreRefused(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Hosts: []string{"side.internal"}}).Agent
	for host, ok := range map[string]bool{
		"localhost": true, "LOCALHOST:7007": true, "localhost.": true, "127.0.0.1": true, "127.0.0.1:80": true,
		"[::1]:80": true, "[::1]": true, "10.0.0.3:7": true,
		"side.internal": true, "Side.Internal:443": true, "": true, // no browser
		"evil.example": false, "evil.example:7007": false, "localhost.evil.example": false,
		"127.0.0.1.evil.example": false, "notside.internal": false,
		"0x7f.1": false, "localhost evil": false, "a@localhost": false, "[::1": false,
	} {
		for _, path := range []string{"/leader/n", "/v1/elections/n", "/metrics", "/nothing"} {
			w := respond(a, "GET", path, "", "Host", host)
			if refused := w.Code == http.StatusMisdirectedRequest; refused == ok {
				t.Errorf("host %q, %s: %d", host, path, w.Code)
			}
		}
	}
}

func TestAPageOfAnotherSiteCanDoNothing(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	const js = "application/json"
	for _, c := range []struct {
		headers []string
		status  int
	}{
		{[]string{"Origin", "http://evil.example", "Content-Type", js}, 403},
		{[]string{"Origin", "http://evil.example", "Content-Type", "text/plain"}, 403},
		{[]string{"Origin", "null", "Content-Type", js}, 403},
		{[]string{"Origin", "http://localhost:81", "Content-Type", js}, 403}, // another port is another site
		{[]string{"Sec-Fetch-Site", "cross-site", "Content-Type", js}, 403},
		{[]string{"Sec-Fetch-Site", "same-site", "Content-Type", js}, 403},
		{[]string{"Content-Type", "text/plain"}, 415}, // what a form can send
		{[]string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		{[]string{"Content-Type", "multipart/form-data; boundary=x"}, 415},
		{[]string{}, 415},
		{[]string{"Sec-Fetch-Site", "same-origin", "Origin", "http://localhost", "Content-Type", js}, 200},
		{[]string{"Content-Type", js + "; charset=utf-8"}, 409},
	} {
		if w := respond(s.Agent, "POST", "/v1/locks/n", `{}`, c.headers...); w.Code != c.status {
			t.Errorf("%q: %d %s, want %d", c.headers, w.Code, w.Body, c.status)
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH"} {
		if w := respond(s.Agent, method, "/v1/locks/n", "", "Origin", "http://evil.example"); w.Code != 403 {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
	if w := respond(s.Agent, "OPTIONS", "/v1/locks/n", "", "Origin", "http://evil.example",
		"Access-Control-Request-Method", "DELETE"); w.Header().Get("Access-Control-Allow-Origin") != "" ||
		w.Code == 200 {
		t.Errorf("a preflight is answered with %d %v", w.Code, w.Header())
	}
	if w := respond(s.Agent, "GET", "/v1/elections", "", "Origin",
		"http://evil.example"); w.Header().Get("Access-Control-Allow-Origin") != "" ||
		w.Header().Get("Cross-Origin-Resource-Policy") != "same-origin" {
		t.Errorf("a page of another site can read: %v", w.Header())
	}
}

// It can open no streams either: each is one less for the clients.
func TestAPageOfAnotherSiteReadsNothing(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, path := range []string{"/v1/elections/n/events", "/v1/elections", "/leader/n"} {
		// fetch or EventSource; a frame
		for site, dest := range map[string]string{"cross-site": "empty", "same-site": "iframe"} {
			r := httptest.NewRequest("GET", path, nil).WithContext(gone)
			r.Host, r.Header = "localhost", http.Header{"Sec-Fetch-Site": {site}, "Sec-Fetch-Dest": {dest}}
			w := httptest.NewRecorder()
			if s.Agent.ServeHTTP(w, r); w.Code != 403 {
				t.Errorf("%s of %s: %d", path, site, w.Code)
			}
		}
	}
	for _, link := range [][]string{{"cross-site", "document"}, {"none", "document"}, {"same-origin", "empty"}} {
		if w := respond(s.Agent, "GET", "/v1/elections", "", "Sec-Fetch-Site", link[0], "Sec-Fetch-Dest",
			link[1]); w.Code != 200 {
			t.Errorf("%v: %d", link, w.Code)
		}
	}
}

func TestTheBearerToken(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Token: "0123456789abcdef"})
	for given, ok := range map[string]bool{"": false, "Bearer 0123456789abcdef": true,
		"Bearer 0123456789abcdeF": false, "Bearer ": false, "0123456789abcdef": false,
		"Basic 0123456789abcdef": false, "Bearer 0123456789abcdef0": false, "Bearer 0123456789abcdef ": false} {
		for _, path := range []string{"/v1/elections", "/leader/n", "/readyz", "/nothing"} {
			w := respond(s.Agent, "GET", path, "", "Authorization", given)
			if (w.Code == 401) == ok || w.Code == 401 && w.Header().Get("WWW-Authenticate") == "" {
				t.Errorf("%q, %s: %d", given, path, w.Code)
			}
		}
	}
	s.want(200, "", s.ask("GET", "/v1/elections", "")) // the socket is for whom the kernel vouches
}

func TestAnotherUserMayNotUseTheSocket(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{UIDs: []int{4711}}).Agent
	for uid, ok := range map[int]bool{os.Getuid(): true, 0: true, 4711: true, 4712: false, -1: false} {
		r := httptest.NewRequest("GET", "http://localhost/livez", nil)
		r = r.WithContext(context.WithValue(r.Context(), connKey{}, &conn{unix: true, local: true, uid: uid}))
		w := httptest.NewRecorder()
		if a.ServeHTTP(w, r); (w.Code == 200) != ok || !ok &&
			!strings.Contains(w.Body.String(), "urn:primacy:peer-refused") {
			t.Errorf("user %d: %d %s", uid, w.Code, w.Body)
		}
	}
	// The kernel's word is the one that is asked.
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go net.Dial("unix", l.Addr().String())
	c, err := listener{l, &door{}, false}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.(*conn).uid; got != os.Getuid() {
		t.Errorf("the peer is user %d, want %d", got, os.Getuid())
	}
}

func TestOnlyLoopbackWithoutTLSAndToken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s    Secured
		addr string
		ok   bool
	}{
		{Secured{}, "127.0.0.1:0", true}, {Secured{}, "localhost:0", true}, {Secured{}, "0.0.0.0:0", false},
		{Secured{}, ":0", false}, {Secured{}, "[::]:0", false},
		{Secured{Token: true}, "0.0.0.0:0", false}, {Secured{TLS: &tls.Config{}}, "0.0.0.0:0", false},
		{Secured{TLS: &tls.Config{}, Token: true}, "0.0.0.0:0", true},
		{Secured{}, "7007", false}, {Secured{}, "10.1.2.3:0", false}, {Secured{}, "no.such.host.invalid:0", false},
	} {
		l, err := c.s.ListenTCP(t.Context(), c.addr)
		if (err == nil) != c.ok {
			t.Errorf("%+v %s: %v", c.s, c.addr, err)
		}
		if err == nil {
			l.Close()
		}
	}
	all, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	if (Secured{}).Check(all) == nil {
		t.Error("a socket that is passed in is not looked at")
	}
}

func TestTheSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "d", "s")
	one, err := ListenUnix(path, false)
	if err != nil {
		t.Fatal(err)
	}
	mode := func(p string) os.FileMode {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if mode(path) != 0o600 || mode(filepath.Dir(path)) != 0o700 {
		t.Errorf("modes %o and %o", mode(path), mode(filepath.Dir(path)))
	}
	if _, err := ListenUnix(path, false); err == nil || !strings.Contains(err.Error(), "another 'primacy serve' runs") {
		t.Errorf("beside a living one, that accepts nothing: %v", err)
	}
	if one.Close(); fileThere(path) {
		t.Error("the socket is left")
	}
	// What a killed one leaves behind.
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	two, err := ListenUnix(path, false)
	if err != nil {
		t.Fatal(err)
	}
	two.Close()
	// Another program's.
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path, false); err == nil || !strings.Contains(err.Error(), "another program listens") {
		t.Errorf("on another program's socket: %v", err)
	}
	other.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path, false); err == nil || !fileThere(path) {
		t.Errorf("on a file: %v", err)
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(filepath.Join(open, "s"), false); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("in a folder that others see: %v", err)
	}
	three, err := ListenUnix(filepath.Join(t.TempDir(), "d", "s"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer three.Close()
	if p := three.Addr().String(); mode(p) != 0o666 || mode(filepath.Dir(p)) != 0o711 {
		t.Errorf("for others: modes %o and %o", mode(p), mode(filepath.Dir(p)))
	}
}

func fileThere(path string) bool { _, err := os.Lstat(path); return err == nil }

func TestLimitsOfARequest(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Clients: 2, Streams: 1})
	s.want(413, "too-large", s.ask("POST", "/v1/locks/n", `{"id":"`+strings.Repeat("x", maxBody)+`"}`))
	c, err := net.Dial("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go c.Write(append([]byte("GET /livez HTTP/1.1\r\nHost: x\r\nX: "), bytes.Repeat([]byte("x"), 64<<10)...))
	b := make([]byte, 100)
	n, err := c.Read(b)
	if err != nil || !strings.Contains(string(b[:n]), " 431 ") {
		t.Errorf("64 kB of headers: %q %v", b[:n], err)
	}
	s.campaign("a", "").until("elected")
	s.campaign("b", "").until("elected")
	s.want(503, "too-many", s.ask("POST", "/v1/locks/n", ""))
	s.want(503, "too-many", s.ask("POST", "/v1/elections/c/campaign", ""))
	s.post("/v1/elections/a/campaign", `{"wait_ms":1}`)
	read := s.get("/v1/elections/a/events") // streams have a limit of their own
	s.want(503, "too-many", s.ask("GET", "/v1/elections/c/events", ""))
	read.conn.Close()
	eventually(t, "a reader that has gone makes room", func() bool {
		next := s.get("/v1/elections/c/events")
		defer next.conn.Close()
		return next.status == 200
	})
	s.want(200, "", s.ask("GET", "/leader/a", ""))
}

// What ended a connection says whether its client has stopped.
func TestClosedByWhom(t *testing.T) {
	for _, err := range []error{io.EOF, syscall.ECONNRESET, syscall.EPIPE} {
		for _, near := range []bool{true, false} {
			c := &conn{local: near}
			c.ended.Store(&err)
			if c.closed() != near {
				t.Errorf("%v, local %v: closed %v", err, near, c.closed())
			}
		}
	}
	if (&conn{}).closed() {
		t.Error("a connection of which nothing is known counts as closed")
	}
}

func TestTheElectorOfOld(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Name: "n", Elector: true})
	ask := func() string {
		w := httptest.NewRecorder()
		s.Health().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		return w.Body.String()
	}
	if got := ask(); got != `{"name":""}`+"\n" {
		t.Errorf("got %s", got)
	}
	s.campaign("n", `{"id":"one"}`).until("elected")
	if got := ask(); got != `{"name":"one"}`+"\n" {
		t.Errorf("got %s", got)
	}
	w := httptest.NewRecorder()
	newAgent(t, Options{Name: "n"}).Health().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 404 {
		t.Errorf("without the option: %d", w.Code)
	}
}

// hasty serves an agent's API to clients that have to be quick.
func hasty(t *testing.T, s *site, within time.Duration) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, _ := Secured{within: within}.Serve(l, s.Agent, nil)
	t.Cleanup(func() { _ = srv.Close() })
	return l.Addr().String()
}

// A body that is announced and never comes keeps no connection: who has no token could take them
// all otherwise.
func TestABodyThatNeverComesEndsTheConnection(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Token: "0123456789abcdef"})
	addr := hasty(t, s, 300*time.Millisecond)
	for _, head := range []string{
		"POST /v1/elections/n/campaign HTTP/1.1\r\nHost: localhost\r\n",
		"GET /livez HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer 0123456789abcdef\r\n",
		"POST /v1/elections/n/resign HTTP/1.1\r\nHost: localhost\r\n" +
			"Authorization: Bearer 0123456789abcdef\r\nContent-Type: application/json\r\n",
	} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, head+"Content-Length: 100\r\n\r\n{")
		_ = c.SetReadDeadline(time.Now().Add(soon))
		if _, err := io.ReadAll(c); err != nil {
			t.Errorf("%q: the connection stands: %v", head, err)
		}
	}
}

// A client that asks and does not read the answer keeps no connection.
func TestAnAnswerThatIsNotReadEndsTheConnection(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	for i := range 40 {
		term, err := s.own.Election(fmt.Sprint("big", i)).Campaign(t.Context(),
			&primacy.CampaignOptions{Value: []byte(strings.Repeat("x", 4096))})
		if err != nil {
			t.Fatal(err)
		}
		defer resignNow(term)
	}
	addr := hasty(t, s, 300*time.Millisecond)
	ended := make(chan struct{})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() { // until the server does not take any more, since it has ended the connection
		defer close(ended)
		for {
			if _, err := io.WriteString(c, "GET /v1/elections HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(soon):
		t.Error("the connection stands")
	}
}

// What waits for longer than an answer may take is answered, and a stream goes on.
func TestAnAnswerThatHadToWaitIsWritten(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	const within = time.Second
	base := "http://" + hasty(t, s, within)
	first := into[lockJSON](t, s.want(200, "", s.ask("POST", "/v1/locks/n", "")))
	time.AfterFunc(3*within, func() { s.ask("DELETE", "/v1/locks/n", "", "Primacy-Token", first.Token.String()) })
	r, err := http.Post(base+"/v1/locks/n", "application/json", strings.NewReader(`{"wait_ms":60000}`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r.Body)
	r.Body.Close()
	if got := into[lockJSON](t, s.want(200, "", reply{r, string(b)})); err != nil || got.Token <= first.Token {
		t.Errorf("got %+v, %v", got, err)
	}
	r, err = http.Post(base+"/v1/elections/m/campaign", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	began, text := time.Now(), ""
	for b := make([]byte, 1024); strings.Count(text, `"renewed"`) < 2; {
		n, err := r.Body.Read(b)
		if text += string(b[:n]); err != nil {
			t.Fatalf("after %v: %v, %s", time.Since(began), err, text)
		}
	}
	if time.Since(began) < within {
		t.Errorf("two renewals within %v", within)
	}
}

// A browser reaches a socket only through a port that somebody forwards to it. What a page of
// another site must not do there it must not do here, though the socket says who forwards it.
func TestAPageBehindAForwardedSocketIsOneOfAPort(t *testing.T) {
	t.Parallel()
	g := Guard{}
	for _, c := range []struct {
		host    string
		headers []string
		ok      bool
	}{
		{"localhost", nil, true},
		{"any", nil, true}, // programs give a socket any name
		{"localhost:8080", []string{"User-Agent", "Mozilla/5.0", "Accept-Language", "de"}, true},
		{"localhost:8080", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://localhost:8080"}, true},
		{"evil.example:8080", []string{"User-Agent", "Mozilla/5.0"}, false},
		{"evil.example:8080", []string{"Accept-Language", "de"}, false},
		{"evil.example:8080", []string{"Origin", "http://evil.example:8080"}, false},
		{"localhost:8080", []string{"Origin", "http://evil.example"}, false},
		{"localhost:8080", []string{"Sec-Fetch-Site", "cross-site"}, false},
	} {
		r := httptest.NewRequest(http.MethodPost, "/ui/act", nil)
		r.Host = c.host
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Set(c.headers[i], c.headers[i+1])
		}
		r = r.WithContext(context.WithValue(r.Context(), connKey{}, &conn{unix: true, local: true, uid: os.Getuid()}))
		if ok := g.Reaches(httptest.NewRecorder(), r); ok != c.ok {
			t.Errorf("%s %q: let in: %v", c.host, c.headers, ok)
		}
	}
}
