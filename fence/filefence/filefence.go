// Package filefence replaces a file in one step, under a token: a leader that was paused cannot put an old file over a new one.
//
//	err := filefence.Write(ctx, "/srv/app/config.json", data, 0o644, fence.Of(term))
//
// # What it guarantees
//
// Writers of one file take turns under a lock. Each compares its token with the largest that the file has seen, and both are on the
// disk before Write returns. A smaller token gets a *fence.StaleError and the file is untouched. Whoever reads the
// file, without asking this package, sees all of one version: a crash at any point leaves the old one or the new one. A symbolic
// link stays a link (what it points to is replaced); mode, owner and group are kept.
//
// Beside a file F stand .F.lock, which must never be removed, and .F.fence, which holds the largest token.
//
// # What it cannot
//
// It binds only writers that use it. A process that is stopped inside Write holds the lock: its successor waits until its
// context ends, and gets an error that says so; kill the stopped one. The lock is flock(2): on NFS a server that restarts can
// lose it, and two writers may then come between each other, so use a local disk there. Hard links, extended attributes
// and ACLs of the old file are not carried over. What several files say together is not one step.
package filefence

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/internal/durable"
)

// Write replaces the file's content with data. A file that is not there is made with mode perm, whatever the umask; its folder must
// exist. The error is a *fence.StaleError if a larger token was there, a *fence.OriginError if tokens of another store were, and in
// both cases nothing has changed. After any other error the file has its old content or, if only the last step failed, the new;
// repeat the call. When ctx ends while another process holds the lock its cause is in the error.
func Write(ctx context.Context, path string, data []byte, perm fs.FileMode, s fence.Stamp) error {
	return under(ctx, path, s, func(real string, info fs.FileInfo) error {
		return durable.Replace(real, data, perm, info)
	})
}

// Raise makes the fence refuse tokens smaller than s from now on. Call it before the first read of what will be written. The file
// need not exist. Its errors are those of [Write].
func Raise(ctx context.Context, path string, s fence.Stamp) error {
	return under(ctx, path, s, nil)
}

// Read raises the fence and then returns the file's content: what a new leader builds on. Nothing older lands after it.
func Read(ctx context.Context, path string, s fence.Stamp) (data []byte, err error) {
	err = under(ctx, path, s, func(real string, _ fs.FileInfo) error {
		data, err = os.ReadFile(real)
		return err
	})
	return data, err
}

// Adopt is an operator's word that from now on s counts, whatever the fence knew: after the store of the election was restored or
// replaced, or to mend a damaged .fence file. Before it, make sure that no leader of the old store runs.
func Adopt(ctx context.Context, path string, s fence.Stamp) error {
	f, err := lock(ctx, path, s)
	if err != nil {
		return err
	}
	defer f.unlock()
	return wrap(path, durable.WriteStamp(f.stamp, s))
}

// under runs do while it holds the lock, with the fence raised.
func under(ctx context.Context, path string, s fence.Stamp, do func(real string, info fs.FileInfo) error) error {
	f, err := lock(ctx, path, s)
	if err != nil {
		return err
	}
	defer f.unlock()
	last, err := durable.ReadStamp(f.stamp)
	if err != nil {
		return wrap(path, err)
	}
	if err := s.After(last); err != nil {
		return err
	}
	// The fence first: a crash between the two leaves an old file that no older leader can write.
	if s != last {
		if err := durable.WriteStamp(f.stamp, s); err != nil {
			return wrap(path, err)
		}
	}
	if do == nil {
		return nil
	}
	return wrap(path, do(f.real, f.info))
}

// file is a file whose lock we hold.
type file struct {
	real   string      // its path without symbolic links
	info   fs.FileInfo // nil if it is not there
	stamp  string      // path of what holds the largest token
	unlock func()
}

func lock(ctx context.Context, path string, s fence.Stamp) (*file, error) {
	if err := s.Valid(); err != nil {
		return nil, err
	}
	real, err := resolve(path)
	if err != nil {
		return nil, wrap(path, err)
	}
	if err := regular(real); err != nil { // before anything is made beside it
		return nil, wrap(path, err)
	}
	dir, base := filepath.Split(real)
	f := &file{real: real, stamp: filepath.Join(dir, "."+base+".fence")}
	if f.unlock, err = durable.Lock(ctx, filepath.Join(dir, "."+base+".lock")); err != nil {
		return nil, wrap(path, err)
	}
	if f.info, err = os.Stat(real); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.unlock()
		return nil, wrap(path, err)
	}
	return f, nil
}

// regular returns an error if path is there and no plain file: a folder, a device, a socket.
func regular(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return errors.New("it is no regular file")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// resolve follows symbolic links, so that all who write one file by different names have one fence. Of a path whose file is not
// there yet the folder is resolved; a link to a file that is not there is followed too.
func resolve(path string) (string, error) {
	for range 40 { // as many links as Linux follows
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Abs(real)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return "", err
		}
		target, err := os.Readlink(path)
		if err != nil {
			return filepath.Abs(filepath.Join(dir, filepath.Base(path)))
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		path = target
	}
	return "", errors.New("too many symbolic links")
}

func wrap(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fence of %s: %w", path, err)
}
