package embedded

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestUnwritable(t *testing.T) {
	dir := privateDir(t)
	// Permissions do not stop root, but a file system that is read-only does.
	if os.Geteuid() != 0 {
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Chmod(dir, 0o700) })
	} else {
		mountTmpfs(t, dir, syscall.MS_RDONLY, "mode=700")
	}
	refused(t, dir, "choose another directory", "give this user the right to write there")
	refused(t, filepath.Join(dir, "new"), "choose another directory")
}

func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	dir := privateDir(t)
	mountTmpfs(t, dir, 0, "mode=700,size=3m")
	refused(t, dir, "no space left", "make room")
}

func mountTmpfs(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	t.Cleanup(func() {
		// Lazily: an etcd that could not start keeps its files open as long as this process lives.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}
