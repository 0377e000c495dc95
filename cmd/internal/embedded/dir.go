package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	storeName  = "primacy.store"
	lockName   = "primacy.lock"
	socketName = "etcd.sock"
	logName    = "etcd.log"
	dataName   = "etcd"
	newName    = "etcd.new"

	storeText = "primacy embedded store, format 1\n"
)

// dir is a directory that was found fit to hold the store.
type dir struct {
	name string   // absolute
	at   string   // how sockets name it: name, or a short alias that is good in this process only
	file *os.File // what the alias stands on; nil without one
}

// DefaultDir is the directory of the store that people get without asking: $XDG_STATE_HOME/primacy,
// or ~/.local/state/primacy. It returns an error where neither variable nor home directory is
// known.
func DefaultDir() (string, error) {
	// The XDG rules say that a relative path is to be ignored. Two working directories would be two
	// stores, too.
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "primacy"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place for the embedded store: neither XDG_STATE_HOME nor HOME is set: name a " +
			"directory")
	}
	return filepath.Join(home, ".local", "state", "primacy"), nil
}

// openDir makes the directory if need be and checks that it is ours to use.
func openDir(path string) (*dir, error) {
	if path == "" {
		return nil, errors.New("embedded store: no directory given")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("embedded store %s: %w", path, err)
	}
	d := &dir{name: abs}
	if err := d.mend(); err != nil {
		return nil, err
	}
	if d.at, d.file, err = shortPath(abs, socketName); err != nil {
		return nil, fmt.Errorf("embedded store %s: %w", abs, err)
	}
	return d, nil
}

func (d *dir) close() {
	if d.file != nil {
		d.file.Close()
	}
}

func (d *dir) path(name string) string { return filepath.Join(d.name, name) }
func (d *dir) socket() string          { return filepath.Join(d.at, socketName) }

func (d *dir) endpoint() string {
	return (&url.URL{Scheme: "unix", Path: d.socket()}).String() // gRPC decodes what a URL may not hold
}

// mend makes the directory or checks it, foreign files before permissions: nothing of a stranger's
// is changed.
func (d *dir) mend() error {
	if err := os.MkdirAll(d.name, 0o700); err != nil {
		return d.unusable(err)
	}
	info, err := os.Stat(d.name)
	if err != nil {
		return d.unusable(err)
	}
	if owner, ok := ownerOf(info); ok && owner != os.Geteuid() {
		return fmt.Errorf("embedded store %s: the directory belongs to user ID %d, and this process runs as %d: "+
			"run as its owner or choose another directory", d.name, owner, os.Geteuid())
	}
	if err := d.ours(); err != nil {
		return err
	}
	mode := info.Mode().Perm()
	if mode&0o022 != 0 {
		// Others may have planted a socket or a log here, or may swap files later: chmod alone
		// heals nothing.
		return fmt.Errorf("embedded store %s: other users can write to the directory (mode %04o): "+
			"chmod 700 it if you trust what is in there, or choose another", d.name, mode)
	}
	if mode != 0o700 {
		if err := os.Chmod(d.name, 0o700); err != nil {
			return d.unusable(err)
		}
	}
	return nil
}

// ours refuses a directory that holds anything but a store of this format. An empty one is ours,
// and so is one in which another process is just about to begin.
func (d *dir) ours() error {
	text, err := os.ReadFile(d.path(storeName))
	switch {
	case err == nil && string(text) == storeText:
		return nil
	case err == nil && strings.HasPrefix(storeText, string(text)):
		// Torn by a crash, or being written by the host. The host writes it again.
	case err == nil:
		return fmt.Errorf("embedded store %s: %s says %q, and this primacy knows only %q: "+
			"use the version that made it, or choose another directory", d.name, storeName, firstLine(text),
			firstLine([]byte(storeText)))
	case !errors.Is(err, fs.ErrNotExist):
		return d.unusable(err)
	}
	entries, err := os.ReadDir(d.name)
	if err != nil {
		return d.unusable(err)
	}
	for _, e := range entries {
		if e.Name() == storeName || e.Name() == lockName {
			continue
		}
		// Between the look for the marker and the listing another process may have begun.
		if text, err := os.ReadFile(d.path(storeName)); err == nil && string(text) == storeText {
			return nil
		}
		return fmt.Errorf("embedded store %s: the directory is in use by something else (it holds %q): choose an "+
			"empty one",
			d.name, e.Name())
	}
	return nil
}

// claim marks the directory as ours. The caller holds the lock.
func (d *dir) claim() error {
	if text, err := os.ReadFile(d.path(storeName)); err == nil && string(text) == storeText {
		return nil
	}
	f, err := os.OpenFile(d.path(storeName), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(storeText)
	return errors.Join(err, f.Sync(), f.Close())
}

// unusable turns an error of the file system into a line that says what to do.
func (d *dir) unusable(err error) error {
	hint := "choose another directory"
	switch {
	case errors.Is(err, errReplaced):
		hint = "leave it alone while primacy runs, and start again"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		hint = "it must be a directory; choose another"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = "make room, or choose a directory on another disk"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		hint = "give this user the right to write there, or choose another directory"
	}
	return fmt.Errorf("embedded store %s: %w: %s", d.name, err, hint)
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text), "\n")
	if len(line) > 60 {
		line = line[:60] + "…"
	}
	return line
}
