//go:build linux

package torture

import (
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/internal/redistest"
)

func redisURL(servers []string) string { return "redis://" + strings.Join(servers, ",") }

// onRedis is one server that has each write on its disk before it answers.
func onRedis() *storeUnder {
	return &storeUnder{name: "redis", ttl: storeTTL, start: func(t testing.TB) *installed {
		r := redistest.Start(t, redistest.Options{Persist: "always"})
		return &installed{servers: []string{r.Addr()}, troubles: troublesOf(t, "Redis", r), url: redisURL}
	}}
}

// onRedisPair is a primary with a replica that takes over when the primary is killed, at the same
// address.
func onRedisPair() *storeUnder {
	return &storeUnder{name: "redis-failover", long: true, ttl: storeTTL, start: func(t testing.TB) *installed {
		p := &redisPair{t: t, primary: redistest.Start(t, redistest.Options{Persist: "always"})}
		p.follow()
		p.addr = newVIP(t, p.primary.Addr())
		return &installed{servers: []string{p.addr.addr()}, url: redisURL, troubles: []trouble{
			{"failover", false, p.failover},
			{"failover, replica behind", false, p.failoverBehind},
			{"old primary comes back empty", false, p.backEmpty},
			stop("freeze primary", true, func(*rand.Rand) testServer { return p.primary }),
		}}
	}}
}

type redisPair struct {
	t                testing.TB
	primary, replica *redistest.Server
	between          *etcdtest.Proxy // what the replica hears of the primary
	addr             *vip
}

// follow makes a replica, which hears of the primary by way of a proxy.
func (p *redisPair) follow() {
	p.between = etcdtest.NewProxy(p.t, p.primary.Addr())
	onethread.Do(func() { p.replica = redistest.Start(p.t, redistest.Options{Persist: "always", Replica: p.primary}) })
	host, port, err := net.SplitHostPort(p.between.Addr())
	if err != nil {
		p.t.Fatal(err)
	}
	p.replica.Do("REPLICAOF", host, port)
	p.replica.Synced()
}

// failover kills the primary and promotes its replica. In the end there is a new replica.
func (p *redisPair) failover(*rand.Rand) (end func()) {
	p.primary.Kill()
	p.between.Cut()
	p.replica.Promote()
	p.primary = p.replica
	p.addr.move(p.primary.Addr())
	return p.follow
}

// failoverBehind has the primary die when its replica has not heard of it for a while: what clients
// were told of in that time is lost.
func (p *redisPair) failoverBehind(rng *rand.Rand) (end func()) {
	p.between.Hold()
	time.Sleep(between(rng, 0, 2*storeTTL))
	return p.failover(rng)
}

// backEmpty has a primary die and come back with nothing, as one without persistence does.
func (p *redisPair) backEmpty(*rand.Rand) (end func()) {
	p.primary.Kill()
	p.between.Cut()
	onethread.Do(func() { p.primary = redistest.Start(p.t, redistest.Options{Young: true}) })
	p.addr.move(p.primary.Addr())
	return p.follow
}

// onQuorum is five independent servers, of which candidates need three.
func onQuorum() *storeUnder {
	return &storeUnder{name: "redis-quorum", ttl: storeTTL, noTokens: true, start: func(t testing.TB) *installed {
		var all []*redistest.Server
		i := &installed{url: func(servers []string) string {
			return "redis+quorum://" + strings.Join(servers, ",") + "?max-ttl=" + storeTTL.String()
		}}
		for range 5 {
			s := redistest.Start(t, redistest.Options{Persist: "always"})
			all, i.servers = append(all, s), append(i.servers, s.Addr())
		}
		i.troubles = []trouble{
			{"two of five killed", false, of(all, 2, (*redistest.Server).Kill,
				func(s *redistest.Server) { relaunch(t, s) })},
			{"two of five frozen", false, of(all, 2, (*redistest.Server).Stop, (*redistest.Server).Cont)},
			{"three of five frozen", true, of(all, 3, (*redistest.Server).Stop, (*redistest.Server).Cont)},
			{"each killed in turn", false, func(rng *rand.Rand) func() {
				for _, n := range rng.Perm(5) {
					all[n].Kill()
					time.Sleep(between(rng, 0, storeTTL/4))
					relaunch(t, all[n])
				}
				return func() {}
			}},
		}
		return i
	}}
}

// of does something to n of them, and undoes it.
func of[S any](all []S, n int, do, undo func(S)) func(*rand.Rand) func() {
	return func(rng *rand.Rand) func() {
		which := rng.Perm(len(all))[:n]
		for _, i := range which {
			do(all[i])
		}
		return func() {
			for _, i := range which {
				undo(all[i])
			}
		}
	}
}
