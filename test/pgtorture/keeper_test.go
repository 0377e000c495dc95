//go:build linux

package pgtorture

import (
	"os"
	"testing"
	"time"
)

// keeper is what keeps one primary on the machines: `primacy postgres`, or a peer that is measured
// beside it with the same machines, store, writers, faults and judges.
type keeper interface {
	name() string
	// install makes ready what all machines need.
	install(c *cluster)
	// agent returns the files of a machine's agent, by path, and the command that runs it.
	agent(c *cluster, m *machine, endpoints []string, subnet string) (files map[string]string, line []string)
	// primary returns who is the primary as the store has it, and the timeline, 0 if it does not
	// tell. It is an error if the store does not show a cluster that is well; p may be told then
	// too.
	primary(c *cluster) (p *machine, timeline uint32, err error)
	// standbys is the condition on pg_stat_replication of a standby as it is to be.
	standbys() string
	// next chooses which machine is to be the next primary in a switchover.
	next(r *round) (*machine, error)
	// switchover returns when next is the primary, or it has failed.
	switchover(r *round, next *machine) (string, error)
	// mend does what a person would where the store shows no cluster that is well, and stays so.
	mend(c *cluster)
	// judge returns what is wrong with the promotions that the store has seen.
	judge(c *cluster) []string
	// left returns what is left in the store and on the servers.
	left(c *cluster) []string
	// times are of the lease, how much longer than that a fault lasts at most, and how long a
	// cluster must look well before it is.
	times(t testing.TB) (ttl, more, stable time.Duration)
	// promises says whether a row that is lost fails the test. Otherwise it is counted.
	promises() bool
}

// newKeeper returns what PGTORTURE_PEER names. Where that cannot run the test is skipped and says
// so: a peer that is not there is not measured.
func newKeeper(t testing.TB) keeper {
	switch peer := os.Getenv("PGTORTURE_PEER"); peer {
	case "":
		return &ours{}
	case "patroni":
		return newPatroni(t)
	default:
		t.Fatalf("PGTORTURE_PEER=%s: want patroni, or nothing", peer)
		return nil
	}
}
