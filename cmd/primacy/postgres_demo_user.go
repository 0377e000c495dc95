package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/pgdemo"
	"github.com/primacy-go/primacy/internal/onethread"
)

// dropped runs the demo again as an ordinary user: PostgreSQL refuses to run as root. All that the
// demo makes is in one directory of that user's.
func (o *postgresDemoOptions) dropped(ctx context.Context, a *app) error {
	us, err := ordinaryUser()
	if err != nil {
		return err
	}
	parent := os.TempDir()
	if !us.reaches(parent) {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, pgDemoDir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, int(us.Uid), int(us.Gid)); err != nil {
		return err
	}
	if err := pgdemo.Adopt(); err != nil {
		return err
	}
	defer pgdemo.Sweep(10*time.Second, pgdemo.NewMemory()) // if that process was killed
	args := []string{"postgres", "demo", "--dir", dir, "--ttl", a.ttl.String()}
	if o.bin != "" {
		args = append(args, "--bin", o.bin)
	}
	c := ourselves(args...)
	c.Dir, c.Stdin, c.Stdout, c.Stderr = dir, a.stdin, a.stdout, a.stderr
	c.Env = append(foreign("HOME", "USER", "LOGNAME", "XDG_", "TMPDIR"), "HOME="+dir, "USER="+us.name, "TMPDIR="+dir)
	c.SysProcAttr = droppedAttr(us.Credential)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	onethread.Do(func() { err = c.Start() })
	if err != nil {
		return fmt.Errorf("start as user %s: %w", us.name, err)
	}
	ended := make(chan struct{})
	go func() { _ = c.Wait(); close(ended) }()
	for {
		select {
		case <-signals:
			_ = c.Process.Signal(syscall.SIGTERM)
		case <-ctx.Done():
			_ = c.Process.Signal(syscall.SIGTERM)
			<-ended
		case <-ended:
			err := o.keepLogs(dir, int(us.Uid))
			if code := exitCode(c.ProcessState); code != 0 {
				return &exitError{code: code, err: err} // it has said why
			}
			return err
		}
	}
}

// account is a user of the system.
type account struct {
	*syscall.Credential
	name string
}

// ordinaryUser returns the user that packages make for PostgreSQL, or nobody.
func ordinaryUser() (account, error) {
	for _, name := range []string{"postgres", "nobody"} {
		us, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(us.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(us.Gid, 10, 32)
		if err1 == nil && err2 == nil && uid != 0 {
			return account{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, name}, nil
		}
	}
	return account{}, errors.New("PostgreSQL does not run as root, and there is no user postgres and no user nobody: " +
		"start the demo as an ordinary user")
}

// reaches says whether the user may enter a directory and all above it.
func (us account) reaches(path string) bool {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	for ; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err != nil || !us.enters(info) {
			return false
		}
		if path == filepath.Dir(path) {
			return true
		}
	}
}

// enters says whether the user may enter a directory of this mode.
func (us account) enters(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	mode := info.Mode().Perm()
	switch {
	case !ok:
		return false
	case st.Uid == us.Uid:
		mode >>= 6
	case st.Gid == us.Gid:
		mode >>= 3
	}
	return mode&1 == 1
}

// ourselves is this program once more. The link leads to it also where its directory is closed to
// the user.
func ourselves(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Args[0] = "primacy"
	return c
}

// foreign returns the environment without what would change what the demo's processes do, and
// without names that begin with one of these.
func foreign(drop ...string) []string {
	drop = append(drop, "PRIMACY_", "PG")
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return slices.ContainsFunc(drop, func(prefix string) bool { return strings.HasPrefix(kv, prefix) })
	})
}
