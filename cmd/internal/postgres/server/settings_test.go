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
	"github.com/primacy-go/primacy/cmd/internal/procfs"
	"github.com/primacy-go/primacy/internal/servertest"
)

// slowAlterSystem begins an ALTER SYSTEM of work_mem that has read the file of such settings. When
// the function that it returns is called it writes the file anew.
func (n *node) slowAlterSystem() (finish func()) {
	n.t.Helper()
	auto := filepath.Join(n.cfg.Data, "postgresql.auto.conf")
	conn := n.connect()
	for {
		text, err := os.ReadFile(auto)
		if err != nil {
			n.t.Fatal(err)
		}
		// It reads from a pipe, in whose place the file is put back meanwhile.
		if err := errors.Join(os.Rename(auto, auto+".kept"), syscall.Mkfifo(auto, 0o600)); err != nil {
			n.t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := conn.Exec(context.Background(), "ALTER SYSTEM SET work_mem = '8MB'")
			done <- err
		}()
		var pipe *os.File
		n.waits("somebody reads", func(context.Context) (err error) {
			pipe, err = os.OpenFile(auto, os.O_WRONLY|syscall.O_NONBLOCK, 0)
			return err
		})
		if err := os.Rename(auto+".kept", auto); err != nil {
			n.t.Fatal(err)
		}
		readers := n.readers(pipe)
		end := func() error {
			_, err := pipe.Write(text)
			return errors.Join(err, pipe.Close(), <-done)
		}
		if slices.Equal(readers, []int{int(conn.PgConn().PID())}) {
			return func() {
				n.t.Helper()
				if err := end(); err != nil {
					n.t.Fatal(err)
				}
			}
		}
		// Another process of the server was late to load its settings.
		_ = end()
		if err := os.WriteFile(auto, text, 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
}

// readers returns the processes of the server that read from a pipe, once one does.
func (n *node) readers(pipe *os.File) (all []int) {
	n.t.Helper()
	is, err := pipe.Stat()
	if err != nil {
		n.t.Fatal(err)
	}
	n.waits("a process has opened the pipe", func(context.Context) error {
		for _, pid := range procfs.PIDs() {
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
			for _, fd := range fds {
				if f, err := os.Stat(fd); err == nil && pid != os.Getpid() && os.SameFile(is, f) {
					all = append(all, pid)
				}
			}
		}
		if len(all) == 0 {
			return errors.New("none")
		}
		return nil
	})
	return all
}

// waitsForAlterSystem runs f, which must not return before an ALTER SYSTEM that read the file
// earlier has written it. Then all settings are loaded once more.
func (n *node) waitsForAlterSystem(f func(context.Context) error) {
	n.t.Helper()
	finish, returned := n.slowAlterSystem(), make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		returned <- f(ctx)
	}()
	n.waits("it waits for the ALTER SYSTEM", func(context.Context) error {
		select {
		case err := <-returned:
			n.t.Fatalf("it returned %v while an ALTER SYSTEM was about to bring former settings back", err)
		default:
		}
		if got := n.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'AutoFile'"); got == "0" {
			return errors.New("it does not")
		}
		return nil
	})
	finish()
	if err := <-returned; err != nil {
		n.t.Fatal(err)
	}
	must(n.t, "reload", n.Reload)
	n.waits("work_mem", func(context.Context) error {
		if got := n.sql("SHOW work_mem"); got != "8MB" {
			return fmt.Errorf("work_mem is %s", got)
		}
		return nil
	})
}

// ALTER SYSTEM of another setting writes what it read before a standby was dropped.
func TestAlterSystemBringsNoFormerVotersBack(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, _ := pair(t)
	c := newNode(t, "c").up().follow(a)
	a.setSync(server.Sync{Names: []string{"b", "c"}, Acks: 1})
	a.waitsForAlterSystem(func(ctx context.Context) error {
		return a.SetSync(ctx, server.Sync{Names: []string{"c"}, Acks: 1})
	})
	must(t, "seal", c.Seal)
	a.commit("INSERT INTO kept VALUES (1)").waiting(t, a)
}

// The same on a standby that is sealed meanwhile.
func TestAlterSystemUnsealsNobody(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	b.waitsForAlterSystem(b.Seal)
	if got := b.sql("SHOW primary_conninfo"); got != "" {
		t.Errorf("a sealed standby follows %s", got)
	}
	a.commit("INSERT INTO kept VALUES (1)").waiting(t, a)
}

// An ALTER SYSTEM that never ends takes one of the server's connections, however often it is tried
// to change the voters.
func TestAlterSystemThatHangsTakesOneConnection(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, _ := pair(t)
	finish := a.slowAlterSystem()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := a.SetSync(ctx, server.Sync{Names: []string{"b"}, Acks: 1})
		cancel()
		if err == nil {
			t.Fatal("it did not wait for the ALTER SYSTEM")
		}
	}
	if got := a.sql("SELECT count(*) <= 1 FROM pg_stat_activity WHERE wait_event = 'AutoFile'"); got != "t" {
		t.Error("several sessions wait for the ALTER SYSTEM")
	}
	finish()
	a.setSync(server.Sync{Names: []string{"b"}, Acks: 1})
}

// On a full disk the server refuses it, and logs each try there.
func TestAlterSystemThatIsRefusedIsNotRepeatedAllTheTime(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, _ := pair(t)
	blocked := filepath.Join(a.cfg.Data, "postgresql.auto.conf.tmp")
	if err := os.Mkdir(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	err := a.SetSync(ctx, server.Sync{Names: []string{"b"}, Acks: 1})
	cancel()
	if err == nil || !strings.Contains(err.Error(), "postgresql.auto.conf.tmp") {
		t.Errorf("the cause is not told: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(a.dir, "log"))
	n := strings.Count(string(text), `could not open file "postgresql.auto.conf.tmp"`)
	if err != nil || n == 0 || n > 10 {
		t.Errorf("it was tried %d times in 2 s (%v)", n, err)
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	a.setSync(server.Sync{Names: []string{"b"}, Acks: 1})
}

// Who sets one of our settings by ALTER SYSTEM does so until the next change of it, or start.
func TestAlterSystemOfOurSettingsIsTakenBack(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	a.sql("ALTER SYSTEM SET synchronous_standby_names = ''")
	a.setSync(server.Sync{Names: []string{"b"}, Acks: 1})
	must(t, "seal", b.Seal)
	a.commit("INSERT INTO kept VALUES (1)").waiting(t, a)
	b.sql("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=" + a.port + "'")
	must(t, "seal", b.Seal)
	if got := b.sql("SHOW primary_conninfo"); got != "" {
		t.Errorf("a sealed standby follows %s", got)
	}
}

// A server that was detached has its settings where ALTER SYSTEM changes them.
func TestADetachedServerIsAnybodys(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	for _, n := range []*node{a, b} {
		must(t, "stop", func(ctx context.Context) error { return n.Stop(ctx, server.Fast) })
	}
	out := filepath.Join(t.TempDir(), "out")
	y := server.Sync{Names: []string{"b"}, Acks: 1}
	// The primary is started as one: who leaves took its standby.signal away when it was promoted.
	must(t, "detach the primary", func(ctx context.Context) error { return server.Detach(ctx, a.Server, &y, out) })
	for _, again := range []bool{false, true} { // as when the first time was cut off
		if again {
			must(t, "retire", func(ctx context.Context) error { return server.Retire(ctx, b.Server) })
		}
		must(t, "detach the standby", func(ctx context.Context) error { return server.Detach(ctx, b.Server, nil, out) })
		if got := b.sql("SHOW synchronous_standby_names"); got != "" {
			t.Errorf("commits on a detached standby that is promoted would wait for %s", got)
		}
	}
	a.commit("INSERT INTO kept VALUES (1)").acknowledged(t) // b streams
	a.sql("ALTER SYSTEM RESET synchronous_standby_names")
	a.sql("SELECT pg_reload_conf()")
	a.waits("reset", func(context.Context) error {
		if got := a.sql("SHOW synchronous_standby_names"); got != "" {
			return errors.New(got)
		}
		return nil
	})
	// It can come back.
	for _, n := range []*node{a, b} {
		must(t, "retire", func(ctx context.Context) error { return server.Retire(ctx, n.Server) })
		n.up()
		got := n.sql("SHOW synchronous_standby_names") + n.sql("SHOW primary_conninfo")
		if got != "ANY 1 (primacy_nobody)" {
			t.Errorf("%s starts with %s", n.name, got)
		}
	}
}

// outcome says whether a commit is acknowledged or waits.
func (n *node) outcome(text string) (got string) {
	n.t.Helper()
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
	already, c := n.sql(waiting), n.commit(text)
	n.waits("an outcome", func(context.Context) error {
		select {
		case err := <-c.err:
			got = fmt.Sprintf("acknowledged (%v)", err)
			return nil
		default:
		}
		if n.sql(waiting) == already {
			return errors.New("neither")
		}
		got = "waits"
		return nil
	})
	return got
}

// Configuration management puts a postgresql.conf of its own in place of the one that is there.
func TestAnotherMainFileChangesNoVoters(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	must(t, "seal", b.Seal)
	original, err := os.ReadFile(filepath.Join(fresh.dir, "data", "postgresql.conf"))
	if err != nil {
		t.Fatal(err)
	}
	another := append(original, "\nwork_mem = '9MB'\n"...)
	for _, n := range []*node{a, b} {
		if err := os.WriteFile(filepath.Join(n.cfg.Data, "postgresql.conf"), another, 0o600); err != nil {
			t.Fatal(err)
		}
		must(t, "reload", n.Reload)
		n.waits("loaded", func(context.Context) error {
			if got := n.sql("SHOW work_mem"); got != "9MB" {
				return errors.New(got)
			}
			return nil
		})
	}
	if got := a.outcome("INSERT INTO kept VALUES (1)"); got != "waits" {
		t.Errorf("a commit is %s, and the only standby is sealed", got)
	}
	must(t, "seal", b.Seal)
	must(t, "configure", func(ctx context.Context) error {
		return a.Configure(ctx, map[string]string{"shared_buffers": "16MB", "work_mem": "5MB"})
	})
	a.setSync(server.Sync{Names: []string{"b"}, Acks: 1})
}

// Debian's pg_ctlcluster starts a server with a postgresql.conf outside its data directory, and
// systemd does that at each boot where it may: a former primary, and a standby that is promoted
// afterwards, acknowledge nothing.
func TestAStartWithAnotherMainFileAcknowledgesNothing(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	for _, n := range []*node{a, b} {
		must(t, "stop", func(ctx context.Context) error { return n.Stop(ctx, server.Quit) })
	}
	for _, n := range []*node{a, b} {
		etc := filepath.Join(n.dir, "etc.conf")
		write(t, etc, "data_directory = '"+n.cfg.Data+"'\nhba_file = '"+n.cfg.Data+"/pg_hba.conf'\n"+
			"ident_file = '"+n.cfg.Data+"/pg_ident.conf'\nshared_buffers = 16MB\n")
		cmd := exec.Command(filepath.Join(n.cfg.Bin, "postgres"), "-c", "config_file="+etc, "-p", n.port, "-k", n.dir,
			"-c", "max_wal_senders=20")
		cmd.Stdout, cmd.Stderr = n.cfg.Output, n.cfg.Output
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Signal(syscall.SIGQUIT)
			_ = cmd.Wait()
		}()
		n.waits("it takes SQL", func(ctx context.Context) error { _, err := n.Position(ctx); return err })
		if n == b {
			n.sql("SELECT pg_promote()")
		}
		if got := n.outcome("INSERT INTO kept VALUES (1)"); got != "waits" {
			t.Errorf("%s: a commit is %s", n.name, got)
		}
	}
}
