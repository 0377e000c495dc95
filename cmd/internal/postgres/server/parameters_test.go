package server_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/servertest"
)

func (n *node) configure(parameters map[string]string) {
	n.t.Helper()
	must(n.t, "configure "+n.name, func(ctx context.Context) error { return n.Configure(ctx, parameters) })
}

func (n *node) pending() (p server.Pending) {
	n.t.Helper()
	must(n.t, "what is pending of "+n.name, func(ctx context.Context) (err error) {
		p, err = n.Pending(ctx)
		return err
	})
	return p
}

// TestConfigure: what needs no restart is in force at once, what does is told, also where it is on
// the command line, and is in force after a restart.
func TestConfigure(t *testing.T) {
	t.Parallel()
	n := newNode(t, "a").up()
	if p := n.pending(); len(p.Restart)+len(p.Held) > 0 {
		t.Errorf("after a start: got %+v", p)
	}
	n.configure(map[string]string{"shared_buffers": "20MB", "work_mem": "5MB", "max_connections": "150",
		"wal_level": "hot_standby", "wal_log_hints": "on", "my.own": "it's"})
	if got := n.sql("SELECT current_setting('work_mem') || current_setting('my.own')"); got != "5MBit's" {
		t.Errorf("got %s", got)
	}
	if p := n.pending(); !slices.Equal(p.Restart, []string{"max_connections", "shared_buffers"}) || len(p.Held) > 0 {
		t.Errorf("before a restart: got %+v", p)
	}
	must(t, "stop", func(ctx context.Context) error { return n.Stop(ctx, server.Fast) })
	n.configure(map[string]string{"shared_buffers": "24MB", "max_connections": "150"})
	n.up()
	if got := n.sql("SELECT concat_ws(' ', current_setting('shared_buffers'), current_setting('work_mem'), " +
		"current_setting('max_connections'))"); got != "24MB 4MB 150" {
		t.Errorf("after a restart: got %s", got)
	}
	if p := n.pending(); len(p.Restart)+len(p.Held) > 0 {
		t.Errorf("after a restart: got %+v", p)
	}
}

// TestASmallerMaxConnections stays as large as the primary's was: else PostgreSQL starts no
// standby. It is told, and a restart does not help.
func TestASmallerMaxConnections(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	n := newNode(t, "a")
	n.configure(map[string]string{"max_connections": "150"})
	n.up().promote(3)
	n.configure(map[string]string{"max_connections": "50"})
	if p := n.pending(); len(p.Restart) > 0 || !slices.Equal(p.Held, []string{"max_connections"}) {
		t.Errorf("got %+v", p)
	}
}

// TestTry: what would keep a server from starting, or from loading any change, is found before.
func TestTry(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	n := newNode(t, "a")
	for _, test := range []struct {
		parameters map[string]string
		want       string
	}{
		{map[string]string{"work_mem": "4MB", "a.b": "x", "hot_standby": "on", "wal_level": "logical"}, ""},
		{map[string]string{"shared_bufers": "1"}, `unrecognized configuration parameter "shared_bufers"`},
		{map[string]string{"work_mem": "some"}, `invalid value for parameter "work_mem": "some"`},
		{map[string]string{"max_connections": "3"}, "of these 3 are reserved"},
		{map[string]string{"archive_command": `cp '%p' \'x`, "ssl_passphrase_command": "echo geheim"}, ""},
		{map[string]string{"log_min_messages": "fatal", "work_mem": "some"}, `invalid value for parameter "work_mem"`},
		{map[string]string{"a.b$c": "x"}, `syntax error, near token "$"`}, // no server could load its file
		{map[string]string{"include": "/dev/null"}, "no parameter"},
	} {
		err := n.Try(t.Context(), test.parameters)
		text := fmt.Sprint(err)
		if (err == nil) != (test.want == "") || !strings.Contains(text, test.want) || strings.Contains(text, "\n") {
			t.Errorf("%v: got %v, want %q", test.parameters, err, test.want)
		}
	}
}

// noting is a runner that notes the arguments of the programs that it starts.
type noting struct {
	server.Exec
	args []string
}

func (n *noting) StartOther(cmd *exec.Cmd) error {
	n.args = append(n.args, cmd.Args...)
	return n.Exec.StartOther(cmd)
}

// TestTryTellsNobodyTheValues: whoever is on the machine can read the arguments of a program.
func TestTryTellsNobodyTheValues(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	n, r := newNode(t, "a"), &noting{}
	s, err := server.New(n.cfg, r)
	if err != nil {
		t.Fatal(err)
	}
	r.args = nil
	if err := s.Try(t.Context(), map[string]string{"ssl_passphrase_command": "echo geheim"}); err != nil {
		t.Error(err)
	}
	if len(r.args) == 0 || strings.Contains(strings.Join(r.args, " "), "geheim") {
		t.Errorf("the arguments were %q", r.args)
	}
}

// TestAStandbyWithLessThanItsPrimary replays nothing more, and says so; a restart gives it what it
// needs.
func TestAStandbyWithLessThanItsPrimary(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	p, s := newNode(t, "a"), newNode(t, "b")
	p.configure(map[string]string{"max_connections": "120"})
	s.up()
	if n := s.Version().Major; n < 14 {
		t.Skipf("a standby of PostgreSQL %d ends by itself", n)
	}
	p.up().promote(3)
	must(t, "follow", func(ctx context.Context) error {
		return s.Follow(ctx, server.Upstream{Host: "127.0.0.1", Port: p.port, As: s.name})
	})
	s.waits("the standby is short", func(ctx context.Context) error {
		x, err := s.Position(ctx)
		if err != nil {
			return err
		}
		short, err := s.Short(ctx)
		if err == nil && (!short || x.Waits != "RecoveryPause") {
			err = fmt.Errorf("short: %v, waits for %s", short, x.Waits)
		}
		return err
	})
	must(t, "stop", func(ctx context.Context) error { return s.Stop(ctx, server.Fast) })
	s.up().follow(p)
	s.waits("the standby replays", func(ctx context.Context) error {
		if short, err := s.Short(ctx); short || err != nil {
			return errors.New("it is still short")
		}
		x, err := s.Position(ctx)
		if err == nil && x.Backlog() > 0 {
			err = errors.New("not all is replayed")
		}
		return err
	})
}
