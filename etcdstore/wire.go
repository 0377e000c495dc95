package etcdstore

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Wire is how this package speaks with etcd, without the store on top: one member for all calls, left when it is silent; one
// watch stream; renewals that are proven. It is the seam for package concurrency, whose keys are its user's own, and may change with it.
//
// Call Open before anything else. All methods are safe for concurrent use.
type Wire struct {
	s    *Store
	open chan struct{} // holds a token; who has it may open
	warn string
	done bool
}

// NewWire returns a wire beside client, of which it uses what New uses. It does no I/O.
func NewWire(client *clientv3.Client) *Wire {
	w := &Wire{s: build(client, Options{}), open: make(chan struct{}, 1)}
	w.open <- struct{}{}
	return w
}

// Open learns which cluster it is, unless it has been learnt. Warning says what cannot be promised with servers that old, or is empty.
func (w *Wire) Open(ctx context.Context) (warning string, err error) {
	select {
	case <-w.open:
		defer func() { w.open <- struct{}{} }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if w.done {
		return w.warn, nil
	}
	version, err := w.s.version(ctx)
	if err != nil {
		return "", err
	}
	caps, err := capsOf(version, false)
	if err != nil {
		return "", err
	}
	if len(caps.Warnings) > 0 {
		w.warn = caps.Warnings[0]
	}
	w.done = true
	return w.warn, nil
}

// Close ends streams, connections and calls.
func (w *Wire) Close() { w.s.Close() }

// Term returns the newest raft term that any answer bore.
func (w *Wire) Term() uint64 { return w.s.term.Load() }

// Call is one request on a connection. It returns the answer's header.
type Call func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (*pb.ResponseHeader, error)

// Do makes a request at the current member and, where that fails, once at each other one: it must be safe to repeat. Doubt says that some
// attempt may have been carried out, or may be later, though Do failed or a later attempt succeeded. The error is gRPC's own.
func (w *Wire) Do(ctx context.Context, call Call) (doubt bool, err error) {
	o := w.s.rounds(ctx, func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
		h, err := call(ctx, conn, opts...)
		if err != nil {
			return err
		}
		return w.s.same(h)
	})
	return o.doubt, o.err
}

// Watch calls notify when the watch stands, after each event on key or in [key, end), and whenever events may have been missed.
// Without puts it sees deletions only. Notify must not block.
//
// Told reports that the watch stood before: then it tells nothing at first, and what changed since the last look may be missed.
func (w *Wire) Watch(key, end string, puts bool, notify func()) (stop func(), told func() bool) {
	su := w.s.hub.watch(span{key: key, end: end, puts: puts}, notify)
	return su.stop, func() bool { return w.s.hub.stands(su) }
}

// Beat renews leases of one owner on a stream of its own, one renewal at a time.
type Beat struct {
	s *Store
	b beat
}

// Beat returns a new one, without I/O.
func (w *Wire) Beat() *Beat { return &Beat{s: w.s} }

// Proof is what a renewal has shown.
type Proof struct {
	TTL  []int64 // of each lease as its keepalive answered; 0: who answered does not know it
	Term uint64  // no leader of an earlier raft term can have answered for leases granted in this one
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
	Stands bool // with that create revision
	Tied   bool // and attached to that lease
}

// Renew makes one attempt at one member: a keepalive for each lease and then, unless key is empty, the proof by etcd's log,
// which looks at keys too: at most 100. Key must be one that the user may read and write, and is not changed. The error is gRPC's own.
func (t *Beat) Renew(ctx context.Context, leases []int64, key string, keys []Key) (Proof, error) {
	at, err := t.s.ring.use()
	if err != nil {
		return Proof{}, err
	}
	actx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	defer context.AfterFunc(t.s.ctx, cancel)()
	start := time.Now()
	p, err := t.renew(actx, at, leases, key, keys)
	if err == nil {
		return p, nil
	}
	t.b.drop()
	if t.s.blame(ctx, err, time.Since(start)) {
		t.s.ring.leave(at)
	}
	return p, err
}

func (t *Beat) renew(ctx context.Context, at link, leases []int64, key string, keys []Key) (p Proof, err error) {
	for _, id := range leases {
		ka, err := t.b.send(ctx, t.s.ctx, at, id)
		if err == nil {
			err = t.s.same(ka.Header)
		}
		if err != nil {
			return p, err
		}
		p.TTL = append(p.TTL, ka.TTL)
	}
	if key == "" {
		return p, nil
	}
	reads := make([]*pb.RequestOp, len(keys))
	for i, k := range keys {
		reads[i] = k.look()
	}
	resp, term, err := t.s.prove(ctx, at, key, reads...)
	if err != nil {
		return p, err
	}
	p.Term, p.Keys = term, make([]State, len(keys))
	for i, k := range keys {
		if r := resp.Responses[i].GetResponseTxn(); r.Succeeded {
			p.Keys[i] = State{Stands: true, Tied: true}
		} else if kv := one(r, 0); kv != nil {
			p.Keys[i].Stands = kv.CreateRevision == k.Created
		}
	}
	return p, nil
}

// look asks how a key stands. A read would carry its value, or, where it asks for keys only, not tell the lease (etcd 3.7).
func (k Key) look() *pb.RequestOp {
	tied := &pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_LEASE, Key: []byte(k.Key), TargetUnion: &pb.Compare_Lease{Lease: k.Lease}}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(k.Key, k.Created), tied},
		Failure: []*pb.RequestOp{doRange(&pb.RangeRequest{Key: []byte(k.Key), KeysOnly: true})},
	}}}
}

// Close ends the stream.
func (t *Beat) Close() { t.b.close() }

// Final returns [driver.ErrGone] or [driver.ErrRefused] if etcd's answer is final, else nil.
func Final(err error) error { return classify(err) }

// Definite reports whether err proves that etcd has not done and will not do what was asked.
func Definite(err error) bool { return definite(err) }
