package servertest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
	"testing"
)

// FreePort returns a port on loopback that nobody listens on. No other test of this machine gets it
// before tb has ended: where a test kills its server, the server of another test on the same port
// would answer in its place.
//
// The port is below those that the kernel takes for outgoing connections: one of these would keep a
// restarted server from its port. Nor does another test get the port plus 10,000, which is that of
// the bus of a Redis Cluster.
func FreePort(tb testing.TB) string {
	tb.Helper()
	for range 1000 {
		n := 12_000 + rand.IntN(10_000)
		kept, ok := reserve(n)
		if !ok {
			continue
		}
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(n)))
		if err != nil {
			kept()
			continue
		}
		ln.Close()
		tb.Cleanup(kept)
		return strconv.Itoa(n)
	}
	tb.Fatal("servertest: no free port")
	return ""
}

// reserve keeps a port from other test processes until done is called or this process ends, by a
// socket in Linux's abstract namespace: it has no file, and its name can be bound only once.
func reserve(port int) (done func(), ok bool) {
	if runtime.GOOS != "linux" {
		return func() {}, true
	}
	ln, err := net.Listen("unix", fmt.Sprintf("@primacy-test-port-%d", port))
	if err != nil {
		return nil, false
	}
	return func() { ln.Close() }, true
}
