package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// callLimit is how long the store's own questions may take.
const callLimit = 5 * time.Second

var (
	errClosed = errors.New("postgres: the store was closed")
	// errBusy says that a transaction that was fenced with the claim is under way. Nothing
	// happened.
	errBusy = errors.New("a transaction that was fenced with the claim is under way")
	// errLocal says that a commit is on the primary's disk, and not known to be on the standby's.
	// The server answers "success" all the same.
	errLocal = errors.New("the wait for the synchronous standby was cancelled: whether the write lasts is not known")
)

// warned is the key under which a connection counts the server's warnings.
const warned = "primacy.warned"

// clientLimits has the server give up a client that does not answer, or does not read what it is
// sent. Such a client's transaction would keep a line locked for all others.
const clientLimits = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; " +
	"SET tcp_keepalives_count = 3; SET tcp_user_timeout = 10000"

// db runs statements on PostgreSQL.
type db struct {
	schema *schema
	cfg    *pgxpool.Config
	hosts  string // for errors
	order  hostOrder
	pool   *pgxpool.Pool

	ctx    context.Context // ends with Store.Close
	cancel context.CancelFunc
	work   sync.WaitGroup // what runs until Store.Close
}

// newDB sets the configuration up for the store. The caller makes the pool.
func newDB(cfg *pgxpool.Config, c *schema) *db {
	tune(cfg)
	d := &db{schema: c, cfg: cfg, hosts: hostsOf(&cfg.ConnConfig.Config)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { // it tries one host after the other
		lead(&c.Config, d.order.sorted(&c.Config, false)...)
		return nil
	}
	return d
}

// tune sets a pool's configuration up for the store.
func tune(cfg *pgxpool.Config) {
	c := cfg.ConnConfig
	if c.ConnectTimeout == 0 || c.ConnectTimeout > 2*time.Minute-1 { // a silent host must not keep us from the next one
		c.ConnectTimeout = 3 * time.Second
	}
	// A standby answers reads with the past and refuses writes: the primary is what we want,
	// whichever host it is.
	if c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "primacy"
	}
	c.RuntimeParams["client_encoding"] = "UTF8" // a role or database may have set another one
	c.RuntimeParams["standard_conforming_strings"] = "on"
	// Nothing is prepared on the server: behind pgbouncer the next statement may go to another
	// connection.
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.PgConn().Exec(ctx, clientLimits).ReadAll(); err != nil && conn.IsClosed() {
			return err // a setting that this server does not know is left out
		}
		return nil
	}
	c.OnNotification = nil // the connection that listens reads them itself
	before := c.OnNotice
	c.OnNotice = func(pc *pgconn.PgConn, n *pgconn.Notice) {
		// Any of these may be a commit that did not wait for the standby: the text is in the
		// server's language.
		if (n.SeverityUnlocalized == "WARNING" || n.Severity == "WARNING") && (n.Code == "01000" || n.Code == "57P01") {
			count, _ := pc.CustomData()[warned].(int)
			pc.CustomData()[warned] = count + 1
		}
		if before != nil {
			before(pc, n)
		}
	}
}

// connectFirst connects, and waits for a server that is starting or full, or does not answer.
func (d *db) connectFirst(ctx context.Context) (*pgx.Conn, error) {
	for {
		conn, err := d.connect(ctx, beside)
		var pe *pgconn.PgError
		switch {
		case err == nil || ctx.Err() != nil:
			return conn, err
		case errors.As(err, &pe):
			if pe.Code != "57P03" && pe.Code != full {
				return nil, err
			}
		case !timeout(err):
			return nil, err
		}
		if storeutil.Sleep(ctx, 100*time.Millisecond) != nil {
			return nil, err
		}
	}
}

// discard closes a connection without waiting for its server.
func discard(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = conn.Close(ctx)
}

// query runs one statement and reads its rows. An answer that the standby may not have is errLocal.
//
// The statement is one message, which reaches the server as a whole or not at all. Sent as several,
// of which the last commits, it would keep the line locked when the link dies before the last one,
// until the server gives the link up.
func query(ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Rows) error) error {
	before, _ := conn.PgConn().CustomData()[warned].(int)
	rows, err := conn.Query(ctx, sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if scan == nil {
			continue
		}
		if err := scan(rows); err != nil {
			return err
		}
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return err
	}
	if after, _ := conn.PgConn().CustomData()[warned].(int); after != before {
		return errLocal
	}
	return nil
}

// into scans each row into the same variables.
func into(vars ...any) func(pgx.Rows) error {
	return func(r pgx.Rows) error { return r.Scan(vars...) }
}

// do runs one statement on a connection of the pool.
func (d *db) do(ctx context.Context, verb, sql string, args []any, scan func(pgx.Rows) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d.ctx.Err() != nil {
		return errClosed
	}
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return d.wrap(ctx, verb, err)
	}
	err = query(ctx, conn.Conn(), d.schema.fill.Replace(sql), args, scan)
	conn.Release()
	if err != nil && readOnly(err) {
		d.pool.Reset() // all of them lead to a server that is no primary any more
	}
	return d.wrap(ctx, verb, err)
}

// texts runs a statement whose answer has one column of text.
func (d *db) texts(ctx context.Context, verb, sql string, args ...any) (all []string, err error) {
	err = d.do(ctx, verb, sql, args, func(rows pgx.Rows) error {
		var text []byte
		err := rows.Scan(&text)
		all = append(all, string(text))
		return err
	})
	return all, err
}

// doUnfenced runs a statement again while a fenced transaction keeps it from being carried out.
func (d *db) doUnfenced(ctx context.Context, verb, sql string, args []any, scan func(pgx.Rows) error) error {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := d.do(ctx, verb, sql, args, scan)
		if !errors.Is(err, errBusy) {
			return err
		}
		if storeutil.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

func readOnly(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "25006"
}

// final says whether an error of PostgreSQL is final: nothing happened, and a repeated call would
// get the same answer.
func final(pe *pgconn.PgError) bool {
	switch pe.Code {
	case "42501", "PR001": // no permission, wrong isolation
		return true
	}
	switch pe.Code[:min(2, len(pe.Code))] {
	// login, no database, no schema, no table or function, too large, values that do not fit
	case "28", "3D", "3F", "42", "54", "22":
		return true
	}
	return false
}

// wrap returns the error of a call in one line, for people: with the hosts, without passwords.
func (d *db) wrap(ctx context.Context, verb string, err error) error {
	if err == nil {
		return nil
	}
	at := "postgres " + d.hosts + ": " + verb
	var pe *pgconn.PgError
	switch {
	case errors.Is(err, driver.ErrRefused):
		return fmt.Errorf("%s: %w", at, err)
	case errors.As(err, &pe) && pe.Code == "PR002":
		return fmt.Errorf("%s: %w", at, errBusy)
	case errors.As(err, &pe) && final(pe):
		return fmt.Errorf("%s: %w: %s", at, driver.ErrRefused, line(pe.Message))
	case errors.As(err, &pe):
		return fmt.Errorf("%s: %s (SQLSTATE %s)", at, line(pe.Message), pe.Code)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", at, ctx.Err())
	case d.ctx.Err() != nil:
		return errClosed
	}
	if timeout(err) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: no answer in time", at)
	}
	return fmt.Errorf("%s: %s", at, line(err.Error()))
}

// line makes one line of a text that may have several.
func line(text string) string { return strings.Join(strings.Fields(text), " ") }

// parseFaults are fixed words of the parser's errors, the more telling first.
var parseFaults = []string{
	"sslmode is invalid", "unable to read CA file", "unable to add CA to cert pool",
	`both "sslcert" and "sslkey" are required`, "unable to read sslkey", "failed to decode sslkey",
	"unable to find sslpassword", "unable to decrypt key", "unable to read cert", "unable to load cert",
	"failed to configure TLS", "invalid sslcertmode", "invalid connect_timeout",
	"could not match port numbers to hosts", "invalid port", "unknown target_session_attrs",
	"min_protocol_version", "max_protocol_version", "unknown channel_binding", "invalid require_auth",
	"failed to read service", "statement_cache_capacity", "description_cache_capacity",
	"default_query_exec_mode", "pool_max_conns", "pool_min_conns", "pool_min_idle_conns",
	"pool_max_conn_lifetime_jitter", "pool_max_conn_lifetime", "pool_max_conn_idle_time",
	"pool_health_check_period", "failed to parse as keyword/value", "failed to parse as URL",
}

// parseFault says why a connection string cannot be used. The parser's own text quotes the string,
// with a password that it did not take for one: only its fixed words are passed on.
func parseFault(err error) string {
	if err == nil { // there is none
		return ""
	}
	text := err.Error()
	if at := strings.LastIndex(text, "`: "); at >= 0 {
		text = text[at:]
	}
	for _, known := range parseFaults {
		if strings.Contains(text, known) {
			return known + ": "
		}
	}
	return ""
}

// hostsOf names where a configuration leads to.
func hostsOf(c *pgconn.Config) string {
	all := []string{address(c.Host, c.Port)}
	for _, f := range c.Fallbacks {
		if a := address(f.Host, f.Port); a != all[len(all)-1] { // with and without TLS it is there twice
			all = append(all, a)
		}
	}
	return strings.Join(all, ",")
}

func address(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

func timeout(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout() || errors.Is(err, context.DeadlineExceeded)
}
