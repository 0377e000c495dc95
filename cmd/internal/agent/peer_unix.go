//go:build linux || darwin

package agent

import "net"

// peerUID returns the user on the other end, -1 if the kernel does not say.
func peerUID(c *net.UnixConn) (uid int) {
	uid = -1
	raw, err := c.SyscallConn()
	if err != nil {
		return uid
	}
	_ = raw.Control(func(fd uintptr) {
		if user, err := socketUser(int(fd)); err == nil {
			uid = int(user)
		}
	})
	return uid
}
