package clone

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
	"github.com/primacy-go/primacy/cmd/internal/postgres/libpq"
	"github.com/primacy-go/primacy/cmd/internal/postgres/walfile"
)

// Source is the primary that a directory is to be like.
type Source struct {
	// Conninfo is how to reach it: libpq's keywords and values, without dbname. It stands on
	// command lines, so it has no password: passfile says where that is.
	Conninfo string
	Slot     string // of the primary, for the WAL that a clone needs; empty: a temporary one
	SystemID string // that the primary must have; empty: any
}

// about is what a primary says of itself.
type about struct {
	systemID    string
	tablespaces string // names; empty: only PostgreSQL's own
}

var secret = regexp.MustCompile(`(?i)\b(ssl)?password\s*=`)

func (from Source) connect(ctx context.Context, extra string) (*pgconn.PgConn, error) {
	switch {
	case strings.Contains(from.Conninfo, "://"):
		return nil, unfit("the primary's address: give keywords and values (host=… port=…), no URL")
	case secret.MatchString(from.Conninfo):
		return nil, unfit("the primary's address has a password: put it into a file, and give passfile=…")
	}
	cfg, err := libpq.Parse(from.Conninfo + " dbname=postgres " + extra)
	if err != nil {
		return nil, unfit("the primary's address: %w", err)
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	cfg.RuntimeParams["application_name"] = "primacy clone"
	return pgconn.ConnectConfig(ctx, cfg)
}

func disconnect(c *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

// ask runs one statement and returns its first row.
func ask(ctx context.Context, c *pgconn.PgConn, sql string) ([]string, error) {
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) == 0 {
		return nil, fmt.Errorf("%s: no row", sql)
	}
	var row []string
	for _, v := range results[0].Rows[0] {
		row = append(row, string(v))
	}
	return row, nil
}

// copied is examine, for a copy of all the data.
func (from Source) copied(ctx context.Context, major int) (about, error) {
	a, err := from.examine(ctx, major)
	if err == nil && a.tablespaces != "" {
		err = unfit("the primary has tablespaces (%s), which lie outside its data directory: primacy copies none",
			a.tablespaces)
	}
	return a, err
}

// examine asks a primary what decides whether a directory of that major release can become like it.
func (from Source) examine(ctx context.Context, major int) (about, error) {
	a, err := from.ask(ctx, major)
	if err != nil && !errors.Is(err, ErrUnfit) {
		err = fmt.Errorf("the primary: %w", err)
	}
	return a, err
}

func (from Source) ask(ctx context.Context, major int) (a about, err error) {
	c, err := from.connect(ctx, "")
	if err != nil {
		return a, err
	}
	defer disconnect(c)
	row, err := ask(ctx, c, `SELECT current_setting('server_version_num')::int / 10000, pg_is_in_recovery(),
		(SELECT system_identifier FROM pg_control_system()),
		(SELECT coalesce(string_agg(quote_ident(spcname), ', '), '') FROM pg_tablespace
		WHERE spcname NOT IN ('pg_default', 'pg_global'))`)
	if err != nil {
		return a, err
	}
	a.systemID, a.tablespaces = row[2], row[3]
	switch {
	case row[0] != strconv.Itoa(major):
		return a, unfit("the primary is PostgreSQL %s and our programs are %d", row[0], major)
	case from.SystemID != "" && a.systemID != from.SystemID:
		return a, unfit("the primary is database system %s, and this cluster is %s: is its address right?", a.systemID,
			from.SystemID)
	case row[1] == "t":
		return a, errors.New("it is a standby")
	}
	return a, nil
}

func currentTimeline(ctx context.Context, c *pgconn.PgConn) (core.Timeline, error) {
	row, err := ask(ctx, c, `SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint`)
	if err != nil {
		return 0, err
	}
	t, err := strconv.ParseUint(row[0], 10, 32)
	return core.Timeline(t), err
}

// checkpointed returns when the primary's control file bears its timeline, which the first
// checkpoint after a promotion writes. pg_rewind looks there, and takes the primary for one of its
// former timeline until then.
func (from Source) checkpointed(ctx context.Context, tell func(string)) error {
	c, err := from.connect(ctx, "")
	if err != nil {
		return fmt.Errorf("the primary: %w", err)
	}
	defer disconnect(c)
	for ordered := false; ; {
		current, err := currentTimeline(ctx, c)
		if err != nil {
			return fmt.Errorf("the primary: %w", err)
		}
		row, err := ask(ctx, c, `SELECT timeline_id FROM pg_control_checkpoint()`)
		if err != nil {
			return fmt.Errorf("the primary: %w", err)
		}
		if row[0] == strconv.FormatUint(uint64(current), 10) {
			return nil
		}
		if !ordered {
			tell(fmt.Sprintf("waiting for the primary's first checkpoint on timeline %d", current))
			ordered = true
			_, err := c.Exec(ctx, "CHECKPOINT").ReadAll()
			if err == nil {
				continue
			}
			if e := (*pgconn.PgError)(nil); !errors.As(err, &e) || e.Code != "42501" {
				return fmt.Errorf("the primary: CHECKPOINT: %w", err)
			} // we may not order one: the primary makes its own
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the primary has no checkpoint on timeline %d yet: %w", current, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// histories asks a primary for the history files of all its timelines. Some numbers have none.
func (from Source) histories(ctx context.Context) (map[core.Timeline]string, core.Timeline, error) {
	c, err := from.connect(ctx, "replication=true")
	if err != nil {
		return nil, 0, fmt.Errorf("the primary: %w", err)
	}
	defer disconnect(c)
	row, err := ask(ctx, c, "IDENTIFY_SYSTEM")
	if err != nil {
		return nil, 0, fmt.Errorf("the primary: %w", err)
	}
	last, err := strconv.ParseUint(row[1], 10, 32)
	if err != nil {
		return nil, 0, fmt.Errorf("the primary: timeline %q", row[1])
	}
	all := map[core.Timeline]string{}
	for t := core.Timeline(2); t <= core.Timeline(last); t++ {
		row, err := ask(ctx, c, fmt.Sprintf("TIMELINE_HISTORY %d", t))
		if e := (*pgconn.PgError)(nil); errors.As(err, &e) && e.Code == "58P01" {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("the primary: history of timeline %d: %w", t, err)
		}
		all[t] = row[1]
	}
	return all, core.Timeline(last), nil
}

// carryHistories writes the history files that a directory of WAL lacks. A standby on an old
// timeline asks its primary for every number up to the present one, also for those on which nobody
// ever wrote, and stops at the first that is missing.
func (from Source) carryHistories(ctx context.Context, wal string) error {
	all, _, err := from.histories(ctx)
	if err != nil {
		return err
	}
	for t, text := range all {
		path := filepath.Join(wal, walfile.HistoryName(t))
		if exists(path) {
			continue
		}
		if err := durable.Replace(path, []byte(text)); err != nil {
			return err
		}
	}
	return nil
}
