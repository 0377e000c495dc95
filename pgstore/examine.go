package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
)

// settings is how a server says that it is set up.
type settings struct {
	fsync, pages, commit, standbys string
	followers, sync                int // standbys, and those of them that are synchronous
	timeline                       string
}

// settings asks a server how it is set up. An ordinary role sees only how many standbys there are.
func (d *db) settings(ctx context.Context, conn *pgx.Conn) (st settings, err error) {
	err = conn.QueryRow(ctx, d.schema.fill.Replace(`SELECT current_setting('fsync'),
		current_setting('full_page_writes'), current_setting('synchronous_commit'),
		coalesce(current_setting('synchronous_standby_names', true), ''), (SELECT count(*) FROM pg_stat_replication),
		(SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')), {S}.timeline()`),
		pgx.QueryExecModeExec).
		Scan(&st.fsync, &st.pages, &st.commit, &st.standbys, &st.followers, &st.sync, &st.timeline)
	return st, err
}

// faults returns what cannot be promised with these settings, each with what to do.
func (st settings) faults() (all [][2]string) {
	add := func(fault, advice string) { all = append(all, [2]string{fault, advice}) }
	if st.fsync == "off" || st.pages == "off" {
		add("the server's fsync or full_page_writes is off: "+
			"a crash of its machine may lose claims and give tokens out twice", "set both to on")
	}
	if st.followers > 0 && st.standbys == "" {
		add("standbys follow the server and none is synchronous: "+
			"a failover may lose claims, have two lead for a while and give tokens out twice",
			"set synchronous_standby_names")
	}
	if st.commit == "off" || st.commit == "local" || st.commit == "remote_write" {
		add("synchronous_commit is "+st.commit+": this store's own writes are synchronous all the same, "+
			"those of your transactions are not", "set synchronous_commit to on where you fence")
	}
	if st.timeline == "" {
		add("the server does not tell its timeline: after a failover the clocks of the two servers must agree",
			"keep them in step by NTP")
	}
	return all
}

// bestEffort names what can make two leaders, for driver.Caps; nothing where nothing can.
func (st settings) bestEffort() string {
	var all []string
	if st.followers > 0 && st.standbys == "" {
		all = append(all, "a failover to a standby that lags")
	}
	if st.fsync == "off" || st.pages == "off" {
		all = append(all, "a crash of the machine")
	}
	return strings.Join(all, ", or ")
}

// Examine implements [driver.Store].
func (s *Store) Examine(ctx context.Context, name string) []driver.Finding {
	ctx, cancel := context.WithTimeout(ctx, 2*callLimit)
	defer cancel()
	out := []driver.Finding{s.reach(ctx)}
	if out[0].Level == driver.Failed {
		return out
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return append(out, failed("server", s.wrap(ctx, "examine", err)))
	}
	st, err := s.settings(ctx, conn.Conn())
	conn.Release() // the pool may have no other, and permission needs one
	if err != nil {
		return append(out, failed("settings", s.wrap(ctx, "settings", err)))
	}
	durable := driver.Finding{Topic: "durability", Level: driver.Fine, Found: "acknowledged writes last"}
	if st.sync > 0 {
		durable.Found += fmt.Sprintf(", on %d synchronous standbys too", st.sync)
	} else if st.standbys != "" {
		durable.Level = driver.Warning
		durable.Found = "synchronous_standby_names is set and no such standby follows: writes hang"
		durable.Advice = "start the standby, or take it out of synchronous_standby_names"
	}
	out = append(out, durable)
	for _, f := range st.faults() {
		out = append(out, driver.Finding{Topic: "durability", Level: driver.Warning, Found: f[0], Advice: f[1]})
	}
	return append(out, s.push(), s.permission(ctx, name))
}

// reach says how fast the primary answers.
func (s *Store) reach(ctx context.Context) driver.Finding {
	begun := time.Now()
	conn, err := s.connect(ctx, beside)
	if err != nil {
		return failed("server "+s.hosts, s.wrap(ctx, "connect", err))
	}
	defer discard(conn)
	took := time.Since(begun)
	begun = time.Now()
	if err := conn.Ping(ctx); err != nil {
		return failed("server "+s.hosts, s.wrap(ctx, "ping", err))
	}
	at := conn.PgConn().Conn().RemoteAddr().String()
	if _, _, err := net.SplitHostPort(at); err != nil {
		at = s.hosts
	}
	found := fmt.Sprintf("PostgreSQL %s, primary, connects in %v, answers in %v",
		conn.PgConn().ParameterStatus("server_version"), took.Round(100*time.Microsecond),
		time.Since(begun).Round(10*time.Microsecond))
	return driver.Finding{Topic: "server " + at, Level: driver.Fine, Found: found}
}

// push says whether notifications come.
func (s *Store) push() driver.Finding {
	if s.listener.works() {
		return driver.Finding{Topic: "notifications", Level: driver.Fine, Found: "come: hand-overs are pushed"}
	}
	return driver.Finding{Topic: "notifications", Level: driver.Warning,
		Found:  "do not come, or a pooler is in front of the server: waiters ask every " + fastPoll.String(),
		Advice: "connect directly, not through pgbouncer"}
}

// permission says whether this role may do all that a session needs. It looks at rights only.
func (s *Store) permission(ctx context.Context, name string) driver.Finding {
	missing, err := s.texts(ctx, "permission", `SELECT t
		FROM unnest(ARRAY['leases', 'claims', 'spent', 'lines', 'requests', 'records']) t,
			unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r
		WHERE NOT has_table_privilege(format('%I.%I', $1::text, t), r) GROUP BY t`, s.schema.name)
	if err == nil {
		_, err = s.Line(ctx, name)
	}
	switch {
	case err == nil && len(missing) == 0:
		return driver.Finding{Topic: "permission", Level: driver.Fine,
			Found: fmt.Sprintf("may read and write the schema %q", s.schema.name)}
	case err == nil:
		err = fmt.Errorf("may not write to %v of the schema %q", missing, s.schema.name)
	case !errors.Is(err, driver.ErrRefused):
		return failed("permission", err)
	}
	f := failed("permission", err)
	f.Advice = "have the owner of the schema run what primacy schema prints for this user (pgstore.Grants)"
	return f
}

func failed(topic string, err error) driver.Finding {
	return driver.Finding{Topic: topic, Level: driver.Failed, Found: line(err.Error())}
}
