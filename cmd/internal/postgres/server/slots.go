package server

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// Slot is a physical replication slot: the server keeps the WAL from Restart on.
type Slot struct {
	Name    string
	Active  bool
	Restart core.LSN // 0: the slot keeps nothing
	Lost    bool     // the WAL is gone: who uses the slot must be cloned
}

var notInSlot = regexp.MustCompile(`[^a-z0-9_]`)

// SlotName returns the slot's name for a member, as Patroni makes it.
func SlotName(member string) string {
	name := notInSlot.ReplaceAllStringFunc(strings.ToLower(member), func(c string) string {
		if c == "-" || c == "." {
			return "_"
		}
		return fmt.Sprintf("u%04d", []rune(c)[0])
	})
	return name[:min(len(name), 63)]
}

// Slots returns the physical slots.
func (s *sessions) Slots(ctx context.Context) ([]Slot, error) {
	rows, err := s.query(ctx, `SELECT slot_name, active, coalesce(restart_lsn, '0/0'), coalesce(wal_status, '') = 'lost'
		FROM pg_replication_slots WHERE slot_type = 'physical' ORDER BY slot_name`)
	if err != nil {
		return nil, err
	}
	var all []Slot
	for _, r := range rows {
		lsn, err := core.ParseLSN(r[2])
		if err != nil {
			return nil, err
		}
		all = append(all, Slot{r[0], r[1] == "t", lsn, r[3] == "t"})
	}
	return all, nil
}

// EnsureSlot makes a slot that keeps WAL from now on, if there is none of that name.
func (s *sessions) EnsureSlot(ctx context.Context, name string) error {
	_, err := s.query(ctx, `SELECT pg_create_physical_replication_slot($1, true)
		WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)`, name)
	if code(err) == "42710" { // duplicate_object: somebody was faster
		return nil
	}
	return err
}

// DropSlot removes a slot that is there. One that a standby uses stays, with an error.
func (s *sessions) DropSlot(ctx context.Context, name string) error {
	_, err := s.query(ctx, `SELECT pg_drop_replication_slot($1) WHERE EXISTS
		(SELECT FROM pg_replication_slots WHERE slot_name = $1 AND slot_type = 'physical')`, name)
	return err
}

// AdvanceSlot lets WAL before lsn go. A slot that is further already stays where it is.
func (s *sessions) AdvanceSlot(ctx context.Context, name string, lsn core.LSN) error {
	_, err := s.query(ctx, `SELECT pg_replication_slot_advance(slot_name, $2::pg_lsn) FROM pg_replication_slots
		WHERE slot_name = $1 AND slot_type = 'physical' AND restart_lsn < $2::pg_lsn`, name, lsn.String())
	return err
}

// code returns the SQLSTATE of an error of the server, "" of others.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
