package etcdstore

import (
	"bytes"
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
)

// BesideKey is a key beside those of the store, in a layout that other programs read. A claim can
// guard it, and end with it (see WriteBeside).
type BesideKey struct {
	Key     string
	Value   []byte // nil: there is no such key
	Version uint64 // grows with each write; 0: there is no such key
}

// BesideWrite says what a key is to be.
type BesideWrite struct {
	Key   string
	Value []byte // nil: the key is to be gone
	// Lease is the ID of a lease of the store: the key ends with it. Empty: nothing ends the key,
	// but see Claim.
	Lease string
	// Claim has the key end with the lease of the claim under which it is written.
	Claim bool
	// Only, unless nil, is asked with what stands at the key now. If it returns false, this write
	// is left out.
	Only func(now BesideKey) bool
}

// Beside returns the keys that begin with prefix. The read is linearizable.
func (r *Raw) Beside(ctx context.Context, prefix string) ([]BesideKey, error) {
	resp, err := r.wire.Get(ctx, verb("read the keys of", prefix), prefixRange(prefix))
	if err != nil {
		return nil, notGone(err)
	}
	var all []BesideKey
	for _, kv := range resp.Kvs {
		all = append(all, besideKey(string(kv.Key), kv))
	}
	return all, nil
}

func besideKey(key string, kv *mvccpb.KeyValue) BesideKey {
	if kv == nil {
		return BesideKey{Key: key}
	}
	return BesideKey{Key: key, Value: append([]byte{}, kv.Value...), Version: uint64(kv.ModRevision)}
}

// WriteBeside makes keys what they are to be, all in one Txn, and leaves alone those that are so
// already. With a claimKey they are written only while the claim there has this token; see
// [Store.ClaimKey]. So nothing is written any more once that claim is gone, not even by a request
// that was held up on its way. ok is false where a key, or a lease, has changed meanwhile: a later
// call may do it. Then nothing was written; or all was, an answer was lost, and somebody has
// changed some of it since. The error is [driver.ErrGone] if the claim is gone, or a lease. After
// any other error they may have been written, or may yet be, but only over what stood there, and
// under that claim.
func (r *Raw) WriteBeside(ctx context.Context, claimKey string, token uint64, writes ...BesideWrite,
) (ok bool, err error) {
	p := &besidePlan{r: r, claimKey: claimKey, token: token, leases: map[string]int64{}, txn: &pb.TxnRequest{}}
	if err := p.read(ctx, writes); err != nil {
		return false, err
	}
	if len(p.txn.Success) == 0 {
		return true, nil
	}
	resp, doubt, err := r.wire.Txn(ctx, p.what(), p.txn)
	if err != nil || resp.Succeeded || !doubt {
		return err == nil && resp.Succeeded, err
	}
	// An earlier attempt of this call may have written it: then nothing is left to do.
	p.txn = &pb.TxnRequest{}
	if err := p.read(ctx, writes); err != nil {
		return false, err
	}
	return len(p.txn.Success) == 0, nil
}

// besidePlan is one call of [Raw.WriteBeside].
type besidePlan struct {
	r        *Raw
	claimKey string
	token    uint64
	claim    int64            // the lease of the claim
	leases   map[string]int64 // by session: the lease that it is on now
	txn      *pb.TxnRequest   // what is to be sent
}

func (p *besidePlan) what() string { return verb("write keys beside", p.claimKey) }

// read plans what is to be written, from how things are now.
func (p *besidePlan) read(ctx context.Context, writes []BesideWrite) error {
	req := &pb.TxnRequest{}
	ask := func(key string) int {
		req.Success = append(req.Success, doGet(key))
		return len(req.Success) - 1
	}
	if p.claimKey != "" {
		ask(p.claimKey)
	}
	at := map[string]int{} // by session
	for _, w := range writes {
		if _, asked := at[w.Lease]; w.Lease != "" && !asked {
			at[w.Lease] = ask(p.r.prefix + sessions + w.Lease)
		}
	}
	keys := make([]int, len(writes))
	for i, w := range writes {
		keys[i] = ask(w.Key)
	}
	resp, _, err := p.r.wire.Txn(ctx, p.what(), req)
	if err != nil {
		return notGone(err)
	}
	if p.claimKey != "" {
		kv := kvAt(resp, 0)
		if kv == nil || uint64(kv.CreateRevision) != p.token {
			return fmt.Errorf("etcd: %s under token %d: the claim: %w", p.what(), p.token, driver.ErrGone)
		}
		p.claim = kv.Lease
		p.txn.Compare = append(p.txn.Compare, ifCreate(p.claimKey, kv.CreateRevision),
			ifLease(p.claimKey, kv.Lease))
	}
	for session, i := range at {
		kv := kvAt(resp, i)
		if kv == nil {
			return fmt.Errorf("etcd: %s: lease %s: %w", p.what(), session, driver.ErrGone)
		}
		p.leases[session] = kv.Lease
		p.txn.Compare = append(p.txn.Compare, ifLease(string(kv.Key), kv.Lease))
	}
	for i, w := range writes {
		p.plan(w, kvAt(resp, keys[i]))
	}
	return nil
}

// plan adds one key, unless it is already what it is to be.
func (p *besidePlan) plan(w BesideWrite, now *mvccpb.KeyValue) {
	if w.Only != nil && !w.Only(besideKey(w.Key, now)) {
		return
	}
	lease := p.leases[w.Lease]
	if w.Claim {
		lease = p.claim
	}
	rev, op := int64(0), doPut(w.Key, w.Value, lease)
	if now != nil {
		rev = now.ModRevision
	}
	switch {
	case w.Value == nil && now == nil:
		return
	case w.Value == nil:
		op = doDelete(w.Key)
	case now != nil && now.Lease == lease && bytes.Equal(now.Value, w.Value):
		return
	}
	p.txn.Compare = append(p.txn.Compare, ifMod(w.Key, rev))
	p.txn.Success = append(p.txn.Success, op)
}

// ifLease holds if the key is under that lease.
func ifLease(key string, lease int64) *pb.Compare {
	return &pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_LEASE, Key: []byte(key),
		TargetUnion: &pb.Compare_Lease{Lease: lease}}
}
