package servertest

import (
	"bufio"
	"fmt"
	"net"
	"testing"
)

// Listen starts a server on loopback that calls handle with each connection, on a goroutine of its
// own, and closes the connection after that. The server ends with the test; its connections do not.
func Listen(tb testing.TB, handle func(net.Conn)) (addr string) {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return ln.Addr().String()
}

// Echo answers each line with itself: it is a handler for [Listen].
func Echo(c net.Conn) {
	for lines := bufio.NewScanner(c); lines.Scan(); {
		fmt.Fprintln(c, lines.Text())
	}
}
