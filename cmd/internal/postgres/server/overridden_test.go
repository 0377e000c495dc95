package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/servertest"
)

var lineNumber = regexp.MustCompile(`:\d+`)

// overridden waits until the server has these settings from elsewhere, and no others.
func (n *node) overridden(want string) {
	n.t.Helper()
	n.waits("overridden: "+want, func(ctx context.Context) error {
		all, err := n.Overridden(ctx)
		if got := lineNumber.ReplaceAllString(fmt.Sprint(all), ":N"); err == nil && got != want {
			err = fmt.Errorf("%s", got)
		}
		return err
	})
}

// An ALTER SYSTEM is stronger than all that primacy writes; it is seen once it is in force, and
// until it is so no more.
func TestWhatIsSetPastPrimacyIsSeen(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	params := map[string]string{"shared_buffers": "16MB", "work_mem": "5MB", "DateStyle": "ISO",
		"max_connections": "20", "wal_buffers": "64kB"}
	params, err := server.Parameters(params)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []*node{a, b} {
		n.overridden("[]")
		must(t, "configure", func(ctx context.Context) error { return n.Configure(ctx, params) })
		n.overridden("[]") // wal_buffers waits for a restart
	}
	for _, sql := range []string{"synchronous_standby_names = ''", "work_mem = '8MB'", "max_connections = 30",
		"maintenance_work_mem = '32MB'", "synchronous_commit = off", "wal_buffers = '128kB'"} {
		a.sql("ALTER SYSTEM SET " + sql)
	}
	b.sql("ALTER SYSTEM SET recovery_min_apply_delay = '1h'")
	b.sql("ALTER SYSTEM SET primary_slot_name = 'other'")
	for _, n := range []*node{a, b} {
		must(t, "reload", n.Reload)
	}
	const auto = " (postgresql.auto.conf:N)"
	a.overridden("[synchronous_commit" + auto + " synchronous_standby_names (changed) work_mem" + auto + "]")
	b.overridden("[primary_slot_name (changed) recovery_min_apply_delay" + auto + "]")
	a.setSync(server.Sync{Names: []string{"b"}, Acks: 1}) // what primacy sets it takes back
	a.overridden("[synchronous_commit" + auto + " work_mem" + auto + "]")
	a.sql("ALTER SYSTEM RESET work_mem")
	a.sql("ALTER SYSTEM RESET synchronous_commit")
	b.sql("ALTER SYSTEM RESET ALL") // what primacy has set too
	for _, n := range []*node{a, b} {
		must(t, "reload", n.Reload)
	}
	a.overridden("[]")
	b.overridden("[primary_conninfo (changed) synchronous_standby_names (changed)]")
	b.follow(a).overridden("[synchronous_standby_names (changed)]")
	must(t, "stop", func(ctx context.Context) error { return b.Stop(ctx, server.Fast) })
	b.up().follow(a).overridden("[]")
	// Somebody empties the file of the configuration's parameters, and adds to the server's own.
	own, err := os.OpenFile(filepath.Join(a.cfg.Data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = own.WriteString("fsync = on\n")
	if err := errors.Join(err, own.Close(), os.Truncate(filepath.Join(a.cfg.Data, "primacy.conf"), 0)); err != nil {
		t.Fatal(err)
	}
	must(t, "reload", a.Reload)
	a.waits("both are seen", func(ctx context.Context) error {
		all, err := a.Overridden(ctx)
		seen := map[string]string{}
		for _, o := range all {
			seen[o.Name] = o.Source
		}
		if err == nil && (seen["full_page_writes"] != "changed" || len(seen["fsync"]) < len("postgresql.conf:1")) {
			err = fmt.Errorf("%v", all)
		}
		return err
	})
	// A restart writes all of ours anew, and brings what waited for it.
	must(t, "stop", func(ctx context.Context) error { return a.Stop(ctx, server.Fast) })
	a.up().overridden("[wal_buffers" + auto + "]")
}
