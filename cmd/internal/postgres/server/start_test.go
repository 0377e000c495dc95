package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/servertest"
)

// A server that somebody else has started, as a primary even, is ended first; and one whose
// postmaster was killed and left its backends.
func TestAStartEndsWhatRunsInTheDirectory(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	n := newNode(t, "a")
	cmd := exec.Command(filepath.Join(n.cfg.Bin, "postgres"), "-D", n.cfg.Data, "-p", n.port, "-k", n.dir)
	cmd.Stdout, cmd.Stderr = n.cfg.Output, n.cfg.Output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	n.waits("the other server", func(ctx context.Context) error {
		_, err := n.Position(ctx)
		return err
	})
	n.up()
	select {
	case <-exited:
	case <-time.After(time.Minute):
		t.Fatal("the other server still runs")
	}
	if x := n.position(); x.Primary {
		t.Errorf("started as %+v", x)
	}
	if err := n.Start(t.Context()); !errors.Is(err, server.ErrRuns) {
		t.Errorf("a second start: %v", err)
	}
	twin, err := server.New(n.cfg, server.Exec{})
	if err != nil {
		t.Fatal(err)
	}
	oneLine(t, "a start by another", twin.Start(t.Context()), server.ErrRuns, "another primacy")
	n.promote(2)
	busy := n.connect()
	go func() { _, _ = busy.Exec(context.Background(), "DO $$ BEGIN LOOP END LOOP; END $$") }()
	n.waits("a busy backend", func(context.Context) error {
		if n.sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'") != "1" {
			return errors.New("none")
		}
		return nil
	})
	kill(t, n)
	n.up() // would fail with "pre-existing shared memory block is still in use"
}

// guarded starts postmasters under a guardian.
type guarded struct{ *supervise.Supervisor }

func (g guarded) Start(m server.Postmaster) (server.Process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return g.Supervisor.Start(supervise.Command{
		Args: m.Args, Env: m.Env, Dir: m.Dir, Stdin: null, Stdout: m.Output, Stderr: m.Output, NoJobControl: true,
		Deadline: supervise.NoDeadline, Grace: time.Second, Margin: 500 * time.Millisecond,
		StopSignal: syscall.SIGQUIT, DeathSignal: syscall.SIGQUIT, KillRemaining: true,
	})
}

// A primary whose right is not renewed is gone by its deadline, with all that it started.
func TestAGuardedServerEndsByItsDeadline(t *testing.T) {
	t.Parallel()
	n := newNode(t, "a")
	supervisor, err := supervise.New()
	if err != nil {
		t.Fatal(err)
	}
	n.runner = guarded{supervisor}
	n.anew()
	n.up().promote(2)
	p, _ := n.Running()
	must(t, "bind", func(ctx context.Context) error {
		return p.(*supervise.Process).Bind(ctx, boottime.Now()+5*time.Second) // a busy machine confirms in time
	})
	n.waits("the end", func(context.Context) error {
		if _, ok := n.Running(); ok {
			return errors.New("it runs")
		}
		return nil
	})
	if left, _ := filepath.Glob("/proc/[0-9]*/cwd"); slices.ContainsFunc(left, func(link string) bool {
		at, err := os.Readlink(link)
		return err == nil && at == n.cfg.Data
	}) {
		t.Error("a process of the server is left")
	}
	if _, err := n.Position(t.Context()); !errors.Is(err, server.ErrNotUp) {
		t.Errorf("the position of a server that has ended: %v", err)
	}
	n.up()
	for _, mode := range []server.Mode{server.Fast, server.Quit} {
		must(t, "stop", func(ctx context.Context) error { return n.Stop(ctx, mode) })
		n.up()
	}
}

// The number in an old postmaster.pid may be that of any program by now.
func TestAStrangersProcessIsLeftAlone(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	n := newNode(t, "a")
	stranger := exec.Command("sleep", "60")
	stranger.Dir = n.cfg.Data // as a person's shell
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	}()
	write(t, n.cfg.Data+"/postmaster.pid", fmt.Sprintf("%d\n%s\n1700000000\n%s\n%s\n127.0.0.1\n\nready   \n",
		stranger.Process.Pid, n.cfg.Data, n.port, n.dir))
	lock := filepath.Join(n.dir, ".s.PGSQL."+n.port+".lock")
	write(t, lock, fmt.Sprintf("%d\n%s\n1700000000\n%s\n%s\n", stranger.Process.Pid, n.cfg.Data, n.port, n.dir))
	n.up()
	must(t, "stop", func(ctx context.Context) error { return n.Stop(ctx, server.Quit) })
	if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", stranger.Process.Pid)); err != nil {
		t.Errorf("the stranger was ended: %v", err)
	}
}

// A postmaster that was started a moment ago would die of a reload.
func TestAReloadRightAfterAStart(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	n := newNode(t, "a")
	must(t, "start", n.Start)
	must(t, "follow", func(ctx context.Context) error {
		return n.Follow(ctx, server.Upstream{Host: "127.0.0.1", Port: "1", As: "a"})
	})
	must(t, "seal", n.Seal)
	if x := n.position(); !x.Complete {
		t.Errorf("%+v", x)
	}
}

func TestSettingsOfAPersonAreKept(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	n := newNode(t, "a")
	n.cfg.Parameters = map[string]string{
		"work_mem": "7MB", "max_connections": "20", "wal_level": "logical", "search_path": `"it's", public`,
	}
	n.anew()
	auto := filepath.Join(n.cfg.Data, "postgresql.auto.conf")
	write(t, auto, "maintenance_work_mem = '77MB' # mine\nPrimary_ConnInfo = 'host=vip'\n"+
		"synchronous_standby_names=''\nport = 1\n")
	write(t, n.cfg.Data+"/postgresql.conf", "recovery_target_action = promote\nrecovery_target = immediate\n"+
		"restore_command = 'true'")
	n.up()
	for name, want := range map[string]string{
		"maintenance_work_mem": "77MB", "primary_conninfo": "", "synchronous_standby_names": "ANY 1 (primacy_nobody)",
		"port": n.port, "work_mem": "7MB", "max_connections": "100", // of initdb: a standby must not be below
		"wal_level": "logical", "recovery_target": "", "restore_command": "", "restart_after_crash": "off",
	} {
		if got := n.sql("SHOW " + name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := n.sql("SHOW search_path"); got != `"it's", public` {
		t.Errorf("search_path = %s", got)
	}
	must(t, "stop", func(ctx context.Context) error { return n.Stop(ctx, server.Fast) })
	n.up()
	b, err := os.ReadFile(auto)
	if err != nil || strings.Count(string(b), "primary_conninfo") != 1 || !strings.Contains(string(b), "# mine\n") ||
		strings.Contains(string(b), "vip") {
		t.Errorf("%v\n%s", err, b)
	}
	b, err = os.ReadFile(n.cfg.Data + "/postgresql.conf")
	if err != nil || strings.Count(string(b), "primacy.conf") != 1 {
		t.Errorf("%v: postgresql.conf includes ours %d times", err, strings.Count(string(b), "primacy.conf"))
	}
}

func TestWhatCannotBeUsedIsToldInOneLine(t *testing.T) {
	t.Parallel()
	n := newNode(t, "a")
	for what, c := range map[string]struct {
		change func(*server.Config)
		want   string
	}{
		"bin":       {func(c *server.Config) { c.Bin = "/nonexistent" }, "/nonexistent/postgres"},
		"data":      {func(c *server.Config) { c.Data = "relative" }, "absolute path"},
		"listen":    {func(c *server.Config) { c.Listen = "here" }, "host:port"},
		"port":      {func(c *server.Config) { c.Listen = "here:0" }, "1 to 65535"},
		"socket":    {func(c *server.Config) { c.SocketDir = "/" + strings.Repeat("x", 100) }, "107 bytes"},
		"superuser": {func(c *server.Config) { c.Superuser = "" }, "superuser"},
		"owned":     {func(c *server.Config) { c.Parameters = map[string]string{"Port": "1"} }, "is set by primacy"},
		"SSN": {func(c *server.Config) { c.Parameters = map[string]string{"synchronous_standby_names": "*"} },
			"is set by primacy"},
		"number": {func(c *server.Config) { c.Parameters = map[string]string{"max_connections": "many"} },
			"give a number"},
		"line": {func(c *server.Config) { c.Parameters = map[string]string{"work_mem": "1\nport=1"} }, "line break"},
		"name": {func(c *server.Config) { c.Parameters = map[string]string{"a b": "1"} }, "no name"},
	} {
		cfg := n.cfg
		c.change(&cfg)
		_, err := server.New(cfg, server.Exec{})
		oneLine(t, what, err, server.ErrUnfit, c.want)
	}
	examine := func(what string, want error, text string) {
		t.Helper()
		oneLine(t, what, n.Examine(), want, text)
		if err := n.Start(t.Context()); err == nil {
			t.Errorf("%s: started", what)
		}
	}
	version := filepath.Join(n.cfg.Data, "PG_VERSION")
	b, err := os.ReadFile(version)
	if err == nil {
		err = os.WriteFile(version, []byte("9.6\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	examine("version", server.ErrUnfit, "is of PostgreSQL 9.6")
	_ = os.Remove(version)
	examine("no version", server.ErrUnfit, "no data directory")
	if err := os.WriteFile(version, b, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(n.cfg.Data, 0o755)
	examine("mode", server.ErrUnfit, "chmod 0700")
	_ = os.Chmod(n.cfg.Data, 0)
	examine("unreadable", server.ErrUnfit, "permission denied")
	_ = os.Chmod(n.cfg.Data, 0o700)
	_ = os.Rename(n.cfg.Data, n.cfg.Data+".away")
	examine("missing", server.ErrNoData, "is missing")
	_ = os.Mkdir(n.cfg.Data, 0o700)
	examine("empty", server.ErrNoData, "is empty")
	_ = os.Remove(n.cfg.Data)
	if err := os.Symlink("/etc", n.cfg.Data); err != nil {
		t.Fatal(err)
	}
	examine("foreign", server.ErrUnfit, "belongs to user 0")
}

func oneLine(t *testing.T, what string, err, want error, text string) {
	t.Helper()
	if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), text) || strings.Contains(fmt.Sprint(err), "\n") {
		t.Errorf("%s: %v", what, err)
	}
}
