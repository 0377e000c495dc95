package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// slowAlterSystem begins an ALTER SYSTEM of work_mem that has read the file of such settings. When
// the function that it returns is called it writes the file anew, and the settings are loaded.
func (n *node) slowAlterSystem() (finish func()) {
	n.t.Helper()
	auto := filepath.Join(n.cfg.Data, "postgresql.auto.conf")
	text, err := os.ReadFile(auto)
	if err != nil {
		n.t.Fatal(err)
	}
	// It reads from a pipe, in whose place the file is put back meanwhile.
	if err := errors.Join(os.Rename(auto, auto+".kept"), syscall.Mkfifo(auto, 0o600)); err != nil {
		n.t.Fatal(err)
	}
	conn, done := n.connect(), make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "ALTER SYSTEM SET work_mem = '8MB'")
		done <- err
	}()
	var pipe *os.File
	n.waits("ALTER SYSTEM reads", func(context.Context) (err error) {
		pipe, err = os.OpenFile(auto, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		return err
	})
	if err := os.Rename(auto+".kept", auto); err != nil {
		n.t.Fatal(err)
	}
	return func() {
		n.t.Helper()
		_, err := pipe.Write(text)
		if err := errors.Join(err, pipe.Close(), <-done); err != nil {
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
}

// ALTER SYSTEM of another setting writes what it read before a standby was dropped.
func TestAlterSystemBringsNoFormerVotersBack(t *testing.T) {
	t.Parallel()
	a, _ := pair(t)
	c := newNode(t, "c").up().follow(a)
	a.setSync(server.Sync{Names: []string{"b", "c"}, Acks: 1})
	finish := a.slowAlterSystem()
	next := server.Sync{Names: []string{"c"}, Acks: 1}
	must(t, "mark", func(ctx context.Context) (err error) {
		next.Mark, err = a.Mark(ctx)
		return err
	})
	a.setSync(next)
	a.waits("proof", func(ctx context.Context) error { return a.Proven(ctx, next, "b", "c") })
	finish()
	must(t, "seal", c.Seal)
	a.commit("INSERT INTO kept VALUES (1)").waiting(t, a)
}

// The same on a standby that is sealed meanwhile.
func TestAlterSystemUnsealsNobody(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	finish := b.slowAlterSystem()
	must(t, "seal", b.Seal)
	finish()
	if got := b.sql("SHOW primary_conninfo"); got != "" {
		t.Errorf("a sealed standby follows %s", got)
	}
	a.commit("INSERT INTO kept VALUES (1)").waiting(t, a)
}

// Who sets one of our settings by ALTER SYSTEM does so until the next change of it, or start.
func TestAlterSystemOfOurSettingsIsTakenBack(t *testing.T) {
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
	text, err := os.ReadFile(filepath.Join(a.cfg.Data, "postgresql.conf"))
	if err != nil || strings.Contains(string(text), "primacy.member.conf") {
		t.Errorf("%v: postgresql.conf includes what is not there any more", err)
	}
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

// A person removes the file that says for whom commits wait.
func TestWithoutItsFileAServerKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	must(t, "seal", b.Seal)
	if err := os.Remove(filepath.Join(a.cfg.Data, "primacy.member.conf")); err != nil {
		t.Fatal(err)
	}
	must(t, "reload", a.Reload)
	a.waits("the log says so", func(context.Context) error {
		text, err := os.ReadFile(filepath.Join(a.dir, "log"))
		if err == nil && !strings.Contains(string(text), "primacy.member.conf") {
			err = errors.New("no word of it")
		}
		return err
	})
	a.commit("INSERT INTO kept VALUES (1)").waiting(t, a)
}
