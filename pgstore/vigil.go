package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// vigilWait is how long one statement waits for sessions to end: shorter than deadlock_timeout, after which a server may log each wait, and
	// short because its snapshot keeps vacuum from cleaning.
	vigilWait = 900 * time.Millisecond
	// vigilPoll is how often several leases are asked for.
	vigilPoll = 100 * time.Millisecond
	// vigilMany is how many claims one statement looks in front of. Of more it takes others each time: they stand behind few leases.
	vigilMany = 100
)

// loose is a lease whose sessions have ended.
type loose struct {
	id      string
	expires int64
}

// vigil waits for the crash of those in front of our claims, on one connection however many they are, while any claim of ours waits: behind one lease it
// waits for its locks, behind several it asks now and then.
func (s *Store) vigil() {
	var conn *pgx.Conn
	defer func() { discard(conn) }()
	for s.ctx.Err() == nil {
		pause := time.Second
		tokens := s.waitingTokens()
		if len(tokens) == 0 {
			discard(conn)
			conn = nil
		} else if conn == nil {
			conn = s.vigilant()
		}
		if conn != nil {
			n, ended, err := s.watchFronts(conn, tokens)
			if err != nil {
				discard(conn)
				conn = nil
			}
			if len(ended) > 0 {
				s.takeOver(ended)
			}
			switch {
			case len(ended) > 0 || n > 1:
				pause = vigilPoll
			case n == 1:
				pause = 0
			}
		}
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
		}
	}
}

func (s *Store) vigilant() *pgx.Conn {
	ctx, cancel := context.WithTimeout(s.ctx, callLimit)
	defer cancel()
	conn, err := s.connect(ctx)
	if err != nil {
		return nil
	}
	_, _ = conn.PgConn().Exec(ctx, "SET statement_timeout = 0").ReadAll()
	_, _ = conn.PgConn().Exec(ctx, "SET idle_session_timeout = 0").ReadAll() // older servers do not know it
	return conn
}

// waitingTokens returns claims of this process that wait, a few of them.
func (s *Store) waitingTokens() (tokens []int64) {
	for _, l := range s.present() {
		l.mu.Lock()
		for _, st := range l.stands { // in an order that is another one each time
			if !st.place.Held && (st.waits > 0 || st.follows) {
				if tokens = append(tokens, int64(st.place.Token)); len(tokens) == vigilMany {
					break
				}
			}
		}
		l.mu.Unlock()
		if len(tokens) == vigilMany {
			break
		}
	}
	return tokens
}

// watchFronts waits for the end of sessions of the n leases in front of these claims, and returns those of which all have ended.
func (s *Store) watchFronts(conn *pgx.Conn, tokens []int64) (n int64, ended []loose, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, vigilWait+pingLimit)
	defer cancel()
	err = query(ctx, conn, s.schema.fill.Replace("SELECT * FROM {S}.vigil($1::bigint[], $2::text, $3::int)"), []any{tokens, s.ear.channel, vigilWait.Milliseconds()}, func(r pgx.Rows) error {
		var l loose
		err := r.Scan(&l.id, &l.expires)
		if l.id == "" {
			n = l.expires
		} else {
			ended = append(ended, l)
		}
		return err
	})
	return n, ended, err
}

// takeOver ends leases whose sessions have all ended, if that is so after the grace too. The connection is a new one: a server that takes none is being
// shut down or has not started, and then holders without sessions lead on.
func (s *Store) takeOver(ended []loose) {
	select {
	case <-time.After(s.wake.grace):
	case <-s.ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, callLimit)
	defer cancel()
	conn, err := s.connect(ctx)
	if err != nil {
		return
	}
	defer discard(conn)
	for _, l := range ended {
		if err := query(ctx, conn, s.schema.fill.Replace("SELECT {S}.wake($1::text, $2::bigint)"), []any{l.id, l.expires}, nil); err != nil {
			return // it is found again
		}
	}
}
