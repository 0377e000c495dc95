package pgstore

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/driver"
)

// With Config.AdvisoryWake a crash is noticed by the connections that end with the process, long before the ttl.
//
// A process keeps two sessions open, each with an advisory lock on a number of its own, and ties its leases to both: a row names the lease and
// the number (tether). Who is next in line waits for these locks (vigil). When all of them are free, and again after wakeGrace, and the server
// takes a new connection, and the lease was not renewed meanwhile, he ends the lease as Revoke does.
//
// What is no crash must not look like one:
//   - One session alone, ended by an operator or by what stands in between: the other holds the lease.
//   - A restart of the server, its crash, a failover: the rows name the start of the server, and are not logged. Old ones say nothing.
//   - Silence, of a frozen process or a dead link: the server bears it for twice the ttl, by which the lease has run out by itself.
//   - Both sessions ended while the process lives: it ties its leases to new ones, which takes some milliseconds. Where it does not succeed within
//     wakeRetie it counts the lease as lost, unless the server refuses all connections: then nobody can end the lease either, and after its start
//     nothing ties it.
//
// What is left: both connections end by another hand while the process is stopped or cut off, so that it cannot notice. It believes to lead for up to a ttl,
// beside the next. So Caps.BestEffort is set, and Fence is what keeps its writes out.

const (
	// wakeGrace is how long whoever would take over waits after a holder's last session has ended, and wakeRetie within which the holder has new ones or
	// gives up. What lies between the two is for the way of the news.
	wakeGrace = 50 * time.Millisecond
	wakeRetie = 35 * time.Millisecond
)

// longestTied is the longest ttl of a lease that is tied: a silent session has to be borne for longer.
const longestTied = time.Hour

// wakeDoubt is what Caps.BestEffort says of it.
const wakeDoubt = "the end of both connections that tie a holder's leases (advisory-wake) while the holder is stopped or cut off"

// tethers ties the leases of a process to its sessions.
type tethers struct {
	s            *Store
	lines        [2]*tether
	grace, retie time.Duration

	mu      sync.Mutex
	started bool
	closed  bool
	leases  map[*lease]*tied
	refused time.Time // when the server refused connections last
}

// tied is how a lease is tied to the sessions: perhaps, for a call that ties it is under way or had an unknown outcome, or surely.
type tied struct {
	perhaps, sure [2]bool
	bared         time.Time // when the last session that was sure has ended
}

func newTethers(s *Store) *tethers {
	w := &tethers{s: s, grace: wakeGrace, retie: wakeRetie, leases: map[*lease]*tied{}}
	w.lines = [2]*tether{{w: w, i: 0}, {w: w, i: 1}}
	return w
}

// silence is how long the server is to bear silence.
func (w *tethers) silence() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := max(leastSilence, w.lines[0].bear, w.lines[1].bear) // never less than before: leases are tied on that ground while this is on its way
	for l := range w.leases {
		d = max(d, borneFor(l))
	}
	return d
}

// borneFor is how long the server has to bear the silence of a session that this lease is tied to.
func borneFor(l *lease) time.Duration { return 2*l.ttl + pingEvery }

// borne notes how long the server bears a session's silence, and ties the leases that it did not bear for long enough before.
func (w *tethers) borne(t *tether, key int64, silence time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.key != key || w.closed {
		return
	}
	t.bear = silence
	for l, d := range w.leases {
		if !d.perhaps[t.i] {
			go w.tieLater(t, key, l)
		}
	}
}

// add ties a lease, in the background: until it is tied it has its ttl.
func (w *tethers) add(l *lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || l.ttl > longestTied {
		return
	}
	w.leases[l] = &tied{}
	if !w.started {
		w.started = true
		w.s.work.Go(w.lines[0].run)
		w.s.work.Go(w.lines[1].run)
		return
	}
	for _, t := range w.lines {
		if t.key != 0 {
			go w.tieLater(t, t.key, l)
		}
	}
}

// tieLater ties a lease to a session that is there.
func (w *tethers) tieLater(t *tether, key int64, l *lease) {
	for {
		ctx, cancel := context.WithTimeout(w.s.ctx, callLimit)
		err := w.tie(ctx, t, key, 0, []*lease{l}, func(sql string, args []any, scan func(pgx.Rows) error) error {
			return w.s.do(ctx, "tie", sql, args, scan)
		})
		cancel()
		w.mu.Lock()
		done := err == nil || t.key != key || w.closed
		w.mu.Unlock()
		if done {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-w.s.ctx.Done():
			return
		}
	}
}

// tie ties leases to the session with that key.
func (w *tethers) tie(ctx context.Context, t *tether, key, before int64, leases []*lease, do func(string, []any, func(pgx.Rows) error) error) error {
	ids, stand := make([]string, 0, len(leases)), map[string]bool{}
	w.mu.Lock()
	there := t.key == key && !w.closed // tied to a session that has ended already, a lease would look like a crashed process's
	for _, l := range leases {
		// A session that the server may end before the lease has run out would look like a crash of a process that is only stopped.
		if d := w.leases[l]; there && d != nil && borneFor(l) <= t.bear {
			ids = append(ids, l.id)
			d.perhaps[t.i] = true // before the call: it may happen whatever its answer
		}
	}
	w.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	err := do("SELECT {S}.tie($1::text[], $2::bigint, $3::bigint)", []any{ids, key, before}, func(r pgx.Rows) error {
		id := ""
		err := r.Scan(&id)
		stand[id] = true
		return err
	})
	if err != nil {
		return err
	}
	var gone []*lease
	w.mu.Lock()
	for _, l := range leases {
		d := w.leases[l]
		switch {
		case d == nil || !slices.Contains(ids, l.id):
		case !stand[l.id]:
			gone = append(gone, l)
		case t.key == key:
			d.sure[t.i] = true
		case !d.sure[0] && !d.sure[1]: // tied to a session that has ended meanwhile
			w.bare(l, d)
		}
	}
	w.mu.Unlock()
	for _, l := range gone {
		l.end()
	}
	return nil
}

// detach notes that a session has ended.
func (w *tethers) detach(t *tether, key int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.key != key || w.closed {
		return
	}
	t.key = 0
	for l, d := range w.leases {
		was := d.perhaps[t.i]
		d.perhaps[t.i], d.sure[t.i] = false, false
		if was && !d.sure[1-t.i] {
			w.bare(l, d)
		}
	}
}

// bare has a lease end in this process unless it is tied again in time. The caller has the mutex.
func (w *tethers) bare(l *lease, d *tied) {
	at := time.Now()
	d.bared = at
	time.AfterFunc(w.retie, func() {
		w.mu.Lock()
		keep := w.leases[l] != d || w.closed || d.bared != at || d.sure[0] || d.sure[1] || w.refused.After(at)
		w.mu.Unlock()
		if !keep {
			l.end()
		}
	})
}

// refusal notes that the server refuses connections, if that is what err says.
func (w *tethers) refusal(t *tether, err error) {
	w.mu.Lock()
	at := t.way
	w.mu.Unlock()
	if !at.direct {
		return
	}
	var pe *pgconn.PgError
	down := errors.As(err, &pe) && pe.Code == "57P03" && w.s.down(at.at, w.retie)
	if !down && pe == nil { // the error may be another host's
		var nc net.Conn
		if nc, err = net.DialTimeout(at.at.Network(), at.at.String(), w.retie); err == nil {
			nc.Close()
		}
		down = errors.Is(err, syscall.ECONNREFUSED) || at.at.Network() == "unix" && errors.Is(err, syscall.ENOENT)
	}
	if down {
		w.mu.Lock()
		w.refused = time.Now()
		w.mu.Unlock()
	}
}

// down says whether the server at that address is being shut down or has not started. A host's name may stand for several servers.
func (s *Store) down(at net.Addr, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	c := s.cfg.ConnConfig.Copy()
	if s.cfg.BeforeConnect != nil && s.cfg.BeforeConnect(ctx, c) != nil {
		return false
	}
	if at.Network() == "unix" {
		if strings.Contains(s.hosts, ",") {
			return false
		}
	} else {
		c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{at.String()}, nil }
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	discard(conn)
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "57P03"
}

// forget drops a lease that has ended: its rows go with the next sweep.
func (w *tethers) forget(l *lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.leases, l)
}

// loosen makes what is still tied wait for its ttl, for the sessions end with the store and not with the process's work. It says whether that is done.
func (w *tethers) loosen() (done bool) {
	w.mu.Lock()
	w.closed = true
	var ids []string
	doubt := false // a call that ties one may come to the server later than this
	for l, d := range w.leases {
		ids = append(ids, l.id)
		for i := range d.perhaps {
			doubt = doubt || d.perhaps[i] && !d.sure[i]
		}
	}
	w.mu.Unlock()
	if len(ids) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return w.s.do(ctx, "loosen", "DELETE FROM {S}.tethers WHERE lease = ANY ($1::text[])", []any{ids}, nil) == nil && !doubt
}

// close ends the sessions: at once if nothing is tied to them, else when all leases have run out.
func (w *tethers) close(loose bool) {
	end := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, t := range w.lines {
			cut(t.conn)
			cut(t.old)
		}
	}
	if loose {
		end()
		return
	}
	time.AfterFunc(w.silence(), end)
}

// able says whether leases can be tied over such a connection, with a warning for people.
func (s *Store) able(ctx context.Context, conn *pgx.Conn) (yes bool, warning string) {
	pid, server, client := "", "", ""
	err := conn.QueryRow(ctx, "SELECT pg_backend_pid()::text, "+ends, pgx.QueryExecModeExec).Scan(&pid, &server, &client)
	switch {
	case err != nil:
		return false, "advisory-wake is off: " + s.wrap(ctx, "open", err).Error()
	case pid != strconv.FormatUint(uint64(conn.PgConn().PID()), 10):
		return false, "advisory-wake is off: a connection pooler (pgbouncer) stands before the server, whose connections do not end with a process"
	case !wayOf(conn, server, client).direct:
		return true, "advisory-wake over a proxy or address translation: what ends its connections looks like a crash of all who hold over them, and their terms end with them, " +
			"as with a restart of the server"
	}
	return true, ""
}

// finding says how leases are tied, for people.
func (w *tethers) finding() driver.Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := driver.Finding{Topic: "advisory wake", Level: driver.Warning, Advice: "use it with pgstore.Fence: docs/postgres.md",
		Found: "is on: " + wakeDoubt + " makes two leaders"}
	for _, d := range w.leases {
		if !d.sure[0] || !d.sure[1] {
			f.Found = "is on, and a lease is not tied to two connections just now"
		}
	}
	return f
}
