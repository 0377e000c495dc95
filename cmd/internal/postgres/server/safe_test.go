package server_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// Whatever stands in the files that a former manager has left, a commit waits for a standby.
func TestCommitsWaitWhateverTheFilesSay(t *testing.T) {
	t.Parallel()
	n := newNode(t, "a")
	bad := func(name string) {
		f, err := os.OpenFile(filepath.Join(n.cfg.Data, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString("synchronous_commit = local\nfsync = off\n"); err != nil {
			t.Fatal(err)
		}
	}
	bad("postgresql.conf")
	bad("postgresql.auto.conf")
	n.up()
	must(t, "stop", func(ctx context.Context) error { return n.Stop(ctx, server.Fast) })
	bad("postgresql.conf") // below our line
	n.up()
	must(t, "seal", n.Seal)
	n.setSync(server.Sync{})
	n.promote(3)
	c := n.connect()
	var fsync string
	if err := c.QueryRow(t.Context(), "SHOW fsync").Scan(&fsync); err != nil || fsync != "on" {
		t.Errorf("fsync is %q: %v", fsync, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.Exec(ctx, "CREATE TABLE t (x int)"); err == nil {
		t.Error("a commit was acknowledged, and there is no standby")
	}
}
