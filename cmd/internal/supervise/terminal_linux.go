package supervise

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal on a command's standard input. Only the foreground group may read it, and ^C
// and ^Z go there, so the command's group must be it while it runs.
type terminal struct {
	fd    int
	group int           // the group that had it, and gets it back
	modes *unix.Termios // as they were: a killed editor leaves the terminal raw
}

// openTerminal returns the terminal on fd and whether group is in its foreground; nil if fd is not our controlling terminal.
func openTerminal(fd, group int) (*terminal, bool) {
	front, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil {
		return nil, false
	}
	modes, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, false
	}
	return &terminal{fd: fd, group: group, modes: modes}, front == group
}

// give hands the terminal to group, if it is ours. If not, somebody (a shell, after bg) decided otherwise.
func (t *terminal) give(group int) { t.pass(t.group, group) }

// take gets the terminal back from group. Not from anybody else: the shell may have taken it already.
func (t *terminal) take(group int) { t.pass(group, t.group) }

func (t *terminal) pass(from, to int) {
	if front, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err == nil && front == from {
		quietly(func() { _ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, to) }) // fails if the group is gone: nobody to give it to
	}
}

// restore sets the modes as they were, if the terminal is ours.
func (t *terminal) restore() {
	if front, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err == nil && front == t.group {
		quietly(func() { _ = unix.IoctlSetTermios(t.fd, unix.TCSETS, t.modes) })
	}
}

// quietly calls f with SIGTTOU blocked: the kernel stops a background group that touches the terminal otherwise, and
// whoever takes the terminal back is in the background.
func quietly(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, old unix.Sigset_t
	const n = int(unix.SIGTTOU) - 1 // within the first word, 32 or 64 bits wide
	block.Val[0] = 1 << n
	if unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old) == nil {
		defer unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	}
	f()
}

// orphaned says whether nobody could continue us after a stop: no ancestor in our session but outside our group, that
// is, no shell with job control. (The kernel throws SIGTSTP away in such a group for the same reason.)
func orphaned() bool {
	group := unix.Getpgrp()
	session, err := unix.Getsid(0)
	if err != nil {
		return true
	}
	for pid := unix.Getppid(); pid > 0; {
		if sid, err := unix.Getsid(pid); err != nil || sid != session {
			return true
		}
		if pgid, err := unix.Getpgid(pid); err != nil || pgid != group {
			return err != nil
		}
		s, ok := readStat(pid)
		if !ok {
			return true
		}
		pid = s.parent
	}
	return true
}
