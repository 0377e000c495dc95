package supervise

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// The guardian's loop and the supervisor's watcher wait in poll(2), on a timer, an event and the
// socket, and not in a select of the Go scheduler: no queue of goroutines is before them.

// newTimer returns a timer on CLOCK_BOOTTIME. Go's own timers do not count the time in which the
// machine sleeps (suspend to RAM): a command would go on after that, beside that of the next
// leader.
func newTimer() (fd int, err error) {
	fd, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("timer on the boot clock: %w", err)
	}
	return fd, nil
}

// setTimer makes the timer fire at that instant, or at once if the instant is over.
func setTimer(fd int, at time.Duration) error {
	at = max(at, 1) // 0 would switch the timer off
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	return unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// newEvent returns an eventfd. A call of setEvent on it, from any goroutine, ends a poll of it.
func newEvent() (fd int, err error) {
	fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("eventfd: %w", err)
	}
	return fd, nil
}

func setEvent(fd int) {
	one := [8]byte{1, 1} // the kernel reads a number ≠ 0, whatever its byte order
	_, _ = unix.Write(fd, one[:])
}

// poll waits in the kernel until one of fds can be read, or for that many milliseconds (-1: without
// a limit). It may return early. The first two fds are a timer and an event, and are reset; a third
// one is the socket, which is left for its lineReader.
func poll(timeout int, fds ...int) {
	set := make([]unix.PollFd, len(fds))
	for i, fd := range fds {
		set[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	_, _ = unix.Poll(set, timeout) // EINTR is a wake-up like any other
	var buf [8]byte
	for _, fd := range fds[:min(2, len(fds))] {
		_, _ = unix.Read(fd, buf[:])
	}
}

// sleepMillisecond waits for a millisecond.
func sleepMillisecond() { poll(1) }
