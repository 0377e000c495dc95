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

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/servertest"
)

// A server that somebody promotes by hand acknowledges nothing, for its SSN was set before its
// first start.
func TestAServerPromotedByHandAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	b.sql("SELECT pg_promote(true)")
	late := b.commit("INSERT INTO kept VALUES (1)")
	late.waiting(t, b)
	// Nor does one that is started as a standby again, and promoted by hand then.
	must(t, "stop", func(ctx context.Context) error { return a.Stop(ctx, server.Quit) })
	a.up().sql("SELECT pg_promote(true)")
	c := a.commit("INSERT INTO kept VALUES (2)")
	c.waiting(t, a)
	late.still(t)
}

// Timelines 2 and 3 were given out to others. The standby that is promoted skips them, one that was
// connected to it before follows over the change, and one that comes later too.
func TestAPromotionSkipsTimelines(t *testing.T) {
	t.Parallel()
	a, b, c := newNode(t, "a"), newNode(t, "b"), newNode(t, "c")
	a.up()
	b.up().follow(a)
	c.up()
	a.promote(4)
	a.setSync(server.Sync{Names: []string{"b"}, Acks: 1})
	a.commit("CREATE TABLE kept (a int)").acknowledged(t)
	if x := a.position(); x.Timeline != 4 || !x.Primary {
		t.Errorf("promoted to %+v", x)
	}
	c.follow(a)
	for _, n := range []*node{b, c} {
		n.waits(n.name+" is on timeline 4", func(ctx context.Context) error {
			if x, err := n.Position(ctx); err != nil || x.Timeline != 4 || !x.Complete {
				return fmt.Errorf("%+v, %v", x, err)
			}
			return nil
		})
	}
	// The next promotion is of a server that has the placeholders too; it is started again before.
	must(t, "seal", b.Seal)
	must(t, "stop a", func(ctx context.Context) error { return a.Stop(ctx, server.Quit) })
	must(t, "stop b", func(ctx context.Context) error { return b.Stop(ctx, server.Quit) })
	b.up().promote(7)
	c.follow(b)
	b.setSync(server.Sync{Names: []string{"c"}, Acks: 1})
	b.commit("INSERT INTO kept VALUES (1)").acknowledged(t)
	c.waits("c is on timeline 7", func(ctx context.Context) error {
		if x, err := c.Position(ctx); err != nil || x.Timeline != 7 {
			return fmt.Errorf("%+v, %v", x, err)
		}
		return nil
	})
}

// The placeholders of a promotion that did not come about would keep the server from starting.
func TestPlaceholdersOfAFailedPromotionGo(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a := newNode(t, "a")
	a.up()
	pid := a.process("startup")
	if err := servertest.Halt(pid); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	promoted := make(chan error, 1)
	go func() { promoted <- a.Promote(ctx, 4) }()
	a.waits("the promotion is asked for", func(context.Context) error {
		_, err := os.Stat(a.cfg.Data + "/promote")
		return err
	})
	cancel()
	if err := <-promoted; !errors.Is(err, context.Canceled) {
		t.Fatalf("promoted with a frozen startup process: %v", err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	must(t, "stop", func(ctx context.Context) error { return a.Stop(ctx, server.Quit) })
	a.up()
	if x := a.position(); x.Primary || x.Timeline != 1 {
		t.Errorf("after a promotion that was ended: %+v", x)
	}
	if left, _ := filepath.Glob(a.cfg.Data + "/pg_wal/*.history"); len(left) > 0 {
		t.Errorf("placeholders are left: %v", left)
	}
	a.promote(5)
	if x := a.position(); x.Timeline != 5 {
		t.Errorf("promoted to %+v", x)
	}
}

func TestAPromotionThatCannotBeIsRefused(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a := newNode(t, "a")
	a.up()
	must(t, "seal", a.Seal)
	if err := a.Promote(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "cannot follow timeline 1") {
		t.Errorf("%v", err)
	}
	path := filepath.Join(a.cfg.Data, "pg_wal", "00000003.history")
	if err := os.WriteFile(path, []byte("1\t0/1500000\tsomebody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Promote(t.Context(), 3); err == nil || !strings.Contains(err.Error(), "timeline 3 exists already") {
		t.Errorf("%v", err)
	}
	if x := a.position(); x.Primary {
		t.Errorf("%+v", x)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	a.promote(2)
	if err := a.Promote(t.Context(), 3); !errors.Is(err, server.ErrPrimary) {
		t.Errorf("%v", err)
	}
}

// Where a primary that was shut down ends is where its standby ends.
func TestWhereAStoppedPrimaryEnds(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	must(t, "checkpoint", a.Checkpoint)
	must(t, "stop", func(ctx context.Context) error { return a.Stop(ctx, server.Fast) })
	must(t, "stopped", func(ctx context.Context) error {
		p, ok, err := a.StoppedAt(ctx)
		if err != nil || !ok {
			return fmt.Errorf("%v, %v", ok, err)
		}
		must(t, "seal", b.Seal)
		if x := b.position(); x.Position != p {
			t.Errorf("the primary stopped at %v, its standby has %v", p, x.Position)
		}
		return nil
	})
	must(t, "stop b", func(ctx context.Context) error { return b.Stop(ctx, server.Fast) })
	must(t, "stopped b", func(ctx context.Context) error {
		if p, ok, err := b.StoppedAt(ctx); ok || err != nil {
			return fmt.Errorf("a standby says that it stopped at %v, %w", p, err)
		}
		c, err := b.Control(ctx)
		if err == nil && (c.State != "shut down in recovery" || !c.HintLogged || c.Checkpoint.Timeline != 2) {
			err = fmt.Errorf("%+v", c)
		}
		return err
	})
}

// A flush of WAL waits for no standby, and for the disk.
func TestAFlushWaitsForNoStandby(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a := newNode(t, "a").up()
	if _, err := a.Flush(t.Context()); err == nil {
		t.Error("a standby has written WAL")
	}
	a.promote(2)
	before := a.position()
	upto, err := a.Flush(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if x := a.position(); x.LSN <= before.LSN || upto <= before.LSN || upto > x.LSN {
		t.Errorf("flushed to %v before and to %v after; the flush says %v", before.LSN, x.LSN, upto)
	}
	kill(t, a)
	a.up()
	if x := a.complete(); x.Timeline != 2 || x.LSN < upto {
		t.Errorf("flushed to %v, and after a crash its WAL ends at %v", upto, x.Position)
	}
}

// Backups, and standbys that connect again and again, may take all walsenders of a primary. It is
// none the worse for that.
func TestAPrimaryWithoutAWalsenderLeftSaysWhereItIs(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	n := newNode(t, "a")
	n.cfg.Parameters["max_wal_senders"] = "12"
	n.anew()
	n.up().promote(3)
	for i := 0; ; i++ {
		c, err := pgconn.Connect(t.Context(), "postgres://postgres@127.0.0.1:"+n.port+"/postgres?replication=true")
		if err != nil {
			if i < 15 {
				t.Errorf("%d walsenders: %v", i, err)
			}
			break
		}
		t.Cleanup(func() { _ = c.Conn().Close() })
	}
	if x := n.position(); !x.Primary || !x.Complete || x.Timeline != 3 || x.LSN == 0 {
		t.Errorf("%+v", x)
	}
}

func TestSlots(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	for _, n := range []*node{a, b} {
		must(t, "slots of "+n.name, func(ctx context.Context) error {
			err := errors.Join(n.EnsureSlot(ctx, "pg_2"), n.EnsureSlot(ctx, "pg_2"))
			all, e := n.Slots(ctx)
			if err = errors.Join(err, e); err != nil || len(all) != 1 || all[0].Name != "pg_2" || all[0].Restart == 0 {
				return fmt.Errorf("%+v, %w", all, err)
			}
			return nil
		})
	}
	a.commit("INSERT INTO kept SELECT generate_series(1, 1000)").acknowledged(t)
	to := a.position().LSN
	must(t, "advance", func(ctx context.Context) error {
		err := errors.Join(a.AdvanceSlot(ctx, "pg_2", to), a.AdvanceSlot(ctx, "pg_2", to-100),
			a.AdvanceSlot(ctx, "none", to))
		all, e := a.Slots(ctx)
		if err = errors.Join(err, e); err != nil || all[0].Restart != to {
			return fmt.Errorf("want %v: %+v, %w", to, all, err)
		}
		return nil
	})
	must(t, "use", func(ctx context.Context) error {
		if err := b.Follow(ctx, server.Upstream{Host: "127.0.0.1", Port: a.port, As: "b", Slot: "pg_2"}); err != nil {
			return err
		}
		return eventually(ctx, func() error {
			all, err := a.Slots(ctx)
			if err != nil || !all[0].Active {
				return fmt.Errorf("%+v, %v", all, err)
			}
			return nil
		})
	})
	if err := a.DropSlot(t.Context(), "pg_2"); err == nil {
		t.Error("a slot in use was dropped")
	}
	must(t, "drop", func(ctx context.Context) error {
		return errors.Join(b.DropSlot(ctx, "pg_2"), b.DropSlot(ctx, "pg_2"), b.DropSlot(ctx, "none"))
	})
	for member, want := range map[string]string{"pg-2": "pg_2", "PG.2": "pg_2", "a b@c": "au0032bu0064c"} {
		if got := server.SlotName(member); got != want {
			t.Errorf("slot of %q is %q, want %q", member, got, want)
		}
	}
}
