//go:build linux

package pgtorture

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// diskSize is of each machine's disk; the file that it is takes what is used only.
const diskSize = 4 << 30

// disk is the file system of a machine: ext4 on a file, past the page cache, so that an fsync in it
// is one of the real disk.
type disk struct {
	dir    string // where it is mounted
	device string
	paused bool
}

// canMount says whether machines get disks of their own. Where they cannot, the faults of disks are
// left out, and it says so.
func canMount(c *cluster) bool {
	err := func() error {
		for _, name := range []string{"mkfs.ext4", "losetup", "mount", "umount"} {
			if _, err := exec.LookPath(name); err != nil {
				return err
			}
		}
		m := &machine{dir: filepath.Join(c.dir, "try")}
		if err := os.Mkdir(m.dir, 0o755); err != nil {
			return err
		}
		d, err := newDisk(m.dir, m.dir+".img")
		if err != nil {
			return err
		}
		return errors.Join(d.umount(), os.Remove(m.dir+".img"))
	}()
	if err != nil {
		fmt.Fprintf(os.Stderr, "pgtorture: DISK FULL AND DISK PAUSED ARE LEFT OUT: no file system of its own for "+
			"each machine: %v\n", err)
	}
	return err == nil
}

// newDisk makes a file system in a file and mounts it.
func newDisk(dir, image string) (*disk, error) {
	f, err := os.Create(image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(diskSize), f.Close()); err != nil {
		return nil, err
	}
	if _, err := run("mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=16", "-E", "nodiscard", image); err != nil {
		return nil, err
	}
	device, err := run("losetup", "--find", "--show", "--direct-io=on", image)
	if err != nil {
		return nil, err
	}
	if _, err := run("mount", "-o", "discard", device, dir); err != nil {
		_, e := run("losetup", "-d", device)
		return nil, errors.Join(err, e)
	}
	return &disk{dir: dir, device: device}, nil
}

func (d *disk) umount() error {
	d.resume()
	var last error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, last = run("umount", d.dir); last == nil {
			break
		}
	}
	_, err := run("losetup", "-d", d.device)
	return errors.Join(last, err)
}

// mount gives a machine its disk.
func (c *cluster) mount(m *machine) error {
	if !c.disks {
		return nil
	}
	var err error
	if m.disk, err = newDisk(m.dir, m.dir+".img"); err != nil {
		return err
	}
	c.tb.Cleanup(func() {
		if err := m.disk.umount(); err != nil {
			c.tb.Errorf("%s: %v", m.name, err)
		}
	})
	return nil
}

func run(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, text)
	}
	return text, nil
}

// FIFREEZE and FITHAW of linux/fs.h.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// pause lets nothing be written any more: who writes hangs, where no signal reaches it.
func (d *disk) pause() error {
	d.paused = true
	return d.ioctl(fiFreeze)
}

func (d *disk) resume() {
	if d != nil && d.paused {
		d.paused = d.ioctl(fiThaw) != nil
	}
}

func (d *disk) ioctl(request uint) error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), request, 0)
}

// fill takes all that is free, until the file is removed.
func (d *disk) fill() (ballast string, err error) {
	ballast = filepath.Join(d.dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		return "", err
	}
	defer f.Close()
	end := int64(0)
	for size := int64(1 << 30); size >= 4096; {
		switch err := syscall.Fallocate(int(f.Fd()), 0, end, size); {
		case err == nil:
			end += size
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case !errors.Is(err, syscall.EINTR):
			return ballast, err
		}
	}
	return ballast, nil
}

// diskFaults need a file system of its own for each machine.
func diskFaults() []fault {
	return []fault{
		{"primary's disk full", diskFull},
		{"primary's disk paused", func(r *round) (string, error) {
			if err := r.primary.disk.pause(); err != nil {
				return "", err
			}
			r.untilTakenWithin(r.longer() + 10*time.Second)
			r.primary.disk.resume()
			return r.primary.name, nil
		}},
		{"standby's disk paused", func(r *round) (string, error) {
			m := r.standby()
			if err := m.disk.pause(); err != nil {
				return "", err
			}
			r.aWhile()
			m.disk.resume()
			return m.name, nil
		}},
	}
}

// diskFull takes the room from the primary, and uses up the WAL that it has kept for later: then it
// cannot write any more, and PostgreSQL ends by itself.
func diskFull(r *round) (string, error) {
	ballast, err := r.primary.disk.fill()
	if err != nil {
		return "", errors.Join(err, os.Remove(ballast))
	}
	told := r.tells("the disk is full, or nearly so: .*" + r.primary.name) // while it leads and can still write
	used := 0
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && !r.taken(); {
		if _, err := r.ask(r.primary, "SELECT pg_switch_wal()"); err != nil {
			break
		}
		used++
	}
	err = errors.Join(told, r.tells("(?i)no space left|could not write|log says why"))
	r.untilTaken()
	return fmt.Sprintf("%s, after %d more segments of WAL", r.primary.name, used), errors.Join(err, os.Remove(ballast))
}
