package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// census answers who the children of a process are.
type census func(pid int) []int

// newCensus returns the cheap census where the kernel has it (CONFIG_PROC_CHILDREN), else a look at every process.
// The cheap one may miss a child while others are exiting: its users go round until wait4 says that none is left.
func newCensus() census {
	if _, err := os.Stat("/proc/thread-self/children"); err == nil {
		return fastCensus
	}
	return snapshot()
}

// fastCensus reads the children of each thread. All threads: an orphan is given to any thread of its subreaper.
func fastCensus(pid int) []int {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	tasks, _ := os.ReadDir(dir) // an error: it is gone, and its children are somebody else's
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

// snapshot looks at every process once.
func snapshot() census {
	of := map[int][]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if s, ok := readStat(pid); ok {
			of[s.parent] = append(of[s.parent], pid)
		}
	}
	return func(pid int) []int { return of[pid] }
}

// stat is what we need of /proc/<pid>/stat.
type stat struct {
	state  byte
	parent int
	start  string // in clock ticks after boot: with the pid, it names a process for good
}

// readStat returns false if there is no such process.
func readStat(pid int) (stat, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, false
	}
	// The name in parentheses may hold anything, also spaces and parentheses: count from the last one.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return stat{}, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return stat{state: fields[0][0], parent: parent, start: string(fields[19])}, err == nil
}

// member is a process of a tree, and whose child it was when it was found.
type member struct{ pid, parent int }

// descendants lists everything below root, parents first, but not what skip names nor anything below it.
func descendants(root int, children census, skip func(pid int) bool) []member {
	var found []member
	seen := map[int]bool{root: true} // a pid can come up twice if its parent dies while we look
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		for _, child := range children(queue[0]) {
			if seen[child] || skip(child) {
				continue
			}
			seen[child] = true
			found = append(found, member{child, queue[0]})
			queue = append(queue, child)
		}
	}
	return found
}

// nobody is what descendants skips if nothing is to be skipped.
func nobody(int) bool { return false }

// kill sends sig to m, unless its pid belongs to another process by now. A descendant may be reaped by its own parent
// at any time and its number given away; a pidfd holds on to one process, and the parent tells whether it is the right one.
func (m member) kill(reaper int, sig unix.Signal) {
	fd, err := unix.PidfdOpen(m.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil { // Linux before 5.3, or no descriptors left: better a small risk than a survivor
		_ = unix.Kill(m.pid, sig)
		return
	}
	defer unix.Close(fd)
	// Orphans fall to the reaper between our look and now.
	if s, ok := readStat(m.pid); ok && (s.parent == m.parent || s.parent == reaper) {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}
