package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// The floor on PostgreSQL: a row for each line, which one statement enters and another leaves, and
// a notification of the next one. Each lock has a connection for its statements; each session has
// one that listens. Both statements are committed to disk, as those of ours are.
func init() {
	contenders = append(contenders,
		&Contender{Name: "floor of PostgreSQL", Store: "postgres", Floor: true, Local: true, Dial: dialBarePostgres})
}

// Who waits stands in the row as "channel/lock": the channel is its session's.
const (
	bareTable = `CREATE TABLE IF NOT EXISTS floor_lines (name text PRIMARY KEY, token bigint, waiting text[])`
	bareStand = `INSERT INTO floor_lines AS f VALUES ($1, 1, ARRAY[$2])
		ON CONFLICT (name) DO UPDATE SET token = f.token + 1, waiting = f.waiting || excluded.waiting
		RETURNING token, cardinality(waiting)`
	bareGo = `UPDATE floor_lines SET waiting = waiting[2:] WHERE name = $1
		RETURNING CASE WHEN cardinality(waiting) > 0
			THEN pg_notify(split_part(waiting[1], '/', 1), split_part(waiting[1], '/', 2)) END`
)

// barePostgres has no connection of its own.
type barePostgres struct{ url string }

func dialBarePostgres(ctx context.Context, endpoints []string) (Process, error) {
	conn, err := pgx.Connect(ctx, endpoints[0])
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, bareTable)
	return barePostgres{endpoints[0]}, err
}

func (p barePostgres) Close() {}

func (p barePostgres) MinTTL() time.Duration { return time.Second }

func (p barePostgres) Session(ctx context.Context, _ time.Duration) (Session, error) {
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return nil, err
	}
	s := &barePostgresSession{url: p.url, done: make(chan struct{}), own: map[string]*barePostgresLock{}}
	s.channel = "floor_" + strconv.FormatUint(uint64(conn.PgConn().PID()), 10)
	if _, err := conn.Exec(ctx, "LISTEN "+s.channel); err != nil {
		conn.Close(ctx)
		return nil, err
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	go s.listen(ctx, conn)
	return s, nil
}

type barePostgresSession struct {
	url     string
	channel string
	stop    context.CancelFunc
	done    chan struct{} // closed when it listens no more

	mu    sync.Mutex
	locks []*barePostgresLock
	own   map[string]*barePostgresLock // of Campaign, by name
}

func (s *barePostgresSession) Close(ctx context.Context) error {
	s.stop()
	<-s.done
	var errs []error
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.locks {
		if l.conn != nil {
			errs = append(errs, l.conn.Close(ctx))
		}
	}
	return errors.Join(errs...)
}

func (s *barePostgresSession) Revoke(context.Context) error {
	return errors.New("the floor has no lease")
}

// listen wakes those who are notified.
func (s *barePostgresSession) listen(ctx context.Context, conn *pgx.Conn) {
	defer close(s.done)
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return
		}
		i, err := strconv.Atoi(n.Payload)
		s.mu.Lock()
		if err == nil && i < len(s.locks) {
			s.locks[i].turn <- struct{}{}
		}
		s.mu.Unlock()
	}
}

func (s *barePostgresSession) Lock(name string, _ LockOptions) Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newLocked(name)
}

func (s *barePostgresSession) newLocked(name string) *barePostgresLock {
	who := s.channel + "/" + strconv.Itoa(len(s.locks))
	l := &barePostgresLock{s: s, name: name, who: who, turn: make(chan struct{}, 1)}
	s.locks = append(s.locks, l)
	return l
}

// Campaign is called by one goroutine at a time for each name.
func (s *barePostgresSession) Campaign(ctx context.Context, name string) (Held, error) {
	s.mu.Lock()
	l := s.own[name]
	if l == nil {
		l = s.newLocked(name)
		s.own[name] = l
	}
	s.mu.Unlock()
	return l.Lock(ctx)
}

type barePostgresLock struct {
	s    *barePostgresSession
	conn *pgx.Conn // once it was locked
	name string
	who  string
	turn chan struct{}
}

// Lock gives the wait up with ctx, but no statement: for a context that may end pgx starts a
// goroutine for each.
func (l *barePostgresLock) Lock(ctx context.Context) (Held, error) {
	free := context.WithoutCancel(ctx)
	if l.conn == nil {
		conn, err := pgx.Connect(ctx, l.s.url)
		if err != nil {
			return nil, err
		}
		l.s.mu.Lock()
		l.conn = conn
		l.s.mu.Unlock()
	}
	h, waiting := barePostgresHeld{l: l}, 0
	if err := l.conn.QueryRow(free, bareStand, l.name, l.who).Scan(&h.token, &waiting); err != nil || waiting == 1 {
		return h, err
	}
	select {
	case <-l.turn:
		return h, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

type barePostgresHeld struct {
	l     *barePostgresLock
	token uint64
}

func (h barePostgresHeld) Check() error  { return nil }
func (h barePostgresHeld) Token() uint64 { return h.token }

func (h barePostgresHeld) Release(ctx context.Context) error {
	_, err := h.l.conn.Exec(context.WithoutCancel(ctx), bareGo, h.l.name)
	return err
}
