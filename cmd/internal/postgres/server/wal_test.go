package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/cmd/internal/postgres/walfile"
	"github.com/primacy-go/primacy/internal/servertest"
)

const segment = 16 << 20

// half is a standby that has all WAL of timeline 2, and of timeline 3, which another has begun, the
// first part of its first segment. It ends long before timeline 3 begins.
func half(t *testing.T) (b *node, had core.Position, part string) {
	t.Helper()
	a, b := pair(t)
	c := newNode(t, "c")
	c.up().follow(a)
	a.sql("INSERT INTO kept SELECT generate_series(1, 4000)")
	b.follow(a)
	c.follow(a)
	for _, n := range []*node{b, c} {
		must(t, "seal", n.Seal)
	}
	must(t, "stop", func(ctx context.Context) error { return a.Stop(ctx, server.Quit) })
	had = b.position().Position
	c.promote(3)
	must(t, "stop", func(ctx context.Context) error { return c.Stop(ctx, server.Quit) })
	n := (uint64(had.LSN)%segment - 100<<10) &^ 8191 // without its last 100 kB
	part = b.segmentFile(3, had.LSN)
	b.put(part, append(c.read(c.segmentFile(3, had.LSN))[:n:n], make([]byte, segment-n)...))
	b.put(b.history(3), c.read(c.history(3)))
	return b, had, part
}

// segmentFile is the file of the segment of a timeline in which an LSN lies.
func (n *node) segmentFile(t core.Timeline, at core.LSN) string {
	return filepath.Join(n.cfg.Data, "pg_wal", walfile.SegmentName(t, at, segment))
}

func (n *node) history(t core.Timeline) string {
	return filepath.Join(n.cfg.Data, "pg_wal", walfile.HistoryName(t))
}

func (n *node) read(path string) []byte {
	n.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	return text
}

// again starts the server anew, and fails unless it finds all the WAL that it had.
func (n *node) again(had core.Position) {
	n.t.Helper()
	must(n.t, "stop", func(ctx context.Context) error { return n.Stop(ctx, server.Quit) })
	n.up()
	n.waits("all WAL is read", func(ctx context.Context) error {
		if x, err := n.Position(ctx); err != nil || !x.Complete {
			return fmt.Errorf("%+v, %v", x, err)
		}
		return nil
	})
	if x := n.position(); x.Position != had {
		n.t.Errorf("after a restart it has %+v, before %+v", x, had)
	}
}

func (n *node) put(path string, text []byte) {
	n.t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) has(rows string) {
	n.t.Helper()
	if got := n.sql("SELECT count(*) FROM kept"); got != rows {
		n.t.Errorf("%s has %s rows, want %s", n.name, got, rows)
	}
}

// PostgreSQL itself panics in this promotion, for it reads its last record again, in that part.
func TestAPartOfANewerTimelineKeepsNobodyFromAPromotion(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	b, had, _ := half(t)
	b.promote(5)
	if x := b.position(); x.Timeline != 5 || x.LSN < had.LSN {
		t.Errorf("promoted to %+v, and had %+v", x, had)
	}
	b.has("4000")
}

// PostgreSQL itself would find the WAL end where that part ends, after a restart.
func TestAPartOfANewerTimelineHidesNothingAfterARestart(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	b, had, part := half(t)
	b.again(had)
	if _, err := os.Stat(part); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the part is still there: %v", err)
	}
	b.promote(5)
	b.has("4000")
}

// It was to follow timeline 3 and lacks the end of timeline 2: promoted as it is, it would name
// timeline 3 as its former one, and nobody could follow it.
func TestWhoWasToFollowANewerTimelineIsStartedAnew(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	b, had, _ := half(t)
	b.put(b.history(3), fmt.Appendf(nil, "1\t0/1500780\tx\n2\t%v\tx\n", had.LSN+8))
	if err := b.Promote(t.Context(), 5); err == nil || !strings.Contains(err.Error(), "start it again") {
		t.Fatalf("promoted: %v", err)
	}
	must(t, "stop", func(ctx context.Context) error { return b.Stop(ctx, server.Quit) })
	b.up().promote(5)
	if x := b.position(); x.Timeline != 5 || x.LSN < had.LSN {
		t.Errorf("promoted to %+v, and had %+v", x, had)
	}
	b.has("4000")
	if text := b.read(b.history(5)); strings.Contains(string(text), "\n3\t") {
		t.Errorf("the history of timeline 5 names timeline 3: %q", text)
	}
}

// Power was lost before anything was written to the newer timeline's file, nor to those that were
// made for later use; and a still newer timeline's part is the same.
func TestPartsOfZeros(t *testing.T) {
	t.Parallel()
	b, had, part := half(t)
	zeros := make([]byte, segment)
	b.put(part, zeros)
	b.put(b.segmentFile(5, had.LSN), zeros)
	b.put(b.segmentFile(2, had.LSN+segment), zeros)
	b.put(b.history(4), []byte(walfile.Unused))
	b.put(b.history(5), fmt.Appendf(b.read(b.history(3)), "3\t%v\tx\n", had.LSN+200))
	b.again(had)
	b.promote(7)
	b.has("4000")
}

// It has more of the newer timeline's file than of the former timeline's, and less than that had.
func TestALongerPartTakesThePlaceOfTheFormerFile(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	b, had, part := half(t)
	shorter := b.read(b.segmentFile(2, had.LSN))
	n := (uint64(had.LSN)%segment - 200<<10) &^ 8191
	must(t, "stop", func(ctx context.Context) error { return b.Stop(ctx, server.Quit) })
	b.put(b.segmentFile(2, had.LSN), append(shorter[:n:n], make([]byte, segment-n)...))
	b.up()
	if x := b.position(); x.Timeline != 2 || x.LSN < had.LSN-110<<10 || x.LSN >= had.LSN {
		t.Errorf("it has %+v, and the part ends 100 kB before %v", x, had)
	}
	if _, err := os.Stat(part); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the part is still there: %v", err)
	}
	b.promote(5)
}

// PostgreSQL makes the first file of a timeline before its history. Killed in between, it would
// take the placeholders for timelines, and wait for WAL of them for ever.
func TestAPromotionThatWasKilledKeepsNoServerFromStarting(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	b, had, part := half(t)
	for _, path := range []string{part, b.history(3)} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	b.put(b.segmentFile(5, had.LSN), b.read(b.segmentFile(2, had.LSN)))
	for _, h := range []core.Timeline{3, 4} {
		b.put(b.history(h), []byte(walfile.Unused))
	}
	b.again(had)
	b.promote(7)
	b.has("4000")
}

// The last record of the former timeline begins in the segment before that in which the newer one
// begins, so that no record begins in the part.
func TestARecordThatCrossesIntoThePart(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	a, b := pair(t)
	c := newNode(t, "c")
	c.up().follow(a)
	conn := a.connect()
	for _, q := range []string{
		"BEGIN",
		`DO $$ BEGIN FOR i IN 1..3000 LOOP BEGIN INSERT INTO kept VALUES (i); EXCEPTION WHEN division_by_zero THEN
			NULL; END; END LOOP; END $$`, // the record of this commit is long
		`SELECT pg_logical_emit_message(false, 'x', repeat('a', (r - 4000 - (r / 8192 + 2) * 24)::int)) FROM (SELECT
			16777216 - (pg_current_wal_insert_lsn() - '0/0') % 16777216 AS r) x`,
		"COMMIT",
	} {
		if _, err := conn.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []*node{b, c} {
		n.follow(a)
		must(t, "seal", n.Seal)
	}
	must(t, "stop", func(ctx context.Context) error { return a.Stop(ctx, server.Quit) })
	had := b.position().Position
	c.promote(3)
	must(t, "stop", func(ctx context.Context) error { return c.Stop(ctx, server.Quit) })
	b.put(b.segmentFile(3, had.LSN), append(c.read(c.segmentFile(3, had.LSN))[:80:80], make([]byte, segment-80)...))
	b.put(b.history(3), c.read(c.history(3)))
	b.again(had)
	b.promote(5)
}
