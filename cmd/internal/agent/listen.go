package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultSocket is where the server listens if nothing else is said.
func DefaultSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "primacy", "primacy.sock")
	}
	return "/run/primacy/primacy.sock"
}

const maxPath = 103 // of a socket: Linux has 107, macOS 103

// ListenUnix listens on a socket that only this user can reach, in a folder of mode 0700; with
// others, whoever can see the path may connect, and the uid alone decides. The socket of a server
// that has died is replaced; that of one that lives, frozen or not, never is.
func ListenUnix(path string, others bool) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("socket: the path %s has %d bytes, more than the %d that a socket's may have; "+
			"give another --socket", path, len(path), maxPath)
	}
	dirMode, mode := os.FileMode(0o700), os.FileMode(0o600)
	if others {
		dirMode, mode = 0o711, 0o666
	}
	if err := privateDir(filepath.Dir(path), dirMode); err != nil {
		return nil, err
	}
	unlock, err := lockSocket(path)
	if err != nil {
		return nil, err
	}
	l, err := listenFresh(path, mode)
	if err != nil {
		unlock()
		return nil, err
	}
	return &unixListener{l, unlock}, nil
}

// unixListener keeps the lock beside its socket until it is closed.
type unixListener struct {
	net.Listener
	unlock func()
}

func (l *unixListener) Close() error {
	err := l.Listener.Close() // removes the socket
	l.unlock()
	return err
}

func privateDir(dir string, mode os.FileMode) error {
	_, missing := os.Lstat(dir)
	err := os.MkdirAll(dir, mode)
	if err == nil && missing != nil {
		err = os.Chmod(dir, mode) // whatever the umask is
	}
	if err != nil {
		return fmt.Errorf("folder of the socket: %w; give another with --socket, or set XDG_RUNTIME_DIR", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("folder of the socket: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || ok && int(st.Uid) != os.Getuid() || info.Mode().Perm()&^mode != 0 {
		return fmt.Errorf("folder of the socket: %s must be a folder of your own with mode %#o; "+
			"give another with --socket", dir, mode)
	}
	return nil
}

// lockSocket holds the lock of a socket's path. The kernel frees it with the process, so who cannot
// have it meets a living server.
func lockSocket(path string) (func(), error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the socket: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another 'primacy serve' runs on %s; give this one another --socket", path)
	}
	return func() {
		// Closing alone does not unlock while a child between fork and exec has it open too.
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		_ = f.Close()
	}, nil
}

func listenFresh(path string, mode os.FileMode) (net.Listener, error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("socket: %w", err)
	case info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("socket: %s is there and is no socket; give another --socket", path)
	default:
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("socket: another program listens on %s; give another --socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil { // until here, the folder keeps others out
		_ = l.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	return l, nil
}

// Secured says how TCP is secured. Without TLS, and a bearer token or clients' certificates that
// TLS asks for, only this machine may be listened for.
type Secured struct {
	TLS   *tls.Config
	Token bool
	Conns int // at once, on each listener; see [ConnsFor]. 0: any number

	// a request has to arrive, and an answer to be read; 0: exchangeTime. Streams have limits of
	// their own
	within time.Duration
}

// exchangeTime is for a client that sends or reads slowly. Without a limit each that stops in
// between keeps a connection, and holds up the end of the server.
const exchangeTime = 20 * time.Second

// ListenTCP listens on HOST:PORT.
func (s Secured) ListenTCP(ctx context.Context, addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("--listen %q: give HOST:PORT", addr)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if host == "" {
		ips, err = nil, nil // all addresses
	}
	if err != nil {
		return nil, fmt.Errorf("--listen %q: %w", addr, err)
	}
	loopback := len(ips) > 0
	for _, ip := range ips {
		loopback = loopback && ip.Unmap().IsLoopback()
	}
	if err := s.allows(addr, loopback); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if err := s.Check(l); err != nil { // the name meant another address this time
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

func (s Secured) allows(addr string, loopback bool) error {
	if loopback || s.TLS != nil && (s.Token || s.TLS.ClientAuth == tls.RequireAndVerifyClientCert) {
		return nil
	}
	return fmt.Errorf("--listen %s is reached from other machines: give --tls-cert, --tls-key, and --token-file or "+
		"--tls-client-ca, or listen on 127.0.0.1", addr)
}

// Check says why a socket that somebody else opened must not be served.
func (s Secured) Check(l net.Listener) error {
	if addr, ok := l.Addr().(*net.TCPAddr); ok {
		return s.allows(addr.String(), addr.IP.IsLoopback())
	}
	return nil
}

// Serve answers on l until ctx ends. HTTP/1.1 only: there a connection is one client's, so that its
// end means something.
func (s Secured) Serve(l net.Listener, h http.Handler, logger *log.Logger) (*http.Server, <-chan error) {
	d := &door{addr: l.Addr().String(), most: s.Conns}
	if a, ok := h.(*Agent); ok {
		d.admits = a.guard.admitsUser
	}
	var own net.Listener = listener{l, d, false}
	if _, ok := l.Addr().(*net.TCPAddr); ok && s.TLS != nil {
		own = tls.NewListener(own, s.TLS)
	}
	srv := &http.Server{
		Handler:           d.handler(h),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       cmp.Or(s.within, exchangeTime),
		WriteTimeout:      cmp.Or(s.within, exchangeTime),
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ConnContext:       withConn,
		ErrorLog:          logger,
		Protocols:         new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true)
	failed := make(chan error, 1)
	go func() {
		if err := srv.Serve(own); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
		close(failed)
	}()
	return srv, failed
}

// LoadToken reads the bearer token from a file: its first line.
func LoadToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	token, _, _ := strings.Cut(string(b), "\n")
	token = strings.TrimSpace(token)
	if len(token) < minToken {
		return "", fmt.Errorf("the token in %s has %d characters; use at least %d, "+
			"such as 'openssl rand -hex 32' makes", path, len(token), minToken)
	}
	for _, r := range token {
		if r <= ' ' || r > '~' {
			return "", fmt.Errorf("the token in %s has a character that no header can carry", path)
		}
	}
	return token, nil
}

const minToken = 16
