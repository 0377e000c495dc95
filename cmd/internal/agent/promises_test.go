package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/memstore"
)

// A renewal that its client sent after the time was over renews nothing, also where the keeper has
// not noticed yet: the client would act again after a gap. One that was sent in time and comes late
// counts.
func TestARenewalSentTooLateRenewsNothing(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	term, err := s.own.Election("n").Campaign(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resignNow(term)
	h := newHolding(false, "x", term, time.Second)
	over := boottime.Now() - time.Millisecond // nobody keeps h: it is not frozen
	h.renewedAt = over - h.renew
	for _, late := range []time.Duration{over, over + time.Millisecond} {
		if err := h.renewed(late); err == nil || h.renewedAt != over-h.renew {
			t.Errorf("sent %v after the end: %v, renewed at %v", late-over, err, h.renewedAt)
		}
	}
	if err := h.renewed(over - 1); err != nil || h.renewedAt != over-1 {
		t.Errorf("sent in time: %v, renewed at %v", err, h.renewedAt)
	}
}

// Once the end has begun its client is given no later instant, though the lease is renewed on: the
// term would not be resigned before that.
func TestWhoIsEndingIsGivenNoLaterInstant(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: 10 * time.Second}})
	term, err := s.own.Election("n").Campaign(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resignNow(term)
	h := newHolding(false, "x", term, 0)
	told, ok := h.lease()
	if !ok {
		t.Fatal("it does not lead")
	}
	h.freeze(shown.Ending{Reason: shown.Shutdown})
	later, err := term.NextDeadline(t.Context(), told)
	if err != nil || later <= told {
		t.Fatalf("the lease was not renewed: %v, %v after %v", err, later, told)
	}
	if until, _ := h.lease(); until > told {
		t.Errorf("told %v more", until-told)
	}
	if _, until := h.why(); until != told {
		t.Errorf("the term is resigned %v after the instant that was told", until-told)
	}
}

// gone is the context of a request whose client goes away while the store answers: nothing is
// interrupted, and nobody is there to be told.
type gone struct{ context.Context }

func (gone) Err() error { return context.Canceled }

// What is won for a client that has gone is given back at once: nobody will ever have its token.
func TestWhatIsWonForWhoHasGoneIsGivenBack(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: time.Minute}})
	for _, path := range []string{"/v1/locks/n", "/v1/elections/n/campaign"} {
		for _, body := range []string{`{}`, `{"bound":true}`, `{"wait_ms":1000}`} {
			if strings.HasSuffix(path, "campaign") && body != `{}` {
				continue
			}
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			s.router.ServeHTTP(w, r.WithContext(gone{context.Background()}))
			if text := w.Body.String(); strings.Contains(text, `"token"`) {
				t.Errorf("%s %s: told %s", path, body, text)
			}
			if id := s.leader("n"); id != "" {
				t.Fatalf("%s %s: held by %s", path, body, id)
			}
		}
	}
}

// overtaken is a journal in which another server's larger token is noted just before each of ours.
type overtaken struct{ driver.Journal }

func (j overtaken) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	if _, _, err := j.Journal.Append(ctx, name, driver.Record{Key: "18446744073709551615"}, keep); err != nil {
		return driver.Record{}, false, err
	}
	return j.Journal.Append(ctx, name, r, keep)
}

// The fence reads back what it has noted: of two tokens that come at once it lets the smaller one
// pass only where the larger was not noted by then.
func TestAFenceReadsBackWhatItNoted(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	j := overtaken{st}
	if largest, err := pass(t.Context(), j, "n", 5); err == nil && largest <= 5 {
		t.Errorf("5 passed though a larger token was noted: %d, %v", largest, err)
	}
}

// Who was refused for too many takes no place: once somebody leaves, the next one comes in.
func TestWhoIsRefusedForTooManyTakesNoPlace(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Clients: 1})
	one := s.post("/v1/locks/n", `{"bound":true,"direct":true}`)
	one.until("acquired")
	for range 3 {
		s.want(503, "too-many", s.ask("POST", "/v1/locks/m", ""))
	}
	one.conn.Close()
	eventually(t, "there is room again", func() bool {
		r := s.ask("POST", "/v1/locks/m", "")
		if r.StatusCode == http.StatusOK {
			s.want(200, "", s.ask("DELETE", "/v1/locks/m", "", "Primacy-Token", into[lockJSON](t, r).Token.String()))
		}
		return r.StatusCode == http.StatusOK
	})
}

// Nor does who may not come in for another reason.
func TestWhoMayNotComeInTakesNoPlace(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Clients: 2})
	s.campaign("n", `{"id":"x","ttl_ms":5000}`).until("elected")
	for range 3 {
		s.want(409, "ttl-differs", s.ask("POST", "/v1/elections/m/campaign", `{"id":"x","ttl_ms":6000}`))
	}
	l := into[lockJSON](t, s.want(200, "", s.ask("POST", "/v1/locks/l", "")))
	s.want(200, "", s.ask("DELETE", "/v1/locks/l", "", "Primacy-Token", l.Token.String()))
}

// A connection that has served another request before is closed like any other: that its reading
// was interrupted in between, by the server itself, was not its end.
func TestAConnectionThatIsUsedAgainIsClosed(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: time.Minute}})
	c, err := net.Dial("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	for range 3 {
		if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}
	if _, err := io.WriteString(c, "POST /v1/elections/n/campaign HTTP/1.1\r\nHost: x\r\n"+
		"Content-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"direct\":true}"); err != nil {
		t.Fatal(err)
	}
	for text := ""; !strings.Contains(text, `"elected"`); {
		if text, err = in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	eventually(t, "the client that closed its connection has stopped", func() bool { return s.leader("n") == "" })
}

// To stop its own read between two requests the server gives it a deadline that has passed.
func TestAReadThatTheServerInterruptsIsNoEnd(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	c := &conn{Conn: server, local: true}
	read := func(deadline time.Time) error {
		if err := c.SetReadDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		_, err := c.Read(make([]byte, 1))
		return err
	}
	if err := read(time.Unix(1, 0)); !errors.Is(err, os.ErrDeadlineExceeded) || c.closed() {
		t.Fatalf("an interrupted read = %v, closed: %v", err, c.closed())
	}
	client.Close()
	if err := read(time.Time{}); !errors.Is(err, io.EOF) || !c.closed() {
		t.Errorf("a read after the client has closed = %v, closed: %v", err, c.closed())
	}
}

// whenEnded is a client that asks, as soon as it reads that its term has ended, whether the server
// still has it.
type whenEnded struct {
	http.ResponseWriter
	asks func()
}

func (w whenEnded) Write(b []byte) (int, error) {
	if strings.Contains(string(b), `"ended"`) {
		w.asks()
	}
	return len(b), nil
}

func (whenEnded) Flush() {}

// Who has read that his term has ended gets 410 for its token, and no renewal.
func TestATermIsForgottenBeforeItsEndIsTold(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	term, err := s.own.Election("n").Campaign(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	h := newHolding(false, "x", term, 0)
	s.held.add(h)
	h.giveUp(shown.Ending{Reason: primacy.Resigned})
	told := false
	w := whenEnded{httptest.NewRecorder(), func() {
		if told = true; s.held.find(false, "n", term.Token()) != nil {
			t.Error("a term whose end is told can be found")
		}
	}}
	(&keeper{a: s.Agent, h: h, s: &stream{w: w, c: http.NewResponseController(w)}}).keep()
	if !told {
		t.Error("the end was not told")
	}
}
