package agent

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// peerUID returns the user on the other end, -1 if the kernel does not say.
func peerUID(c *net.UnixConn) (uid int) {
	uid = -1
	raw, err := c.SyscallConn()
	if err != nil {
		return uid
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	})
	return uid
}

// limitSilence has the kernel end a connection on which what we sent is not acknowledged for so long.
func limitSilence(c *net.TCPConn, d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
