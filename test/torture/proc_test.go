//go:build linux

package torture

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
)

// proc is a process, told from a later one with the same number by when it started.
type proc struct {
	pid    int
	role   string
	start  string
	number int // what it takes for its process ID itself: another than pid in a PID namespace
}

// stat is what we need of /proc/<pid>/stat.
type stat struct {
	state   byte
	parent  int
	exiting bool
	start   string
}

func statOf(pid int) (stat, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, false
	}
	f := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // the name may hold spaces
	if len(f) < 20 {
		return stat{}, false
	}
	const exiting = 0x4 // PF_EXITING
	parent, err := strconv.Atoi(string(f[1]))
	flags, err2 := strconv.ParseUint(string(f[6]), 10, 64)
	return stat{f[0][0], parent, flags&exiting != 0, string(f[19])}, err == nil && err2 == nil
}

// find returns the process with that number, which must be there.
func find(t testing.TB, pid int, role string) proc {
	t.Helper()
	st, ok := statOf(pid)
	if !ok {
		t.Fatalf("%s %d is not there", role, pid)
	}
	return proc{pid, role, st.start, pid}
}

// dead says whether the process runs no more: a zombie does nothing, nor does one whose memory the
// kernel takes down, which takes long where that is much, as under the race detector.
func (p proc) dead() bool {
	st, ok := statOf(p.pid)
	return !ok || st.start != p.start || st.state == 'Z' || st.state == 'X' || st.exiting
}

// frozen says whether each thread of the process has stopped, or the process is dead.
func (p proc) frozen() bool {
	return servertest.Halted(p.pid)
}

func (p proc) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.pid, sig); err != nil {
		t.Errorf("%v to %v: %v", sig, p, err)
	}
}

// freeze returns when all of them have stopped.
func freeze(t testing.TB, procs ...proc) {
	t.Helper()
	for _, p := range procs {
		p.signal(t, syscall.SIGSTOP)
	}
	for _, p := range procs {
		eventually(t, time.Minute, p.String()+" to stop", p.frozen)
	}
}

func (p proc) String() string { return fmt.Sprintf("%s %d", p.role, p.pid) }

// childOf returns the child of a process whose command line holds text.
func childOf(parent int, text string) (pid int, ok bool) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, ok := statOf(pid); !ok || st.parent != parent {
			continue
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(line, []byte(text)) {
			return pid, true
		}
	}
	return 0, false
}
