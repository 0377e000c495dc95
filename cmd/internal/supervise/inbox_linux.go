package supervise

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"
)

// inbox reads lines from a non-blocking socket. Both sides read by themselves, at the moment they must decide: with a
// reader in another goroutine, what has arrived could be overlooked for the time that goroutine needs to run.
type inbox struct {
	fd     int
	rest   []byte // of a line that has not arrived whole
	closed bool   // the other side is gone
}

// read returns every line that has arrived.
func (b *inbox) read() [][]byte {
	var buf [4096]byte
	for !b.closed {
		n, err := unix.Read(b.fd, buf[:])
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		b.closed = n <= 0 // whatever is wrong with the socket, nothing will come any more
		b.rest = append(b.rest, buf[:max(n, 0)]...)
	}
	var lines [][]byte
	for {
		line, rest, whole := bytes.Cut(b.rest, []byte("\n"))
		if !whole {
			return lines
		}
		lines, b.rest = append(lines, line), rest
	}
}
