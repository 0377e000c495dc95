package agent

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/internal/boottime"
)

func TestAClosedConnectionResignsAtOnce(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: time.Minute}})
	one := s.campaign("a%2Fb", `{"id":"one","meta":{"zone": "z"}}`)
	won := one.until("elected")
	if won.Name != "a/b" || won.ID != "one" || won.Token == 0 || won.TTLMS != 60000 || won.LeaseMS < 45000 ||
		won.LeaseMS > 54000*9/10+1000 {
		t.Errorf("got %+v", won)
	}
	two := s.campaign("a%2Fb", `{"id":"two"}`)
	for l := two.until("waiting"); l.Position != 1 || l.Leader != "one"; l = two.until("waiting") {
	}
	if st := into[shown.State](t, s.want(200, "", s.ask("GET", "/v1/elections/a%2Fb", ""))); st.Leader.ID != "one" ||
		st.Leader.Value != `{"zone":"z"}` || st.Waiting[0].ID != "two" {
		t.Errorf("got %+v", st)
	}
	began := time.Now()
	one.conn.Close()
	next := two.until("elected")
	if took := time.Since(began); took > 20*time.Second { // the ttl is a minute
		t.Errorf("the next one led after %v", took)
	}
	if next.Token <= won.Token {
		t.Errorf("token %d after %d", next.Token, won.Token)
	}
	// it need not, but may
	s.want(200, "", s.ask("POST", "/v1/elections/a%2Fb/renew", "", "Primacy-Token", next.Token.String()))
	if a := s.want(200, "", s.ask("GET", "/leader/a/b?token="+next.Token.String(), "")); !strings.Contains(a.text,
		`"id":"two"`) {
		t.Errorf("got %s", a.text)
	}
	s.want(503, "", s.ask("GET", "/leader/a/b?token="+won.Token.String(), ""))
}

// Two clients without an id, or of the same, are two candidates: one leads.
func TestTwoClientsOfOneServerAreTwoCandidates(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	for _, body := range []string{``, `{"id":"same"}`} {
		one, two := s.campaign("n", body), s.campaign("n", body)
		first, second, won := one.orElse(two)
		if st := s.leader("n"); st != won.ID {
			t.Errorf("%s is elected, %s leads", won.ID, st)
		}
		time.Sleep(50 * time.Millisecond)
		for len(second.lines) > 0 {
			if l := <-second.lines; l.Event == "elected" {
				t.Fatalf("both lead: %+v", l)
			}
		}
		first.conn.Close()
		next := second.until("elected")
		if next.Token <= won.Token || body == "" && next.ID == won.ID {
			t.Errorf("%+v after %+v", next, won)
		}
		second.conn.Close()
		eventually(t, "nobody leads", func() bool { return s.leader("n") == "" })
	}
	eventually(t, "no session is left",
		func() bool { s.clients.mu.Lock(); defer s.clients.mu.Unlock(); return len(s.clients.byID) == 0 })
}

// orElse returns which of two was elected, the other, and the line that says so.
func (o *open) orElse(p *open) (first, second *open, won line) {
	o.Helper()
	for limit := time.After(soon); ; {
		select {
		case won = <-o.lines:
			first, second = o, p
		case won = <-p.lines:
			first, second = p, o
		case <-limit:
			o.Fatal("nobody was elected")
		}
		if won.Event == "elected" {
			return first, second, won
		}
	}
}

// Who is asked to resign is told, and has the time that it was told before; nobody else leads
// meanwhile, whatever the client does.
func TestWhoIsAskedHasTheTimeThatItWasTold(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: 10 * time.Second}})
	one := s.campaign("n", `{"id":"one"}`)
	one.until("renewed")
	two := s.campaign("n", `{"id":"two"}`)
	eventually(t, "two waits", func() bool {
		st := into[shown.State](t, s.ask("GET", "/v1/elections/n", ""))
		return len(st.Waiting) == 1
	})
	s.want(202, "", s.ask("POST", "/v1/elections/n/transfer", `{"to":"two","reason":"because"}`))
	stop := one.until("stopping")
	if stop.Reason != "transferred" || stop.By != "side" || stop.Text != "because" || stop.LeaseMS <= 0 {
		t.Fatalf("got %+v", stop)
	}
	var told int64
	fmt.Sscan(stop.DeadlineBootNS, &told)
	two.until("elected") // one goes on, as if it were deaf
	if early := time.Duration(told) - boottime.Now(); early > 0 {
		t.Errorf("two leads %v before the time that one was told is over", early)
	}
	if end := one.until("ended"); end.Reason != "transferred" {
		t.Errorf("got %+v", end)
	}
	// One that stops when it is told hands over at once.
	s.want(202, "", s.ask("POST", "/v1/elections/n/resign", `{"reason":"again"}`))
	stop = two.until("stopping")
	s.want(200, "", s.ask("POST", "/v1/elections/n/resign", "", "Primacy-Token", stop.Token.String()))
	if end := two.until("ended"); end.Reason != "resigned" || end.Text != "again" {
		t.Errorf("got %+v", end)
	}
	s.want(410, "not-held", s.ask("POST", "/v1/elections/n/resign", "", "Primacy-Token", stop.Token.String()))
}

// A connection that was lost, and not closed, says nothing of the client: it may act until what it
// was told is over.
func TestALostConnectionIsNotAClosedOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		err    error
		local  bool
		closed bool
	}{
		{"end of file nearby", io.EOF, true, true},
		{"end of file from afar", io.EOF, false, false},
		{"timeout", syscall.ETIMEDOUT, false, false},
		{"reset from afar", syscall.ECONNRESET, false, false},
		{"reset nearby", syscall.ECONNRESET, true, true},
		{"no route", syscall.EHOSTUNREACH, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newAgent(t, Options{Session: primacy.Options{TTL: 6 * time.Second}})
			term, err := s.own.Election("n").Campaign(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			h := newHolding(false, "x", term, 0)
			s.held.add(h)
			told, ok := h.lease()
			if !ok {
				t.Fatal("it does not lead")
			}
			gone := make(chan struct{})
			close(gone)
			peer := &conn{local: c.local}
			peer.ended.Store(&c.err)
			k := &keeper{a: s.Agent, h: h, gone: gone, conn: peer, s: &stream{err: http.ErrAbortHandler}}
			k.keep()
			if now := boottime.Now(); c.closed != (now < told) {
				t.Errorf("released %v before what the client was told was over", told-now)
			}
			if s.leader("n") != "" || term.Check() == nil {
				t.Error("it leads still")
			}
		})
	}
}

// Nor does one that takes nothing any more.
func TestAClientThatDoesNotReadIsNotAClosedOne(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: 4 * time.Second}})
	term, err := s.own.Election("n").Campaign(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	h := newHolding(false, "x", term, 0)
	s.held.add(h)
	w := &stuck{}
	k := &keeper{a: s.Agent, h: h, gone: make(chan struct{}), conn: &conn{},
		s: &stream{w: w, c: http.NewResponseController(w)}}
	began := boottime.Now()
	k.keep()
	_, told := h.why()
	if now := boottime.Now(); now < told || told < began+time.Second || now > began+soon {
		t.Errorf("released %v after what the client was told was over, %v after the beginning", now-told, now-began)
	}
	if w.writes != 1 {
		t.Errorf("%d writes to a client that takes nothing", w.writes)
	}
}

// stuck takes nothing, as a connection past its write deadline.
type stuck struct{ writes int }

func (*stuck) Header() http.Header              { return http.Header{} }
func (*stuck) WriteHeader(int)                  {}
func (*stuck) SetWriteDeadline(time.Time) error { return nil }
func (s *stuck) Write([]byte) (int, error)      { s.writes++; return 0, os.ErrDeadlineExceeded }

// A client that promised to renew and does not has lost it, though its connection stands.
func TestACampaignThatIsNotRenewed(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: time.Minute}})
	one := s.campaign("n", `{"id":"one","renew_ms":10000}`)
	won := one.until("elected")
	if won.LeaseMS > 9000 {
		t.Errorf("got %+v", won)
	}
	for range 3 {
		time.Sleep(3500 * time.Millisecond) // thrice that is more than 10 s
		s.want(200, "", s.ask("POST", "/v1/elections/n/renew", "", "Primacy-Token", won.Token.String()))
	}
	if stop := one.until("stopping"); stop.Reason != "not-renewed" || stop.LeaseMS != 0 {
		t.Errorf("got %+v", stop)
	}
	one.until("ended")
	s.want(410, "not-held", s.ask("POST", "/v1/elections/n/renew", "", "Primacy-Token", won.Token.String()))
	s.want(503, "", s.ask("GET", "/leader/n", ""))
}

func TestACampaignGivesUpInTime(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	one := s.campaign("n", ``)
	one.until("elected")
	two := s.campaign("n", `{"wait_ms":100}`)
	if end := two.until("ended"); end.Reason != "timeout" || end.Problem.Type != "urn:primacy:wait-timeout" {
		t.Errorf("got %+v", end)
	}
	eventually(t, "it stands no more", func() bool {
		return len(into[shown.State](t,
			s.ask("GET", "/v1/elections/n", "")).Waiting) == 0
	})
}

// Stopping the server tells everybody, and everything is resigned.
func TestStoppingTellsEverybody(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: 4 * time.Second}})
	leads, waits := s.campaign("n", `{"id":"one"}`), (*open)(nil)
	won := leads.until("elected")
	waits = s.campaign("n", `{"id":"two"}`)
	waits.until("waiting")
	lock := into[lockJSON](t, s.want(200, "", s.ask("POST", "/v1/locks/l", `{"lease_ms":60000}`)))
	s.Stop()
	if stop := leads.until("stopping"); stop.Reason != "shutdown" {
		t.Errorf("got %+v", stop)
	}
	if end := waits.until("ended"); end.Reason != "shutdown" || end.Problem == nil {
		t.Errorf("got %+v", end)
	}
	s.want(503, "", s.ask("GET", "/readyz", ""))
	s.want(200, "", s.ask("GET", "/leader/n", "")) // until what it was told is over
	s.want(503, "stopping", s.ask("POST", "/v1/locks/m", ""))
	s.want(410, "not-held", s.ask("POST", "/v1/locks/l/renew", "", "Primacy-Token", lock.Token.String()))
	if end := leads.until("ended"); end.Token != won.Token {
		t.Errorf("got %+v", end)
	}
	eventually(t, "nobody leads and the lock is free", func() bool {
		return s.leader("n") == "" &&
			s.leader("l") == ""
	})
}

func TestServerSentEvents(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	one := s.campaign("n", `{"id":"one","value":"v1"}`)
	won := one.until("elected")
	read := func(seen string) (string, func() string) {
		r, _ := http.NewRequest("GET", "http://x/v1/elections/n/events", nil)
		r.Header.Set("Accept", "text/event-stream")
		if seen != "" {
			r.Header.Set("Last-Event-ID", seen)
		}
		resp, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		next := func() string {
			b := make([]byte, 4096)
			n, _ := resp.Body.Read(b)
			return string(b[:n])
		}
		return resp.Header.Get("Content-Type"), next
	}
	media, next := read("")
	first := next()
	if media != "text/event-stream" || !strings.HasPrefix(first, "id: ") ||
		!strings.Contains(first, "\nevent: leader\ndata: {") || !strings.HasSuffix(first, "\n\n") {
		t.Errorf("got %s %q", media, first)
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(first, "id: "), "\n")
	_, again := read(id) // what was seen is not told again
	s.want(200, "", s.ask("POST", "/v1/elections/n/proclaim", `{"value":"v2"}`, "Primacy-Token", won.Token.String()))
	for _, n := range []func() string{next, again} {
		if text := n(); !strings.Contains(text, `"value":"v2"`) {
			t.Errorf("got %q", text)
		}
	}
	s.want(400, "invalid", s.ask("GET", "/v1/elections/n/events", "", "Last-Event-ID", "x"))
}

// A reader that takes nothing holds nobody up, and is given up.
func TestASlowReaderHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: time.Minute}})
	s.campaign("n", "")
	slow, err := http.NewRequest("GET", "http://x/v1/elections/n/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		resp, err := s.client.Do(slow)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
	}
	eventually(t, "somebody leads", func() bool { return s.leader("n") != "" })
	st := into[shown.State](t, s.ask("GET", "/v1/elections/n", ""))
	began := time.Now()
	for i := range 50 {
		s.want(200, "", s.ask("POST", "/v1/elections/n/proclaim",
			fmt.Sprintf(`{"value":%q}`, strings.Repeat("x", 4000)+itoa(i)), "Primacy-Token",
			st.Leader.Token.String()))
	}
	if took := time.Since(began); took > soon {
		t.Errorf("50 proclamations took %v", took)
	}
}

// A proxy that dies closes the connection for a client that works on: it has the time that it was
// told.
func TestAProxyThatDiesDoesNotStopItsClients(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: 4 * time.Second}})
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "localhost"})
	proxy.Transport, proxy.FlushInterval = s.client.Transport, -1
	server := httptest.NewServer(proxy)
	defer server.Close()
	r, err := http.Post(server.URL+"/v1/elections/n/campaign", "application/json", strings.NewReader(`{"id":"one"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var elected string
	for in := bufio.NewScanner(r.Body); !strings.Contains(elected, `"elected"`) && in.Scan(); {
		elected = in.Text()
	}
	var told int64
	_, digits, _ := strings.Cut(elected, `"deadline_boot_ns":"`)
	if _, err := fmt.Sscan(strings.SplitN(digits, `"`, 2)[0], &told); err != nil {
		t.Fatal(err, elected)
	}
	two := s.campaign("n", `{"id":"two"}`)
	two.until("waiting")
	server.CloseClientConnections() // the proxy sees a client that has gone, and closes its own connection
	two.until("elected")
	if early := time.Duration(told) - boottime.Now(); early > 0 {
		t.Errorf("two leads %v before the time that one was told is over", early)
	}
}
