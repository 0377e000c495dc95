package supervise

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// newTimer returns a timer on CLOCK_BOOTTIME. Go's own timers stand still while the machine is suspended, and a
// command would wake beside its successor.
func newTimer() (fd int, err error) {
	fd, err = unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("timer on the boot clock: %w", err)
	}
	return fd, nil
}

// setTimer makes the timer fire at that instant, at once if it is over.
func setTimer(fd int, at time.Duration) error {
	at = max(at, 1) // 0 would switch the timer off
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	return unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// newBell returns an eventfd: what a channel is to select, it is to poll.
func newBell() (fd int, err error) {
	fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("eventfd: %w", err)
	}
	return fd, nil
}

func ring(bell int) {
	one := [8]byte{1, 1} // not zero in either byte order
	_, _ = unix.Write(bell, one[:])
}

// await waits in the kernel until one of fds can be read, or for that many milliseconds (-1: for ever). It may return
// early. Timers and bells are silenced; a socket is left for its inbox to read.
func await(timeout int, fds ...int) {
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
