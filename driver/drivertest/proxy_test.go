package drivertest_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/servertest"
)

func TestProxyCutsSilentlyAndHeals(t *testing.T) {
	p := drivertest.NewProxy(t, servertest.Listen(t, servertest.Echo))
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", p.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c, bufio.NewReader(c)
	}
	read := func(c net.Conn, r *bufio.Reader, d time.Duration) (string, error) {
		if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
			t.Fatal(err)
		}
		return r.ReadString('\n')
	}
	before, r := dial()
	fmt.Fprintln(before, "one")
	if got, err := read(before, r, 10*time.Second); got != "one\n" {
		t.Fatalf("through the proxy = %q, %v, want what was sent", got, err)
	}
	p.Cut(true)
	during, r2 := dial() // is not refused
	fmt.Fprintln(before, "two")
	fmt.Fprintln(during, "three")
	if got, err := read(before, r, 100*time.Millisecond); !os.IsTimeout(err) {
		t.Errorf("from a connection that is cut = %q, %v, want silence", got, err)
	}
	if got, err := read(during, r2, 100*time.Millisecond); !os.IsTimeout(err) {
		t.Errorf("from a connection made while cut = %q, %v, want silence", got, err)
	}
	p.Cut(false)
	if got, err := read(before, r, 10*time.Second); got != "two\n" {
		t.Errorf("after it was healed = %q, %v, want what was sent meanwhile", got, err)
	}
	if got, err := read(during, r2, 10*time.Second); got != "three\n" {
		t.Errorf("after it was healed = %q, %v, want what was sent meanwhile", got, err)
	}
}
