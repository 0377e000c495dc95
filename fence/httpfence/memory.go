package httpfence

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/internal/durable"
)

// Folder is a [Memory] in a folder: a small file for each election, replaced in one step and synced with its folder.
type Folder struct {
	path   string
	unlock func()
}

// Dir returns the memory in the folder at path, which is made if it is not there. Until Close, or the end of this process, no other process
// gets it: two servers with a memory each of them has read once would each admit what the other refuses.
func Dir(path string) (*Folder, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("fence memory: %w", err)
	}
	now, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("each server needs a folder of its own")) // take the lock if it is free, do not wait
	unlock, err := durable.Lock(now, filepath.Join(path, ".lock"))
	if err != nil {
		return nil, fmt.Errorf("fence memory: %w", err)
	}
	return &Folder{path: path, unlock: unlock}, nil
}

// Load implements [Memory].
func (m *Folder) Load(_ context.Context, name string) (fence.Stamp, error) {
	s, err := durable.ReadStamp(m.file(name))
	if err == nil && s.Token != 0 && s.Name != name {
		err = fmt.Errorf("%w: %s is of the election %q", primacy.ErrInvalid, m.file(name), s.Name) // a file system that ignores case
	}
	return s, err
}

// Store implements [Memory].
func (m *Folder) Store(_ context.Context, s fence.Stamp) error {
	return durable.WriteStamp(m.file(s.Name), s)
}

// Close gives the folder free.
func (m *Folder) Close() { m.unlock() }

// file returns the path for an election: its name, escaped; a hash of it where that would be too long for a file.
func (m *Folder) file(name string) string {
	base := url.PathEscape(name)
	if len(base) > 200 {
		sum := sha256.Sum256([]byte(name))
		base = "%sha256-" + hex.EncodeToString(sum[:]) // no name is escaped to this
	}
	return filepath.Join(m.path, base+".fence")
}
