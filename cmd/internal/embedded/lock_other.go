//go:build !unix

package embedded

import (
	"errors"
	"io/fs"
)

var errReplaced = errors.New("the directory was removed or replaced while in use")

// lock needs flock, which frees itself with the process.
type lock struct{}

func openLock(string) (*lock, error) {
	return nil, errors.New("the embedded store does not run on this system: use another --store")
}

func (l *lock) try() (bool, error) { return false, errors.ErrUnsupported }
func (l *lock) check() error       { return errors.ErrUnsupported }
func (l *lock) sign() error        { return errors.ErrUnsupported }
func (l *lock) holder() string     { return "?" }
func (l *lock) release()           {}
func (l *lock) close()             {}

func ownerOf(fs.FileInfo) (int, bool) { return 0, false }
