//go:build linux

package torture

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/zktest"
)

func zkURL(servers []string) string { return "zk://" + strings.Join(servers, ",") }

func onZooKeeper() *storeUnder {
	return &storeUnder{name: "zk", ttl: storeTTL, spare: 2 * storeTTL, start: func(t testing.TB) *installed {
		zk := zktest.Start(t, zktest.Options{})
		return &installed{servers: []string{zk.Addr()}, troubles: troublesOf(t, "ZooKeeper", zk), url: zkURL}
	}}
}

// onEnsemble is three servers of ZooKeeper, whose leader has most of the troubles. The first server
// that candidates are told of is another for each.
func onEnsemble() *storeUnder {
	return &storeUnder{name: "zk-ensemble", long: true, ttl: ensembleTTL, spare: 2 * ensembleTTL,
		start: func(t testing.TB) *installed {
			e := zktest.StartEnsemble(t, 3, zktest.Options{Cuttable: true})
			i := &installed{url: zkURL}
			for _, m := range e.Members {
				i.servers = append(i.servers, m.Addr())
			}
			leader := func(rng *rand.Rand) testServer { return e.Members[zkLeader(e, rng)] }
			member := func(rng *rand.Rand) testServer { return e.Members[rng.IntN(3)] }
			i.troubles = []trouble{
				kill(t, "kill ZooKeeper's leader", false, leader),
				stop("freeze ZooKeeper's leader", false, leader),
				stop("freeze a member", false, member),
				{"ZooKeeper's leader cut off", false,
					func(rng *rand.Rand) func() { return isolate(e, zkLeader(e, rng)) }},
				{"a member cut off", false, func(rng *rand.Rand) func() { return isolate(e, rng.IntN(3)) }},
				{"leader frozen and cut off, and woken", false, func(rng *rand.Rand) func() {
					i := zkLeader(e, rng)
					e.Members[i].Stop()
					heal := isolate(e, i)
					time.Sleep(between(rng, ensembleTTL/2, ensembleTTL*9/10))
					e.Members[i].Cont() // and believes for a while that it leads
					return heal
				}},
				{"quorum lost", true, of(e.Members, 2, (*zktest.Server).Stop, (*zktest.Server).Cont)},
			}
			return i
		}}
}

// ensembleTTL is longer than it takes an ensemble to get over the loss of its leader.
const ensembleTTL = 3 * time.Second

// zkLeader is the ensemble's leader; any member where there is none just now.
func zkLeader(e *zktest.Ensemble, rng *rand.Rand) int {
	if i := e.Leader(); i >= 0 {
		return i
	}
	return rng.IntN(len(e.Members))
}

// isolate cuts a member off from the others. Clients reach it.
func isolate(e *zktest.Ensemble, i int) (heal func()) {
	e.Isolate(i, true)
	return func() { e.Isolate(i, false) }
}
