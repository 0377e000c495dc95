package filereg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/primacy-go/primacy/driver"
)

const (
	unfinished = "~new" // one in each folder, for whoever has the lock: what a dead process left is overwritten, and nothing gathers
	fresh      = 0o600  // perhaps not yet on the disk
	lasting    = 0o400  // on the disk, with its name
)

// disk is what tests meddle with: at is called after each step of a write, and sync puts a file or a folder on the disk.
type disk struct {
	at   func(step string)
	sync func(*os.File) error
}

// file is what a key's file holds. No such file: the zero value.
type file struct {
	version string
	value   []byte
}

// read returns what stands in a file, after it has made sure that it will stay there.
func (d *disk) read(folder, name string) (file, error) {
	f, err := os.Open(filepath.Join(folder, name))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat(folder) // without its folder the store is gone, not the key: a line that seemed empty would begin anew with token 1
		return file{}, refused(err)
	}
	if err != nil {
		return file{}, refused(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return file{}, err
	}
	all, err := io.ReadAll(f)
	if err != nil {
		return file{}, err
	}
	version, value, ok := bytes.Cut(all, []byte("\n"))
	if !ok || len(version) == 0 {
		return file{}, fmt.Errorf("filereg: %s was not written by this package: %w", f.Name(), driver.ErrRefused)
	}
	if info.Mode().Perm() != lasting { // its writer is at work, or died: a loss of power could still take back what we return
		if err := d.syncDir(folder); err != nil {
			return file{}, err
		}
		_ = f.Chmod(lasting) // only saves the next reader the work
	}
	return file{string(version), value}, nil
}

// hold is a folder under its lock. It works by descriptor, not by path: in a folder that somebody removed, it fails.
type hold struct {
	*disk
	path string
	root *os.Root
	self *os.File
}

// lock waits for the lock of a folder. The lock is on the folder itself: a file of its own could be removed while somebody has it, and the next would lock another.
func (d *disk) lock(path string) (*hold, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	self, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	if err := flock(self, true); err != nil {
		self.Close()
		root.Close()
		return nil, fmt.Errorf("flock %s: %w", path, err)
	}
	return &hold{d, path, root, self}, nil
}

func (h *hold) unlock() {
	_ = flock(h.self, false) // closing is not enough: a child that is just being started has a copy of the descriptor
	h.self.Close()
	h.root.Close()
}

// replace makes content the file of that name. Its order is the crash safety: the content is on the disk before the name leads to it, and the name before anybody is told.
func (h *hold) replace(ctx context.Context, name string, content []byte) (bool, error) {
	f, err := h.write(content)
	if err != nil {
		return false, refused(err)
	}
	defer f.Close()
	h.at("synced")
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := h.root.Rename(unfinished, name); err != nil {
		return false, refused(err)
	}
	h.at("renamed")
	if err := h.sync(h.self); err != nil {
		return false, err // never refused: readers see it already
	}
	_ = f.Chmod(lasting)
	h.at("lasting")
	return true, nil
}

// write puts content into the unfinished file, and that onto the disk.
func (h *hold) write(content []byte) (*os.File, error) {
	if err := h.root.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := h.root.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fresh)
	if err != nil {
		return nil, err
	}
	half := len(content) / 2
	_, err = f.Write(content[:half])
	h.at("half")
	if err == nil {
		_, err = f.Write(content[half:])
	}
	h.at("written")
	if err == nil {
		err = h.sync(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// remove takes the file of that name away, for good.
func (h *hold) remove(name string) (bool, error) {
	if err := h.root.Remove(name); err != nil {
		return false, refused(err)
	}
	return true, h.sync(h.self)
}

// lay makes dir with its folders, and what leads to it, and puts all of it on the disk: also what another process has just made, and perhaps not synced.
func (d *disk) lay(dir string, folders int) error {
	if err := d.mkdir(dir); err != nil {
		return err
	}
	for i := range folders {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprintf("%02x", i)), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := d.syncDir(dir); err != nil {
		return err
	}
	if err := d.syncDir(filepath.Dir(dir)); !errors.Is(err, fs.ErrPermission) { // a parent that we may not read was not made by us
		return err
	}
	return nil
}

func (d *disk) mkdir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if err := d.mkdir(filepath.Dir(dir)); err != nil {
			return err
		}
		if err = os.Mkdir(dir, 0o700); err == nil {
			return d.syncDir(filepath.Dir(dir))
		}
	}
	if info, failed := os.Stat(dir); failed == nil && info.IsDir() {
		return nil
	}
	return err
}

func (d *disk) syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return d.sync(f)
}

// refused marks errors that stay the same when asked again. A full disk does not.
func refused(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("filereg: %w: %w", err, driver.ErrRefused)
	}
	return err
}
