package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// soon bounds what happens at once; the machine may be busy.
const soon = time.Minute

// site is an agent on a socket, with every answer held to the document.
type site struct {
	testing.TB
	*Agent
	*checked
	path   string
	client *http.Client
	server *http.Server
}

func newAgent(t testing.TB, o Options) *site {
	return newAgentOn(t, memstore.New(memstore.Options{}), o)
}

func newAgentOn(t testing.TB, st driver.Store, o Options) *site {
	t.Helper()
	if o.Session.ID == "" {
		o.Session.ID = "side"
	}
	if o.Session.TTL == 0 {
		o.Session.TTL = 6 * time.Second // what a client was told is waited for when a test ends
	}
	a, err := New(st, o)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{TB: t, Agent: a, checked: &checked{TB: t, Handler: a, seen: map[string]bool{}}}
	s.path = filepath.Join(t.TempDir(), "d", "s")
	l, err := ListenUnix(s.path, false)
	if err != nil {
		t.Fatal(err)
	}
	s.server, _ = Secured{}.Serve(l, s.checked, log.New(io.Discard, "", 0))
	s.client = clientOf("unix", s.path)
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		a.Stop()
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := s.server.Shutdown(ctx); err != nil {
			t.Errorf("a request goes on: %v", err)
		}
		a.Close(ctx)
	})
	return s
}

func clientOf(network, addr string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial}}
}

// reply is an answer, read whole.
type reply struct {
	*http.Response
	text string
}

// ask makes one request.
func (s *site) ask(method, path, body string, headers ...string) reply {
	s.Helper()
	r, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.client.Do(r)
	if err != nil {
		s.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatalf("%s %s: %v", method, path, err)
	}
	return reply{resp, string(b)}
}

// want checks the status of an answer, and the slug of its problem if there is one.
func (s *site) want(status int, slug string, r reply) reply {
	s.Helper()
	if r.StatusCode != status || slug != "" && !strings.Contains(r.text, `"urn:primacy:`+slug+`"`) {
		s.Fatalf("%s %s: got %d %s, want %d %s", r.Request.Method, r.Request.URL, r.StatusCode, r.text, status, slug)
	}
	return r
}

// into decodes an answer.
func into[T any](t testing.TB, r reply) (v T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(r.text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, r.text)
	}
	return v
}

// open is a client on a stream.
type open struct {
	*site
	conn     net.Conn
	lines    chan line
	answered chan struct{} // closed when status is known
	status   int           // 0: there was no answer
}

// post opens a stream by hand, as a raw client does.
func (s *site) post(path, body string) *open {
	s.Helper()
	return s.request("POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+
		itoa(len(body))+"\r\n\r\n"+body, "unix", s.path)
}

// get is post for a stream that takes no body. It returns when the stream has been answered.
func (s *site) get(path string) *open {
	s.Helper()
	o := s.request("GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n", "unix", s.path)
	<-o.answered
	return o
}

func (s *site) request(text, network, addr string) *open {
	s.Helper()
	c, err := net.Dial(network, addr)
	if err != nil {
		s.Fatal(err)
	}
	o := &open{site: s, conn: c, lines: make(chan line, 100), answered: make(chan struct{})}
	s.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		s.Fatal(err)
	}
	go func() {
		defer close(o.lines)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			o.status = resp.StatusCode
		}
		close(o.answered)
		if err != nil {
			return
		}
		for in := bufio.NewScanner(resp.Body); in.Scan(); {
			var l line
			if json.Unmarshal(bytes.TrimSpace(in.Bytes()), &l) == nil {
				o.lines <- l
			}
		}
	}()
	return o
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// until returns the next line of that kind, and passes over others.
func (o *open) until(event string) line {
	o.Helper()
	for limit := time.After(soon); ; {
		select {
		case l, ok := <-o.lines:
			if !ok {
				o.Fatalf("the stream ended before %s", event)
			}
			if l.Event == event {
				return l
			}
		case <-limit:
			o.Fatalf("no %s within %v", event, soon)
		}
	}
}

// campaign is a client with nothing in between.
func (s *site) campaign(name, body string) *open {
	if body == "" {
		body = `{}`
	}
	body = strings.Replace(strings.Replace(body, `{`, `{"direct":true,`, 1), `,}`, `}`, 1)
	return s.post("/v1/elections/"+name+"/campaign", body)
}

// leader returns who leads, as the store has it.
func (s *site) leader(name string) string {
	s.Helper()
	l, err := s.own.Election(name).Leader(context.Background())
	if err == primacy.ErrNoLeader {
		return ""
	}
	if err != nil {
		s.Fatal(err)
	}
	return l.ID
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, soon)
		}
	}
}
