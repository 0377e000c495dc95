package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// SlowWake gives holders more time on a busy machine. It is called before the first lease.
func SlowWake(s *Store) { s.wake.grace, s.wake.retie = time.Second, 700*time.Millisecond }

// Connect hands a connection out as the store makes them.
func Connect(ctx context.Context, s *Store, to func(*pgx.Conn)) {
	if conn, err := s.connect(ctx); err == nil {
		to(conn)
	}
}
