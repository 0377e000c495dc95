package server_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/libpq"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == supervise.GuardianArg {
		supervise.GuardianMain(nil)
	}
	os.Exit(pgtest.Unprivileged(func() int {
		flag.Parse()
		_ = flag.Set("test.parallel", "16") // most of the time they wait
		defer func() {
			if fresh.dir != "" {
				os.RemoveAll(fresh.dir)
			}
		}()
		return m.Run()
	}))
}

// fresh is a data directory as initdb leaves it. All servers of the tests are copies of it, so they
// are one database system, and one can follow another.
var fresh struct {
	once sync.Once
	dir  string
	err  error
}

// node is a server of a test.
type node struct {
	*server.Server
	t      *testing.T
	name   string
	cfg    server.Config
	dir    string
	port   string
	runner server.Runner
}

// newNode makes a server that was never started.
func newNode(t *testing.T, name string) *node {
	t.Helper()
	bin := pgtest.Bin(t)
	fresh.once.Do(func() {
		if fresh.dir, fresh.err = os.MkdirTemp("", "pgserver-"); fresh.err != nil {
			return
		}
		out, err := exec.Command(filepath.Join(bin, "initdb"), "-D", filepath.Join(fresh.dir, "data"), "-U", "postgres",
			"-E", "UTF8", "--locale=C", "--no-sync", "-A", "trust").CombinedOutput()
		if err != nil {
			fresh.err = fmt.Errorf("initdb: %w\n%s", err, out)
		}
	})
	if fresh.err != nil {
		t.Fatal(fresh.err)
	}
	dir, err := os.MkdirTemp("", "pgserver-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	if out, err := exec.Command("cp", "-a", filepath.Join(fresh.dir, "data"), data).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	port := servertest.FreePort(t)
	n := &node{t: t, name: name, dir: dir, port: port, runner: server.Exec{}, cfg: server.Config{
		Data: data, Bin: bin, Listen: net.JoinHostPort("127.0.0.1", port), SocketDir: dir, Superuser: "postgres",
		Replication: libpq.Replication{User: "postgres"}, Output: log,
		Parameters: map[string]string{"shared_buffers": "16MB"},
	}}
	n.anew()
	t.Cleanup(func() {
		if n.Server != nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := n.Stop(ctx, server.Quit); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("the end of the log of %s:\n%s", name, b[max(0, len(b)-4000):])
		}
	})
	return n
}

// anew is what an agent does that starts.
func (n *node) anew() {
	n.t.Helper()
	s, err := server.New(n.cfg, n.runner)
	if err != nil {
		n.t.Fatal(err)
	}
	n.Server = s
}

// must fails the test on an error of a step that takes up to a minute.
func must(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := f(ctx); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// up starts the server and waits until it takes SQL.
func (n *node) up() *node {
	n.t.Helper()
	must(n.t, "start "+n.name, n.Start)
	must(n.t, "ready "+n.name, n.Ready)
	return n
}

// promote seals the server and promotes it.
func (n *node) promote(to core.Timeline) *node {
	n.t.Helper()
	must(n.t, "seal "+n.name, n.Seal)
	must(n.t, "promote "+n.name, func(ctx context.Context) error { return n.Promote(ctx, to) })
	return n
}

// follow has the server stream from p, and waits until it has all that p had.
func (n *node) follow(p *node) *node {
	n.t.Helper()
	must(n.t, n.name+" follows "+p.name, func(ctx context.Context) error {
		if err := n.Follow(ctx, server.Upstream{Host: "127.0.0.1", Port: p.port, As: n.name}); err != nil {
			return err
		}
		end, err := p.Position(ctx)
		if err != nil {
			return err
		}
		return eventually(ctx, func() error {
			all, err := p.Senders(ctx)
			for _, x := range all {
				if x.Name == n.name && x.State == "streaming" && x.Flushed >= end.LSN {
					return nil
				}
			}
			return fmt.Errorf("walsenders %+v, %w", all, err)
		})
	})
	return n
}

func eventually(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// waits is for f to return nil within a minute.
func (n *node) waits(what string, f func(ctx context.Context) error) {
	n.t.Helper()
	must(n.t, what, func(ctx context.Context) error { return eventually(ctx, func() error { return f(ctx) }) })
}

func (n *node) setSync(y server.Sync) {
	n.t.Helper()
	must(n.t, "SSN "+y.String(), func(ctx context.Context) error { return n.SetSync(ctx, y) })
}

func (n *node) position() server.Standing {
	n.t.Helper()
	var x server.Standing
	must(n.t, "position of "+n.name, func(ctx context.Context) (err error) {
		x, err = n.Position(ctx)
		return err
	})
	return x
}

// unsealed fails if a seal succeeds, or never says why not.
func (n *node) unsealed(why string) {
	n.t.Helper()
	n.waits("a seal that is refused", func(context.Context) error {
		ctx, cancel := context.WithTimeout(n.t.Context(), 300*time.Millisecond)
		defer cancel()
		err := n.Seal(ctx)
		if err == nil {
			n.t.Fatalf("%s is sealed, and must not be: %s", n.name, why)
		}
		if !strings.Contains(err.Error(), why) {
			return fmt.Errorf("want %q: %w", why, err)
		}
		return nil
	})
}

// connect opens a connection of a client, by TCP.
func (n *node) connect() *pgx.Conn {
	n.t.Helper()
	c, err := pgx.Connect(n.t.Context(), "postgres://postgres@127.0.0.1:"+n.port+"/postgres?sslmode=disable")
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.PgConn().Conn().Close() })
	return c
}

// sql runs statements of a client.
func (n *node) sql(text string) string {
	n.t.Helper()
	c := n.connect()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	defer c.Close(ctx)
	all, err := c.PgConn().Exec(ctx, text).ReadAll()
	if err != nil {
		n.t.Fatalf("%s: %s: %v", n.name, text, err)
	}
	if rows := all[len(all)-1].Rows; len(rows) > 0 {
		return string(rows[0][0])
	}
	return ""
}

// commit is one that a client waits for.
type commit struct{ err chan error }

func (n *node) commit(text string) *commit {
	n.t.Helper()
	c, conn := &commit{make(chan error, 1)}, n.connect()
	go func() {
		_, err := conn.Exec(context.Background(), text)
		c.err <- err
	}()
	return c
}

// acknowledged fails unless the commit is within a minute.
func (c *commit) acknowledged(t *testing.T) {
	t.Helper()
	select {
	case err := <-c.err:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the commit is not acknowledged")
	}
}

// waiting returns when the commit waits for standbys, and fails if it is acknowledged.
func (c *commit) waiting(t *testing.T, n *node) {
	t.Helper()
	n.waits("a commit waits", func(ctx context.Context) error {
		if got := n.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"); got != "0" {
			return nil
		}
		return errors.New("no commit waits")
	})
	c.still(t)
}

func (c *commit) still(t *testing.T) {
	t.Helper()
	select {
	case err := <-c.err:
		t.Fatalf("the commit was acknowledged, or failed: %v", err)
	default:
	}
}

// process returns the process of that kind, which must be there.
func (n *node) process(kind string) int {
	n.t.Helper()
	pid, err := strconv.Atoi(n.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = '" + kind + "'"))
	if err != nil {
		n.t.Fatalf("%s has no %s: %v", n.name, kind, err)
	}
	return pid
}
