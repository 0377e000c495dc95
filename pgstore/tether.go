package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// pingEvery is how often a session that ties leases gives a sign of life, and pingLimit how long the answer may take before another session is made
	// beside it.
	pingEvery = slowPoll
	pingLimit = 3 * time.Second
	// leastSilence is how long the server bears a silent session, at least.
	leastSilence = 2 * time.Minute
)

// tether keeps one session open to which the leases of this process are tied: the server frees its lock when it ends.
type tether struct {
	w *tethers
	i int

	// The tethers' mutex guards these.
	key  int64         // of the session; 0: there is none
	last int64         // of the present or the last session: rows with it are removed when there is another
	conn *pgx.Conn     // of the session
	old  *pgx.Conn     // one that has fallen silent, kept until there is another: to close it would end the session
	way  way           // of the last session
	bear time.Duration // how long the server bears its silence
}

// way is how a session's connection leads to the server.
type way struct {
	at     net.Addr
	direct bool // nothing in between that could end it, or refuse another, in the server's name
}

// run keeps a session until the store is closed.
func (t *tether) run() {
	for pause := time.Duration(0); t.w.s.ctx.Err() == nil; {
		conn, key, err := t.open()
		if conn != nil {
			pause = 0
			t.hold(conn, key)
			continue
		}
		if err == nil {
			return // a pooler: its sessions are not ours
		}
		t.w.refusal(t, err)
		pause = min(2*pause+2*time.Millisecond, time.Second)
		select {
		case <-time.After(pause):
		case <-t.w.s.ctx.Done():
		}
	}
}

// settings is what a session is set up with. The server must not end a silent one before the leases that are tied to it have run out by themselves: their
// last renewal came over another connection, at most a ping after the last sign of life here.
func settings(silence time.Duration) string {
	ms, idle := silence.Milliseconds(), min(int64(silence/time.Second)/2, 7200)
	return fmt.Sprintf(`CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL THEN set_config('idle_session_timeout', '%d', false) END,
		set_config('tcp_user_timeout', '%d', false), set_config('tcp_keepalives_idle', '%d', false), set_config('tcp_keepalives_interval', '10', false)`, ms, ms, idle)
}

// open makes a session and ties all leases to it. It returns nothing behind a pooler.
func (t *tether) open() (conn *pgx.Conn, key int64, err error) {
	s := t.w.s
	ctx, cancel := context.WithTimeout(s.ctx, callLimit)
	defer cancel()
	if conn, err = s.connect(ctx); err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil || key == 0 {
			discard(conn)
			conn = nil
		}
	}()
	own, silence := rand.Int64N(1<<62)+1, t.w.silence()
	pid, server, client, mine := "", "", "", false
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid()::text, "+ends+", pg_try_advisory_lock($1::bigint), "+settings(silence), pgx.QueryExecModeExec, own).Scan(
		&pid, &server, &client, &mine, nil, nil, nil, nil)
	if err != nil || pid != strconv.FormatUint(uint64(conn.PgConn().PID()), 10) {
		return conn, 0, err
	}
	if !mine {
		return conn, 0, fmt.Errorf("the key %d is taken", own)
	}
	before, leases := t.attach(conn, own, silence, wayOf(conn, server, client))
	err = t.w.tie(ctx, t, own, before, leases, func(sql string, args []any, scan func(pgx.Rows) error) error {
		return query(ctx, conn, s.schema.fill.Replace(sql), args, scan)
	})
	if err != nil {
		t.w.detach(t, own)
		return conn, 0, err
	}
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	cut(t.old) // nothing is tied to it any more
	t.old = nil
	return conn, own, nil
}

// attach notes a session, and returns the key of the one before and the leases to tie to it. From here on every new lease is tied to it too.
func (t *tether) attach(conn *pgx.Conn, key int64, silence time.Duration, at way) (before int64, leases []*lease) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	before = t.last
	if t.old == nil {
		t.old = t.conn
	}
	t.key, t.last, t.conn, t.way, t.bear = key, key, conn, at, silence
	for l, d := range t.w.leases {
		leases = append(leases, l)
		if d.sure[t.i] && !d.sure[1-t.i] { // from here on nobody hears of the end of the one before
			t.w.bare(l, d)
		}
		d.sure[t.i] = false
	}
	return before, leases
}

// ends are both ends of a connection as the server sees them.
const ends = `coalesce(host(inet_server_addr()) || ' ' || inet_server_port(), ''), coalesce(host(inet_client_addr()) || ' ' || inet_client_port(), '')`

func wayOf(conn *pgx.Conn, server, client string) way {
	nc := conn.PgConn().Conn()
	return way{at: nc.RemoteAddr(), direct: same(nc.RemoteAddr(), server) && same(nc.LocalAddr(), client)}
}

// same says whether an end of the connection is where the server sees it too. A socket in the file system always is.
func same(here net.Addr, there string) bool {
	if here.Network() == "unix" {
		return there == ""
	}
	at, err := netip.ParseAddrPort(here.String())
	return err == nil && there == fmt.Sprintf("%s %d", at.Addr().Unmap().WithZone(""), at.Port())
}

// hold returns when the session has ended, or has been silent for so long that another has to be made beside it.
func (t *tether) hold(conn *pgx.Conn, key int64) {
	s := t.w.s
	for {
		ctx, cancel := context.WithTimeout(s.ctx, pingEvery)
		_, err := conn.WaitForNotification(ctx)
		over := ctx.Err() != nil
		cancel()
		if s.ctx.Err() != nil {
			return // Close closes it
		}
		if err != nil && (!over || conn.IsClosed()) {
			t.w.detach(t, key)
			discard(conn)
			return
		}
		answered, silence := make(chan error, 1), t.w.silence()
		go func() { // without a limit: to give it up would close the connection, and end a session that may only be slow
			_, err := conn.PgConn().Exec(context.Background(), "SELECT "+settings(silence)).ReadAll()
			answered <- err
		}()
		select {
		case err = <-answered:
		case <-time.After(pingLimit):
			go t.linger(conn, key, answered, silence)
			return
		case <-s.ctx.Done():
			return
		}
		if err != nil {
			t.w.detach(t, key)
			discard(conn)
			return
		}
		t.w.borne(t, key, silence)
	}
}

// linger waits for the end of a session that has fallen silent. The server ends it itself after the silence: long before, it counts as ended.
func (t *tether) linger(conn *pgx.Conn, key int64, answered <-chan error, silence time.Duration) {
	select {
	case err := <-answered:
		if err == nil {
			t.hold(conn, key) // it lives, and is replaced all the same: until there is another, its end has to be heard
			return
		}
	case <-time.After(silence / 2):
	case <-t.w.s.ctx.Done():
		return
	}
	t.w.detach(t, key)
}

// cut closes a connection that a call may be under way on.
func cut(conn *pgx.Conn) {
	if conn != nil {
		go conn.PgConn().Conn().Close()
	}
}
