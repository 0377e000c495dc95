// Package sdnotify tells a service manager (systemd, or who speaks its protocol) how this process
// does, and takes sockets from it.
package sdnotify

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// What is told, beside Status and ExtendTimeout.
const (
	Ready    = "READY=1"
	Watchdog = "WATCHDOG=1"
	Stopping = "STOPPING=1"
)

// Status is the one line that `systemctl status` shows.
func Status(text string) string {
	return "STATUS=" + strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return r == '\n' || r == '\r' ||
			r == 0
	}), " ")
}

// ExtendTimeout asks for so much time from now on before a start or a stop counts as failed.
func ExtendTimeout(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10)
}

// Notifier is the service manager's socket. A nil one tells nobody.
type Notifier struct{ conn *net.UnixConn }

// sendLimit bounds a message to a manager that does not read: what is told late is worth less than
// what waits for the telling.
const sendLimit = 50 * time.Millisecond

// New returns the notifier of the socket that NOTIFY_SOCKET names, nil where there is none. A name
// that begins with @ is an abstract socket.
func New() (*Notifier, error) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	if name[0] != '/' && name[0] != '@' {
		return nil, fmt.Errorf("NOTIFY_SOCKET=%q: only a path and an @abstract name of a unix socket are known", name)
	}
	// net turns @ into the zero byte
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return &Notifier{conn}, nil
}

// Tell sends the assignments in one message. It waits for 50 ms at most.
func (n *Notifier) Tell(assignments ...string) error {
	if n == nil {
		return nil
	}
	_ = n.conn.SetWriteDeadline(time.Now().Add(sendLimit))
	_, err := n.conn.Write([]byte(strings.Join(assignments, "\n")))
	return err
}

// WatchdogEvery returns within what time each Watchdog must be followed by the next, 0 where nobody
// waits for them: WATCHDOG_USEC, if WATCHDOG_PID is this process or not given.
func WatchdogEvery() (time.Duration, error) {
	text := os.Getenv("WATCHDOG_USEC")
	if text == "" {
		return 0, nil
	}
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0, nil // meant for whoever started us
	}
	usec, err := strconv.ParseInt(text, 10, 64)
	if err != nil || usec <= 0 || usec > int64(time.Duration(1<<63-1)/time.Microsecond) {
		return 0, fmt.Errorf("WATCHDOG_USEC=%q is not a number of microseconds", text)
	}
	return time.Duration(usec) * time.Microsecond, nil
}

// firstFD is the first descriptor that a service manager passes.
const firstFD = 3

// Socket is one that the service manager listens on for us.
type Socket struct {
	Name string // FileDescriptorName= of the unit, else its name
	net.Listener
}

// Listeners returns the sockets that the service manager passed (LISTEN_FDS, LISTEN_PID,
// LISTEN_FDNAMES), none where it passed none. The variables are removed: what this process starts
// has no such sockets. Call it once, before anything else opens files.
func Listeners() ([]Socket, error) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	if count == "" || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"} {
		_ = os.Unsetenv(name)
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > 1<<16 {
		return nil, fmt.Errorf("LISTEN_FDS=%q is not a number of sockets", count)
	}
	return take(firstFD, n, strings.Split(names, ":"))
}

// take makes listeners of n descriptors from first on.
func take(first, n int, names []string) (found []Socket, err error) {
	var errs []error
	for i := range n {
		name := "unknown"
		if i < len(names) && names[i] != "" {
			name = names[i]
		}
		f := os.NewFile(uintptr(first+i), name)
		if f == nil {
			errs = append(errs, fmt.Errorf("descriptor %d (%s) from the service manager is none", first+i, name))
			continue
		}
		l, err := net.FileListener(f) // a copy, closed on exec
		_ = f.Close()
		if err != nil {
			errs = append(errs, fmt.Errorf("descriptor %d (%s) from the service manager is no listening socket: %w",
				first+i, name, err))
			continue
		}
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // the path is the manager's
		}
		found = append(found, Socket{name, l})
	}
	if len(errs) > 0 {
		for _, s := range found {
			_ = s.Close()
		}
		return nil, errors.Join(errs...)
	}
	return found, nil
}
