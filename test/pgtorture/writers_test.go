//go:build linux

package pgtorture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/internal/boottime"
)

// writeEvery is how often a writer inserts a row. tryAgain is the least time from one try that
// failed to the next; the most is twice that. Each try makes up to three servers start a process,
// all on this one machine: shorter, the writers' search for the next primary takes the processors
// from it. One of eight tries every 10 ms.
const (
	writeEvery = 20 * time.Millisecond
	tryAgain   = 50 * time.Millisecond
)

// Limits of a writer: how long it tries one address, and how long it waits for an answer before it
// connects anew. One that is pinned waits longer than anything is frozen, so that it meets what is
// thawed.
const (
	connectWithin = 300 * time.Millisecond
	answerWithin  = 3 * time.Second
	pinnedWithin  = 30 * time.Second
)

// ack is a row whose COMMIT came back without a WARNING.
type ack struct {
	id        uint64 // number of the round, of the writer, of its row
	node      string // that answered
	timeline  uint32 // of that node's WAL
	call, ret time.Duration
}

const roundBits, writerBits = 32, 24

func rowID(round, writer, seq uint64) uint64 { return round<<roundBits | writer<<writerBits | seq }

func (a ack) round() uint64 { return a.id >> roundBits }

func (a ack) writer() int { return int(a.id >> writerBits & (1<<(roundBits-writerBits) - 1)) }

// acks is all that was acknowledged.
type acks struct {
	mu      sync.Mutex
	all     []ack
	unknown int // rows whose COMMIT came back with a WARNING, or did not come back
}

func (a *acks) add(x ack) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, x)
}

// since returns a copy of those from the nth on.
func (a *acks) since(n int) []ack {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all[n:])
}

func (a *acks) len() int { a.mu.Lock(); defer a.mu.Unlock(); return len(a.all) }

// longest returns the longest time in which none of the first so many writers had a row
// acknowledged, and when it began. It looks at those from the nth on.
func (a *acks) longest(n, writers int, from, to time.Duration) (gap, at time.Duration) {
	var rets []time.Duration
	for _, x := range a.since(n) {
		if x.ret >= from && x.ret <= to && x.writer() < writers {
			rets = append(rets, x.ret)
		}
	}
	slices.Sort(rets)
	last := from
	for _, r := range append(rets, to) {
		if r-last > gap {
			gap, at = r-last, last
		}
		last = r
	}
	return gap, at
}

// writer inserts rows. One without a node finds the primary among all of them, as a user's program
// does; one with a node talks to that one's address only, whatever it is.
type writer struct {
	number uint64
	pinned string // the node
	hosts  []string
	ports  []string
	names  map[string]string // of nodes, by address
	round  *atomic.Uint64
	acks   *acks

	conn   *pgconn.PgConn
	node   string
	warned bool
	at     uint64 // the round of seq
	seq    uint64
}

// run writes until the context ends.
func (w *writer) run(ctx context.Context) {
	next := time.Now()
	for ctx.Err() == nil {
		if err := w.write(ctx); err != nil {
			w.drop()
			pause(ctx, tryAgain+rand.N(tryAgain))
		}
		next = next.Add(writeEvery)
		if late := time.Since(next); late > writeEvery {
			// One that was held up goes on at once, and then in step: what it does in the first
			// milliseconds after a thaw is what counts.
			next = time.Now()
		}
		pause(ctx, time.Until(next))
	}
	w.drop()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (w *writer) drop() {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = w.conn.Close(ctx)
	w.conn = nil
}

// connect finds a primary, or for a pinned writer its node.
func (w *writer) connect(ctx context.Context) error {
	order := rand.Perm(len(w.hosts))
	var hosts, ports []string
	for _, i := range order {
		hosts, ports = append(hosts, w.hosts[i]), append(ports, w.ports[i])
	}
	attrs := "read-write"
	if w.pinned != "" {
		attrs = "any"
	}
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres sslmode=disable "+
		"target_session_attrs=%s", strings.Join(hosts, ","), strings.Join(ports, ","), attrs))
	if err != nil {
		return err
	}
	cfg.ConnectTimeout = connectWithin
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { w.warned = true }
	c, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	w.conn, w.node = c, w.names[c.Conn().RemoteAddr().String()]
	return nil
}

// write inserts one row.
func (w *writer) write(ctx context.Context) error {
	within := answerWithin
	if w.pinned != "" {
		within = pinnedWithin
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if w.conn == nil {
		if err := w.connect(ctx); err != nil {
			return err
		}
	}
	if w.pinned != "" { // it asks first: a standby logs each insert that it refuses
		if rows, err := query(ctx, w.conn, "SELECT pg_is_in_recovery()"); err != nil {
			return err
		} else if rows[0][0] != "f" {
			return nil
		}
	}
	if r := w.round.Load(); r != w.at {
		w.at, w.seq = r, 0
	}
	w.seq++
	x := ack{id: rowID(w.at, w.number, w.seq), node: w.node}
	w.warned = false
	x.call = boottime.Now()
	rows, err := query(ctx, w.conn, fmt.Sprintf(
		"INSERT INTO rows VALUES (%d) RETURNING substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)", x.id))
	x.ret = boottime.Now()
	if err != nil || w.warned {
		w.acks.mu.Lock()
		w.acks.unknown++
		w.acks.mu.Unlock()
		return errors.Join(err, errors.New("unknown"))
	}
	if _, err := fmt.Sscanf(rows[0][0], "%X", &x.timeline); err != nil {
		return err
	}
	w.acks.add(x)
	return nil
}

// query runs one statement in the simple protocol: the command's tag, which ends it, is sent after
// the commit.
func query(ctx context.Context, c *pgconn.PgConn, sql string) ([][]string, error) {
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, r := range results {
		for _, cells := range r.Rows {
			var row []string
			for _, cell := range cells {
				row = append(row, string(cell))
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// address is a node's, as a connection says it.
func address(host, port string) string { return net.JoinHostPort(host, port) }
