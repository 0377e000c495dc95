// Package durable replaces files so that a crash leaves the old content or the new, and locks them
// against other processes. All of it is done in an open folder, not by path: a folder that is moved
// or replaced under its path cannot get what the lock of another allows.
package durable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/primacy-go/primacy/fence"
)

// Replace puts data in the place of name in root in one step: whoever opens name sees all of the
// old content or all of the new, after a crash too. It returns once both data and name are on the
// disk. Mode and owner are those of like, or perm and the process's own where like is nil. The
// caller holds a lock that keeps other writers of name away: tmp, which a crashed one may have left
// behind, is removed.
func Replace(root *os.Root, name, tmp string, data []byte, perm fs.FileMode, like fs.FileInfo) error {
	if err := root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = fill(f, data, perm, like)
	if err == nil {
		err = root.Rename(tmp, name)
	}
	if err != nil {
		_ = root.Remove(tmp) // the next writer removes it otherwise
		return err
	}
	return syncDir(root)
}

// fill gives f its owner, mode and content, brings it to the disk and closes it.
func fill(f *os.File, data []byte, perm fs.FileMode, like fs.FileInfo) error {
	defer f.Close()
	if like != nil {
		perm = like.Mode()
		if err := keepOwner(f, like); err != nil {
			return fmt.Errorf("the new file cannot have the owner of the old one: %w", err)
		}
	}
	// After the owner: a change of owner clears setuid. Chmod too does not know the umask, as
	// os.WriteFile does not when it overwrites.
	if err := f.Chmod(perm & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	// Without it the name may reach the disk before the data, and a crash leaves an empty file.
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// ReadStamp reads what WriteStamp wrote, the zero Stamp where nothing was.
func ReadStamp(root *os.Root, name string) (fence.Stamp, error) {
	var s fence.Stamp
	text, err := root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if err = json.Unmarshal(text, &s); err == nil {
		err = s.Valid()
	}
	if err != nil {
		// It was written in one step, so no crash did this. To take it for empty would let any
		// token in.
		return fence.Stamp{}, fmt.Errorf("%s is damaged: %w; restore it, or have an operator Adopt a token", filepath.Join(root.Name(), name), err)
	}
	return s, nil
}

// WriteStamp replaces name with s, see [Replace].
func WriteStamp(root *os.Root, name, tmp string, s fence.Stamp) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return Replace(root, name, tmp, append(text, '\n'), 0o644, nil)
}

// Lock takes the exclusive lock of name in root, which is made if it is not there and is never to
// be removed. It ends with the process at the latest. It waits until ctx ends; a ctx that has ended
// already still gets a lock that is free.
func Lock(ctx context.Context, root *os.Root, name string) (unlock func(), err error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		f, err := tryLock(root, name)
		if err != nil {
			return nil, err
		}
		if f != nil {
			return func() { f.Close() }, nil
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("another process holds %s, or is stopped while it does: %w", filepath.Join(root.Name(), name), context.Cause(ctx))
		}
	}
}

// tryLock returns the locked file, or nil if somebody else has the lock.
func tryLock(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	free, err := flock(f)
	if err == nil && free {
		// A lock on a file that was removed meanwhile keeps nobody out who makes a new one.
		var now, ours fs.FileInfo
		if ours, err = f.Stat(); err == nil {
			if now, err = root.Stat(name); err == nil && os.SameFile(ours, now) {
				return f, nil
			}
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
	}
	f.Close()
	return nil, err
}
