//go:build unix

package durable

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/primacy-go/primacy/fence"
)

// What is locked is the open folder: a folder that takes its place at the path afterwards gets
// nothing of what the lock allows.
func TestAMovedFolderTakesTheWriteAlong(t *testing.T) {
	dir := t.TempDir()
	path, away := filepath.Join(dir, "app"), filepath.Join(dir, "away")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	unlock, err := Lock(context.Background(), root, "lock")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := os.Rename(path, away); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	want := fence.Stamp{Name: "x", Token: 7}
	if err := WriteStamp(root, "f", "f-new", want); err != nil {
		t.Fatal(err)
	}
	if names, _ := os.ReadDir(path); len(names) != 0 {
		t.Errorf("the new folder got %v", names)
	}
	there, err := os.ReadFile(filepath.Join(away, "f"))
	got, err2 := ReadStamp(root, "f")
	if err != nil || err2 != nil || len(there) == 0 || got != want {
		t.Errorf("in the moved folder: %q, %v; read back %+v, %v", there, err, got, err2)
	}
}
