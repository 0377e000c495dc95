package redlockstore

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// handshake makes a TLS connection of conn.
func (v *server) handshake(ctx context.Context, conn net.Conn) (net.Conn, error) {
	c := v.s.cfg.TLS.Clone()
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(v.addr)
	}
	sealed := tls.Client(conn, c)
	if err := sealed.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return sealed, nil
}

// deadConn is a connection that could not be made.
type deadConn struct{ err error }

func (c *deadConn) Read([]byte) (int, error)         { return 0, c.err }
func (c *deadConn) Write([]byte) (int, error)        { return 0, c.err }
func (c *deadConn) Close() error                     { return nil }
func (c *deadConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *deadConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *deadConn) SetDeadline(time.Time) error      { return nil }
func (c *deadConn) SetReadDeadline(time.Time) error  { return nil }
func (c *deadConn) SetWriteDeadline(time.Time) error { return nil }
