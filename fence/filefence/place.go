package filefence

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/internal/durable"
)

// What stands beside a file F is called .F and one of these.
const (
	lockSuffix  = ".lock"
	stampSuffix = ".fence"     // holds the largest token
	newSuffix   = ".fence-new" // the next version, of F or of its stamp
)

const maxBase = 255 - len(".") - len(newSuffix) // file systems take names of 255 bytes

// maxTries is as many symbolic links as Linux follows.
const maxTries = 40

// file is a file whose lock we hold.
type file struct {
	root   *os.Root // its folder: everything is done in it, nothing by path
	base   string
	info   fs.FileInfo // nil if it is not there
	unlock func()
}

func (f *file) beside(suffix string) string { return "." + f.base + suffix }

func (f *file) close() {
	if f.unlock != nil {
		f.unlock()
	}
	f.root.Close()
}

// lock returns the file at path, locked. While it waited the folder may have been moved away, or a
// link on the way been changed; what is written in the old place would then be acknowledged and
// never seen, so it looks again.
func lock(ctx context.Context, path string, s fence.Stamp) (*file, error) {
	if err := s.Valid(); err != nil {
		return nil, err
	}
	for range maxTries {
		f, err := lockOnce(ctx, path)
		if err != nil {
			return nil, wrap(path, err)
		}
		if f.stillAt(path) {
			return f, nil
		}
		f.close()
	}
	return nil, wrap(path, errors.New("its folder is moved again and again"))
}

func lockOnce(ctx context.Context, path string) (_ *file, err error) {
	dir, base, err := resolve(path)
	if err != nil {
		return nil, err
	}
	f := &file{base: base}
	if f.root, err = os.OpenRoot(dir); err != nil {
		return nil, err
	}
	if err = f.look(); err == nil { // before anything is made beside it
		f.unlock, err = durable.Lock(ctx, f.root, f.beside(lockSuffix))
	}
	if err == nil {
		err = f.look()
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// look returns an error if the file is there and no plain one: a folder, a device, a socket.
func (f *file) look() (err error) {
	f.info, err = f.root.Lstat(f.base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.info = nil
		return nil
	case err != nil:
		return err
	case !f.info.Mode().IsRegular():
		return errors.New("it is no regular file")
	}
	return nil
}

func (f *file) stillAt(path string) bool {
	dir, base, err := resolve(path)
	if err != nil || base != f.base {
		return false
	}
	there, err := os.Stat(dir)
	if err != nil {
		return false
	}
	ours, err := f.root.Stat(".")
	return err == nil && os.SameFile(ours, there)
}

// resolve returns the folder and the name that the system finds at path, so that all who write one
// file by different names have one fence. The file need not be there; a link to a file that is not
// there is followed too. Nothing is shortened as text: "sub/../f" is not "f" where sub is a
// symbolic link.
func resolve(path string) (dir, base string, err error) {
	if !filepath.IsAbs(path) {
		wd, err := os.Getwd()
		if err != nil {
			return "", "", err
		}
		path = wd + string(filepath.Separator) + path
	}
	for range maxTries {
		cut := strings.LastIndexByte(path, filepath.Separator) + 1
		if dir, base = path[:cut], path[cut:]; dir == "" {
			return "", "", errors.New("it has no folder")
		}
		if err := checkBase(base); err != nil {
			return "", "", err
		}
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return "", "", err
		}
		target, err := os.Readlink(filepath.Join(dir, base))
		if err != nil { // no link, or nothing: whether it can be written is seen when it is opened
			return dir, base, nil
		}
		if path = target; !filepath.IsAbs(target) {
			path = dir + string(filepath.Separator) + target
		}
	}
	return "", "", errors.New("too many symbolic links")
}

func checkBase(base string) error {
	switch base {
	case "", ".", "..":
		return fmt.Errorf("the path ends in %q: name a file", base)
	}
	if len(base) > maxBase {
		return fmt.Errorf("the name has %d bytes: use up to %d, its fence has a longer one", len(base), maxBase)
	}
	for _, suffix := range []string{lockSuffix, stampSuffix, newSuffix} {
		if strings.HasPrefix(base, ".") && len(base) > len(".")+len(suffix) && strings.HasSuffix(base, suffix) {
			return fmt.Errorf("a name like %q is reserved for the files beside a fenced one: choose another", base)
		}
	}
	return nil
}
