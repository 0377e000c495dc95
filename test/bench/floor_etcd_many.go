package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// The floor on etcd where there are many names: as many claims or releases in one Txn as etcd
// takes, one Txn after the other on each of a few goroutines, and no goroutine, queue or answer for
// a name.

const (
	// bareTogether is how many Txns etcd takes in one, with two compares in each, of 128.
	bareTogether = 126
	// bareAtOnce is how many such Txns are under way: more are no faster.
	bareAtOnce = 4
)

// bareGroup is names whose claims go together.
type bareGroup struct {
	lines    []string
	keys     [][]byte
	revision int64 // of the claims; 0: they do not stand
	since    time.Time
}

// groups has the names in as few groups as go.
func groups(names []string) (all []*bareGroup) {
	n := (len(names) + bareTogether - 1) / bareTogether
	for i := range n {
		g := &bareGroup{}
		for _, name := range names[i*len(names)/n : (i+1)*len(names)/n] {
			g.lines = append(g.lines, bareLine(name))
		}
		all = append(all, g)
	}
	return all
}

// claim enters all claims of the group, release takes them out again.
func (g *bareGroup) claim(ctx context.Context, s *bareSession) error {
	g.keys = nil
	req := &pb.TxnRequest{}
	for _, line := range g.lines {
		key := s.key(line)
		g.keys = append(g.keys, key)
		req.Success = append(req.Success, within(s.claim(line, key)))
	}
	resp, err := s.p.all(ctx, req)
	if err == nil {
		g.revision = resp.Header.Revision
	}
	return err
}

func (g *bareGroup) release(ctx context.Context, s *bareSession) error {
	req := &pb.TxnRequest{}
	for _, key := range g.keys {
		req.Success = append(req.Success, within(release(key, g.revision)))
	}
	_, err := s.p.all(ctx, req)
	g.revision = 0
	return err
}

func within(req *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: req}}
}

// all sends a Txn of Txns, which must all do what they ask for.
func (p *bareEtcd) all(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	resp, err := p.txn(ctx, req)
	if err != nil {
		return nil, err
	}
	for i, r := range resp.Responses {
		if !r.GetResponseTxn().GetSucceeded() {
			return nil, fmt.Errorf("a compare of the floor's failed, in Txn %d of %d", i, len(resp.Responses))
		}
	}
	return resp, nil
}

// bareSessionOn opens a session for a slice.
func bareSessionOn(ctx context.Context, e *Env, c *Contender) (*team, *bareSession, error) {
	t, err := e.team(ctx, c, 1, 1, lease)
	if err != nil {
		return nil, nil, err
	}
	return t, t.sessions[0].(*bareSession), nil
}

// bareKeys is keys: n names are locked and unlocked again and again.
func bareKeys(n int) run {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) {
		t, s, err := bareSessionOn(ctx, e, c)
		if err != nil {
			return nil, err
		}
		defer t.close()
		all := groups(e.Names("key", n))
		turns := make(chan *bareGroup, len(all))
		for _, g := range all {
			g.since = time.Now()
			turns <- g
		}
		x := &uncontested{each: make([][]float64, min(len(all), bareAtOnce))}
		done := make(chan error, 1)
		go func() {
			done <- parallel(ctx, len(x.each), len(x.each), func(ctx context.Context, i int) error {
				defer x.stop.Store(true)
				return x.workBare(ctx, i, s, turns)
			})
		}()
		took, err := x.measure(ctx, nil)
		x.stop.Store(true)
		if failed := <-done; failed != nil {
			err = failed
		}
		return x.sample(took), err
	}
}

// workBare claims or releases the group whose turn it is, and times each of its names.
func (x *uncontested) workBare(ctx context.Context, i int, s *bareSession, turns chan *bareGroup) error {
	for !x.stop.Load() {
		g := <-turns
		if g.revision == 0 {
			if err := g.claim(ctx, s); err != nil {
				return err
			}
			turns <- g
			continue
		}
		if err := g.release(ctx, s); err != nil {
			return err
		}
		now := time.Now()
		for range g.lines {
			if x.measuring.Load() {
				x.each[i] = append(x.each[i], now.Sub(g.since).Seconds())
			}
		}
		g.since = now
		turns <- g
	}
	return nil
}

// bareWins is winAll: all names are claimed once.
func bareWins(n int) run {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) {
		t, s, err := bareSessionOn(ctx, e, c)
		if err != nil {
			return nil, err
		}
		defer t.close()
		all := groups(e.Names("many", n))
		before, err := count(e.Cluster)
		if err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := claimAll(ctx, s, all); err != nil {
			return nil, err
		}
		took := time.Since(begin)
		after, err := count(e.Cluster)
		return Sample{"time": value(took.Seconds()), "requests": value(after.since(before).requests())}, err
	}
}

func claimAll(ctx context.Context, s *bareSession, all []*bareGroup) error {
	return parallel(ctx, len(all), bareAtOnce, func(ctx context.Context, i int) error { return all[i].claim(ctx, s) })
}

// bareTakeover is second: the lease of all who lead is revoked, and one read of all lines tells the
// next in each that it leads.
func bareTakeover(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	t, leader, err := bareSessionOn(ctx, e, c)
	if err != nil {
		return nil, err
	}
	defer t.close()
	u, next, err := bareSessionOn(ctx, e, c)
	if err != nil {
		return nil, err
	}
	defer u.close()
	names := e.Names("second", many)
	for _, s := range []*bareSession{leader, next} {
		if err := claimAll(ctx, s, groups(names)); err != nil {
			return nil, err
		}
	}
	before, err := count(e.Cluster)
	if err != nil {
		return nil, err
	}
	prefix := "floor/" + strings.TrimSuffix(names[0], "0") // of all lines
	begin := time.Now()
	if err := leader.Revoke(ctx); err != nil {
		return nil, err
	}
	read, err := next.p.kv.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: rangeEnd(prefix), KeysOnly: true})
	took := time.Since(begin)
	if err != nil {
		return nil, err
	}
	if len(read.Kvs) != many {
		return nil, fmt.Errorf("%d claims stand in %d lines", len(read.Kvs), many)
	}
	after, err := count(e.Cluster)
	return Sample{"takeover": value(took.Seconds()), "requests": value(after.since(before).requests())}, err
}
