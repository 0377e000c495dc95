package agent

import (
	"net"
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
