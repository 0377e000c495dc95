package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
)

const stateFileEnv = "PRIMACY_STATE_FILE"

// stateFile tells the command, and whatever it starts, until when the term is valid, without any
// network. It is rewritten at each renewal, in one step, and removed at the end. If we are killed,
// its deadline passes, and the next run in the folder removes it.
//
// The lock beside it is held as long as this process lives: the kernel frees it, whatever ends the
// process, and not while that is frozen. A process ID would not do: it is given again, and means
// another process in a container that shares the folder.
type stateFile struct {
	path string
	lock *os.File
	term termState
}

type termState struct {
	Name     string        `json:"name"`
	ID       string        `json:"id"`
	Token    primacy.Token `json:"token"`
	Deadline time.Duration `json:"deadline_boot_ns,string"` // on the boot clock of boot BootID
	BootID   string        `json:"boot_id"`
	PID      int           `json:"pid"`
}

func newStateFile(name, id string, token primacy.Token, deadline time.Duration) (*stateFile, error) {
	dir, err := runtimeDir()
	if err != nil {
		return nil, err
	}
	f := &stateFile{term: termState{Name: name, ID: id, Token: token, BootID: bootID(), PID: os.Getpid()}}
	for n := 0; f.lock == nil; n++ {
		base := filepath.Join(dir, strconv.Itoa(os.Getpid()))
		if n > 0 { // that of a process in another container
			base += fmt.Sprintf("-%d", n)
		}
		f.path = base + stateSuffix
		if f.lock, err = lockState(base + lockSuffix); err != nil {
			return nil, err
		}
	}
	if err := f.write(deadline); err != nil {
		f.remove()
		return nil, err
	}
	return f, nil
}

// What a supervisor has in the folder: PID.state, PID.state.new for a moment, and PID.lock.
const (
	stateSuffix = ".state"
	newSuffix   = ".state.new"
	lockSuffix  = ".lock"
)

// lockState returns the file, locked; nil if another living process has it. A sweep has it for a
// moment.
func lockState(path string) (*os.File, error) {
	for range 10 {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("state file: %w", err)
		}
		// Where the file system knows no locks, nobody can have this one, and no sweep removes it.
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) && stands(f) {
			return f, nil
		}
		_ = f.Close()
		time.Sleep(time.Millisecond)
	}
	return nil, nil
}

// stands says whether a file is still there under its name.
func stands(f *os.File) bool {
	have, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(have, there)
}

var stateLock = regexp.MustCompile(`^[0-9]+(-[0-9]+)?\.lock$`)

// sweepStates removes what supervisors left behind that are gone for certain: their lock is free.
func sweepStates(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !stateLock.MatchString(e.Name()) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && stands(f) {
			removeState(strings.TrimSuffix(f.Name(), lockSuffix))
		}
		_ = f.Close()
	}
}

// removeState removes all that a supervisor has, whose lock the caller holds. The lock is the last:
// without it nobody would find the others.
func removeState(base string) {
	for _, suffix := range []string{stateSuffix, newSuffix, lockSuffix} {
		_ = os.Remove(base + suffix)
	}
}

func (f *stateFile) write(deadline time.Duration) error {
	f.term.Deadline = deadline
	b, err := json.Marshal(f.term)
	if err != nil {
		return err
	}
	tmp := strings.TrimSuffix(f.path, stateSuffix) + newSuffix
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	if err := os.Rename(tmp, f.path); err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	return nil
}

func (f *stateFile) remove() {
	removeState(strings.TrimSuffix(f.path, stateSuffix))
	_ = f.lock.Close()
}

// runtimeDir is a folder that only this user can read. After a plain su, XDG_RUNTIME_DIR is the
// folder of the user who was there before: then it is as if it were not set.
func runtimeDir() (string, error) {
	temp := filepath.Join(os.TempDir(), fmt.Sprintf("primacy-%d", os.Getuid()))
	x := os.Getenv("XDG_RUNTIME_DIR")
	if x == "" {
		return ownDir(temp)
	}
	dir, err := ownDir(filepath.Join(x, "primacy"))
	if errors.Is(err, os.ErrPermission) {
		return ownDir(temp)
	}
	return dir, err
}

// ownDir makes the folder where there is none, and refuses one that others could write to.
func ownDir(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("folder for the state file: %w; set XDG_RUNTIME_DIR to a folder of your own", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("folder for the state file: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm() != 0o700 || ok && int(st.Uid) != os.Getuid() {
		return "", fmt.Errorf("folder for the state file: %s must be a folder of your own with mode 0700; "+
			"remove it or set XDG_RUNTIME_DIR", dir)
	}
	return dir, nil
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// validState answers whether the term in the file is valid now: nil, or exit 1 with the reason.
func validState(name, path string) error {
	if path == "" {
		return fmt.Errorf("--valid: %s is not set; use it inside a command of 'primacy run'", stateFileEnv)
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return fail(exitNo, "the term is over: %s is gone", path)
	}
	if err != nil {
		return fmt.Errorf("--valid: %w", err)
	}
	var t termState
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("--valid: %s is not a state file of 'primacy run': %w", path, err)
	}
	switch left := t.Deadline - boottime.Now(); {
	case t.Name != name:
		return fail(exitNo, "the term in %s is of %q, not of %q", path, t.Name, name)
	case t.BootID != bootID() || left <= 0:
		return fail(exitNo, "the term of %s%s is over", name, under("token", t.Token))
	}
	return nil
}
