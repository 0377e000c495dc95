package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
)

// childLister returns the process IDs of a process's children.
type childLister func(pid int) []int

// newChildLister returns childrenOfThreads where the kernel supports it (CONFIG_PROC_CHILDREN), and
// a snapshot elsewhere. childrenOfThreads is cheaper. But it may miss a child while other children
// exit, so one look proves nothing: a caller that must meet every process looks again and again.
func newChildLister() childLister {
	if _, err := os.Stat("/proc/thread-self/children"); err == nil {
		return childrenOfThreads
	}
	return snapshot()
}

// childrenOfThreads returns what readChildren has read.
func childrenOfThreads(pid int) []int {
	pids, _ := readChildren(pid)
	return pids
}

// readChildren reads the children of each thread of pid: the kernel may make any thread of a
// subreaper the parent of an orphan. The kernel lists also children that /proc hides from us
// (hidepid). An error: they could not be read, for want of a descriptor, say. One that is gone has
// none: they have another parent.
func readChildren(pid int) (pids []int, err error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		text, oneErr := os.ReadFile(dir + "/" + task.Name() + "/children")
		if oneErr != nil && unix.Access(dir+"/"+task.Name(), unix.F_OK) == nil { // else the thread has ended
			err = oneErr
		}
		for _, field := range bytes.Fields(text) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids, err
}

// ownChild asks the kernel, which needs neither /proc nor a descriptor, whether pid is a child of
// this process that nobody has reaped, and whether it is dead.
func ownChild(pid int) (dead, ours bool) {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	return err == nil && info.Signo != 0, err == nil
}

// maxPID returns the largest process ID that the kernel gives.
func maxPID() int {
	text, _ := os.ReadFile("/proc/sys/kernel/pid_max")
	if n, err := strconv.Atoi(string(bytes.TrimSpace(text))); err == nil {
		return n
	}
	return 1 << 22 // never more, on any kernel
}

// snapshot looks at every process of the machine once and returns a lister that answers from that.
func snapshot() childLister {
	of := map[int][]int{}
	for _, p := range procfs.All() {
		of[p.Parent] = append(of[p.Parent], p.PID)
	}
	return func(pid int) []int { return of[pid] }
}

// isDead says whether a process runs no more: it is a zombie (state Z or X: Look finds these too),
// or gone.
func isDead(pid int) bool {
	p, ok := procfs.Look(pid)
	return !ok || p.Dead()
}

// descendant is a process below another one, and its parent at the time it was found.
type descendant struct{ pid, parent int }

// descendants lists everything below root, parents first. It leaves out each process for which skip
// is true, and all below that; a nil skip leaves out nothing.
func descendants(root int, children childLister, skip func(pid int) bool) []descendant {
	var found []descendant
	seen := map[int]bool{root: true} // a pid can come up twice if its parent dies while we look
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		for _, child := range children(queue[0]) {
			if seen[child] || skip != nil && skip(child) {
				continue
			}
			seen[child] = true
			found = append(found, descendant{child, queue[0]})
			queue = append(queue, child)
		}
	}
	return found
}

// signal sends sig to d, unless d's pid now belongs to a stranger: d's parent may reap d at any
// time, and the kernel may then give the same pid to a new process. signal opens a pidfd, which
// always refers to the same process. Then it sends only if the parent of that process is d.parent,
// or newParent. That is the process which inherits d when d.parent dies: the guardian, or the
// supervisor when the guardian is lost. (In a PID namespace init inherits it instead: then signal
// misses d, and a later look finds it below init.) If /proc does not show the process (hidepid),
// the children that its parent has by now say the same.
//
// A new child of one of these two parents passes for d. For that the kernel must have used all
// other pids since d was found, some milliseconds ago.
func (d descendant) signal(newParent int, sig unix.Signal) {
	fd, err := unix.PidfdOpen(d.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil { // Linux before 5.3, or no descriptors left: better a small risk than a survivor
		_ = unix.Kill(d.pid, sig)
		return
	}
	defer unix.Close(fd)
	s, shown := procfs.Look(d.pid)
	if shown && (s.Parent == d.parent || s.Parent == newParent) ||
		!shown && (slices.Contains(childrenOfThreads(d.parent), d.pid) ||
			slices.Contains(childrenOfThreads(newParent), d.pid)) {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}
