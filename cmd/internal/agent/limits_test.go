package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// port serves the site on a port of loopback too.
func (s *site) port(secured Secured) string {
	s.Helper()
	l, err := secured.ListenTCP(context.Background(), "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	server, _ := secured.Serve(l, s.checked, log.New(io.Discard, "", 0))
	s.Cleanup(func() { server.Close() })
	return l.Addr().String()
}

// What is open on a port takes no room from those who come by the socket, and streams take none
// from campaigns.
func TestTheOwnerComesInBesideAFullPort(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Streams: 20, Clients: 3})
	addr := s.port(Secured{})
	tcp := clientOf("tcp", addr)
	ask := func(method, path string) reply {
		r, err := http.NewRequest(method, "http://localhost"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tcp.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode == 200 {
			return reply{resp, ""}
		}
		text, _ := io.ReadAll(resp.Body)
		return reply{resp, string(text)}
	}
	for range 20 {
		o := s.request("GET /v1/elections/n/events HTTP/1.1\r\nHost: localhost\r\n\r\n", "tcp", addr)
		if <-o.answered; o.status != 200 {
			t.Fatalf("a stream within the limit: %d", o.status)
		}
	}
	full := s.want(503, "too-many", ask("GET", "/v1/elections/n/events"))
	for _, what := range []string{"20 event streams", addr, "--max-streams"} {
		if !strings.Contains(full.text, what) {
			t.Errorf("the problem does not tell of %q: %s", what, full.text)
		}
	}
	for i := range 3 {
		o := s.request(fmt.Sprintf("POST /v1/elections/n%d/campaign HTTP/1.1\r\nHost: localhost\r\n\r\n", i),
			"tcp", addr)
		o.until("elected")
	}
	full = s.want(503, "too-many", ask("POST", "/v1/elections/n/campaign"))
	for _, what := range []string{"3 campaigns and locks", addr, "--max-clients"} {
		if !strings.Contains(full.text, what) {
			t.Errorf("the problem does not tell of %q: %s", what, full.text)
		}
	}
	s.campaign("n", `{"id":"owner"}`).until("elected")
	if o := s.get("/v1/elections/n/events"); o.status != 200 {
		t.Errorf("a stream on the socket: %d", o.status)
	}
	s.want(200, "", ask("GET", "/leader/n"))
}

// Connections have a limit too: idle ones would use up the descriptors of the process.
func TestConnectionsOverTheLimit(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	addr := s.port(Secured{Conns: 3})
	dial := func() net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	status := func(c net.Conn) (int, string) {
		fmt.Fprint(c, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(soon))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		if resp.StatusCode == 503 && !resp.Close {
			t.Error("a refused connection stays")
		}
		return resp.StatusCode, string(text)
	}
	var within []net.Conn
	for i := range 3 {
		c := dial()
		if code, text := status(c); code != 200 {
			t.Fatalf("connection %d of 3: %d %s", i, code, text)
		}
		within = append(within, c)
	}
	if code, text := status(dial()); code != 503 || !strings.Contains(text, "urn:primacy:too-many") ||
		!strings.Contains(text, "3 connections are open on "+addr) || !strings.Contains(text, "--max-streams") {
		t.Errorf("one too many: %d %s", code, text)
	}
	s.want(200, "", s.ask("GET", "/livez", ""))
	within[0].Close()
	eventually(t, "one that left makes room", func() bool {
		c := dial()
		defer c.Close()
		code, _ := status(c)
		return code == 200
	})
}

// Of those far over the limit nothing is kept.
func TestConnectionsFarOverTheLimitAreClosed(t *testing.T) {
	t.Parallel()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	l := Limit(plain, refusedConns+3)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", plain.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var accepted []net.Conn
	accept := func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		accepted = append(accepted, c)
	}
	for range refusedConns + 3 {
		dial()
		accept()
	}
	over, first := dial(), accepted[0]
	next := make(chan struct{})
	go func() { defer close(next); accept() }()
	if _, err := over.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one too many: %v", err)
	}
	select {
	case <-next:
		t.Error("it was accepted")
	default:
	}
	first.Close()
	first.Close() // counts once
	inside := dial()
	<-next
	if got := accepted[len(accepted)-1].RemoteAddr().String(); got != inside.LocalAddr().String() {
		t.Errorf("accepted %s, not %s", got, inside.LocalAddr())
	}
	go func() { _, _ = l.Accept() }() // until the end
	if _, err := dial().Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("again one too many: %v", err)
	}
}

// A body that is not UTF-8 is refused wherever one is read: the decoder would put U+FFFD in place
// of what it cannot read, and two names became one.
func TestBodiesThatAreNotText(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	bodies := map[string]string{
		"{\"id\":\"a\xff\"}":              "byte 0xff at offset 8",
		"{\"id\":\"\xed\xa0\x80\"}":       "byte 0xed at offset 7",
		"{\"\xc0\xaf\":1}":                "byte 0xc0 at offset 2",
		`{"id":"\ud800"}`:                 `\ud800 at offset 7`,
		`{"id":"\\\uDFFFx"}`:              `\uDFFF at offset 9`,
		`{"id":"\ud83d\ud83d\ude00"}`:     `\ud83d at offset 7`,
		`{"reason":"\ude00\ud83d","x":1}`: `\ude00 at offset 11`,
	}
	n := 0
	for path, ops := range doc.Paths {
		for method, raw := range ops {
			var op struct {
				RequestBody any `json:"requestBody"`
			}
			if json.Unmarshal(raw, &op); op.RequestBody == nil {
				continue
			}
			n++
			for body, want := range bodies {
				r := s.want(400, "bad-json", s.ask(strings.ToUpper(method), strings.ReplaceAll(path, "{name}", "n"),
					body, "Primacy-Token", "7"))
				var p struct{ Detail string }
				if json.Unmarshal([]byte(r.text), &p); !strings.Contains(p.Detail, want) {
					t.Errorf("%s: %q is answered with %s, want %s", path, body, r.text, want)
				}
			}
		}
	}
	if n < 7 {
		t.Errorf("%d paths take a body", n)
	}
	for body, id := range map[string]string{`{"id":"\ud83d\ude00"}`: "😀", `{"id":"\\ud800"}`: `\ud800`,
		`{"id":"\u00e9"}`: "é", `{"id":"日本"}`: "日本", `{"id":"\ufffd"}`: "\ufffd"} {
		l := into[lockJSON](t, s.want(200, "", s.ask("POST", "/v1/locks/n", body)))
		if l.ID != id {
			t.Errorf("%s locks as %q", body, l.ID)
		}
		s.want(200, "", s.ask("DELETE", "/v1/locks/n", "", "Primacy-Token", l.Token.String()))
	}
}

// counted counts what a store is asked of lines.
type counted struct {
	driver.Store
	lines atomic.Int64
}

func (c *counted) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	c.lines.Add(1)
	return c.Store.Next(ctx, name, after)
}

func (c *counted) Line(ctx context.Context, name string) (driver.Line, error) {
	c.lines.Add(1)
	return c.Store.Line(ctx, name)
}

// What the store is asked grows with names and changes, not with readers.
func TestManyReadersAreOneObserver(t *testing.T) {
	t.Parallel()
	st := &counted{Store: memstore.New(memstore.Options{})}
	s := newAgentOn(t, st, Options{Session: primacy.Options{TTL: time.Minute}})
	won := s.campaign("n", `{"id":"one","value":"0"}`).until("elected")
	const readers, waiting, changes = 60, 20, 25
	latest := make([]atomic.Int64, readers)
	for i := range readers {
		c, err := net.Dial("unix", s.path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		accept := []string{"", "Accept: text/event-stream\r\n"}[i%2]
		fmt.Fprintf(c, "GET /v1/elections/n/events HTTP/1.1\r\nHost: localhost\r\n%s\r\n", accept)
		go func() {
			for in := bufio.NewScanner(c); in.Scan(); {
				var e event
				text := strings.TrimPrefix(in.Text(), "data: ")
				if json.Unmarshal([]byte(text), &e) == nil && e.State != nil && e.State.Leader != nil {
					var v int64
					fmt.Sscan(e.State.Leader.Value, &v)
					latest[i].Store(v + 1)
				}
			}
		}()
	}
	all := func(v int64) func() bool {
		return func() bool {
			for i := range latest {
				if latest[i].Load() != v {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "all read the present state", all(1))
	for i := range waiting {
		s.campaign("n", fmt.Sprintf(`{"id":"w%d"}`, i)).until("waiting")
	}
	eventually(t, "all wait", func() bool {
		return len(into[shown.State](t, s.ask("GET", "/v1/elections/n", "")).Waiting) == waiting
	})
	before := st.lines.Load()
	for v := range changes {
		s.want(200, "", s.ask("POST", "/v1/elections/n/proclaim", fmt.Sprintf(`{"value":"%d"}`, v+1), "Primacy-Token",
			won.Token.String()))
		eventually(t, "all read the change", all(int64(v+2)))
	}
	// of readers one question a change, of those who wait one
	if n := st.lines.Load() - before; n > 3*changes {
		t.Errorf("%d questions to the store for %d changes, with %d readers and %d who wait", n, changes, readers,
			waiting)
	}
}

// A lock that every client needs, and that is never given back, shows at /livez.
func TestLivezShowsThatNoClientCanComeIn(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: 2 * time.Second}})
	livez := func(want int) func() bool {
		return func() bool { return s.ask("GET", "/livez", "").StatusCode == want }
	}
	eventually(t, "it lives", livez(200))
	s.clients.mu.Lock()
	giveBack := sync.OnceFunc(s.clients.mu.Unlock)
	defer giveBack()
	eventually(t, "it is stuck", livez(503))
	giveBack()
	eventually(t, "it lives again", livez(200))
}
