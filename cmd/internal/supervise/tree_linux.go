package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
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

// childrenOfThreads reads the children of each thread of pid: the kernel may make any thread of a
// subreaper the parent of an orphan.
func childrenOfThreads(pid int) []int {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	tasks, _ := os.ReadDir(dir) // an error: it is gone, and its children have another parent
	var pids []int
	for _, task := range tasks {
		text, _ := os.ReadFile(dir + "/" + task.Name() + "/children")
		for _, field := range bytes.Fields(text) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
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
// misses d, and a later look finds it below init.)
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
	if s, ok := procfs.Look(d.pid); ok && (s.Parent == d.parent || s.Parent == newParent) {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}
