//go:build linux

package torture

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const smallDiskName = "primacy-torture-"

// smallDisk is a disk of its own for one member, small enough to fill it.
type smallDisk struct{ dir string }

const (
	smallDiskMember = 0
	smallDiskSize   = 1 << 30 // a few segments of etcd's log, 64 MB each
)

// newSmallDisk mounts a tmpfs. What a test that was killed has left is unmounted first.
func newSmallDisk(t testing.TB) (*smallDisk, error) {
	sweepDisks()
	d := &smallDisk{filepath.Join(t.TempDir(), "disk")}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s%d", smallDiskName, os.Getpid())
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", smallDiskSize), name,
		d.dir).CombinedOutput(); err != nil {
		return nil, errors.New(strings.TrimSpace(string(out)))
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", d.dir).Run() })
	return d, nil
}

// full shrinks the disk to what is on it.
func (d *smallDisk) full() error {
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		return err
	}
	return d.resize(int64(st.Blocks-st.Bfree) * st.Bsize)
}

// heal makes the disk large again, and removes the copies that etcd has made of logs it could not
// read to their end: nobody else does.
func (d *smallDisk) heal() error {
	broken, err := filepath.Glob(filepath.Join(d.dir, "data", "member", "wal", "*.broken"))
	for _, f := range broken {
		err = errors.Join(err, os.Remove(f))
	}
	return errors.Join(err, d.resize(smallDiskSize))
}

func (d *smallDisk) resize(bytes int64) error {
	out, err := exec.Command("mount", "-o", fmt.Sprintf("remount,size=%d", bytes), d.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("resize %s: %s", d.dir, out)
	}
	return nil
}

func (d *smallDisk) of(member int) string {
	if member == smallDiskMember {
		return filepath.Join(d.dir, "data")
	}
	return ""
}

func sweepDisks() {
	mounts, _ := os.ReadFile("/proc/mounts")
	for _, m := range strings.Split(string(mounts), "\n") {
		f := strings.Fields(m)
		if len(f) < 2 || !strings.HasPrefix(f[0], smallDiskName) {
			continue
		}
		if _, err := os.Stat("/proc/" + strings.TrimPrefix(f[0], smallDiskName)); os.IsNotExist(err) {
			_ = exec.Command("umount", "-l", f[1]).Run()
		}
	}
}
