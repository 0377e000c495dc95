package servertest

import (
	"os"
	"path/filepath"
)

// Cache is the path of a file that tests keep on this machine, in the user's cache folder.
type Cache string

// CacheOf returns the file of that name. The folder that it is in exists from then on.
func CacheOf(name string) (Cache, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "primacy-test")
	return Cache(filepath.Join(dir, name)), os.MkdirAll(dir, 0o755)
}

// Exists says whether the file is there.
func (c Cache) Exists() bool {
	_, err := os.Stat(string(c))
	return err == nil
}

// Lock takes the exclusive lock that belongs to the file, and returns what frees it. It waits for
// other processes, and for other goroutines of this one. The lock ends with the process.
func (c Cache) Lock() (unlock func(), err error) { return lockFile(string(c) + ".lock") }

// Build returns the path of the file. If it is not there, build makes it, at the path that it is
// given. Only a file that build has finished is kept: it is renamed into place. One process builds,
// and others that want the file wait for it.
func (c Cache) Build(build func(out string) error) (string, error) {
	if c.Exists() {
		return string(c), nil
	}
	unlock, err := c.Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	if c.Exists() {
		return string(c), nil
	}
	out := string(c) + ".new"
	if err := build(out); err != nil {
		return "", err
	}
	return string(c), os.Rename(out, string(c))
}
