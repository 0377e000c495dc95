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

	"github.com/primacy-go/primacy/internal/storeutil"
)

// How often waiters look by themselves: where notifications come, and where they do not.
const (
	slowPoll = 5 * time.Second
	fastPoll = 100 * time.Millisecond
)

// listener is the one connection of the process that listens, for all its waiters.
type listener struct {
	*db
	channel string
	own     *registry
	watch   *lineWatch
	conn    *pgx.Conn // the first connection, made by begin for run

	mu         sync.Mutex
	open       bool
	connected  int                // how many connections there were so far
	slow       time.Duration      // how often waiters look where notifications come
	pooled     bool               // a pooler may hand us another connection for each transaction
	wantsLines bool               // somebody follows lines
	interrupt  context.CancelFunc // ends the wait of receive
}

func newListener(d *db, own *registry, watch *lineWatch) *listener {
	return &listener{db: d, channel: "primacy_" + strings.ToLower(rand.Text()), own: own, watch: watch, slow: slowPoll}
}

// begin makes the first connection and finds out whether notifications arrive. It returns a warning
// for people, or nothing.
func (li *listener) begin(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	conn, err := li.listen(ctx)
	if err != nil {
		return "no connection to listen on (" + li.wrap(ctx, "listen", err).Error() +
			"): until there is one, waiters ask every " + fastPoll.String()
	}
	li.conn = conn
	if li.pooled || !li.probe(ctx, conn) {
		li.mu.Lock()
		li.pooled = true
		li.mu.Unlock()
		return "a connection pooler (pgbouncer) is in front of the server and may not pass notifications on: " +
			"waiters ask every " + fastPoll.String() + "; for fast hand-overs connect directly"
	}
	return ""
}

// probe says whether a notification that we send over another connection arrives.
func (li *listener) probe(ctx context.Context, conn *pgx.Conn) bool {
	if err := li.do(ctx, "notify", "SELECT pg_notify($1::text, 'probe')", []any{li.channel}, nil); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	return err == nil && n.Channel == li.channel
}

// listen opens a connection and listens on it.
func (li *listener) listen(ctx context.Context) (*pgx.Conn, error) {
	conn, err := li.connect(ctx, beside)
	if err != nil {
		return nil, err
	}
	// A server that ends idle sessions would end this one again and again. Older ones do not know
	// the setting.
	_, _ = conn.PgConn().Exec(ctx, "SET idle_session_timeout = 0").ReadAll()
	pid := ""
	if _, err = conn.PgConn().Exec(ctx, "LISTEN "+li.channel).ReadAll(); err == nil {
		err = conn.QueryRow(ctx, "SELECT pg_backend_pid()::text", pgx.QueryExecModeExec).Scan(&pid)
	}
	if err != nil {
		discard(conn)
		return nil, err
	}
	li.mu.Lock()
	defer li.mu.Unlock()
	// A pooler makes the process ID up that it shows to its clients.
	li.pooled = li.pooled || pid != strconv.FormatUint(uint64(conn.PgConn().PID()), 10)
	li.open = true
	li.connected++
	return conn, nil
}

// works says whether notifications come.
func (li *listener) works() bool { return li.poll() != fastPoll }

// generation tells connections apart: what was notified between two of them is lost.
func (li *listener) generation() int {
	li.mu.Lock()
	defer li.mu.Unlock()
	return li.connected
}

// poll returns how often waiters look by themselves.
func (li *listener) poll() time.Duration {
	li.mu.Lock()
	defer li.mu.Unlock()
	if li.open && !li.pooled {
		return li.slow
	}
	return fastPoll
}

// listenToLines has the connection receive every hand-over of the schema too, for those who follow
// lines.
func (li *listener) listenToLines() {
	li.mu.Lock()
	defer li.mu.Unlock()
	if !li.wantsLines && li.interrupt != nil {
		li.interrupt()
	}
	li.wantsLines = true
}

// run listens until the store is closed, on one connection after the other.
func (li *listener) run() {
	conn := li.conn
	for pause := 20 * time.Millisecond; li.ctx.Err() == nil; pause = min(2*pause, time.Second) {
		if conn == nil {
			ctx, cancel := context.WithTimeout(li.ctx, callLimit)
			conn, _ = li.listen(ctx)
			cancel()
			if conn != nil {
				li.lookAll() // what was notified meanwhile has reached nobody
			}
		}
		if conn != nil {
			pause = 20 * time.Millisecond
			li.receive(conn)
			discard(conn)
			conn = nil
			li.mu.Lock()
			li.open = false
			li.mu.Unlock()
			li.lookAll() // and from now on waiters look by themselves
		}
		_ = storeutil.Sleep(li.ctx, pause)
	}
}

// lookAll has everything looked at that somebody waits for.
func (li *listener) lookAll() {
	for _, l := range li.own.present() {
		l.lookAtWaiting()
	}
	storeutil.Signal(li.watch.now)
}

// receive passes notifications on until the connection fails. A silent connection is tried with a
// statement.
func (li *listener) receive(conn *pgx.Conn) {
	lines := false
	for li.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(li.ctx, slowPoll)
		li.mu.Lock()
		li.interrupt = cancel
		want := li.wantsLines
		li.mu.Unlock()
		if want && !lines {
			cancel()
			if !li.alive(conn, "LISTEN "+li.schema.channel) {
				return
			}
			lines = true
			continue
		}
		n, err := conn.WaitForNotification(ctx)
		over := ctx.Err() != nil
		cancel()
		switch {
		case err == nil && n.Channel == li.schema.channel:
			li.watch.handedOver(n.Payload)
		case err == nil:
			li.own.notified(n.Payload)
		case !over || conn.IsClosed() || !li.alive(conn, "SELECT 1"):
			return
		}
	}
}

// alive runs a statement that takes no time, and says whether it was answered.
func (li *listener) alive(conn *pgx.Conn, sql string) bool {
	ctx, cancel := context.WithTimeout(li.ctx, 3*time.Second)
	defer cancel()
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil && ctx.Err() != nil && li.ctx.Err() == nil {
		li.pool.Reset() // the server is silent: the pool's connections to it lead nowhere
	}
	return err == nil
}

// earlyKept is how many notifications a registry keeps at least for claims that it does not know
// yet.
const earlyKept = 8192

// registry knows the leases of this process and their claims, for the notifications that name them.
type registry struct {
	mu     sync.Mutex
	closed bool
	leases map[string]*lease
	claims map[uint64]*ownClaim // by token

	// Notifications that came before the answer to the claim that they are about, by token. When
	// early is full it becomes older.
	early, older map[uint64]byte
}

func newRegistry() *registry {
	return &registry{leases: map[string]*lease{}, claims: map[uint64]*ownClaim{}, early: map[uint64]byte{}}
}

// add notes a lease. It returns false once the store is closed.
func (r *registry) add(l *lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.leases[l.id] = l
	}
	return !r.closed
}

func (r *registry) remove(l *lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.leases, l.id)
}

// present returns the leases of now.
func (r *registry) present() []*lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.leases))
}

// close takes no more leases. It returns those of now, and whether this is the first call.
func (r *registry) close() (leases []*lease, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !r.closed
	leases = slices.Collect(maps.Values(r.leases))
	r.closed, r.leases = true, map[string]*lease{}
	return leases, first
}

// addClaim notes a claim, and returns the notification about it that has come already, or 0. The
// caller holds the lease's mu.
func (r *registry) addClaim(o *ownClaim) byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claims[o.place.Token] = o
	if word := r.early[o.place.Token]; word != 0 {
		return word
	}
	return r.older[o.place.Token]
}

func (r *registry) removeClaim(o *ownClaim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claims[o.place.Token] == o {
		delete(r.claims, o.place.Token)
	}
}

// notified brings a notification to the claim or the lease that it is about. With a token come "h"
// holds, "g" gone, "l" look again; with a lease come "n" news, "e" end.
func (r *registry) notified(payload string) {
	word, about, _ := strings.Cut(payload, " ")
	if word == "n" || word == "e" {
		r.mu.Lock()
		l := r.leases[about]
		r.mu.Unlock()
		if l != nil {
			l.lookNow()
		}
		return
	}
	token, err := strconv.ParseUint(about, 10, 64)
	if err != nil || len(word) != 1 {
		return
	}
	r.mu.Lock()
	o := r.claims[token]
	if o == nil {
		if len(r.early) >= earlyKept {
			r.early, r.older = map[uint64]byte{}, r.early
		}
		r.early[token] = word[0]
	}
	r.mu.Unlock()
	if o != nil {
		o.l.mu.Lock()
		defer o.l.mu.Unlock()
		o.notifiedLocked(word[0])
	}
}
