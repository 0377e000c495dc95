//go:build unix

package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// errReplaced says that the directory is no longer the one that was opened.
var errReplaced = errors.New("the directory was removed or replaced while in use")

// lock is the lock that makes its holder the host. The kernel frees it with the process. Children
// do not inherit it, because Go opens files close-on-exec; a lock that a child kept would outlive
// the host.
type lock struct{ file *os.File }

func openLock(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &lock{f}, nil
}

// try takes the lock if it is free.
func (l *lock) try() (bool, error) {
	if err := l.check(); err != nil {
		return false, err
	}
	for {
		err := syscall.Flock(int(l.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			// The file may have been replaced just before: a lock on a file that has no name
			// excludes nobody.
			if err := l.check(); err != nil {
				l.release()
				return false, err
			}
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, fmt.Errorf("lock %s: %w", l.file.Name(), err)
		}
	}
}

// check says whether the file still stands under its name.
func (l *lock) check() error {
	have, err := l.file.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(l.file.Name())
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(have, named) {
		return errReplaced
	}
	return err
}

// sign writes the holder's process ID into the file, for people.
func (l *lock) sign() error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// holder is the process ID of whoever holds the lock, or "?".
func (l *lock) holder() string {
	text, err := os.ReadFile(l.file.Name())
	if id := strings.TrimSpace(string(text)); err == nil && id != "" {
		return id
	}
	return "?"
}

func (l *lock) release() { _ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN) }
func (l *lock) close()   { l.file.Close() }

func ownerOf(info fs.FileInfo) (int, bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(s.Uid), true
}
