//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// stateFiles returns what supervisors have in the folder of state files.
func (w *world) stateFiles() (names []string) {
	w.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, "primacy"))
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (p *prog) pid() int { return p.cmd.Process.Pid }

// What a killed supervisor left behind is removed by the next one that starts, whatever name that
// stands for. That of one that lives, frozen or not, stays.
func TestTheNextRunRemovesWhatAKilledOneLeft(t *testing.T) {
	w := newWorld(t)
	begin := func(name string) *prog {
		return w.start("run", name, "--", "sh", "-c", "echo up; exec sleep 1000").prints("up")
	}
	killed, lives, frozen := begin("killed"), begin("lives"), begin("frozen")
	frozen.signal(syscall.SIGSTOP)
	killed.signal(syscall.SIGKILL)
	<-killed.exited
	dir := filepath.Join(w.dir, "primacy")
	// it was killed between the two steps in which it writes
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.state.new", killed.pid())), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	others := []string{"x.state", "primacy.sock.lock", "7.lock.d"} // are nobody's state
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	of := func(p *prog) []string {
		return []string{fmt.Sprintf("%d.lock", p.pid()), fmt.Sprintf("%d.state", p.pid())}
	}
	if left := w.stateFiles(); !slices.Contains(left, of(killed)[1]) {
		t.Fatalf("the killed one left only %q", left)
	}
	next := begin("another")
	want := slices.Concat(of(lives), of(frozen), of(next), others)
	slices.Sort(want)
	if got := w.stateFiles(); !slices.Equal(slices.DeleteFunc(got, func(name string) bool {
		return strings.HasSuffix(name, ".state.new") // for a moment at each renewal
	}), want) {
		t.Errorf("got %q, want %q", got, want)
	}
	frozen.signal(syscall.SIGCONT)
	for _, p := range []*prog{lives, frozen, next} {
		p.signal(syscall.SIGTERM)
		<-p.exited
	}
	slices.Sort(others)
	if got := w.stateFiles(); !slices.Equal(got, others) {
		t.Errorf("those that ended left %q", got)
	}
}

// Two processes may have one process ID: each in a container, with a folder in common.
func TestAStateFileOfTheSameProcessID(t *testing.T) {
	onlyInVerify(t)
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	other, err := newStateFile("n", "other", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	// another open file has a lock of its own, as another process has
	own, err := newStateFile("n", "own", 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	if own.path == other.path {
		t.Fatalf("both have %s", own.path)
	}
	for _, f := range []*stateFile{other, own} {
		if b, err := os.ReadFile(f.path); err != nil || !strings.Contains(string(b), fmt.Sprintf("%q", f.term.ID)) {
			t.Errorf("%s: %s %v", f.path, b, err)
		}
	}
	sweepStates(filepath.Join(dir, "primacy"))
	other.remove()
	if _, err := os.Stat(own.path); err != nil {
		t.Error(err)
	}
	_ = own.lock.Close() // as its process's death does
	sweepStates(filepath.Join(dir, "primacy"))
	if left, err := os.ReadDir(filepath.Join(dir, "primacy")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// After a plain su, XDG_RUNTIME_DIR is the folder of the user before: this one may not enter it.
func TestTheRuntimeFolderOfAnotherUserIsPassedOver(t *testing.T) {
	theirs, temp := t.TempDir(), t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", theirs)
	t.Setenv("TMPDIR", temp)
	own := filepath.Join(temp, fmt.Sprintf("primacy-%d", os.Getuid()))
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.Mkdir(own, 0o700))
	if os.Getuid() == 0 { // who may enter every folder: this thread may not, for a moment
		check(os.Chmod(filepath.Dir(theirs), 0o711))
		check(os.Chmod(theirs, 0o700))
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		check(syscall.Setfsuid(65534))
		defer func() { check(syscall.Setfsuid(0)) }()
	} else {
		check(os.Chmod(theirs, 0o500))
	}
	if got, err := runtimeDir(); err != nil || got != own {
		t.Errorf("got %q, %v, want %s", got, err, own)
	}
}
