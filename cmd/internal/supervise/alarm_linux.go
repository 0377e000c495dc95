package supervise

import (
	"time"
	"unsafe"

	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// alarm is a timer of the kernel that sends a signal to this process at an instant on the boot
// clock, and again and again after that. A frozen process runs no code, so no timer of its own
// could do this:
//
//   - SIGCONT ends a suspension by SIGSTOP. In a process that is not suspended it has no effect,
//     unless that has asked for it (signal.Notify), as a watcher does: see watcher.run.
//   - SIGKILL ends the process, also one that a cgroup has frozen: at once in version 2 of cgroups,
//     and in version 1 when it is thawed, before it executes an instruction.
//
// The kernel gives no alarm where the user's limit of pending signals is reached, or where a
// sandbox forbids timers. Then a suspended process sleeps on. The timer belongs to the process, not
// to a thread; a child does not inherit it, and exec deletes it.
type alarm struct {
	id  int32
	has bool // the kernel has given a timer
}

// alarmInterval is how soon a process gets the signal of set again, if it was suspended once more
// after its alarm.
const alarmInterval = 10 * time.Millisecond

const timerAbsolute = 1 // the kernel's TIMER_ABSTIME

// sigevent is the kernel's struct sigevent, 64 bytes. Its field notify is 0, SIGEV_SIGNAL: the
// timer sends a signal to the process.
type sigevent struct {
	value  uintptr
	signal int32
	notify int32
	_      [56 - unsafe.Sizeof(uintptr(0))]byte
}

func newAlarm(sig unix.Signal) *alarm {
	a := &alarm{}
	event := sigevent{signal: int32(sig)}
	_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_BOOTTIME,
		uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&a.id)))
	a.has = errno == 0
	return a
}

// set makes the alarm go off at that instant, or at once if the instant is over. It replaces what
// was set before.
func (a *alarm) set(at time.Duration) {
	a.settime(unix.ItimerSpec{
		Value:    unix.NsecToTimespec(int64(max(at, 1))), // 0 would switch it off
		Interval: unix.NsecToTimespec(int64(alarmInterval)),
	})
}

// repeat makes the alarm go off at intervals from now on. It replaces what was set before.
func (a *alarm) repeat(interval time.Duration) {
	a.settime(unix.ItimerSpec{
		Value:    unix.NsecToTimespec(int64(boottime.Now() + interval)),
		Interval: unix.NsecToTimespec(int64(interval)),
	})
}

// off switches the alarm off until it is set again.
func (a *alarm) off() { a.settime(unix.ItimerSpec{}) }

func (a *alarm) settime(spec unix.ItimerSpec) {
	if a.has {
		_, _, _ = unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(a.id), timerAbsolute,
			uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	}
}

// close gives the timer back to the kernel.
func (a *alarm) close() {
	if a.has {
		a.has = false
		_, _, _ = unix.Syscall(unix.SYS_TIMER_DELETE, uintptr(a.id), 0, 0)
	}
}
