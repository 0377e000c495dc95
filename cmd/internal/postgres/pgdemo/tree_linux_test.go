package pgdemo

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
)

const limit = time.Minute

// family starts a shell with two children, one of which has left its session, and returns their
// process IDs.
func family(t *testing.T) (root *exec.Cmd, all []int) {
	t.Helper()
	c := exec.Command("sh", "-c", `sleep 1000 & echo $!; setsid sh -c 'echo $$; sleep 1000; :' & wait`)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	all = []int{c.Process.Pid}
	for lines := bufio.NewScanner(out); len(all) < 3 && lines.Scan(); {
		pid, err := strconv.Atoi(strings.TrimSpace(lines.Text()))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pid)
	}
	t.Cleanup(func() {
		TreeOf(c.Process.Pid).Kill()
		_ = c.Wait()
	})
	return c, all
}

func stateOf(pid int) string {
	if p, ok := procfs.Look(pid); ok {
		return string(p.State)
	}
	return ""
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// sleepers returns how many in the tree run sleep.
func sleepers(root int) (n int) {
	for _, p := range tree(root) {
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID)); string(name) == "sleep\n" {
			n++
		}
	}
	return n
}

func TestATreeIsFrozenThawedAndKilledWhole(t *testing.T) {
	root, all := family(t)
	tree := TreeOf(root.Process.Pid)
	// Before: a shell that waits until its child has begun another program cannot be suspended.
	eventually(t, "both programs run", func() bool { return sleepers(root.Process.Pid) == 2 })
	if n := tree.Freeze(); n != 4 {
		t.Errorf("froze %d, want 4", n)
	}
	for _, pid := range all {
		if s := stateOf(pid); s != "T" {
			t.Errorf("%d is in state %q after Freeze", pid, s)
		}
	}
	if n := tree.Thaw(); n != 4 {
		t.Errorf("thawed %d, want 4", n)
	}
	eventually(t, "all are awake", func() bool {
		return !slices.ContainsFunc(all, func(pid int) bool { return stateOf(pid) == "T" })
	})
	if n := tree.Kill(); n != 4 {
		t.Errorf("killed %d, want 4", n)
	}
	_ = root.Wait()
	eventually(t, "nobody lives", func() bool {
		return !slices.ContainsFunc(all, func(pid int) bool { s := stateOf(pid); return s != "" && s != "Z" })
	})
}

// What a killed process leaves falls to us. Nobody else buries it, and PostgreSQL takes a dead
// process for one that runs.
func TestWhatAKilledProcessLeavesIsSweptAndBuried(t *testing.T) {
	if err := Adopt(); err != nil {
		t.Fatal(err)
	}
	root, all := family(t)
	if err := root.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = root.Wait()
	eventually(t, "its children are ours", func() bool { p, _ := procfs.Look(all[1]); return p.Parent == os.Getpid() })
	if !Sweep(limit, NewMemory()) {
		t.Error("something is left")
	}
	eventually(t, "they are dead", func() bool { return stateOf(all[1]) == "Z" && stateOf(all[2]) == "Z" })
	Reap(func(pid int) bool { return pid == all[1] })
	if stateOf(all[1]) != "Z" || stateOf(all[2]) != "" {
		t.Errorf("states %q and %q: want Z, left to its owner, and nothing", stateOf(all[1]), stateOf(all[2]))
	}
	Reap(func(int) bool { return false })
	if s := stateOf(all[1]); s != "" {
		t.Errorf("it is in state %q", s)
	}
}

// A process that got the number of a dead one is not signalled.
func TestANumberThatWasGivenAgainIsNotSignalled(t *testing.T) {
	root, _ := family(t)
	p, ok := procfs.Look(root.Process.Pid)
	if !ok {
		t.Fatal("it does not live")
	}
	p.Start += "0"
	if (process{p}).signal(syscall.SIGKILL) {
		t.Error("signalled")
	}
}
