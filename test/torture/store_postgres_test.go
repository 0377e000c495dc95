//go:build linux

package torture

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/pgtest"
)

func onPostgres() *storeUnder {
	return &storeUnder{name: "postgres", ttl: storeTTL, start: func(t testing.TB) *installed {
		pg := pgtest.Start(t, pgtest.Options{})
		return &installed{servers: []string{pg.Addr()}, troubles: troublesOf(t, "PostgreSQL", pg),
			url: func(servers []string) string { return pg.URLAt(servers[0]) }}
	}}
}

// onPostgresPair is a primary with a synchronous standby, which takes over when the primary is
// killed. Clients know both addresses.
func onPostgresPair() *storeUnder {
	return &storeUnder{name: "postgres-failover", long: true, ttl: storeTTL, start: func(t testing.TB) *installed {
		p := &postgresPair{t: t, primary: pgtest.Start(t, pgtest.Options{})}
		p.follow()
		p.addrs = [2]*vip{newVIP(t, p.primary.Addr()), newVIP(t, p.standby.Addr())}
		primary := func(*rand.Rand) testServer { return p.primary }
		standby := func(*rand.Rand) testServer { return p.standby }
		return &installed{servers: []string{p.addrs[0].addr(), p.addrs[1].addr()},
			url: func(servers []string) string {
				return p.primary.URLAt(strings.Join(servers, ",")) + "&target_session_attrs=read-write"
			},
			troubles: []trouble{
				{"failover", false, p.failover},
				{"failover, standby behind", false, p.failoverBehind},
				stop("freeze primary", true, primary),
				stop("freeze standby", true, standby),
			}}
	}}
}

type postgresPair struct {
	t                testing.TB
	primary, standby *pgtest.Server
	between          *etcdtest.Proxy // what the standby hears of the primary
	addrs            [2]*vip         // that of the primary is the first, until the first failover
	failovers        int
}

// follow makes a standby, which hears of the primary by way of a proxy.
func (p *postgresPair) follow() {
	p.standby = p.primary.Standby()
	p.between = etcdtest.NewProxy(p.t, p.primary.Addr())
	_, port, err := net.SplitHostPort(p.between.Addr())
	if err != nil {
		p.t.Fatal(err)
	}
	p.standby.Exec(fmt.Sprintf("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=%s user=%s'", port,
		pgtest.User))
	p.standby.Exec("SELECT pg_reload_conf()")
	eventually(p.t, 20*time.Second, "the standby to follow by way of the proxy", func() bool {
		return p.standby.Query("SELECT sender_port FROM pg_stat_wal_receiver WHERE status = 'streaming'") == port &&
			p.primary.Query("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1"
	})
}

// failover kills the primary and promotes its standby. In the end there is a new standby, at the
// old primary's address.
func (p *postgresPair) failover(*rand.Rand) (end func()) {
	p.primary.Kill()
	p.between.Cut()
	p.standby.Exec("ALTER SYSTEM SET synchronous_standby_names = ''") // or the new primary would wait for one
	p.standby.Exec("SELECT pg_reload_conf()")
	p.standby.Promote()
	p.primary = p.standby
	return func() {
		p.follow()
		p.addrs[p.failovers%2].move(p.standby.Addr())
		p.failovers++
	}
}

// failoverBehind has the primary die when its standby has not heard of it for a while: what was
// written meanwhile was acknowledged to nobody, but clients that gave up waiting for that may have
// seen it.
func (p *postgresPair) failoverBehind(rng *rand.Rand) (end func()) {
	p.between.Hold()
	time.Sleep(between(rng, storeTTL/2, 3*storeTTL))
	return p.failover(rng)
}
