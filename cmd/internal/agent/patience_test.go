package agent

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
)

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
		"POST /v1/elections/n/resign HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer 0123456789abcdef\r\nContent-Type: application/json\r\n",
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
	const within = 300 * time.Millisecond
	base := "http://" + hasty(t, s, within)
	first := into[lockJSON](t, s.want(200, "", s.ask("POST", "/v1/locks/n", "")))
	time.AfterFunc(3*within, func() { s.ask("DELETE", "/v1/locks/n", "", "Primacy-Token", first.Token.String()) })
	r, err := http.Post(base+"/v1/locks/n", "application/json", strings.NewReader(`{"wait_ms":20000}`))
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
