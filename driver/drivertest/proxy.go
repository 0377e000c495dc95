package drivertest

import (
	"testing"

	"github.com/primacy-go/primacy/internal/proxy"
)

// Proxy is a TCP proxy on loopback that can cut its connections silently: nothing is closed or
// refused, bytes only stop, as when a cable is pulled. They arrive when it is healed, as TCP sends
// them again.
type Proxy struct {
	// Addr is where clients connect, host:port.
	Addr string

	p *proxy.Proxy
}

// NewProxy returns a proxy to target (host:port), which ends with the test. For [Harness.Cut]:
//
//	Cut: func(t testing.TB) (driver.Store, func(bool)) {
//		p := drivertest.NewProxy(t, addr)
//		return open(t, p.Addr), p.Cut
//	},
//
// The client must know no other way to the storage: switch off what finds the members of a cluster
// by itself.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := proxy.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return &Proxy{Addr: p.Addr(), p: p}
}

// Cut cuts all connections, also those to come, or heals them.
func (p *Proxy) Cut(cut bool) {
	if cut {
		p.p.Hold()
	} else {
		p.p.Heal()
	}
}
