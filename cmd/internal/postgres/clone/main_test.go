package clone

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/libpq"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Unprivileged(func() int {
		defer func() {
			if made.dir != "" {
				os.RemoveAll(made.dir)
			}
		}()
		return m.Run()
	}))
}

const (
	super      = "admin" // not the name of the user that runs the tests
	replicator = "repl icator"
	password   = `it's: a \ secret`
)

// node is a data directory in a folder of its own, and the server that may run in it.
type node struct {
	*Dir
	t    *testing.T
	home string
	port string
	pm   *exec.Cmd
	done chan struct{}
}

// newNode opens a data directory that does not exist yet.
func newNode(t *testing.T) *node {
	t.Helper()
	home, err := os.MkdirTemp("", "pgclone-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	n := &node{t: t, home: home}
	pass := filepath.Join(home, "pass")
	escaped := strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(password)
	write(t, pass, "# a comment\n*:*:*:other:x\n*:*:*:"+replicator+":"+escaped+"\n")
	n.open(Config{Data: filepath.Join(home, "data"), Bin: pgtest.Bin(t), Superuser: super,
		Replication: libpq.Replication{User: replicator, Passfile: pass},
		HBA:         []string{"host all all 127.0.0.1/32 scram-sha-256"}})
	t.Cleanup(func() { n.Close() })
	return n
}

func (n *node) open(cfg Config) {
	n.t.Helper()
	d, err := reopen(cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.Dir = d
}

// reopen is Open after a Close in this process: a child that another test is starting has the lock
// open, too, until it executes its program.
func reopen(cfg Config) (*Dir, error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if d, err := Open(cfg); !errors.Is(err, ErrHeld) || time.Now().After(end) {
			return d, err
		}
	}
}

// made is a database system that all tests share.
var made struct {
	once sync.Once
	dir  string
	err  error
}

// filled opens a data directory with a database.
func filled(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	made.once.Do(func() {
		if made.dir, made.err = os.MkdirTemp("", "pgclone-"); made.err != nil {
			return
		}
		cfg := n.cfg
		cfg.Data, cfg.Folder = filepath.Join(made.dir, "data"), ""
		var d *Dir
		if d, made.err = Open(cfg); made.err == nil {
			_, made.err = d.Initdb(context.Background())
			d.Close()
		}
	})
	if made.err != nil {
		t.Fatal(made.err)
	}
	copyTree(t, n.cfg.Data, filepath.Join(made.dir, "data"))
	n.looks(core.DataReady)
	return n
}

func copyTree(t *testing.T, to, from string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (n *node) looks(want core.DataState) {
	n.t.Helper()
	if got, err := n.Look(); err != nil || got != want {
		n.t.Fatalf("the directory looks %v, %v; want %v", got, err, want)
	}
}

// start starts a server and waits until it takes SQL.
func (n *node) start(settings ...string) *node {
	n.t.Helper()
	if n.port == "" {
		n.port = servertest.FreePort(n.t)
	}
	log, err := os.OpenFile(filepath.Join(n.home, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	args := []string{"-D", n.cfg.Data}
	for _, s := range append([]string{"listen_addresses=127.0.0.1", "port=" + n.port,
		"unix_socket_directories=" + n.home, "shared_buffers=16MB", "fsync=off", "wal_keep_size=256MB",
		"wal_retrieve_retry_interval=100ms", "max_prepared_transactions=5"}, settings...) {
		args = append(args, "-c", s)
	}
	cmd := exec.Command(n.program("postgres"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.pm, n.done = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(n.done)
	}()
	n.t.Cleanup(func() {
		if n.t.Failed() {
			b, _ := os.ReadFile(log.Name())
			n.t.Logf("the end of the log of the server:\n%s", b[max(0, len(b)-2000):])
		}
		n.stop(syscall.SIGKILL)
	})
	n.eventually("takes SQL", func() error {
		select {
		case <-n.done:
			n.t.Fatal("the server has ended")
		default:
		}
		_, err := n.try("SELECT 1")
		return err
	})
	return n
}

// stop ends the server and waits until no process of it is left.
func (n *node) stop(sig syscall.Signal) {
	if n.pm == nil {
		return
	}
	_ = n.pm.Process.Signal(sig)
	<-n.done
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		pid, ok := n.busy()
		if !ok {
			return
		}
		if sig == syscall.SIGKILL {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if time.Now().After(end) {
			n.t.Error("a process of the server is left")
			return
		}
	}
}

func (n *node) try(sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgconn.Connect(ctx, fmt.Sprintf("host=%s port=%s user=%s dbname=postgres", n.home, n.port, super))
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	all, err := c.Exec(ctx, sql).ReadAll()
	if err != nil || len(all) == 0 || len(all[len(all)-1].Rows) == 0 {
		return "", err
	}
	return string(all[len(all)-1].Rows[0][0]), nil
}

func (n *node) sql(text string) string {
	n.t.Helper()
	got, err := n.try(text)
	if err != nil {
		n.t.Fatalf("%s: %v", text, err)
	}
	return got
}

func (n *node) eventually(what string, f func() error) {
	n.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("%s: %v", what, err)
		}
	}
}

// source is how others reach the server, at its own address or at that of a proxy.
func (n *node) source(addr string) Source {
	if addr == "" {
		addr = net.JoinHostPort("127.0.0.1", n.port)
	}
	host, port, _ := net.SplitHostPort(addr)
	return Source{Conninfo: fmt.Sprintf("host=%s port=%s user='%s' passfile=%s", host, port, replicator,
		n.cfg.Replication.Passfile)}
}

// follow starts the server as a standby of p, and waits until it streams.
func (n *node) follow(p *node) *node {
	n.t.Helper()
	write(n.t, n.path("standby.signal"), "")
	n.start("primary_conninfo="+p.source("").Conninfo+" application_name=follower", "hot_standby=on")
	n.eventually("follows", func() error {
		got, err := p.try("SELECT state FROM pg_stat_replication WHERE application_name = 'follower'")
		if err == nil && got != "streaming" {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
	return n
}

// must fails the test on an error of a step that takes up to three minutes.
func must(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := f(ctx); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// tree is all that is in a folder, with the content of each file.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir+"/", func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		all[path] = info.Mode().String()
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			all[path] += string(b)
			return err
		}
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return all
}

// valve is a proxy that lets so many bytes from the server through on each connection, and then
// nothing. Were the bytes counted together, pg_basebackup could wait for ever for the answer on its
// second connection, which it makes before it reads what the server sends on the first.
type valve struct {
	addr  string
	shut  chan struct{} // closed when it has shut on a connection
	close func()
}

func newValve(t *testing.T, target string, bytes int) *valve {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &valve{addr: ln.Addr().String(), shut: make(chan struct{})}
	end := make(chan struct{})
	v.close = sync.OnceFunc(func() {
		ln.Close()
		close(end)
	})
	t.Cleanup(v.close)
	shut := sync.OnceFunc(func() { close(v.shut) })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			go func() {
				<-end
				client.Close()
				server.Close()
			}()
			go pour(server, client, func(int) bool { return true }, end)
			left := bytes
			go pour(client, server, func(n int) bool {
				if left -= n; left <= 0 {
					shut()
				}
				return left > 0
			}, end)
		}
	}()
	return v
}

func pour(to, from net.Conn, take func(int) bool, end chan struct{}) {
	defer to.Close()
	b := make([]byte, 16<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if !take(n) {
			<-end
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}
