// Package libpq writes connection strings for PostgreSQL's own programs, and reads them for ours
// without what the environment says.
package libpq

import (
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Vanished has a connection end some seconds after the other side vanished without a word: while it
// connects, while it is idle, and while what it has sent is not acknowledged. A copy that waits for
// a machine that is gone would else last until the kernel gives up, after two hours.
var Vanished = map[string]string{
	"connect_timeout": "3", "keepalives": "1", "keepalives_idle": "2", "keepalives_interval": "1",
	"keepalives_count": "4", "tcp_user_timeout": "6000",
}

var escapes = strings.NewReplacer(`'`, `\'`, `\`, `\\`)

// Quote quotes a value for a connection string.
func Quote(v string) string { return "'" + escapes.Replace(v) + "'" }

// String returns the connection string with these keys, in their order, each value quoted.
func String(values map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, key+"="+Quote(values[key]))
	}
	return strings.Join(parts, " ")
}

// Replication is the role as which a standby logs in at its primary.
type Replication struct {
	User     string
	Passfile string // in libpq's format; empty: the role has no password
}

// Conninfo is how a walreceiver, pg_basebackup and pg_rewind reach a server: libpq's keywords and
// values, without dbname. A server that vanishes without a word is noticed within some seconds.
func (r Replication) Conninfo(host, port, as string) (string, error) {
	_, err := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || strings.ContainsAny(host, ",\n\x00") {
		return "", fmt.Errorf("address %q: give one host and a port", net.JoinHostPort(host, port))
	}
	values := maps.Clone(Vanished)
	values["host"], values["port"], values["user"] = host, port, r.User
	if as != "" {
		values["application_name"] = as
	}
	if r.Passfile != "" {
		values["passfile"] = r.Passfile
	}
	return String(values), nil
}

// environment is held while libpq's variables are not in it.
var environment sync.Mutex

// Parse reads a connection string, and nothing else: no variable of the environment, such as
// PGSERVICE, leads the connection to another server, or is a reason to refuse. pgx reads the
// environment always, so the variables are taken out of it meanwhile. The keys of [Vanished] are
// for PostgreSQL's programs; the connection behaves as they say, also without them.
func Parse(conninfo string) (*pgconn.Config, error) {
	environment.Lock()
	defer environment.Unlock()
	for _, one := range os.Environ() {
		name, value, _ := strings.Cut(one, "=")
		if strings.HasPrefix(name, "PG") && !strings.HasPrefix(name, "PG_") { // PG_OOM_… is for the postmaster
			if err := os.Unsetenv(name); err != nil {
				return nil, err
			}
			defer func() { _ = os.Setenv(name, value) }()
		}
	}
	c, err := pgconn.ParseConfig(conninfo)
	if err != nil {
		return nil, err
	}
	for key := range Vanished { // pgx would send these to the server as settings
		delete(c.RuntimeParams, key)
	}
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 4},
		Control:         userTimeout(6 * time.Second),
	}
	c.DialFunc = dialer.DialContext
	return c, nil
}
