package clone

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func identify(dir string) (identity, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return identity{}, &os.PathError{Op: "statx", Path: dir, Err: err}
	}
	id := identity{Inode: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.Born = time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)).UTC().Format(time.RFC3339Nano)
	}
	return id, nil
}

// filesystemOf returns what tells a file system from another one. Where the file system has no
// number of its own, that of its device must do.
func filesystemOf(path string) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return "", &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if fs.Fsid.Val[0] != 0 || fs.Fsid.Val[1] != 0 {
		return fmt.Sprintf("%x-%08x%08x", fs.Type, uint32(fs.Fsid.Val[1]), uint32(fs.Fsid.Val[0])), nil
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fmt.Sprintf("%x-device-%x", fs.Type, st.Dev), nil
}

// ownGroup has a program lead a process group, and end with the thread that starts it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit returns when the process has exited. It is not buried: until then its number, which is
// also that of its group, is nobody else's.
func awaitExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}
