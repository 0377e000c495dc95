package pgstore

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
)

var (
	_ driver.Admin       = (*Store)(nil)
	_ driver.LeaseViewer = (*Store)(nil)
	_ driver.Journal     = (*Store)(nil)
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
	args := []any{name, int64(r.Token), body}
	err = s.do(ctx, "ask", "SELECT {S}.ask($1::text, $2::bigint, $3::bytea)", args, into(&code))
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

// Revoke implements [driver.Store].
func (s *Store) Revoke(ctx context.Context, lease string) error {
	if err := fit(lease); err != nil {
		return err
	}
	return s.do(ctx, "revoke", "SELECT {S}.end_lease($1::text, true)", []any{lease}, nil)
}

// RemoveClaim implements [driver.Admin].
func (s *Store) RemoveClaim(ctx context.Context, name string, token uint64) error {
	if err := fit(name); err != nil {
		return err
	}
	args := []any{name, int64(token)}
	return s.doUnfenced(ctx, "remove claim", "SELECT {S}.remove_claim($1::text, $2::bigint)", args, nil)
}

// Leases implements [driver.Admin].
func (s *Store) Leases(ctx context.Context, prefix string) ([]string, error) {
	if err := fit(prefix); err != nil {
		return nil, err
	}
	return s.texts(ctx, "leases", `SELECT id FROM {S}.leases
		WHERE starts_with(owner, $1::text) AND expires > clock_timestamp() ORDER BY id`, prefix)
}

// Remaining implements [driver.LeaseViewer], to the microsecond.
func (s *Store) Remaining(ctx context.Context, leases ...string) (map[string]driver.Remaining, error) {
	all := map[string]driver.Remaining{}
	if err := fit(leases...); err != nil {
		return nil, err
	}
	const µs = time.Microsecond
	err := s.do(ctx, "remaining", `SELECT id, floor(extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint,
			(extract(epoch FROM ttl) * 1000000)::bigint
		FROM {S}.leases WHERE id = ANY ($1::text[]) AND expires > clock_timestamp()`,
		[]any{append([]string{}, leases...)}, func(rows pgx.Rows) error {
			var id string
			var left, ttl int64
			err := rows.Scan(&id, &left, &ttl)
			left = max(left, 0)
			all[id] = driver.Remaining{Left: time.Duration(left) * µs, TTL: time.Duration(ttl) * µs, Step: µs}
			return err
		})
	return all, err
}

// Append implements [driver.Journal].
func (s *Store) Append(ctx context.Context, name string, r driver.Record, keep int) (
	there driver.Record, added bool, err error,
) {
	err = driver.CheckRecord(name, r)
	if err == nil && keep < 1 {
		err = fmt.Errorf("keep %d records of %s: keep at least 1: %w", keep, name, driver.ErrRefused)
	}
	if err != nil {
		return driver.Record{}, false, err
	}
	there = driver.Record{Key: r.Key}
	args := []any{[]byte(name), r.Key, append([]byte{}, r.Value...), int64(keep)}
	sql := "SELECT * FROM {S}.append($1::bytea, $2::text, $3::bytea, $4::bigint)"
	err = s.do(ctx, "append", sql, args, into(&added, &there.Value))
	if err == nil && !added && there.Value == nil {
		err = fmt.Errorf("postgres %s: append: the record %q was removed meanwhile", s.hosts, r.Key)
	}
	if err != nil {
		return driver.Record{}, false, err
	}
	return there, added, nil
}

// Records implements [driver.Journal].
func (s *Store) Records(ctx context.Context, name, before string, limit int) (all []driver.Record, err error) {
	if err := fit(before); err != nil {
		return nil, err
	}
	err = s.do(ctx, "records", `SELECT key, encode(value, 'hex') FROM {S}.records
		WHERE journal = $1::bytea AND ($2::text = '' OR key < $2::text COLLATE "C") ORDER BY key DESC LIMIT $3::bigint`,
		[]any{[]byte(name), before, int64(min(max(limit, 0), math.MaxInt32))}, func(rows pgx.Rows) error {
			var r driver.Record
			var value string // bytea itself comes in one of two forms, as the role has set
			err := rows.Scan(&r.Key, &value)
			if err == nil {
				r.Value, err = hex.DecodeString(value)
			}
			all = append(all, r)
			return err
		})
	return all, err
}

// Journals implements [driver.Journal].
func (s *Store) Journals(ctx context.Context, prefix string) (all []string, err error) {
	all, err = s.texts(ctx, "journals", `SELECT encode(j, 'hex') FROM (SELECT DISTINCT journal AS j FROM {S}.records
		WHERE substr(journal, 1, length($1::bytea)) = $1::bytea) u ORDER BY j`, []byte(prefix))
	for i := 0; i < len(all) && err == nil; i++ {
		var name []byte
		name, err = hex.DecodeString(all[i])
		all[i] = string(name)
	}
	return all, err
}
