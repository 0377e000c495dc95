package pgstore

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// How often waiters look by themselves: where notifications come, and where they do not.
const (
	slowPoll = 5 * time.Second
	fastPoll = 100 * time.Millisecond
)

// ear is the one connection of the process that listens, for all its waiters.
type ear struct {
	s       *Store
	channel string

	mu       sync.Mutex
	open     bool
	count    int                // connections so far
	pooled   bool               // something stands between us and the server that may hand us another connection for each transaction
	observed bool               // somebody follows lines
	poke     context.CancelFunc // ends the wait of run
	conn     *pgx.Conn          // what begin has made, for run
}

func newEar(s *Store) *ear {
	return &ear{s: s, channel: "primacy_" + strings.ToLower(rand.Text())}
}

// begin makes the first connection and finds out whether notifications arrive. It returns a warning for people, or nothing.
func (e *ear) begin(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	conn, err := e.connect(ctx)
	if err != nil {
		return "no connection to listen on (" + e.s.wrap(ctx, "listen", err).Error() + "): until there is one, waiters ask every " + fastPoll.String()
	}
	e.conn = conn
	if e.pooled || !e.hears(ctx, conn) {
		e.mu.Lock()
		e.pooled = true
		e.mu.Unlock()
		return "a connection pooler (pgbouncer) stands before the server, through which notifications may not come: waiters ask every " + fastPoll.String() +
			"; for fast hand-overs connect directly"
	}
	return ""
}

// hears sends a word to ourselves, over another connection.
func (e *ear) hears(ctx context.Context, conn *pgx.Conn) bool {
	if err := e.s.do(ctx, "notify", "SELECT pg_notify($1::text, 'probe')", []any{e.channel}, nil); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	return err == nil && n.Channel == e.channel
}

// connect opens the connection and listens on it.
func (e *ear) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := e.s.connect(ctx)
	if err != nil {
		return nil, err
	}
	// A server that ends idle sessions would end this one again and again. Older ones do not know the setting.
	_, _ = conn.PgConn().Exec(ctx, "SET idle_session_timeout = 0").ReadAll()
	pid := ""
	if _, err = conn.PgConn().Exec(ctx, "LISTEN "+e.channel).ReadAll(); err == nil {
		err = conn.QueryRow(ctx, "SELECT pg_backend_pid()::text", pgx.QueryExecModeExec).Scan(&pid)
	}
	if err != nil {
		discard(conn)
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// A pooler makes the process ID up that it shows to its clients.
	e.pooled = e.pooled || pid != strconv.FormatUint(uint64(conn.PgConn().PID()), 10)
	e.open = true
	e.count++
	return conn, nil
}

// works says whether notifications come.
func (e *ear) works() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open && !e.pooled
}

func (e *ear) listening() bool { return e.works() }

// generation tells connections apart: what was said between two of them is lost.
func (e *ear) generation() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.count
}

// poll returns how often those who wait look by themselves.
func (e *ear) poll() time.Duration {
	if e.works() {
		return slowPoll
	}
	return fastPoll
}

// observe has the connection hear of all hand-overs too, which somebody follows.
func (e *ear) observe() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.observed && e.poke != nil {
		e.poke()
	}
	e.observed = true
}

// run listens until the store is closed, on one connection after the other.
func (e *ear) run() {
	conn := e.conn
	for pause := 20 * time.Millisecond; e.s.ctx.Err() == nil; pause = min(2*pause, time.Second) {
		if conn == nil {
			ctx, cancel := context.WithTimeout(e.s.ctx, callLimit)
			conn, _ = e.connect(ctx)
			cancel()
			if conn != nil {
				e.s.lookAll() // what was said meanwhile was said to nobody
			}
		}
		if conn != nil {
			pause = 20 * time.Millisecond
			e.hear(conn)
			discard(conn)
			conn = nil
			e.mu.Lock()
			e.open = false
			e.mu.Unlock()
			e.s.lookAll() // and from now on by themselves
		}
		select {
		case <-time.After(pause):
		case <-e.s.ctx.Done():
		}
	}
}

// hear passes on what is said, until the connection fails. A silent one is asked for a sign of life.
func (e *ear) hear(conn *pgx.Conn) {
	lines := false
	for e.s.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(e.s.ctx, slowPoll)
		e.mu.Lock()
		e.poke = cancel
		want := e.observed
		e.mu.Unlock()
		if want && !lines {
			cancel()
			if !e.alive(conn, "LISTEN "+e.s.schema.channel) {
				return
			}
			lines = true
			continue
		}
		n, err := conn.WaitForNotification(ctx)
		over := ctx.Err() != nil
		cancel()
		switch {
		case err == nil:
			e.s.dispatch(n.Channel, n.Payload)
		case !over || conn.IsClosed() || !e.alive(conn, "SELECT 1"):
			return
		}
	}
}

// alive runs a statement that takes no time.
func (e *ear) alive(conn *pgx.Conn, sql string) bool {
	ctx, cancel := context.WithTimeout(e.s.ctx, 3*time.Second)
	defer cancel()
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil && ctx.Err() != nil && e.s.ctx.Err() == nil {
		e.s.pool.Reset() // the way to the server is silent: what is open leads nowhere
	}
	return err == nil
}

// dispatch brings a word to whom it is for: "h" holds, "g" gone, "w" wanted, "l" look again, each with a token; "n" news, "e" end, each with a lease.
func (s *Store) dispatch(channel, payload string) {
	if channel == s.schema.channel {
		s.watch.hint(payload)
		return
	}
	word, what, _ := strings.Cut(payload, " ")
	if word == "n" || word == "e" {
		s.mu.Lock()
		l := s.leases[what]
		s.mu.Unlock()
		if l != nil {
			l.lookAt(nil)
		}
		return
	}
	token, err := strconv.ParseUint(what, 10, 64)
	if err != nil || len(word) != 1 {
		return
	}
	s.mu.Lock()
	st := s.stands[token]
	if st == nil {
		s.early.add(token, word[0])
	}
	s.mu.Unlock()
	if st == nil {
		return
	}
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	switch word[0] {
	case 'h':
		st.l.holds(st)
	case 'g':
		st.l.lost(st)
	case 'w':
		st.l.wanted(st)
	case 'l':
		if !st.gone {
			st.l.due[st] = true
			st.l.wakeLooker()
		}
	}
}

// keep notes a claim for notifications, and returns one that has come before. The lease's mutex is held.
func (s *Store) keep(st *stand) byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stands[st.place.Token] = st
	return s.early.words[st.place.Token]
}

func (s *Store) unkeep(st *stand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stands[st.place.Token] == st {
		delete(s.stands, st.place.Token)
	}
}

func (s *Store) forgetLease(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, l.id)
}

// lookAll has everything looked at that somebody waits for.
func (s *Store) lookAll() {
	s.mu.Lock()
	leases := slices.Collect(maps.Values(s.leases))
	s.mu.Unlock()
	for _, l := range leases {
		l.mu.Lock()
		for _, st := range l.stands {
			if st.waits > 0 || st.follows || st.wants {
				st.heard = s.ear.generation()
				l.due[st] = true
			}
		}
		l.dueSelf = l.dueSelf || l.readers > 0
		l.wakeLooker()
		l.mu.Unlock()
	}
	s.watch.all()
}

// early keeps notifications that came before the answer to the claim that they are about.
type early struct {
	words map[uint64]byte
	order []uint64
	next  int
}

func (e *early) add(token uint64, word byte) {
	if e.words == nil {
		e.words = map[uint64]byte{}
	}
	if _, there := e.words[token]; !there {
		if len(e.order) < ringSize {
			e.order = append(e.order, token)
		} else {
			delete(e.words, e.order[e.next])
			e.order[e.next] = token
			e.next = (e.next + 1) % ringSize
		}
	}
	e.words[token] = word
}
