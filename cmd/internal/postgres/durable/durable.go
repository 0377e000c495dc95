// Package durable changes files so that what it has returned from outlasts a loss of power.
package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace writes a file, with mode 0600. After a crash it is the old one or the new one. It is on
// disk when Replace returns nil. Files of the same folder whose names end in .primacy are its own.
func Replace(path string, b []byte) error {
	temporary := path + ".primacy"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteJSON is [Replace] by v as JSON.
func WriteJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return Replace(path, append(text, '\n'))
}

// ReadJSON reads what [WriteJSON] wrote. It says whether the file is there. If not, v stays as it
// is. todo is what to do where the file is damaged.
func ReadJSON(path string, v any, todo string) (there bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return true, fmt.Errorf("%s is damaged: %w: %s", path, err, todo)
	}
	return true, nil
}

// Remove removes a file if it is there. That is on disk when Remove returns nil.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir returns nil when the names in a directory are on disk.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
