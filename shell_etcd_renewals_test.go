package primacy

import (
	"context"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
)

// judged is a store whose renewals are judged by what stands in the cluster.
type judged struct {
	*etcdstore.Store
	r *rig
	m *node
}

func (s *judged) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &judgedLease{Lease: l, r: s.r, m: s.m}, nil
}

type judgedLease struct {
	driver.Lease
	r *rig
	m *node

	last int64 // the etcd lease that the record hung on at the last renewal that was accepted; only Renew uses it
}

// Renew demands of a renewal that is accepted: all claims of the session hang on the very lease that its record hangs on. Any other runs out
// though the caller believes it was renewed.
//
// A request of an earlier move may be carried out at any time, and moves the record alone. That shows in the record's mod revision, and
// harms nobody before the next renewal.
func (l *judgedLease) Renew(ctx context.Context) error {
	before, old := l.hanging()
	err := l.Lease.Renew(ctx)
	if err != nil {
		return err
	}
	after, now := l.hanging()
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.r.tally.renewals++
	if after != nil { // with a heartbeat a move is made beside the renewals
		if l.last != 0 && l.last != after.Lease {
			l.r.tally.moves++
		}
		l.last = after.Lease
	}
	if before == nil || after == nil || before.Lease != after.Lease {
		return nil
	}
	for key, kv := range now {
		was := old[key]
		if kv.Lease != after.Lease && was != nil && was.CreateRevision == kv.CreateRevision && was.Lease == kv.Lease && before.ModRevision == after.ModRevision {
			l.r.failLocked("n%d: a renewal was accepted of lease %x, and the claim %s (token %d) hangs on %x", l.m.i, after.Lease, key, kv.CreateRevision, kv.Lease)
		}
	}
	return nil
}

// hanging returns the session's record, nil if there is none, and its claims.
func (l *judgedLease) hanging() (record *mvccpb.KeyValue, claims map[string]*mvccpb.KeyValue) {
	claims = map[string]*mvccpb.KeyValue{}
	for _, kv := range l.r.c.Keys("primacy/") {
		switch key := string(kv.Key); {
		case key == "primacy/@session/"+l.ID():
			record = kv
		case strings.HasSuffix(key, "/"+l.ID()):
			claims[key] = kv
		}
	}
	return record, claims
}
