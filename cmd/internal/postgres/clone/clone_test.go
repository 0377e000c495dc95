package clone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/internal/servertest"
)

func TestACloneFollowsAndAFormerPrimaryIsRewound(t *testing.T) {
	t.Parallel()
	a, b := newNode(t), newNode(t)
	a.looks(core.DataEmpty)
	var system string
	must(t, "initdb", func(ctx context.Context) (err error) {
		system, err = a.Initdb(ctx)
		return err
	})
	a.looks(core.DataPartial)
	if err := a.Finish("1"); err != nil { // of another one
		t.Fatal(err)
	}
	a.looks(core.DataPartial)
	if err := a.Finish(system); err != nil {
		t.Fatal(err)
	}
	a.looks(core.DataReady)
	a.start()
	if got := a.sql("SHOW data_checksums"); got != "on" {
		t.Errorf("checksums are %s", got)
	}
	got := a.sql("SELECT pg_encoding_to_char(encoding) || datcollate FROM pg_database WHERE datname = 'template1'")
	if got != "UTF8C" {
		t.Errorf("encoding and locale are %s", got)
	}
	a.sql("SELECT pg_create_physical_replication_slot('b')")

	var lines []string
	from := a.source("")
	from.Slot, from.SystemID = "b", system
	must(t, "clone", func(ctx context.Context) error {
		return b.Clone(ctx, from, func(line string) { lines = append(lines, line) })
	})
	b.looks(core.DataReady)
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "(100%)") }) {
		t.Errorf("progress was %q", lines)
	}
	if got := a.sql("SELECT restart_lsn IS NOT NULL FROM pg_replication_slots"); got != "t" {
		t.Error("the slot was not used")
	}

	b.follow(a)
	a.sql("CREATE TABLE rows (n int); INSERT INTO rows VALUES (1)")
	b.eventually("has the row", func() error {
		got, err := b.try("SELECT count(*) FROM rows")
		if err == nil && got != "1" {
			err = fmt.Errorf("%s rows", got)
		}
		return err
	})
	// b becomes the primary while a goes on.
	b.stop(syscall.SIGINT)
	b.start()
	write(t, b.path("pg_wal", "00000002.history"), "# nobody wrote on timeline 2\n") // as server.Promote does
	checkpointer := 0
	b.eventually("has a checkpointer", func() (err error) {
		var pid string
		if pid, err = b.try("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"); err == nil {
			checkpointer, err = strconv.Atoi(pid)
		}
		return err
	})
	check(t, syscall.Kill(checkpointer, syscall.SIGSTOP)) // it writes none on the new timeline until it is thawed
	b.sql("SELECT pg_promote(true, 60)")
	b.sql("INSERT INTO rows VALUES (10)")
	var lost []string
	for n := 2; n < 4; n++ {
		a.sql(fmt.Sprintf("INSERT INTO rows VALUES (%d)", n))
		lost = append(lost, a.sql(fmt.Sprintf("SELECT xmin FROM rows WHERE n = %d", n)))
	}
	a.sql("CHECKPOINT; BEGIN; INSERT INTO rows VALUES (4); PREPARE TRANSACTION 'x'")
	a.sql("BEGIN; INSERT INTO rows VALUES (5); ROLLBACK")
	a.sql("COMMIT PREPARED 'x'")
	lost = append(lost, a.sql("SELECT xmin FROM rows WHERE n = 4"))
	lost = append(lost, lost[2])
	a.stop(syscall.SIGKILL)
	write(t, a.path("standby.signal"), "")

	var loss *Loss
	waited := false
	began := time.Now().Add(-time.Minute)
	must(t, "rewind", func(ctx context.Context) (err error) {
		loss, err = a.Rewind(ctx, b.source(""), func(line string) {
			if strings.HasPrefix(line, "waiting for the primary's first checkpoint on timeline 3") {
				waited = true
				_ = syscall.Kill(checkpointer, syscall.SIGCONT)
			}
		})
		return err
	})
	if !waited {
		t.Error("it did not wait for the primary's checkpoint")
		_ = syscall.Kill(checkpointer, syscall.SIGCONT)
	}
	a.looks(core.DataReady)
	if exists(a.markerPath()) {
		t.Error("the marker is still there")
	}
	if loss == nil || loss.Commits != 4 || len(loss.List) != 4 || loss.Incomplete != "" || loss.Bytes == 0 ||
		loss.Timeline != 1 || loss.SystemID != system {
		t.Fatalf("the loss is %+v", loss)
	}
	for i, c := range loss.List {
		if fmt.Sprint(c.XID) != lost[i] || c.LSN < loss.From || c.LSN > loss.Last || c.Timeline != 1 ||
			c.Prepared != (i == 2) || c.Time.Before(began) || c.Time.After(time.Now()) {
			t.Errorf("commit %d is %+v, of transaction %s", i, c, lost[i])
		}
	}
	check(t, os.MkdirAll(a.folder("lost/.unfinished"), 0o700)) // what was killed while it was saved
	write(t, a.folder("lost/.unfinished/loss.json"), "{")
	all, err := Lost(a.cfg.Folder)
	if err != nil || len(all) != 1 || fmt.Sprintf("%+v", all[0]) != fmt.Sprintf("%+v", *loss) {
		t.Errorf("the losses are %+v, %v", all, err)
	}
	// The WAL that was saved tells the same.
	var saved []uint32
	must(t, "read what was saved", func(ctx context.Context) error {
		args := []string{"-p", filepath.Join(loss.Dir, "pg_wal"), "-s", loss.From.String()}
		err := a.run(ctx, program{name: "pg_waldump", args: args,
			out: func(line string) {
				if r, ok := parseRecord(line); ok && r.commit != nil {
					saved = append(saved, r.commit.XID)
				}
			}})
		if f := (*failure)(nil); errors.As(err, &f) {
			err = nil // its end
		}
		return err
	})
	if fmt.Sprint(saved) != fmt.Sprint(lost) {
		t.Errorf("the WAL that was saved has the commits %v", saved)
	}
	if !exists(filepath.Join(loss.Dir, "pg_control")) {
		t.Error("the control file was not saved")
	}

	a.follow(b)
	a.eventually("has the primary's rows", func() error {
		got, err := a.try("SELECT string_agg(n::text, ' ' ORDER BY n) FROM rows")
		if err == nil && got != "1 10" {
			err = fmt.Errorf("the rows are %s", got)
		}
		return err
	})
	// The timeline that was left out is known to all who may be primary next.
	for _, n := range []*node{a, b} {
		text, err := os.ReadFile(n.path("pg_wal", "00000002.history"))
		if err != nil || !strings.HasPrefix(string(text), "#") {
			t.Errorf("the placeholder is %q, %v", text, err)
		}
	}
	// Nothing is lost where the former primary was shut down cleanly: no loss is listed.
	a.stop(syscall.SIGINT)
	must(t, "rewind", func(ctx context.Context) (err error) {
		loss, err = a.Rewind(ctx, b.source(""), nil)
		return err
	})
	if all, _ := Lost(a.cfg.Folder); loss != nil || len(all) != 1 {
		t.Errorf("the loss is %+v, in all %d", loss, len(all))
	}
}

// Somebody promoted a standby, and it was ended before it had written a checkpoint on its new
// timeline: pg_rewind before 16 sees no difference. It was started as a standby since.
func TestAServerPromotedByHandIsRewound(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := filled(t), newNode(t)
	a.start()
	must(t, "clone", func(ctx context.Context) error { return b.Clone(ctx, a.source(""), nil) })
	b.follow(a)
	checkpointer := 0
	b.eventually("has a checkpointer", func() (err error) {
		var pid string
		if pid, err = b.try("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"); err == nil {
			checkpointer, err = strconv.Atoi(pid)
		}
		return err
	})
	check(t, syscall.Kill(checkpointer, syscall.SIGSTOP))
	b.sql("SELECT pg_promote(true, 60)")
	b.sql("CREATE TABLE by_hand (n int)")
	a.sql("CREATE TABLE of_the_primary (n int)")
	b.stop(syscall.SIGKILL)
	write(t, b.path("standby.signal"), "")
	b.start("hot_standby=on")
	b.stop(syscall.SIGINT)
	var loss *Loss
	must(t, "rewind", func(ctx context.Context) (err error) {
		loss, err = b.Rewind(ctx, a.source(""), nil)
		return err
	})
	if loss == nil || loss.Commits != 1 || loss.Timeline != 2 {
		t.Errorf("the loss is %+v, and one commit on timeline 2 was lost", loss)
	}
	b.follow(a)
	if got := b.sql("SELECT to_regclass('by_hand') IS NULL AND to_regclass('of_the_primary') IS NOT NULL"); got != "t" {
		t.Error("it has not the rows of the primary")
	}
}

// A standby that crashed writes a checkpoint before it is rewound, on the timeline of its primary.
// If the rewind does not come about, it must not follow that primary with it.
func TestAStandbyThatRecoveredForARewindIsNotReady(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := filled(t), newNode(t)
	a.start()
	must(t, "clone", func(ctx context.Context) error { return b.Clone(ctx, a.source(""), nil) })
	b.follow(a)
	b.stop(syscall.SIGKILL)
	away := a.source("")
	away.Conninfo += " keepalives=never" // for pg_rewind alone: our own connections do not read it
	if _, err := b.Rewind(t.Context(), away, nil); err == nil || !unreachable.MatchString(err.Error()) {
		t.Fatalf("the rewind: %v", err)
	}
	b.looks(core.DataPartial)
	must(t, "clone", func(ctx context.Context) error { return b.Clone(ctx, a.source(""), nil) })
	b.follow(a)
}

// What was killed in the middle is seen as unfinished, and done again.
func TestWhatDidNotEndIsDoneAgain(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	p := filled(t)
	write(t, p.path("standby.signal"), "")
	p.start()
	write(t, p.path("pg_wal", "00000002.history"), "# nobody wrote on timeline 2\n")
	p.sql("SELECT pg_promote(true, 60)")
	system := p.sql("SELECT system_identifier FROM pg_control_system()")
	addr := "127.0.0.1:" + p.port

	t.Run("initdb", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			_, err := n.Initdb(ctx)
			done <- err
		}()
		n.eventually("has begun", func() error {
			_, err := os.Stat(n.path("PG_VERSION"))
			return err
		})
		cancel()
		<-done
		n.looks(core.DataPartial)
		write(t, n.path("left over"), "by the first")
		var system string
		must(t, "initdb", func(ctx context.Context) (err error) {
			system, err = n.Initdb(ctx)
			return err
		})
		if exists(n.path("left over")) {
			t.Error("what the first one left is still there")
		}
		other := p.source("")
		other.SystemID = system
		if err := n.Clone(t.Context(), other, nil); !errors.Is(err, ErrUnfit) {
			t.Errorf("a copy of another cluster's server: %v", err)
		}
		n.looks(core.DataPartial)
		check(t, n.Finish(system))
		n.looks(core.DataReady)
		check(t, n.Finish(system)) // nothing is left to do
	})

	t.Run("clone", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		v := newValve(t, addr, 4<<20)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		begun := make(chan struct{})
		tell := sync.OnceFunc(func() { close(begun) })
		go func() { done <- n.Clone(ctx, p.source(v.addr), func(string) { tell() }) }()
		<-begun
		<-v.shut
		n.eventually("has begun", func() error { // what went through the valve may not be on the disk yet
			entries, err := os.ReadDir(n.cfg.Data)
			if err == nil && len(entries) == 0 {
				err = errors.New("the directory is empty")
			}
			return err
		})
		// The agent dies. As long as its program writes, nobody else begins.
		cfg := n.cfg
		check(t, n.Close())
		if d, err := Open(cfg); !errors.Is(err, ErrHeld) {
			d.Close()
			t.Errorf("another agent beside the program of a dead one: %v", err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the clone ended with %v", err)
		}
		n.open(cfg)
		n.looks(core.DataPartial)
		// Where the primary does not answer, or is another one, what is there stays.
		before := tree(t, n.cfg.Data)
		gone := p.source(v.addr)
		v.close()
		if err := n.Clone(t.Context(), gone, nil); err == nil {
			t.Error("a clone from nowhere")
		}
		other := p.source("")
		other.SystemID = "1"
		err := n.Clone(t.Context(), other, nil)
		if !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), "this cluster is 1") {
			t.Errorf("a clone of another cluster: %v", err)
		}
		same(t, before, tree(t, n.cfg.Data))
		must(t, "clone", func(ctx context.Context) error { return n.Clone(ctx, p.source(""), nil) })
		n.looks(core.DataReady)
		if got, _ := n.systemID(); got != system {
			t.Errorf("it is system %s", got)
		}
		for _, name := range []string{"00000002.history", "00000003.history"} {
			if !exists(n.path("pg_wal", name)) {
				t.Errorf("%s was not carried", name)
			}
		}
	})

	t.Run("rewind", func(t *testing.T) {
		t.Parallel()
		n := filled(t)
		n.start()
		n.sql("CREATE TABLE lost (); CREATE TABLE lost2 ()")
		n.stop(syscall.SIGINT)
		write(t, n.path("standby.signal"), "")
		n.start()
		n.stop(syscall.SIGKILL) // it recovers first
		before := tree(t, n.cfg.Data)
		if _, err := n.Rewind(t.Context(), Source{Conninfo: "host=127.0.0.1 port=1 user=x"}, nil); err == nil {
			t.Error("a rewind from nowhere")
		}
		n.looks(core.DataReady)
		same(t, before, tree(t, n.cfg.Data))

		v := newValve(t, addr, 8<<20)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			<-v.shut
			cancel()
		}()
		began := false
		loss, err := n.Rewind(ctx, p.source(v.addr), func(line string) { began = began || begins.MatchString(line) })
		if !errors.Is(err, context.Canceled) || !began {
			t.Fatalf("the rewind ended with %v; it had begun: %v", err, began)
		}
		n.looks(core.DataPartial)
		if all, err := Lost(n.cfg.Folder); err != nil || len(all) != 1 || loss == nil || loss.Commits != 1 {
			t.Errorf("the loss is %+v, in all %+v, %v", loss, all, err)
		}
		if _, err := n.Rewind(t.Context(), p.source(""), nil); err == nil {
			t.Error("a rewind of what is not whole")
		}
		must(t, "clone", func(ctx context.Context) error { return n.Clone(ctx, p.source(""), nil) })
		n.looks(core.DataReady)
		if all, err := Lost(n.cfg.Folder); err != nil || len(all) != 1 {
			t.Errorf("after the clone the losses are %+v, %v", all, err)
		}
	})

	t.Run("no checksums", func(t *testing.T) {
		t.Parallel()
		n := filled(t)
		must(t, "pg_checksums", func(ctx context.Context) error {
			return n.run(ctx, program{name: "pg_checksums", args: []string{"--disable", "--no-sync", "-D", n.cfg.Data}})
		})
		_, err := n.Rewind(t.Context(), p.source(""), nil)
		if err == nil || !strings.Contains(err.Error(), "neither checksums nor wal_log_hints") {
			t.Errorf("the rewind: %v", err)
		}
		n.looks(core.DataPartial)
	})

	t.Run("missing WAL", func(t *testing.T) {
		t.Parallel()
		n := filled(t)
		n.start()
		segment := n.sql("SELECT pg_walfile_name(pg_current_wal_lsn())")
		n.sql("CREATE TABLE lost ()")
		n.sql("SELECT pg_switch_wal()")
		n.sql("CREATE TABLE lost2 ()")
		n.stop(syscall.SIGINT)
		check(t, os.Remove(n.path("pg_wal", segment)))
		loss, err := n.Rewind(t.Context(), p.source(""), nil)
		if err == nil {
			t.Error("pg_rewind did not need the WAL")
		}
		n.looks(core.DataPartial)
		if loss == nil || !strings.Contains(loss.Incomplete, "is missing from") ||
			!exists(filepath.Join(loss.Dir, "loss.json")) {
			t.Errorf("the loss is %+v", loss)
		}
	})

	t.Run("tablespaces", func(t *testing.T) {
		n := newNode(t)
		check(t, os.Mkdir(p.home+"/space", 0o700))
		p.sql("CREATE TABLESPACE elsewhere LOCATION '" + p.home + "/space'")
		err := n.Clone(t.Context(), p.source(""), nil)
		p.sql("DROP TABLESPACE elsewhere")
		if !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), "elsewhere") ||
			exists(n.cfg.Data) || exists(n.markerPath()) {
			t.Errorf("a primary with a tablespace: %v", err)
		}
	})
}
