package supervise

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal on a command's standard input. Only the foreground group may
// read it, and ^C and ^Z go to that group, so it must be the command's while the command runs. The
// supervisor has one of these, and the guardian another, for when the supervisor dies.
type terminal struct {
	fd    int
	group int           // the supervisor's group: had the terminal before, and gets it back
	modes *unix.Termios // as they were before: a killed editor leaves the terminal raw
}

// openTerminal returns the terminal on fd and whether group is in its foreground. It returns nil if
// fd is not the controlling terminal of this process.
func openTerminal(fd, group int) (*terminal, bool) {
	foreground, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil {
		return nil, false
	}
	modes, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, false
	}
	return &terminal{fd: fd, group: group, modes: modes}, foreground == group
}

// giveTo makes group the foreground group, if the supervisor's group is. If another one is, a shell
// (after bg) has decided so.
func (t *terminal) giveTo(group int) { t.moveForeground(t.group, group) }

// takeFrom makes the supervisor's group the foreground group, if group is. If another one is, a
// shell has taken the terminal already.
func (t *terminal) takeFrom(group int) { t.moveForeground(group, t.group) }

func (t *terminal) moveForeground(from, to int) {
	if foreground, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err == nil && foreground == from {
		// This fails if the group is gone: then there is nobody to give it to.
		withoutSIGTTOU(func() { _ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, to) })
	}
}

// restore sets the modes as they were, if the supervisor's group is in the foreground.
func (t *terminal) restore() {
	if foreground, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err == nil && foreground == t.group {
		withoutSIGTTOU(func() { _ = unix.IoctlSetTermios(t.fd, unix.TCSETS, t.modes) })
	}
}

// withoutSIGTTOU calls f with SIGTTOU blocked. The kernel otherwise stops a background group that
// changes the terminal, and a process that takes the terminal back is in the background.
func withoutSIGTTOU(f func()) {
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

// inOrphanedGroup says whether this process is in an orphaned process group, as POSIX calls it: no
// ancestor is in our session but outside our group, that is, no shell could continue us after a
// stop. (For the same reason the kernel drops a SIGTSTP to such a group.)
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
