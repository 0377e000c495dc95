// Package etcdfence fences what a leader writes to etcd: the user's own Txn, under one compare
// more.
//
//	guard, err := etcdfence.Bind(ctx, client, store, term) // once a term; store: *etcdstore.Store
//	resp, err := guard.Txn(ctx).
//		If(clientv3.Compare(clientv3.Version("config"), "=", 3)).
//		Then(clientv3.OpPut("config", "…")).
//		Commit() // err is a *fence.StaleError if the claim is gone
//
// A *clientv3.Client is the clientv3.KV that is asked for. Guard.Txn takes the place of Client.Txn:
// resp is what etcd would have answered to the user's own If, Then and Else, so a failed compare of
// his is still resp.Succeeded == false and no error. The compare that is added costs no round trip.
//
// Bound to the election's own cluster ([Bind]), a Txn applies only while the claim holds the name:
// the key stands with the term's token as its create revision. So a write is refused from the
// moment the claim is removed, even before the next leader writes, and there is nothing to raise:
// every read of the next leader comes after the last write of the old one. Of a lock it is the
// process's claim that is compared, which those who hand the lock on inside the process share; the
// term of a reader, or of a semaphore with several slots, is refused (primacy.ErrInvalid), since
// others hold beside it.
//
// For keys in another etcd cluster [Raise] keeps the newest token in a key there, and a Txn applies
// only while that is its own. Raise it before the first read.
//
// A guarded Txn has room for one operation less than the server's limit (--max-txn-ops, 128), and
// one that only reads goes through etcd's log as a write does. With etcd's authentication the
// client needs leave to read the claim's key (<prefix><name>/), or to write the fence's. What a
// restored cluster changes: docs/fencing.md and fence.Stamp.From.
package etcdfence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/fence"
)

// Store is what Bind asks of an election's store. *etcdstore.Store is one.
type Store interface {
	ClaimKey(ctx context.Context, name string, token uint64) (string, error)
	Origin() string
}

// Guard puts Txns under a fence. It is safe for concurrent use.
type Guard struct {
	kv     clientv3.KV
	stamp  fence.Stamp
	origin string                            // of the cluster that has to answer; empty: any
	holds  clientv3.Cmp                      // that no newer leader has been here
	why    clientv3.Op                       // reads what judge needs
	judge  func(*clientv3.GetResponse) error // why a Txn was refused
}

// Bind returns a guard for Txns in the cluster that keeps the election. It makes two reads, one
// through the store and one through kv, which may be another client. Its error is a
// *fence.StaleError if the term's claim does not hold the name (any more), a *fence.OriginError if
// kv speaks to another cluster, otherwise what etcd said.
func Bind(ctx context.Context, kv clientv3.KV, store Store, t fence.Term) (*Guard, error) {
	s := fence.Of(t).From(store)
	if err := s.Valid(); err != nil {
		return nil, err
	}
	claim := claimOf(t)
	key, err := store.ClaimKey(ctx, s.Name, uint64(claim))
	if errors.Is(err, driver.ErrGone) {
		return nil, &fence.StaleError{Name: s.Name, Token: s.Token}
	}
	if err != nil {
		return nil, err
	}
	resp, err := kv.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("fence %q: read the claim: %w", s.Name, err)
	}
	if got := originOf(resp.Header.GetClusterId()); got != s.Origin {
		return nil, &fence.OriginError{Name: s.Name, Token: s.Token, Origin: s.Origin, Known: got}
	}
	if len(resp.Kvs) == 0 || uint64(resp.Kvs[0].CreateRevision) != uint64(claim) {
		return nil, &fence.StaleError{Name: s.Name, Token: s.Token} // or a kv with a namespace, which cannot see the claim
	}
	return claimGuard(kv, s, key, claim), nil
}

// claimOf returns the create revision of a term's claim: of an election it is the token itself, of
// a lock that holders in one process hand on it is not.
func claimOf(t fence.Term) primacy.Token {
	if c, ok := t.(interface{ ClaimToken() primacy.Token }); ok {
		return c.ClaimToken()
	}
	return t.Token()
}

// claimGuard compares the claim's create revision, and nothing else: its lease, its value and its
// mod revision change in a term.
func claimGuard(kv clientv3.KV, s fence.Stamp, key string, claim primacy.Token) *Guard {
	line := key[:strings.LastIndexByte(key, '/')+1]
	return &Guard{kv: kv, stamp: s, origin: s.Origin,
		holds: clientv3.Compare(clientv3.CreateRevision(key), "=", int64(claim)),
		why:   clientv3.OpGet(line, append(clientv3.WithFirstCreate(), clientv3.WithPrefix(), clientv3.WithKeysOnly())...),
		judge: func(r *clientv3.GetResponse) error {
			e := &fence.StaleError{Name: s.Name, Token: s.Token}
			if len(r.Kvs) > 0 && claim == s.Token { // a lock's tokens are of another scale
				e.Largest = primacy.Token(r.Kvs[0].CreateRevision)
			}
			return e
		}}
}

func originOf(cluster uint64) string { return "etcd/" + strconv.FormatUint(cluster, 16) }

// Txn returns a Txn under the fence, to be used by one goroutine as one of the client's. Its Commit
// returns what etcd answered to the caller's own If, Then and Else. The error is a
// *fence.StaleError or fence.ErrNotRaised if nothing was applied because of the fence; after any
// other error, or the end of ctx, whether it was applied is unknown. That holds for a
// *fence.OriginError too: another cluster has answered, which may be a copy that has the claim.
func (g *Guard) Txn(ctx context.Context) clientv3.Txn { return &txn{g: g, ctx: ctx} }

// txn is the caller's Txn while it is put together: a clientv3.Txn, for one goroutine.
type txn struct {
	g     *Guard
	ctx   context.Context
	cmps  []clientv3.Cmp
	thens []clientv3.Op
	elses []clientv3.Op
}

func (t *txn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.cmps = append(t.cmps, cs...)
	return t
}

func (t *txn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.thens = append(t.thens, ops...)
	return t
}

func (t *txn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.elses = append(t.elses, ops...)
	return t
}

// Commit nests the caller's Txn in one whose only compare is the fence: so the caller's own failed
// compares and the fence's are told apart.
func (t *txn) Commit() (*clientv3.TxnResponse, error) {
	g := t.g
	outer, err := g.kv.Txn(t.ctx).If(g.holds).Then(clientv3.OpTxn(t.cmps, t.thens, t.elses)).Else(g.why).Commit()
	if err != nil {
		return nil, err
	}
	if got := originOf(outer.Header.GetClusterId()); g.origin != "" && got != g.origin {
		return nil, &fence.OriginError{Name: g.stamp.Name, Token: g.stamp.Token, Origin: g.origin, Known: got}
	}
	if len(outer.Responses) != 1 {
		return nil, fmt.Errorf("fence %q: etcd answered with %d parts instead of one", g.stamp.Name, len(outer.Responses))
	}
	if !outer.Succeeded {
		return nil, g.judge((*clientv3.GetResponse)(outer.Responses[0].GetResponseRange()))
	}
	inner := (*clientv3.TxnResponse)(outer.Responses[0].GetResponseTxn())
	inner.Header = outer.Header
	return inner, nil
}
