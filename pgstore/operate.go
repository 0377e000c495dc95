package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
)

var (
	_ driver.Revoker     = (*Store)(nil)
	_ driver.Admin       = (*Store)(nil)
	_ driver.LeaseViewer = (*Store)(nil)
	_ driver.LeaseTimer  = (*lease)(nil)
)

// Ask implements [driver.Asker].
func (s *Store) Ask(ctx context.Context, name string, r driver.Request) error {
	if err := fit(name); err != nil {
		return err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("postgres: ask: %w: %s", driver.ErrRefused, err)
	}
	code := ""
	err = s.do(ctx, "ask", "SELECT {S}.ask($1::text, $2::bigint, $3::bytea)", []any{name, int64(r.Token), body}, func(rows pgx.Rows) error { return rows.Scan(&code) })
	switch {
	case err != nil:
		return err
	case code == "shared":
		return fmt.Errorf("%s is shared: nobody holds it alone: %w", name, driver.ErrRefused)
	case code != "ok":
		return fmt.Errorf("%s is not held under token %d: %w", name, r.Token, driver.ErrGone)
	}
	return nil
}

// Revoke implements [driver.Revoker].
func (s *Store) Revoke(ctx context.Context, lease string) error { return s.EndLease(ctx, lease) }

// EndLease implements [driver.Admin].
func (s *Store) EndLease(ctx context.Context, id string) error {
	if err := fit(id); err != nil {
		return err
	}
	return s.do(ctx, "end lease", "SELECT {S}.end_lease($1::text, true)", []any{id}, nil)
}

// RemoveClaim implements [driver.Admin].
func (s *Store) RemoveClaim(ctx context.Context, name string, token uint64) error {
	if err := fit(name); err != nil {
		return err
	}
	return s.patiently(ctx, "remove claim", "SELECT {S}.remove_claim($1::text, $2::bigint)", []any{name, int64(token)}, nil)
}

// Leases implements [driver.Admin].
func (s *Store) Leases(ctx context.Context, prefix string) ([]string, error) {
	if err := fit(prefix); err != nil {
		return nil, err
	}
	return s.texts(ctx, "leases", "SELECT id FROM {S}.leases WHERE starts_with(owner, $1::text) AND expires > clock_timestamp() ORDER BY id", prefix)
}

// Remaining implements [driver.LeaseViewer], to the microsecond.
func (s *Store) Remaining(ctx context.Context, leases ...string) (map[string]driver.Remaining, error) {
	all := map[string]driver.Remaining{}
	if err := fit(leases...); err != nil {
		return nil, err
	}
	err := s.do(ctx, "remaining", `SELECT id, floor(extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint, (extract(epoch FROM ttl) * 1000000)::bigint
		FROM {S}.leases WHERE id = ANY ($1::text[]) AND expires > clock_timestamp()`, []any{append([]string{}, leases...)}, func(rows pgx.Rows) error {
		var id string
		var left, ttl int64
		err := rows.Scan(&id, &left, &ttl)
		all[id] = driver.Remaining{Left: time.Duration(max(left, 0)) * time.Microsecond, TTL: time.Duration(ttl) * time.Microsecond, Step: time.Microsecond}
		return err
	})
	return all, err
}

// Left implements [driver.LeaseTimer], to the microsecond.
func (l *lease) Left(ctx context.Context) (left, step time.Duration, err error) {
	if l.ended() {
		return 0, 0, driver.ErrGone
	}
	all, err := l.s.Remaining(ctx, l.id)
	if err != nil {
		return 0, 0, err
	}
	r, there := all[l.id]
	if !there {
		return 0, 0, fmt.Errorf("postgres %s: left: the lease has ended: %w", l.s.hosts, driver.ErrGone)
	}
	return r.Left, r.Step, nil
}
