package agent

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// socketUser returns the user on the other end of a unix socket.
func socketUser(fd int) (uint32, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// limitSilence has the kernel end a connection on which what we sent is not acknowledged for so
// long.
func limitSilence(c *net.TCPConn, d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}

// tcpUser returns the user of the process at the other end of a connection within this machine, -1
// if the kernel does not say.
func tcpUser(c net.Conn) int {
	own, _ := c.LocalAddr().(*net.TCPAddr)
	other, _ := c.RemoteAddr().(*net.TCPAddr)
	if own == nil || other == nil {
		return -1
	}
	// The other end is a connection too, and has our addresses the other way round. A list that
	// changes while it is read may lack it, hence twice.
	for range 2 {
		for _, path := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
			if uid, ok := userIn(path, other.AddrPort(), own.AddrPort()); ok {
				return uid
			}
		}
	}
	return -1
}

// userIn looks a connection up in a list of the kernel.
func userIn(path string, local, remote netip.AddrPort) (uid int, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return -1, false
	}
	defer f.Close()
	six := strings.HasSuffix(path, "6")
	from, to := procAddr(local, six), procAddr(remote, six)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// sl local remote st queues timer retransmits uid timeout inode
		if f := strings.Fields(lines.Text()); len(f) > 9 && f[1] == from && f[2] == to {
			uid, err := strconv.Atoi(f[7])
			return uid, err == nil && f[9] != "0" // who has closed it already is shown as root
		}
	}
	return -1, false
}

// procAddr writes an address as /proc/net/tcp does: in words of the machine's own order.
func procAddr(a netip.AddrPort, six bool) string {
	b := a.Addr().Unmap().AsSlice()
	if all := a.Addr().As16(); six {
		b = all[:]
	}
	var s strings.Builder
	for ; len(b) >= 4; b = b[4:] {
		fmt.Fprintf(&s, "%08X", binary.NativeEndian.Uint32(b))
	}
	fmt.Fprintf(&s, ":%04X", a.Port())
	return s.String()
}
