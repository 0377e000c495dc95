package etcdwire

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var errMembers = errors.New("two members answered on one connection: " +
	"name the members themselves, not a proxy in front of them")

// Keepalives is the keepalive stream of one lease owner. Replies carry no request number. So one
// renewal is in flight at a time, and after one that failed the caller must end the stream (Drop):
// a late reply must not pass for the next renewal's.
type Keepalives struct {
	mu     sync.Mutex // guards all that follows
	at     MemberConn
	raw    pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
	closed bool
}

// Send renews a lease once and waits for the answer. The stream outlives ctx if all goes well.
// After an error it may be of no more use: the caller calls Drop.
func (k *Keepalives) Send(ctx context.Context, w *Wire, conn MemberConn, id int64) (*pb.LeaseKeepAliveResponse, error) {
	raw, cancel, err := k.open(ctx, w.ctx, conn)
	if err != nil {
		return nil, err
	}
	// Send and Recv know only the stream's context: the end of ctx must end the stream.
	stop := context.AfterFunc(ctx, cancel)
	err = raw.Send(&pb.LeaseKeepAliveRequest{ID: id})
	var resp *pb.LeaseKeepAliveResponse
	if err == nil || errors.Is(err, io.EOF) {
		// After a failed Send the reason is what Recv says.
		resp, err = raw.Recv()
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return resp, w.Same(resp.Header)
}

// open returns the stream. It opens a new one if there is none at conn. It holds k.mu meanwhile, so
// that Drop and Close wait.
func (k *Keepalives) open(ctx, life context.Context, conn MemberConn,
) (pb.Lease_LeaseKeepAliveClient, context.CancelFunc, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.raw != nil && k.at == conn {
		return k.raw, k.cancel, nil
	}
	k.dropLocked()
	if k.closed {
		return nil, nil, ErrClosed
	}
	sctx, cancel := context.WithCancel(clientv3.WithRequireLeader(life))
	stop := context.AfterFunc(ctx, cancel)
	raw, err := pb.NewLeaseClient(conn.Conn).LeaseKeepAlive(sctx)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, err
	}
	k.at, k.raw, k.cancel = conn, raw, cancel
	return raw, cancel, nil
}

// Drop ends the stream; the next renewal opens another.
func (k *Keepalives) Drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropLocked()
}

func (k *Keepalives) dropLocked() {
	if k.cancel != nil {
		k.cancel()
	}
	k.raw, k.cancel, k.at = nil, nil, MemberConn{}
}

// Close ends the stream for good.
func (k *Keepalives) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.dropLocked()
}

// Prove proves that a keepalive before it was answered by a leader that had a majority afterwards.
// It makes a read, and then sends two requests through etcd's log, both of which do reads. It
// returns the answer of one of them, and a raft term that is at least that of the first one's
// entry. Key is any key that may be read and written; it is not changed.
//
// Let T be the raft term in which the lease was granted.
//
//  1. Who acknowledged the keepalive did so by itself, perhaps after it was deposed. It has the
//     lease, so it leads in T or in a later term.
//  2. The read begins after that answer. It is answered only if some leader L has committed an
//     entry of its own term and then had a majority.
//  3. If L's term is later than T, every entry from now on bears a later term than T. So if the two
//     requests bear T, L is the leader of T, who had a majority after it had renewed the lease.
//  4. Then nobody else can end the lease early. A leader after L is elected later, and gives the
//     lease its whole ttl again. A leader before L never had the lease.
//
// If the requests bear any other term than T, the caller moves to another lease. The model in
// test/spec shows what happens without each step.
//
// One request would not do. An answer bears the term of the last entry that the member has wholly
// applied, and it may leave before its own entry is. A member that caught up by a snapshot shows
// the new state under the old term until it applies its next entry. Of two answers by one member,
// the later one left after the entry of the earlier one was applied.
func (w *Wire) Prove(ctx context.Context, conn MemberConn, key string, reads ...*pb.RequestOp,
) (*pb.TxnResponse, uint64, error) {
	kv := pb.NewKVClient(conn.Conn)
	// Without this read a later leader could commit the two requests, and they would still bear the
	// term of the leader that had put them into its log.
	read, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte(key), CountOnly: true})
	if err == nil {
		err = w.Same(read.Header)
	}
	if err != nil {
		return nil, 0, err
	}
	// A version is never below 0, so this only reads. But it might delete, so it goes through the
	// log. A put would be refused when etcd is full.
	less := &pb.Compare{Result: pb.Compare_LESS, Target: pb.Compare_VERSION, Key: []byte(key),
		TargetUnion: &pb.Compare_Version{}}
	del := &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}
	req := &pb.TxnRequest{Compare: []*pb.Compare{less}, Success: []*pb.RequestOp{{Request: del}}, Failure: reads}
	var answers [2]*pb.TxnResponse
	var errs [2]error
	var both sync.WaitGroup
	for i := range answers {
		both.Go(func() { answers[i], errs[i] = kv.Txn(ctx, req) })
	}
	both.Wait()
	a, b := answers[0], answers[1]
	if err := cmp.Or(errs[0], errs[1]); err != nil {
		return nil, 0, err
	}
	if err := cmp.Or(w.Same(a.Header), w.Same(b.Header)); err != nil {
		return nil, 0, err
	}
	if a.Header.MemberId != b.Header.MemberId {
		return nil, 0, errMembers
	}
	if a.Header.Revision < b.Header.Revision {
		a, b = b, a
	}
	return a, max(a.Header.RaftTerm, b.Header.RaftTerm), nil
}

// Proof is what a renewal of several leases has shown.
type Proof struct {
	TTL  []int64 // of each lease as its keepalive answered; 0: who answered does not know it
	Term uint64  // a lease granted in this raft term was renewed by the leader of this term (see Wire.Prove)
	Keys []State // of each key asked for
}

// Key is a key to look at: as it was made, and the lease it should be attached to.
type Key struct {
	Key     string
	Created int64
	Lease   int64
}

// State is how a key stood after the keepalives.
type State struct {
	Stands   bool // with that create revision
	Attached bool // and attached to that lease
}

// Renew makes one attempt at one member: a keepalive for each lease and then, unless key is empty,
// the proof, which looks at keys too, at most OpsLimit.Keys of them. Key must be one that the user
// may read and write. The error is that of AttemptAt.
func (k *Keepalives) Renew(ctx context.Context, w *Wire, leases []int64, key string, keys []Key) (p Proof, err error) {
	_, err = w.AttemptAt(ctx, CallLimit, func(ctx context.Context, conn MemberConn) error {
		p, err = k.renew(ctx, w, conn, leases, key, keys)
		return err
	}, nil)
	if err != nil {
		k.Drop()
	}
	return p, err
}

func (k *Keepalives) renew(ctx context.Context, w *Wire, conn MemberConn, leases []int64, key string, keys []Key,
) (p Proof, err error) {
	for _, id := range leases {
		answer, err := k.Send(ctx, w, conn, id)
		if err != nil {
			return p, err
		}
		p.TTL = append(p.TTL, answer.TTL)
	}
	if key == "" {
		return p, nil
	}
	reads := make([]*pb.RequestOp, len(keys))
	for i, k := range keys {
		reads[i] = k.look()
	}
	resp, term, err := w.Prove(ctx, conn, key, reads...)
	if err != nil {
		return p, err
	}
	p.Term, p.Keys = term, States(keys, resp)
	return p, nil
}

// look asks how a key stands, by compares. A read would carry the key's value; a read of keys only
// does not tell their leases on etcd 3.7.
func (k Key) look() *pb.RequestOp {
	key := []byte(k.Key)
	created := &pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_CREATE, Key: key,
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: k.Created}}
	attached := &pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_LEASE, Key: key,
		TargetUnion: &pb.Compare_Lease{Lease: k.Lease}}
	get := &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key, KeysOnly: true}}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
		Compare: []*pb.Compare{created, attached}, Failure: []*pb.RequestOp{{Request: get}}}}}
}

// States returns how keys stood, of each of which the Txn of resp has asked as look does.
func States(keys []Key, resp *pb.TxnResponse) []State {
	all := make([]State, len(keys))
	for i, k := range keys {
		r := resp.Responses[i].GetResponseTxn()
		if all[i].Attached = r.Succeeded; r.Succeeded {
			all[i].Stands = true
		} else if kvs := r.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
			all[i].Stands = kvs[0].CreateRevision == k.Created
		}
	}
	return all
}
