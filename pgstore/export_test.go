package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Patient has the waiters of a new store rely on notifications and the ends of leases: their slow
// poll would hide that something is not told.
func Patient(s *Store) *Store {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	s.listener.slow = time.Hour
	return s
}

// Connect hands a connection out as the store makes them.
func Connect(ctx context.Context, s *Store, to func(*pgx.Conn)) {
	if conn, err := s.connect(ctx, beside); err == nil {
		to(conn)
	}
}
