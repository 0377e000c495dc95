package filereg

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/registerstore"
)

// folders is part of the format: with another number keys are not found.
const folders = 64

// Register is a [registerstore.Register] and [registerstore.Watcher] over a directory. New makes it. All methods may be called by many goroutines, and by many processes
// over one directory, at once.
//
// Every method returns the context's error as soon as the context ends, also while a lock or the disk hangs, and does nothing if it had ended before. A write that was
// given up while it waited for the lock is not carried out; one that was given up later may be. Errors that wrap [driver.ErrRefused] are final: no permission,
// or a key that makes no file name. Any other error leaves the outcome unknown.
type Register struct {
	dir   string
	kind  kind
	reads chan struct{}          // a disk that hangs takes a thread for each read: without a bound, polls would use them up
	turns [folders]chan struct{} // likewise for writes: one thread of this process at most waits for a folder's lock
	disk  disk

	mu     sync.Mutex
	ears   *ears // nil before the first Watch
	deaf   bool  // the kernel gave us none: Watch polls
	closed bool
}

var (
	_ registerstore.Register = (*Register)(nil)
	_ registerstore.Watcher  = (*Register)(nil)
)

// New returns a register over a directory, which it makes if it is not there. An error says that it cannot be made or read, or that it lies on a file system that
// other machines share (it wraps [driver.ErrRefused] then, as it does without permission). Close frees it.
func New(dir string) (*Register, error) {
	dir, err := filepath.Abs(dir) // or a change of the working directory would change the store
	if err != nil {
		return nil, err
	}
	r := &Register{dir: dir, reads: make(chan struct{}, 64), disk: disk{func(string) {}, (*os.File).Sync}}
	for i := range r.turns {
		r.turns[i] = make(chan struct{}, 1)
	}
	if err := r.disk.lay(dir, folders); err != nil {
		return nil, refused(err)
	}
	if r.kind, err = kindOf(dir); err != nil {
		return nil, refused(err)
	}
	return r, nil
}

// Open returns the store over a directory, which it makes if it is not there; its Close frees everything. Options are those of [registerstore.FromRegister]: the zero
// value works, and what the directory's file system cannot promise is added to Token and Warnings. Errors are those of New and of FromRegister.
func Open(dir string, o registerstore.Options) (*registerstore.Store, error) {
	r, err := New(dir)
	if err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = "directory"
	}
	if r.kind.warning != "" {
		o.Warnings = append(o.Warnings[:len(o.Warnings):len(o.Warnings)], r.kind.warning)
	}
	if r.kind.forgets {
		o.Token = driver.TokenUntilLoss
	}
	theirs := o.Close
	o.Close = func() error {
		if theirs != nil {
			defer r.Close()
			return theirs()
		}
		return r.Close()
	}
	s, err := registerstore.FromRegister(r, o)
	if err != nil {
		r.Close()
		return nil, err
	}
	return s, nil
}

// Get returns the value of key and its version, which is "" if there is no such key. What it returns is on the disk. It takes no lock, so writers do not hold it up.
func (r *Register) Get(ctx context.Context, key string) (value []byte, version string, err error) {
	name, err := fileName(key)
	if err != nil {
		return nil, "", err
	}
	f, err := aside(ctx, r.reads, func() (file, error) { return r.disk.read(r.folder(key), name) })
	return f.value, f.version, err
}

// Put writes value if key has that version ("": if it is not there), and returns the version it has then. Ok = false: it has another one, and nothing was written.
// When it returns ok the value is on the disk.
func (r *Register) Put(ctx context.Context, key string, value []byte, version string) (next string, ok bool, err error) {
	next = rand.Text() // a counter would begin anew when the key was deleted, and a write that was held up would find its version again
	content := bytes.Join([][]byte{[]byte(next), value}, []byte("\n"))
	ok, err = r.write(ctx, key, func(h *hold, name string) (bool, error) {
		f, err := h.read(h.path, name)
		if err != nil || f.version != version {
			return false, err
		}
		return h.replace(ctx, name, content)
	})
	if err != nil || !ok {
		return "", false, err
	}
	return next, true, nil
}

// Delete removes key if it has that version. If it has another one, or is not there, it does nothing, which is no error.
func (r *Register) Delete(ctx context.Context, key, version string) error {
	_, err := r.write(ctx, key, func(h *hold, name string) (bool, error) {
		f, err := h.read(h.path, name)
		if err != nil || f.version == "" || f.version != version {
			return false, err
		}
		return h.remove(name)
	})
	return err
}

// List returns the keys that begin with prefix, in no order. Those that are made or removed meanwhile may be missing.
func (r *Register) List(ctx context.Context, prefix string) ([]string, error) {
	return aside(ctx, r.reads, func() (keys []string, err error) {
		for i := range folders {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			entries, err := os.ReadDir(r.path(i))
			if err != nil {
				return nil, refused(err)
			}
			for _, e := range entries {
				if key, ok := keyOf(e.Name()); ok && strings.HasPrefix(key, prefix) {
					keys = append(keys, key)
				}
			}
		}
		return keys, nil
	})
}

// Close ends all Watch calls, with an error, and what runs for them. It returns nil, also when called again; the other methods go on working.
func (r *Register) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.ears != nil {
		r.ears.close()
	}
	return nil
}

// write runs step under the lock of key's folder.
func (r *Register) write(ctx context.Context, key string, step func(h *hold, name string) (bool, error)) (bool, error) {
	name, err := fileName(key)
	if err != nil {
		return false, err
	}
	return aside(ctx, r.turns[folderOf(key)], func() (bool, error) {
		h, err := r.disk.lock(r.folder(key))
		if err != nil {
			return false, refused(err)
		}
		defer h.unlock()
		if err := ctx.Err(); err != nil { // it may have waited long: who asked has gone
			return false, err
		}
		r.disk.at("locked")
		return step(h, name)
	})
}

func (r *Register) path(folder int) string   { return filepath.Join(r.dir, fmt.Sprintf("%02x", folder)) }
func (r *Register) folder(key string) string { return r.path(folderOf(key)) }

func folderOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % folders)
}

// aside runs f in a goroutine that takes a place, and stops waiting for it when the context ends: a system call cannot be called off.
func aside[T any](ctx context.Context, places chan struct{}, f func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	if err := ctx.Err(); err != nil { // select would draw lots
		return none, err
	}
	select {
	case places <- struct{}{}:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	done := make(chan answer, 1)
	go func() {
		defer func() { <-places }()
		value, err := f()
		done <- answer{value, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
