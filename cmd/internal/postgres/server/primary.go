package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
	"github.com/primacy-go/primacy/cmd/internal/postgres/walfile"
)

// Promote makes the standby a primary on that timeline, and returns nil when it is. PostgreSQL
// takes the first number that is free: those between get a history file which says that nobody ever
// wrote on them. The standby is to be sealed. If ctx ends first, the promotion may still be under
// way: only [Server.Stop] ends it.
func (s *Server) Promote(ctx context.Context, to core.Timeline) error {
	x, err := s.Position(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("promote: %w", err)
	case x.Primary:
		return fmt.Errorf("promote: %w, on timeline %d", ErrPrimary, x.Timeline)
	case to <= x.Timeline:
		return fmt.Errorf("promote: timeline %d cannot follow timeline %d", to, x.Timeline)
	}
	if err := s.skip(x.Timeline, to); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if err := (wal{s.directory}).leave(x.Position); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if _, err := s.query(ctx, `SELECT pg_promote(false)`); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	err = s.until(ctx, "promote", func() error {
		row, err := s.row(ctx, `SELECT pg_is_in_recovery()`)
		switch {
		case err != nil:
			return err
		case row[0] == "t":
			return errors.New("the server is still in recovery")
		}
		return nil
	})
	if err != nil {
		return err
	}
	p, err := s.Position(ctx)
	if err == nil && p.Timeline != to {
		err = fmt.Errorf("promoted to timeline %d, not to %d", p.Timeline, to)
	}
	return err
}

// skip has PostgreSQL choose the timeline to, as the successor of from: it takes the first number
// after its own that has no history file. A standby that finds such a file while it runs, as it
// looks for a newer timeline of its primary, sees no parent in it and leaves it alone. The files
// stay: who follows this server later asks it for each of them.
func (d *directory) skip(from, to core.Timeline) error {
	last := d.path("pg_wal", walfile.HistoryName(to))
	if text, err := os.ReadFile(last); err == nil && string(text) != walfile.Unused {
		return fmt.Errorf("timeline %d exists already: %s", to, last)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(last); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for t := from + 1; t < to; t++ {
		path := d.path("pg_wal", walfile.HistoryName(t))
		_, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = durable.Replace(path, []byte(walfile.Unused))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Checkpoint writes a checkpoint, however long that takes.
func (s *Server) Checkpoint(ctx context.Context) error {
	_, err := s.once(ctx, map[string]string{"statement_timeout": "0"}, "CHECKPOINT")
	return err
}

// Flush writes a few bytes of WAL on a primary and flushes them. It returns where they end: all WAL
// before that is on disk. A server whose disk hangs answers queries from memory, but not this. It
// writes no row, takes no row lock and waits for no standby.
func (s *Server) Flush(ctx context.Context) (core.LSN, error) {
	row, err := s.row(ctx, flush)
	if err != nil {
		return 0, err
	}
	return core.ParseLSN(row[0])
}

const flush = `SELECT pg_logical_emit_message(true, 'primacy', '')`
