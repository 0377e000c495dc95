package supervise

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
)

// terminal is the controlling terminal on a command's standard input. Only the foreground group may
// read it, and ^C and ^Z go to that group, so it must be the command's while the command runs. The
// supervisor has one of these, and the guardian another, for when the supervisor dies.
type terminal struct {
	fd      int
	group   int           // the supervisor's group, which gets the terminal back
	termios *unix.Termios // the settings before the command; a killed editor leaves the terminal in raw mode
}

// openTerminal returns the terminal on fd and whether group, the supervisor's, is in its
// foreground. It returns nil if fd is not the controlling terminal of this process.
func openTerminal(fd, group int) (*terminal, bool) {
	foreground, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil {
		return nil, false
	}
	termios, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, false
	}
	return &terminal{fd: fd, group: group, termios: termios}, foreground == group
}

// lentTo says whether group, the command's, is the foreground group, though it may have no process
// any more.
func (t *terminal) lentTo(group int) bool {
	now, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && now == group
}

// giveTo makes group, the command's, the foreground group, if the supervisor's group is in the
// foreground now. If another group is, a shell (after bg) has decided so. It is called after fg: at
// its start the command gets the terminal from the kernel (startOrder.Foreground).
func (t *terminal) giveTo(group int) {
	t.moveForeground(func(now int) bool { return now == t.group }, group)
}

// takeFrom makes the supervisor's group the foreground group, if group, the command's, is in the
// foreground now. If another group is, a shell has taken the terminal already. But a group without
// a process is no shell's: it was that of a command that could not be executed, or was killed
// before the guardian had reported its number.
func (t *terminal) takeFrom(group int) {
	t.moveForeground(func(now int) bool {
		return now == group || now != 1 && errors.Is(unix.Kill(-now, 0), unix.ESRCH)
	}, t.group)
}

// moveForeground makes to the foreground group, if from says so of the group that is that now.
func (t *terminal) moveForeground(from func(now int) bool, to int) {
	if now, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err == nil && now > 0 && from(now) {
		// This fails if the group is gone: then there is nobody to give it to.
		withoutSIGTTOU(func() { _ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, to) })
	}
}

// restore puts back the settings that the terminal had before the command, if the supervisor's
// group is in the foreground.
func (t *terminal) restore() {
	if foreground, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err == nil && foreground == t.group {
		withoutSIGTTOU(func() { _ = unix.IoctlSetTermios(t.fd, unix.TCSETS, t.termios) })
	}
}

// withoutSIGTTOU calls f with SIGTTOU blocked. Otherwise the kernel suspends a background
// group that changes the terminal, and a process that takes the terminal back is in the background.
func withoutSIGTTOU(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, old unix.Sigset_t
	// SIGTTOU is 22, so its bit is in Val[0], which has 32 or 64 bits.
	const n = int(unix.SIGTTOU) - 1
	block.Val[0] = 1 << n
	if unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old) == nil {
		defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
	}
	f()
}

// DieOf ends this process's group by a signal of the keyboard, as if the command had not had the
// terminal. A script that has started this process then ends too. (bash ends if it got the signal
// itself and its child died of it. If this process exited with 130 instead, the script would go
// on.) DieOf returns if the signal does not end this process: process 1 of a container has no
// default action.
func DieOf(sig syscall.Signal) {
	if os.Getpid() == 1 {
		return
	}
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // SIGQUIT would write a core file
	// The default action by the kernel, not by the Go runtime, which for SIGQUIT writes the stacks
	// of all goroutines. All zeros is SIG_DFL.
	var action [64]byte
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	if errno == 0 && unix.Kill(0, sig) == nil {
		time.Sleep(time.Second) // another thread may get it
	}
}

// inOrphanedGroup says whether this process is in what POSIX calls an orphaned process group. Such
// a group has no shell that could continue it after a suspension, and the kernel drops a SIGTSTP to
// it. The function walks up our ancestors while they are in our session and our group. A shell is
// the first ancestor that is in our session and in another group.
func inOrphanedGroup() bool {
	group := unix.Getpgrp()
	session, err := unix.Getsid(0)
	if err != nil {
		return true
	}
	for pid := unix.Getppid(); pid > 0; {
		if sid, err := unix.Getsid(pid); err != nil || sid != session {
			return true
		}
		pgid, err := unix.Getpgid(pid)
		if err != nil {
			return true
		}
		if pgid != group {
			return false
		}
		s, ok := procfs.Look(pid)
		if !ok {
			return true
		}
		pid = s.Parent
	}
	return true
}
