package supervise

import (
	"fmt"
	"os"
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

// bootTimer is such a timer for goroutines.
type bootTimer struct {
	fd    int
	file  *os.File
	ticks chan struct{}
}

func newBootTimer() (*bootTimer, error) {
	fd, err := newTimer()
	if err != nil {
		return nil, err
	}
	t := &bootTimer{fd: fd, file: os.NewFile(uintptr(fd), "timer"), ticks: make(chan struct{}, 1)}
	go func() {
		buf := make([]byte, 8)
		for {
			if _, err := t.file.Read(buf); err != nil {
				return // closed
			}
			wake(t.ticks)
		}
	}()
	return t, nil
}

func (t *bootTimer) set(at time.Duration) { _ = setTimer(t.fd, at) }

func (t *bootTimer) close() { t.file.Close() }

// wake puts a token into c unless one is there already.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
