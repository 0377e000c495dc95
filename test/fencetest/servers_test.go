//go:build linux

package fencetest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/onethread"
)

// The Debian packages with the servers. redis-tools holds the server's program, and starts no
// service.
const packages = "apt-get install -y postgresql redis-tools"

// missing ends a test for want of a server: it fails in CI, where a skipped test would pass for a
// proof.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed: %s", what, packages)
	}
	t.Skipf("NOT TESTED: %s is not installed: %s", what, packages)
}

// start runs a server until the test ends. Its output is shown if the test fails.
func start(t testing.TB, cmd *exec.Cmd, stop syscall.Signal) (exited chan struct{}) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	var err error
	onethread.Do(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	exited = make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(stop)
		select {
		case <-exited:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-exited
		}
		if t.Failed() {
			t.Logf("the end of %s's log:\n%s", filepath.Base(cmd.Path), out.Bytes()[max(0, out.Len()-3000):])
		}
	})
	return exited
}

// serves waits until something listens on the unix socket.
func serves(t testing.TB, socket string, exited chan struct{}) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			return
		}
		select {
		case <-exited:
			t.Fatalf("the server of %s has ended", socket)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("nobody listens on %s", socket)
		}
	}
}

// folder returns a temporary folder that other users can reach: t.TempDir's cannot be.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fencetest-") // short: a socket's path has 107 bytes
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// startRedis runs a Redis of our own and returns its socket.
func startRedis(t testing.TB) string {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		// Debian's redis-tools has the same program under this name; it looks at what it is called.
		if bin, err = exec.LookPath("redis-check-rdb"); err != nil {
			missing(t, "redis-server")
		}
	}
	dir := folder(t)
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(bin, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir)
	cmd.Args[0] = "redis-server"
	serves(t, socket, start(t, cmd, syscall.SIGTERM))
	return socket
}

// postgresBin finds a program of PostgreSQL: in PATH, or where Debian keeps them.
func postgresBin(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(all) == 0 {
		missing(t, "PostgreSQL ("+name+")")
	}
	return all[len(all)-1]
}

// startPostgres runs a PostgreSQL of our own, without TCP, and returns its connection string.
func startPostgres(t testing.TB) string {
	t.Helper()
	initdb, server := postgresBin(t, "initdb"), postgresBin(t, "postgres")
	dir := folder(t)
	data := filepath.Join(dir, "data")
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // which PostgreSQL refuses
		uid, gid := someone(t)
		as.Credential = &syscall.Credential{Uid: uid, Gid: gid}
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(initdb, "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	cmd.SysProcAttr, cmd.Dir = as, dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	run := exec.Command(server, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c",
		"max_connections=50")
	run.SysProcAttr, run.Dir = &syscall.SysProcAttr{Credential: as.Credential}, dir
	exited := start(t, run, syscall.SIGINT) // a fast shutdown
	serves(t, filepath.Join(dir, ".s.PGSQL.5432"), exited)
	url := fmt.Sprintf("host=%s user=tester dbname=postgres", dir)
	eventually(t, time.Minute, "PostgreSQL to let us in", func() bool { return ping(t, url) == nil })
	return url
}

// someone returns a user who is not root.
func someone(t testing.TB) (uid, gid uint32) {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		id, err1 := strconv.ParseUint(u.Uid, 10, 32)
		group, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return uint32(id), uint32(group)
		}
	}
	t.Fatal("PostgreSQL does not run as root, and there is no user postgres or nobody")
	return 0, 0
}

func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", limit, what)
		}
	}
}
