//go:build linux

package supervise

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/servertest"
	"golang.org/x/sys/unix"
)

// A real server whose clients write all the time: whoever is killed or frozen, its last commit was
// before the deadline, and neither the postmaster nor a backend is left.
func TestPostgres(t *testing.T) {
	servertest.Long(t, "race-program")
	server := pgtest.Start(t, pgtest.Options{NoFsync: true})
	server.Exec("CREATE TABLE acts (at numeric)")
	server.Kill()
	for name, hurt := range map[string]func(t *testing.T, f *unboundFamily){
		"bound, supervisor frozen": func(t *testing.T, f *unboundFamily) {
			f.do(t, "bind "+ttl.String())
			send(t, unix.SIGSTOP, f.supervisor)
		},
		"bound, all but the backends frozen": func(t *testing.T, f *unboundFamily) {
			f.do(t, "bind "+ttl.String())
			send(t, unix.SIGSTOP, f.supervisor, f.guardian, f.command)
		},
		"unbound, supervisor killed": func(t *testing.T, f *unboundFamily) { send(t, unix.SIGKILL, f.supervisor) },
		"unbound, guardian killed":   func(t *testing.T, f *unboundFamily) { send(t, unix.SIGKILL, f.guardian) },
		"unbound, postmaster killed": func(t *testing.T, f *unboundFamily) { send(t, unix.SIGKILL, f.command) },
		"unbound, supervisor and guardian killed at one instant": func(t *testing.T, f *unboundFamily) {
			send(t, unix.SIGSTOP, f.supervisor, f.guardian)
			send(t, unix.SIGKILL, f.supervisor, f.guardian)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newPostmaster(t, server)
			awaitServer(t, server)
			stop := f.writers(t, server)
			hurt(t, f)
			eventually(t, "the end of all processes of the server", func() bool {
				for _, pid := range f.all {
					if pid != f.guardian && !isDead(pid) {
						return false
					}
				}
				return true
			})
			if stop(); f.deadline == 0 {
				return
			}
			send(t, unix.SIGCONT, f.supervisor)
			if err := server.Launch(); err != nil {
				t.Fatal(err)
			}
			if err := server.Ready(time.Minute); err != nil {
				t.Fatal(err)
			}
			last := seconds(t, server.Query("SELECT max(at) FROM acts")) + aheadOfUptime(t)
			server.Kill()
			if last >= f.deadline {
				t.Errorf("the last commit was %v after the deadline", last-f.deadline)
			}
			t.Logf("the last commit was %v before the deadline", f.deadline-last)
		})
	}
}

// newPostmaster runs the server's postmaster under a supervisor that is the server's user.
func newPostmaster(t *testing.T, server *pgtest.Server) *unboundFamily {
	t.Helper()
	args, as := server.Postmaster()
	dir, err := os.MkdirTemp("", "supervise-") // not t.TempDir: another user cannot reach that
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	orders := newPipe(t, dir)
	f := &unboundFamily{&family{report: filepath.Join(dir, "report")}, orders}
	f.cmd = supervisorCommand(t, setup{
		Report: f.report, Orders: orders.Name(),
		Command: Command{
			Args: args, Env: os.Environ(), Dir: "/", NoJobControl: true,
			Deadline: NoDeadline, Grace: ttl / 8 * 3, Margin: ttl / 4, // SIGQUIT a while before SIGKILL
			StopSignal: unix.SIGQUIT, DeathSignal: unix.SIGQUIT, KillRemaining: true,
		},
	})
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	f.cmd.Stdout, f.cmd.Stderr = log, log
	f.cmd.Path = "/proc/self/exe" // the server's user need not be let into the folder of the binary
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if as != nil {
		for _, path := range []string{dir, orders.Name()} {
			if err := os.Chown(path, int(as.Uid), int(as.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("the supervisor's and the server's log:\n%s", text)
		}
		for _, pid := range append(f.all, f.supervisor) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		_ = f.cmd.Wait()
		wantNobodyLeft(t)
	})
	f.supervisor = f.cmd.Process.Pid
	f.guardian, f.command = awaitStart(t, f.report)
	f.all = []int{f.guardian, f.command}
	return f
}

// awaitServer returns when the server takes statements.
func awaitServer(t *testing.T, server *pgtest.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ; ; time.Sleep(10 * time.Millisecond) {
		c, err := pgx.Connect(ctx, server.URL())
		if err == nil {
			c.Close(ctx)
			return
		}
		if ctx.Err() != nil {
			t.Fatal("the server does not start:", err)
		}
	}
}

// writers connects clients, three of which commit the time of the boot clock again and again in the
// server, and notes all processes of the server in f.all. It returns what ends the clients.
func (f *unboundFamily) writers(t *testing.T, server *pgtest.Server) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all []*pgx.Conn
	done := make(chan struct{}, 3)
	for range 3 {
		c, err := pgx.Connect(ctx, server.URL())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		go func() {
			_, _ = c.Exec(ctx, `DO $$ BEGIN LOOP
				INSERT INTO acts SELECT split_part(pg_read_file('/proc/uptime'), ' ', 1)::numeric; COMMIT;
			END LOOP; END $$`)
			done <- struct{}{}
		}()
	}
	begin := boottime.Now() - aheadOfUptime(t)
	at := strconv.FormatFloat(begin.Seconds(), 'f', 2, 64)
	enough := "SELECT count(*) > 10 FROM acts WHERE at > " + at
	eventually(t, "commits", func() bool { return server.Query(enough) == "t" })
	f.all = append([]int{f.guardian}, f.pids()...)
	return func() {
		cancel()
		for range all {
			<-done
		}
		for _, c := range all {
			_ = c.Close(context.Background())
		}
	}
}

// aheadOfUptime is how far the boot clock is ahead of /proc/uptime, which a container may have
// changed.
func aheadOfUptime(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	uptime, _, _ := strings.Cut(string(text), " ")
	return boottime.Now() - seconds(t, uptime)
}

// seconds reads a number of seconds.
func seconds(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text + "s")
	if err != nil {
		t.Fatal(err)
	}
	return d
}
