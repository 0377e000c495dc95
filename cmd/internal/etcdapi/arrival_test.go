package etcdapi

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/memstore"
)

// A body that is announced and never comes keeps no connection, whether or not its sender has the
// token; who waits is not cut off.
func TestABodyThatNeverComesEndsTheConnection(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef"
	s, err := New(memstore.New(memstore.Options{}), Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	s.arrival = 300 * time.Millisecond
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		<-served
	}()
	ask := func(path, headers, body string) net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\n"+headers+"\r\n"+body)
		return c
	}
	const auth, announced, endless = "Authorization: " + token + "\r\n", "Content-Length: 100\r\n",
		"Transfer-Encoding: chunked\r\n"
	never := []net.Conn{ask("/v3/lease/grant", announced, "{"), ask("/v3/lease/grant", auth+announced, "{"),
		ask("/v3/lease/keepalive", endless, ""),
		ask("/v3/lease/keepalive", auth+announced, "{"), ask("/v3/auth/authenticate", endless, "")}
	for _, lease := range []string{"1", "2"} {
		c := ask("/v3/lease/grant", auth+"Content-Length: 21\r\n", `{"ID":"`+lease+`","TTL":"60"}`)
		if text := answer(t, c); !strings.Contains(text, `"ID":"`+lease) {
			t.Fatalf("grant: %s", text)
		}
	}
	const first, second = `{"name":"bg==","lease":"1"}`, `{"name":"bg==","lease":"2"}`
	if text := answer(t, ask("/v3/election/campaign", auth+"Content-Length: 27\r\n", first)); !strings.Contains(text,
		`"leader"`) {
		t.Fatalf("campaign: %s", text)
	}
	waits := ask("/v3/election/campaign", auth+"Content-Length: 27\r\n", second)
	limit := time.Now().Add(20 * time.Second)
	for i, c := range never {
		_ = c.SetReadDeadline(limit)
		if _, err := io.ReadAll(c); err != nil {
			t.Errorf("%d: the connection stands: %v", i, err)
		}
	}
	answer(t, ask("/v3/lease/revoke", auth+"Content-Length: 10\r\n", `{"ID":"1"}`))
	if text := answer(t, waits); !strings.Contains(text, `"leader"`) {
		t.Errorf("a campaign that waited for longer: %s", text)
	}
	answer(t, ask("/v3/lease/revoke", auth+"Content-Length: 10\r\n", `{"ID":"2"}`))
}

// answer returns what is read first.
func answer(t *testing.T, c net.Conn) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}
