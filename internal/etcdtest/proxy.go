package etcdtest

import (
	"testing"

	"github.com/primacy-go/primacy/internal/proxy"
)

// Dir is a direction through a Proxy.
type Dir = proxy.Dir

const (
	Up   = proxy.Up   // from the client to the server: requests
	Down = proxy.Down // from the server to the client: replies
)

// Proxy is a TCP proxy in front of a server, which can do what a bad network does.
type Proxy = proxy.Proxy

// NewProxy starts a proxy for the server at addr (host:port). It ends with the test.
func NewProxy(tb testing.TB, addr string) *Proxy {
	tb.Helper()
	p, err := proxy.Listen(addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}
