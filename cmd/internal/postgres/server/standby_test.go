package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/servertest"
)

// pair is a primary on timeline 2 and a standby that streams from it. Every commit needs that one's
// acknowledgement.
func pair(t *testing.T) (a, b *node) {
	t.Helper()
	a, b = newNode(t, "a"), newNode(t, "b")
	a.up().promote(2)
	b.up().follow(a)
	a.setSync(server.Sync{Names: []string{"b"}, Acks: 1})
	a.commit("CREATE TABLE kept (a int)").acknowledged(t)
	return a, b
}

func TestASealedStandbyAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	began := time.Now()
	must(t, "seal", b.Seal)
	t.Logf("sealed after %v", time.Since(began))
	x := b.position()
	if !x.Complete || x.Timeline != 2 || x.Streams {
		t.Errorf("a sealed standby says %+v", x)
	}
	late := a.commit("INSERT INTO kept VALUES (1)")
	late.waiting(t, a)
	if y := b.position(); y.Position != x.Position || !y.Complete {
		t.Errorf("sealed at %v, later at %v", x, y)
	}
	// It stays sealed when it starts again.
	must(t, "stop", func(ctx context.Context) error { return b.Stop(ctx, server.Quit) })
	b.up()
	began = time.Now()
	must(t, "seal", b.Seal)
	t.Logf("after a start sealed after %v", time.Since(began))
	if y := b.position(); y.Position.Before(x.Position) || !y.Complete {
		t.Errorf("sealed at %v, after a start at %v", x, y)
	}
	late.still(t)
	b.follow(a)
	late.acknowledged(t)
	b.waits("the standby has it", func(ctx context.Context) error {
		if b.sql("SELECT count(*) FROM kept") != "1" {
			return errors.New("no row")
		}
		return nil
	})
}

// A startup process that is frozen has not read the setting: it may start a walreceiver yet.
func TestASealNeedsTheStartupProcess(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	pid := b.process("startup")
	if err := servertest.Halt(pid); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	b.unsealed("the startup process")
	// The walreceiver was ended all the same, so nothing is acknowledged any more.
	b.waits("the walreceiver ends", func(context.Context) error {
		if b.sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walreceiver'") != "0" {
			return errors.New("it runs")
		}
		return nil
	})
	late := a.commit("INSERT INTO kept VALUES (1)")
	late.waiting(t, a)
	_ = syscall.Kill(pid, syscall.SIGCONT)
	must(t, "seal", b.Seal)
	late.still(t)
}

// While the primary is away, the startup process waits in the same state as when it is sealed, with
// no walreceiver. If it is frozen there, it has not read the new setting, and yet it will before it
// starts one.
func TestAStandbyThatLostItsPrimaryIsSealed(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	must(t, "stop", func(ctx context.Context) error { return a.Stop(ctx, server.Quit) })
	b.waits("the standby waits", func(ctx context.Context) error {
		if x, err := b.Position(ctx); err != nil || x.Waits != "RecoveryRetrieveRetryInterval" {
			return errors.Join(err, errors.New(x.Waits))
		}
		return nil
	})
	before := b.position()
	pid := b.process("startup")
	if err := servertest.Halt(pid); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	must(t, "seal", b.Seal)
	// The former primary is back, as a thawed one is.
	a.up().promote(3)
	a.setSync(server.Sync{Names: []string{"b"}, Acks: 1})
	late := a.commit("INSERT INTO kept VALUES (1)")
	late.waiting(t, a)
	_ = syscall.Kill(pid, syscall.SIGCONT)
	must(t, "seal again", b.Seal)
	late.still(t)
	if x := b.position(); x.Position != before.Position || !x.Complete {
		t.Errorf("sealed at %v, before at %v", x, before)
	}
}

// A postmaster that is frozen has told nobody of the new setting. The startup process has it
// nevertheless, so it asks for no walreceiver, however often it tries.
func TestASealNeedsNoPostmaster(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := newNode(t, "a"), newNode(t, "b")
	b.cfg.Parameters["wal_retrieve_retry_interval"] = "500ms"
	b.anew()
	a.up().promote(2)
	b.up().follow(a)
	must(t, "stop", func(ctx context.Context) error { return a.Stop(ctx, server.Quit) })
	const waits = "SELECT wait_event FROM pg_stat_activity WHERE backend_type = 'startup'"
	c := b.connect()
	event := func() (text string) {
		_ = c.QueryRow(t.Context(), waits).Scan(&text)
		return text
	}
	b.waits("the standby waits", func(ctx context.Context) error {
		if got := event(); got != "RecoveryRetrieveRetryInterval" {
			return errors.New(got)
		}
		return nil
	})
	p, _ := b.Running()
	if err := servertest.Halt(p.PID()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(p.PID(), syscall.SIGCONT) }()
	must(t, "seal", b.Seal)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if event() == "RecoveryWalStream" {
			t.Fatal("a sealed standby asks for a walreceiver")
		}
	}
}

// A walreceiver that waits for a timeline which it cannot follow stays, and keeps its connection.
func TestASealEndsAWalreceiverThatWaits(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	c := newNode(t, "c").up().follow(a)
	must(t, "seal", c.Seal)
	a.commit("INSERT INTO kept VALUES (1)").acknowledged(t)
	must(t, "stop", func(ctx context.Context) error { return a.Stop(ctx, server.Quit) })
	c.promote(3)
	idle := func() {
		t.Helper()
		b.waits("a walreceiver that waits", func(context.Context) error {
			if got := b.sql("SELECT status FROM pg_stat_wal_receiver UNION ALL SELECT 'none'"); got != "waiting" {
				return errors.New(got)
			}
			return nil
		})
	}
	must(t, "follow", func(ctx context.Context) error {
		return b.Follow(ctx, server.Upstream{Host: "127.0.0.1", Port: c.port, As: "b"})
	})
	idle()
	before := b.process("walreceiver")
	must(t, "follow", func(ctx context.Context) error {
		return b.Follow(ctx, server.Upstream{Host: "127.0.0.1", Port: "1", As: "b"})
	})
	b.waits("it has ended", func(context.Context) error { return alive(before) })
	must(t, "follow", func(ctx context.Context) error {
		return b.Follow(ctx, server.Upstream{Host: "127.0.0.1", Port: c.port, As: "b"})
	})
	idle()
	must(t, "seal", b.Seal)
	if x := b.position(); x.Timeline != 2 || !x.Complete {
		t.Errorf("%+v", x)
	}
}

// alive returns an error while the process is there.
func alive(pid int) error {
	if err := syscall.Kill(pid, 0); err == nil {
		return fmt.Errorf("process %d is there", pid)
	}
	return nil
}

// A query that reads what the startup process wants to remove holds it up, for ever if a person
// wants that.
func TestASealEndsQueriesThatHoldItUp(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := newNode(t, "a"), newNode(t, "b")
	b.cfg.Parameters["max_standby_streaming_delay"] = "-1"
	b.anew()
	a.up().promote(2)
	b.up().follow(a)
	a.setSync(server.Sync{Names: []string{"b"}, Acks: 1})
	a.commit("CREATE TABLE kept AS SELECT generate_series(1, 1000) a").acknowledged(t)
	b.waits("the rows", func(ctx context.Context) error {
		x, err := b.Position(ctx)
		if err == nil && x.Backlog() > 0 {
			err = fmt.Errorf("%+v", x)
		}
		return err
	})
	reader := b.connect()
	_, err := reader.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM kept")
	if err != nil {
		t.Fatal(err)
	}
	a.sql("SET synchronous_commit = local; DELETE FROM kept")
	vacuum := a.connect()
	for _, text := range []string{"SET synchronous_commit = local", "VACUUM kept"} {
		if _, err := vacuum.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	a.waits("a conflict", func(ctx context.Context) error {
		x, err := b.Position(ctx)
		if err == nil && !strings.HasPrefix(x.Waits, "RecoveryConflict") {
			err = fmt.Errorf("%+v", x)
		}
		return err
	})
	must(t, "seal", b.Seal)
	if err := reader.Ping(t.Context()); err == nil {
		t.Error("the query that held the startup process up goes on")
	}
	if x := b.position(); !x.Complete || x.Backlog() != 0 {
		t.Errorf("%+v", x)
	}
}

func TestASealNeedsFilesThatCanBeRead(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	_, b := pair(t)
	write(t, b.cfg.Data+"/postgresql.conf", "\nthis is no setting\n")
	b.unsealed("postgresql.conf:")
	b.unsealed("syntax error")
}

func TestAPrimaryIsNotSealed(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a := newNode(t, "a").up().promote(2)
	if err := a.Seal(t.Context()); !errors.Is(err, server.ErrPrimary) {
		t.Errorf("%v", err)
	}
	if x := a.position(); !x.Primary || !x.Complete || x.Timeline != 2 || x.LSN == 0 {
		t.Errorf("a primary says %+v", x)
	}
}

// A standby that was killed with much unreplayed WAL, and was just started, takes SQL long before
// it has read all that it has acknowledged.
func TestAPositionIsCompleteOnlyWhenAllIsRead(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	b.sql("SELECT pg_wal_replay_pause()")
	a.sql("SET synchronous_commit = local; INSERT INTO kept SELECT generate_series(1, 200000)")
	a.commit("INSERT INTO kept VALUES (0)").acknowledged(t)
	acknowledged := b.position()
	if acknowledged.Backlog() < 8<<20 {
		t.Fatalf("only %d bytes are not replayed", acknowledged.Backlog())
	}
	must(t, "stop a", func(ctx context.Context) error { return a.Stop(ctx, server.Quit) })
	kill(t, b)
	must(t, "start", b.Start)
	early := 0
	b.waits("complete", func(ctx context.Context) error {
		x, err := b.Position(ctx)
		switch {
		case err != nil:
			return err
		case x.Complete && x.Position.Before(acknowledged.Position):
			t.Fatalf("complete at %v, and had acknowledged %v", x.Position, acknowledged.Position)
		case !x.Complete:
			early++
			return errors.New("not complete")
		}
		return nil
	})
	t.Logf("asked %d times before it was complete", early)
}

// complete waits until all WAL on disk has been read.
func (n *node) complete() (x server.Standing) {
	n.t.Helper()
	n.waits("complete", func(ctx context.Context) (err error) {
		if x, err = n.Position(ctx); err == nil && !x.Complete {
			err = errors.New("not complete")
		}
		return err
	})
	return x
}

// Half a record counts before a crash, as received, and not after it. What was replayed is there
// always: so that is what a member remembers, to notice that its WAL has become shorter.
func TestWhatWasReplayedIsThereAfterACrash(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	for try := core.Timeline(1); ; try++ {
		client := a.connect()
		written := make(chan struct{})
		go func() { // one record of 100 MB
			defer close(written)
			_, _ = client.Exec(t.Context(), "SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000000))")
		}()
		var before server.Standing
		b.waits("half a record", func(context.Context) error {
			if before = b.position(); before.Backlog() < 1<<20 {
				return errors.New("nothing that is not replayed")
			}
			return nil
		})
		kill(t, a)
		<-written
		before = b.position()
		kill(t, b)
		b.up()
		after := b.complete()
		t.Logf("received %v, replayed %v; after a crash %v", before.LSN, before.Replayed, after.LSN)
		if after.Before(core.Position{Timeline: before.Timeline, LSN: before.Replayed}) {
			t.Errorf("%v was replayed, and after a crash the WAL ends at %v", before.Replayed, after.Position)
		}
		if after.LSN < before.LSN {
			return
		}
		if try == 5 {
			t.Fatalf("%v was received, and there are %v: the test is about half a record", before.LSN, after.LSN)
		}
		a.up().promote(2 + try) // a busy machine killed it when all of the record had arrived
		b.follow(a)
	}
}

// Whoever freezes the replay sees the wrong position for as long as he likes.
func TestAnIncompletePositionSaysSo(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	b.sql("SELECT pg_wal_replay_pause()")
	a.sql("SET synchronous_commit = local; INSERT INTO kept SELECT generate_series(1, 100000)")
	a.commit("INSERT INTO kept VALUES (0)").acknowledged(t)
	acknowledged := b.position()
	if !acknowledged.Complete {
		t.Errorf("a standby that streams says %+v", acknowledged)
	}
	must(t, "stop a", func(ctx context.Context) error { return a.Stop(ctx, server.Quit) })
	kill(t, b)
	// recovery_min_apply_delay holds each commit back, as a slow disk would.
	write(t, b.cfg.Data+"/postgresql.conf", "\nrecovery_min_apply_delay = '1h'\n")
	b.up()
	x := b.position()
	if x.Complete || !x.Before(acknowledged.Position) {
		t.Errorf("a standby that has acknowledged %v and replays slowly says %+v", acknowledged.Position, x)
	}
	b.unsealed("RecoveryApplyDelay")
}

func TestTheNameOfAnUpstreamIsChecked(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	n := newNode(t, "a")
	for _, u := range []server.Upstream{
		{Host: "h", Port: "1", As: "*"}, {Host: "h", Port: "1", As: "primacy_nobody"}, {Host: "h", Port: "1", As: "ä"},
		{Host: "h", Port: "1", As: strings.Repeat("x", 64)}, {Host: "h,i", Port: "1", As: "a"}, {Port: "1", As: "a"},
		{Host: "h", Port: "x", As: "a"}, {Host: "h", Port: "1"},
	} {
		if err := n.Follow(t.Context(), u); err == nil || errors.Is(err, server.ErrNotUp) {
			t.Errorf("%+v: %v", u, err)
		}
	}
}

// A standby that cannot serve yet gets its address by the file.
func TestAStandbyThatTakesNoSQLFollows(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	a.sql("SET synchronous_commit = local; INSERT INTO kept SELECT generate_series(1, 1000); CHECKPOINT")
	must(t, "stop b", func(ctx context.Context) error { return b.Stop(ctx, server.Quit) })
	// As after a copy of the files: consistent only where the copy ended.
	copied(t, a, b)
	must(t, "start", b.Start)
	b.waits("no SQL", func(ctx context.Context) error {
		_, err := b.Position(ctx)
		if !errors.Is(err, server.ErrNotUp) || !strings.Contains(err.Error(), "starting up") {
			return fmt.Errorf("position: %v", err)
		}
		return nil
	})
	b.unsealed("starting up")
	must(t, "follow", func(ctx context.Context) error {
		return b.Follow(ctx, server.Upstream{Host: "127.0.0.1", Port: a.port, As: "b"})
	})
	must(t, "ready", b.Ready)
	if got := b.sql("SELECT count(*) FROM kept"); got != "1000" {
		t.Errorf("%s rows", got)
	}
}

func kill(t *testing.T, n *node) {
	t.Helper()
	p, _ := n.Running()
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
}

// copied makes n a copy of p, without the WAL that it needs to be consistent.
func copied(t *testing.T, p, n *node) {
	t.Helper()
	if err := os.RemoveAll(n.cfg.Data); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(n.cfg.Bin, "pg_basebackup"), "-D", n.cfg.Data, "-h", "127.0.0.1", "-p", p.port,
		"-U", "postgres", "-X", "none", "-c", "fast", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// write appends to a file of a server.
func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}
