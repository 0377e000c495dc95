package pgdemo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
)

// Adopt makes this process the parent of everything below it that loses its own: so [Tree] of this
// process has all that it has started, also what is left of a killed one.
func Adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// Reap buries what was adopted and has died: PostgreSQL takes a dead process that nobody has buried
// for one that runs. It leaves those to their owner that mine names.
func Reap(mine func(pid int) bool) {
	for _, p := range procfs.All() {
		if p.Dead() && p.Parent == os.Getpid() && !mine(p.PID) {
			_, _ = syscall.Wait4(p.PID, nil, syscall.WNOHANG, nil)
		}
	}
}

// process is one that lives.
type process struct{ procfs.Process }

// tree returns the process and all below it; without it if it is this very process.
func tree(root int) (all []process) {
	of := map[int][]process{}
	for _, p := range procfs.All() {
		if !p.Dead() {
			of[p.Parent] = append(of[p.Parent], process{p})
		}
	}
	if p, ok := procfs.Look(root); ok && !p.Dead() && root != os.Getpid() {
		all = append(all, process{p})
	}
	for next := of[root]; len(next) > 0; {
		p := next[0]
		all, next = append(all, p), append(next[1:], of[p.PID]...)
	}
	return all
}

// signal sends it to that process, and to nobody who got its number later.
func (p process) signal(sig syscall.Signal) bool {
	handle, err := os.FindProcess(p.PID)
	if err != nil {
		return false
	}
	defer func() { _ = handle.Release() }()
	now, ok := procfs.Look(p.PID)
	return ok && !now.Dead() && now.Start == p.Start && handle.Signal(sig) == nil
}

// Tree is a process and all below it.
type Tree struct{ root int }

// TreeOf returns the tree of a process.
func TreeOf(pid int) Tree { return Tree{pid} }

// Freeze suspends the whole tree, as a hypervisor does with a machine, and returns how many
// processes that are.
func (t Tree) Freeze() int { return len(t.freeze()) }

func (t Tree) freeze() []process {
	for try := 0; ; try++ {
		all, news := tree(t.root), 0
		for _, p := range all {
			if p.State != 'T' && p.signal(syscall.SIGSTOP) {
				news++
			}
		}
		if news == 0 || try == 1000 {
			return all
		}
		time.Sleep(time.Millisecond) // one that waits for the disk stops when it comes back
	}
}

// Hold freezes the tree again and again until ctx ends. A frozen machine's kernel wakes nobody, and
// this one's would: agent and guardian have asked it to wake them at their deadline.
func (t Tree) Hold(ctx context.Context) {
	for ctx.Err() == nil {
		t.freeze()
		pause(ctx, 2*time.Millisecond)
	}
}

// Thaw lets the tree go on, and returns how many processes were still suspended.
func (t Tree) Thaw() (suspended int) {
	for _, p := range tree(t.root) {
		if p.State == 'T' && p.signal(syscall.SIGCONT) {
			suspended++
		}
	}
	return suspended
}

// Kill ends the whole tree at one instant, as a power cut ends a machine: it is frozen first, so
// that nobody in it sees another one end. It returns how many processes that were.
func (t Tree) Kill() int {
	all := t.freeze()
	for _, p := range all {
		p.signal(syscall.SIGKILL)
	}
	return len(all)
}

// Sweep kills all that this process has started, and removes the shared memory that it leaves. It
// reports false if something is still there after the limit.
func Sweep(limit time.Duration, m *Memory) bool {
	t := TreeOf(os.Getpid())
	end := time.Now().Add(limit)
	for empty := 0; ; time.Sleep(10 * time.Millisecond) {
		all := t.freeze()
		for _, p := range all {
			m.noteFiles(p.PID)
		}
		for _, p := range all {
			p.signal(syscall.SIGKILL)
		}
		if empty++; len(all) > 0 {
			empty = 0
		}
		// One look may miss a process whose parent dies while we look. And what it has attached is
		// not free before it is dead.
		if over := time.Now().After(end); over || empty >= 3 && (m.remove() || empty >= 100) {
			return !over
		}
	}
}

// Memory knows the shared memory of servers. What a killed one leaves is removed by the next server
// in its data directory, and there may be none.
type Memory struct {
	segments map[int]bool    // of System V
	files    map[string]bool // in /dev/shm
}

// NewMemory returns one that knows nothing yet.
func NewMemory() *Memory { return &Memory{map[int]bool{}, map[string]bool{}} }

// Note takes in what the server of a data directory has.
func (m *Memory) Note(data string) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	if err != nil || len(lines) < 7 {
		return
	}
	var key uint64
	var id int
	if n, _ := fmt.Sscan(lines[6], &key, &id); n == 2 {
		m.segments[id] = true
	}
}

// noteFiles takes in the files of one process: initdb's servers have some.
func (m *Memory) noteFiles(pid int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	for line := range strings.Lines(string(text)) {
		if i := strings.Index(line, "/dev/shm/PostgreSQL."); i >= 0 {
			m.files[strings.TrimSpace(line[i:])] = true
		}
	}
}

// remove reports false if something is still attached.
func (m *Memory) remove() bool {
	free := true
	for id := range m.segments {
		var d unix.SysvShmDesc
		if _, err := unix.SysvShmCtl(id, unix.IPC_STAT, &d); err != nil || int(d.Perm.Cuid) != os.Getuid() {
			continue
		}
		if free = free && d.Nattch == 0; d.Nattch == 0 {
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
	}
	for path := range m.files {
		_ = os.Remove(path)
	}
	return free
}
