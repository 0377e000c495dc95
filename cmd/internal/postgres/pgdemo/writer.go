// Package pgdemo has the parts of `primacy postgres demo`: a writer that remembers what it was told
// of each row, and process trees that are frozen and killed as if they were machines.
package pgdemo

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/cmd/internal/postgres/libpq"
)

// Server is where one PostgreSQL listens: a Unix socket, which lets in nobody but its own user.
type Server struct {
	Name      string // of its member
	SocketDir string
	Port      string
}

func (s Server) socket() string { return filepath.Join(s.SocketDir, ".s.PGSQL."+s.Port) }

const tableName = "primacy_demo"

// pace is the time from one row to the next.
const pace = 20 * time.Millisecond

// Writer inserts rows with the numbers 1, 2, 3, …, one after another, into whichever of the servers
// is the primary. It is an ordinary client: a connection string with several hosts, limits, and a
// new connection after each failure. It never writes a number twice.
type Writer struct {
	servers []Server
	limit   time.Duration // for one insert
	row     atomic.Int64  // the last number that was used

	mu      sync.Mutex
	acks    []ack
	unknown []int64
}

type ack struct {
	row int64
	at  time.Time
	by  string // the member
}

// NewWriter returns a writer for a cluster whose lease lives for ttl. It does no I/O.
func NewWriter(servers []Server, ttl time.Duration) *Writer {
	return &Writer{servers: servers, limit: min(max(ttl/2, time.Second/2), 2*time.Second)}
}

// Run writes until ctx ends. The row under way then is brought to its end.
func (w *Writer) Run(ctx context.Context) {
	var conn *pgconn.PgConn
	warned := new(atomic.Bool)
	defer func() {
		if conn != nil {
			closeNow(conn)
		}
	}()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if conn == nil {
			if conn = w.connect(ctx, warned); conn == nil {
				return
			}
		}
		if !w.insert(conn, warned, w.limit) {
			closeNow(conn)
			conn = nil
		}
	}
}

// insert inserts the next row, and says whether it was acknowledged.
func (w *Writer) insert(conn *pgconn.PgConn, warned *atomic.Bool, limit time.Duration) bool {
	row := w.row.Add(1)
	warned.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err := conn.Exec(ctx, fmt.Sprintf("INSERT INTO %s VALUES (%d)", tableName, row)).ReadAll()
	if err == nil && !warned.Load() {
		w.acknowledged(row, w.at(conn))
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unknown = append(w.unknown, row)
	return false
}

// Pin opens a connection to one server, and returns what inserts one row over it: whether it was
// acknowledged within the limit. So does a client that has not noticed that another server is the
// primary by now.
func (w *Writer) Pin(ctx context.Context, s Server) (insert func(limit time.Duration) bool, err error) {
	warned := new(atomic.Bool)
	conn, err := connect(ctx, []Server{s}, "any", 5*time.Second, watch(warned))
	if err != nil {
		return nil, err
	}
	return func(limit time.Duration) bool {
		defer closeNow(conn)
		return w.insert(conn, warned, limit)
	}, nil
}

// watch sees that a COMMIT did not wait for the standbys: it succeeds with a WARNING.
func watch(warned *atomic.Bool) func(*pgconn.Notice) {
	return func(n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" {
			warned.Store(true)
		}
	}
}

func (w *Writer) acknowledged(row int64, by string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acks = append(w.acks, ack{row, time.Now(), by})
}

// connect returns a connection to the primary, or nil when ctx ends first. It begins with the
// server after the one that was used last: that one may accept connections and never answer.
func (w *Writer) connect(ctx context.Context, warned *atomic.Bool) *pgconn.PgConn {
	limit := w.limit / 3
	for try := 0; ctx.Err() == nil; try++ {
		conn, err := connect(ctx, w.after(w.last()), "primary", limit, watch(warned))
		if err == nil {
			return conn
		}
		if try%3 == 2 {
			limit = min(2*limit, 4*time.Second) // a busy machine
		}
		pause(ctx, pace)
	}
	return nil
}

func (w *Writer) last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.acks) == 0 {
		return ""
	}
	return w.acks[len(w.acks)-1].by
}

func (w *Writer) after(name string) []Server {
	for i, s := range w.servers {
		if s.Name == name {
			return append(append([]Server{}, w.servers[i+1:]...), w.servers[:i+1]...)
		}
	}
	return w.servers
}

// at returns the member that a connection leads to.
func (w *Writer) at(conn *pgconn.PgConn) string {
	addr, ok := conn.Conn().RemoteAddr().(*net.UnixAddr)
	for _, s := range w.servers {
		if ok && addr.Name == s.socket() {
			return s.Name
		}
	}
	return ""
}

// Counts returns how many rows were acknowledged, how many have an unknown outcome, and who
// acknowledged the last one when.
func (w *Writer) Counts() (acknowledged, unknown int, by string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.acks); n > 0 {
		acknowledged, by, at = n, w.acks[n-1].by, w.acks[n-1].at
	}
	return acknowledged, len(w.unknown), by, at
}

// Gap returns the longest time in which no row was acknowledged, of those that ended after since.
func (w *Writer) Gap(since time.Time) (longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.acks) - 1; i > 0 && w.acks[i].at.After(since); i-- {
		longest = max(longest, w.acks[i].at.Sub(w.acks[i-1].at))
	}
	return longest
}

// Verdict is what became of the writer's rows.
type Verdict struct {
	Acknowledged int
	Unknown      int     // no answer came, or one with a WARNING
	UnknownThere int     // of these, rows that the primary has
	Lost         []int64 // acknowledged, and the primary does not have them
	Missing      map[string][]int64
}

// Judge compares what was acknowledged with the rows that each member has now.
func (w *Writer) Judge(primary string, rows map[string]map[int64]bool) Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := Verdict{Acknowledged: len(w.acks), Unknown: len(w.unknown), Missing: map[string][]int64{}}
	for _, a := range w.acks {
		if !rows[primary][a.row] {
			v.Lost = append(v.Lost, a.row)
		}
		for name, has := range rows {
			if !has[a.row] {
				v.Missing[name] = append(v.Missing[name], a.row)
			}
		}
	}
	for _, row := range w.unknown {
		if rows[primary][row] {
			v.UnknownThere++
		}
	}
	return v
}

// Prepare makes the writer's table. It returns once a standby has it.
func Prepare(ctx context.Context, servers []Server, limit time.Duration) error {
	conn, err := connect(ctx, servers, "primary", limit, nil)
	if err != nil {
		return err
	}
	defer closeNow(conn)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err = conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+tableName+" (n bigint PRIMARY KEY)").ReadAll()
	return err
}

// Rows returns the rows that a server has.
func Rows(ctx context.Context, s Server, limit time.Duration) (map[int64]bool, error) {
	rows := map[int64]bool{}
	err := query(ctx, s, limit, "SELECT n FROM "+tableName, func(values [][]byte) {
		var n int64
		_, _ = fmt.Sscan(string(values[0]), &n)
		rows[n] = true
	})
	return rows, err
}

// LastRow returns the largest number that a server has, 0 if it has no row.
func LastRow(ctx context.Context, s Server, limit time.Duration) (last int64, err error) {
	err = query(ctx, s, limit, "SELECT coalesce(max(n), 0) FROM "+tableName, func(values [][]byte) {
		_, _ = fmt.Sscan(string(values[0]), &last)
	})
	return last, err
}

func query(ctx context.Context, s Server, limit time.Duration, sql string, each func([][]byte)) error {
	conn, err := connect(ctx, []Server{s}, "any", limit, nil)
	if err != nil {
		return err
	}
	defer closeNow(conn)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return err
	}
	for _, row := range results[0].Rows {
		each(row)
	}
	return nil
}

// connect takes the first server that answers within the limit and is what is wanted: "primary" or
// "any".
func connect(ctx context.Context, servers []Server, want string, limit time.Duration, notice func(*pgconn.Notice),
) (*pgconn.PgConn, error) {
	var hosts, ports []string
	for _, s := range servers {
		hosts, ports = append(hosts, s.SocketDir), append(ports, s.Port)
	}
	c, err := libpq.Parse(libpq.String(map[string]string{"host": strings.Join(hosts, ","),
		"port": strings.Join(ports, ","), "user": "postgres", "dbname": "postgres", "sslmode": "disable",
		"target_session_attrs": want, "passfile": os.DevNull}))
	if err != nil {
		return nil, err
	}
	c.ConnectTimeout = limit
	if notice != nil {
		c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notice(n) }
	}
	return pgconn.ConnectConfig(ctx, c)
}

// closeNow does not wait for a server that does not answer.
func closeNow(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
