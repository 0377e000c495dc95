package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
)

const stateFileEnv = "PRIMACY_STATE_FILE"

// stateFile tells the command, and whatever it starts, until when the term is valid, without any
// network. It is rewritten at each renewal, in one step, and removed at the end; if we are killed
// its deadline passes.
type stateFile struct {
	path string
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
	f := &stateFile{
		path: filepath.Join(dir, fmt.Sprintf("%d.state", os.Getpid())),
		term: termState{Name: name, ID: id, Token: token, BootID: bootID(), PID: os.Getpid()},
	}
	return f, f.write(deadline)
}

func (f *stateFile) write(deadline time.Duration) error {
	f.term.Deadline = deadline
	b, err := json.Marshal(f.term)
	if err != nil {
		return err
	}
	tmp := f.path + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	if err := os.Rename(tmp, f.path); err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	return nil
}

func (f *stateFile) remove() { _ = os.Remove(f.path) }

// runtimeDir is a folder that only this user can read.
func runtimeDir() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("primacy-%d", os.Getuid()))
	if x := os.Getenv("XDG_RUNTIME_DIR"); x != "" {
		dir = filepath.Join(x, "primacy")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("folder for the state file: %w", err)
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
