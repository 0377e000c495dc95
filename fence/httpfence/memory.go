package httpfence

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"sync/atomic"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/internal/durable"
)

// Folder is a [Memory] in a folder: a small file for each election, replaced in one step and synced
// with its folder.
type Folder struct {
	mu     sync.Mutex // a Store that is under way ends before Close gives the folder to another process
	root   *os.Root
	unlock func()
	closed atomic.Bool
}

// errClosed says that another process may have the folder.
var errClosed = errors.New("the fence's folder is closed: another server may have it; close it after the server's Shutdown, not before")

// Dir returns the memory in the folder at path, which is made if it is not there. Until Close, or
// the end of this process, nobody else gets it: two servers with a memory each of them has read
// once would each admit what the other refuses.
func Dir(path string) (*Folder, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("fence memory: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("fence memory: %w", err)
	}
	now, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("each server needs a folder of its own")) // take the lock if it is free, do not wait
	unlock, err := durable.Lock(now, root, ".lock")
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("fence memory: %w", err)
	}
	return &Folder{root: root, unlock: unlock}, nil
}

// Load implements [Memory]. After Close it returns an error.
func (m *Folder) Load(_ context.Context, name string) (fence.Stamp, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() {
		return fence.Stamp{}, errClosed
	}
	s, err := durable.ReadStamp(m.root, file(name))
	if err == nil && s.Token != 0 && s.Name != name {
		err = fmt.Errorf("%w: %s is of the election %q", primacy.ErrInvalid, file(name), s.Name) // a file system that ignores case
	}
	return s, err
}

// Store implements [Memory]. After Close it returns an error.
func (m *Folder) Store(_ context.Context, s fence.Stamp) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() {
		return errClosed
	}
	return durable.WriteStamp(m.root, file(s.Name), file(s.Name)+"-new", s)
}

// Close gives the folder free. Call it after the server's Shutdown has returned: from now on every
// token is refused (503), and a handler that still runs does so beside those of the next process.
func (m *Folder) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Swap(true) {
		return
	}
	m.root.Close()
	m.unlock()
	gates.Range(func(key, _ any) bool {
		if at := key.(place); at.memory == Memory(m) {
			gates.Delete(at)
		}
		return true
	})
}

// usable is asked where the memory itself need not be read.
func (m *Folder) usable() error {
	if m.closed.Load() {
		return errClosed
	}
	return nil
}

// file returns the file for an election: its name, escaped; a hash of it where that would be too
// long for a file.
func file(name string) string {
	base := url.PathEscape(name)
	if len(base) > 200 {
		sum := sha256.Sum256([]byte(name))
		base = "%sha256-" + hex.EncodeToString(sum[:]) // no name is escaped to this
	}
	return base + ".fence"
}
