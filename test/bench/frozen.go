package main

import (
	"context"
	"fmt"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// A member of etcd freezes: do those who lead keep their terms? Row 5.

const (
	frozenTTL   = 5 * time.Second
	frozenTerms = 8 // for each member that is frozen
)

func frozenBenches() []*Bench {
	return []*Bench{{Name: "a member of three freezes", Together: frozen, Reps: 1, Lines: []Line{{Row: 5, Key: "lost",
		What: fmt.Sprintf("terms lost of %d, one of three members frozen for %v, TTL %v", 3*frozenTerms, 2*frozenTTL, frozenTTL),
		Unit: Count, Goal: Goal{Text: "0", Most: 0.5}}}}}
}

// frozen freezes each member in turn while all contenders lead.
func frozen(ctx context.Context, e *Env, cs []*Contender) ([]Sample, error) {
	cluster, closeIt, err := e.three()
	if err != nil {
		return nil, err
	}
	defer closeIt()
	lost := make([]float64, len(cs))
	for i := range cluster.Members {
		if err := freezeOne(ctx, e, cs, cluster, i, lost); err != nil {
			return nil, err
		}
	}
	samples := make([]Sample, len(cs))
	for i := range cs {
		samples[i] = Sample{"lost": value(lost[i])}
	}
	return samples, nil
}

func freezeOne(ctx context.Context, e *Env, cs []*Contender, cluster *etcdtest.Cluster, member int, lost []float64) error {
	held := make([][]Held, len(cs))
	there := &Env{Kind: e.Kind, Cluster: cluster, servers: etcdServers(cluster, "")}
	for i, c := range cs {
		t, err := there.team(ctx, c, frozenTerms, 1, frozenTTL)
		if err != nil {
			return err
		}
		defer t.close()
		for _, m := range t.members {
			h, err := m.session.Campaign(ctx, e.Name("frozen"))
			if err != nil {
				return err
			}
			held[i] = append(held[i], h)
		}
	}
	if err := sleep(ctx, frozenTTL/2); err != nil {
		return err
	}
	cluster.Members[member].Stop()
	err := sleep(ctx, 2*frozenTTL)
	cluster.Members[member].Cont()
	for i := range held {
		for _, h := range held[i] {
			if h.Check() != nil {
				lost[i]++
			}
		}
	}
	return err
}
