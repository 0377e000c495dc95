// Package filefence replaces a file in one step, under a token: a leader that was paused cannot put
// an old file over a new one.
//
//	err := filefence.Write(ctx, "/srv/app/config.json", data, 0o644, fence.Of(term))
//
// Writers of one file take turns under a lock. Each compares its token with the largest that the
// file has seen, and both are on the disk before Write returns. A smaller token gets a
// *fence.StaleError and the file is untouched. Whoever reads the file, without asking this package,
// sees all of one version, after a crash too. A symbolic link stays a link (what it points to is
// replaced); mode, owner and group are kept.
//
// Beside a file F stand .F.lock, which must never be removed, and .F.fence, which holds the largest
// token; .F.fence-new is a version that is being written, and one that a crash has left is removed
// without asking. So a name has up to 244 bytes, and names of these shapes cannot be written
// themselves.
//
// It binds only writers that use it. A process that is stopped inside Write holds the lock: its
// successor waits until its context ends, and gets an error that says so; kill the stopped one. On
// NFS a server that restarts can lose the lock: use a local disk. Hard links, extended attributes
// and ACLs of the old file are not carried over. More: docs/fencing.md.
package filefence

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/internal/durable"
)

// Write replaces the file's content with data. A file that is not there is made with mode perm,
// whatever the umask; its folder must exist. The error is a *fence.StaleError if a larger token was
// there, a *fence.OriginError if tokens of another store were, and in both cases nothing has
// changed. After any other error the file has its old content or, if only the last step failed, the
// new; repeat the call. When ctx ends while another process holds the lock its cause is in the
// error.
func Write(ctx context.Context, path string, data []byte, perm fs.FileMode, s fence.Stamp) error {
	return under(ctx, path, s, func(f *file) error {
		return durable.Replace(f.root, f.base, f.beside(newSuffix), data, perm, f.info)
	})
}

// Raise makes the fence refuse tokens smaller than s from now on. Call it before the first read of
// what will be written. The file need not exist. Its errors are those of [Write].
func Raise(ctx context.Context, path string, s fence.Stamp) error {
	return under(ctx, path, s, nil)
}

// Read raises the fence and then returns the file's content: what a new leader builds on. Nothing
// older lands after it.
func Read(ctx context.Context, path string, s fence.Stamp) (data []byte, err error) {
	err = under(ctx, path, s, func(f *file) error {
		data, err = f.root.ReadFile(f.base)
		return err
	})
	return data, err
}

// Adopt makes s count, whatever the fence knew. It is for an operator, after the store of the
// election was restored or replaced or a .fence file was damaged, who has made sure that no leader
// of the old store runs.
func Adopt(ctx context.Context, path string, s fence.Stamp) error {
	f, err := lock(ctx, path, s)
	if err != nil {
		return err
	}
	defer f.close()
	return wrap(path, durable.WriteStamp(f.root, f.beside(stampSuffix), f.beside(newSuffix), s))
}

// under runs do while it holds the lock, with the fence raised.
func under(ctx context.Context, path string, s fence.Stamp, do func(f *file) error) error {
	f, err := lock(ctx, path, s)
	if err != nil {
		return err
	}
	defer f.close()
	last, err := durable.ReadStamp(f.root, f.beside(stampSuffix))
	if err != nil {
		return wrap(path, err)
	}
	if err := s.After(last); err != nil {
		return err
	}
	// The fence first: a crash between the two leaves an old file that no older leader can write.
	// Also when it says s already: its writer may have been killed, or refused by the disk, after
	// the stamp was to be seen and before it was safe from a crash.
	if err := durable.WriteStamp(f.root, f.beside(stampSuffix), f.beside(newSuffix), s); err != nil {
		return wrap(path, err)
	}
	if do == nil {
		return nil
	}
	return wrap(path, do(f))
}
func wrap(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fence of %s: %w", path, err)
}
