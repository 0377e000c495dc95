package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Connect hands a connection out as the store makes them.
func Connect(ctx context.Context, s *Store, to func(*pgx.Conn)) {
	if conn, err := s.connect(ctx); err == nil {
		to(conn)
	}
}
