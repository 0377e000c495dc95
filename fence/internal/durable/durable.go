// Package durable replaces files so that a crash leaves the old content or the new, and locks them against other processes.
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

// Replace puts data in the place of path in one step: whoever opens path sees all of the old content or all of the new, after a
// crash too. It returns once both data and name are on the disk. Mode and owner are those of like, or perm and the process's own
// where like is nil. The caller holds a lock that keeps other writers of path away: what a crashed one has left behind is removed.
func Replace(path string, data []byte, perm fs.FileMode, like fs.FileInfo) (err error) {
	dir, base := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	tmp := filepath.Join(dir, "."+base+".new")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(tmp)
		}
	}()
	if like != nil {
		perm = like.Mode()
		if err := keepOwner(f, like); err != nil {
			return fmt.Errorf("the new file cannot have the owner of the old one: %w", err)
		}
	}
	// After the owner: a change of owner clears setuid. Chmod too does not know the umask, as os.WriteFile does not when it overwrites.
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
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(dir)
}

// ReadStamp reads what WriteStamp wrote, the zero Stamp where nothing was.
func ReadStamp(path string) (fence.Stamp, error) {
	var s fence.Stamp
	text, err := os.ReadFile(path)
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
		// It was written in one step, so no crash did this. To take it for empty would let any token in.
		return fence.Stamp{}, fmt.Errorf("%s is damaged: %w; restore it, or have an operator Adopt a token", path, err)
	}
	return s, nil
}

// WriteStamp replaces path with s.
func WriteStamp(path string, s fence.Stamp) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return Replace(path, append(text, '\n'), 0o644, nil)
}

// Lock takes the exclusive lock of path, which is made if it is not there and is never to be removed. It ends with the process at the
// latest. It waits until ctx ends; a ctx that has ended already still gets a lock that is free.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		f, err := tryLock(path)
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
			return nil, fmt.Errorf("another process holds %s, or is stopped while it does: %w", path, context.Cause(ctx))
		}
	}
}

// tryLock returns the locked file, or nil if somebody else has the lock.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	free, err := flock(f)
	if err == nil && free {
		// A lock on a file that was removed meanwhile keeps nobody out who makes a new one.
		var now, ours fs.FileInfo
		if ours, err = f.Stat(); err == nil {
			if now, err = os.Stat(path); err == nil && os.SameFile(ours, now) {
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
