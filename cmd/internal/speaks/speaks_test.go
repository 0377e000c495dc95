package speaks

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/internal/servertest"
)

func TestHosts(t *testing.T) {
	for url, want := range map[string]string{
		"etcd://h": "h:2379", "etcd://a:1,b,c:3/prefix?x=y": "a:1 b:2379 c:3",
		"redis://:p@a,b,@h:1/0": "h:1", "redis+quorum://a,b?guard=off": "a:6379 b:6379", "etcd://[::1]": "[::1]:2379",
		"etcd://[::1]:4,h": "[::1]:4 h:2379", "postgres:///db?host=/run/x": "", "zks://u:p@h": "h:2181",
	} {
		if got := Hosts(url); strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}

// HTTP/2 alone is taken for etcd; a server in HTTP/1, TLS and one that says nothing are told apart.
func TestAt(t *testing.T) {
	var kinds []Kind
	none := http.NotFoundHandler()
	plain, secure := httptest.NewServer(none), httptest.NewTLSServer(none)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	// A busy etcd, which has answered in HTTP/1 alone yet.
	busy := servertest.Listen(t, func(c net.Conn) {
		b := make([]byte, 4)
		if _, err := io.ReadFull(c, b); err == nil && string(b) == "GET " {
			_, _ = io.WriteString(c, "HTTP/1.0 404 Not Found\r\n\r\n")
		}
		_, _ = io.Copy(io.Discard, c)
	})
	for _, addr := range []string{plain.Listener.Addr().String(), secure.Listener.Addr().String(),
		silent.Addr().String(), busy, "127.0.0.1:1"} {
		kinds = append(kinds, At(t.Context(), addr))
	}
	if want := []Kind{HTTP, TLS, "", "", ""}; !slices.Equal(kinds, want) {
		t.Errorf("%q, want %q", kinds, want)
	}
}
