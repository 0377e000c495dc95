package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// beat is the lease's own keepalive stream. Replies on it carry no request number, so one renewal is in flight at a time
// and one that failed takes its stream along: a late reply must not be taken for the next renewal's.
type beat struct {
	mu     sync.Mutex
	link   link
	raw    pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
	closed bool
}

// Renew implements [driver.Lease]. It makes one attempt: to try again is the caller's decision, for only a call that begins anew counts from
// a new instant.
func (l *lease) Renew(ctx context.Context) error {
	if l.over() {
		return l.goneErr("renew")
	}
	if l.heart != nil {
		return l.pulse(ctx)
	}
	return l.renewBase(ctx)
}

// renewBase renews the etcd lease, in one attempt at one member.
func (l *lease) renewBase(ctx context.Context) error {
	at, err := l.s.ring.use()
	if err != nil {
		return fmt.Errorf("etcd: renew: %w", err)
	}
	// For callers without a limit of their own: half of the ttl, so that another attempt fits in, at another member.
	actx, cancel := context.WithTimeout(ctx, min(l.base/2, callLimit))
	defer cancel()
	defer context.AfterFunc(l.s.ctx, cancel)()
	start := time.Now()
	err = l.renew(actx, at)
	if err == nil {
		l.s.ring.alive(at)
		return nil
	}
	l.beat.drop()
	if l.over() {
		return l.goneErr("renew") // somebody else learnt it first, and ended the stream
	}
	if errors.Is(err, errRecord) {
		return l.lost("renew")
	}
	if l.s.blame(ctx, err, time.Since(start)) {
		l.s.ring.leave(at)
	}
	return wrap(ctx, at.name(), "renew", err)
}

var (
	errRecord  = errors.New("the session's record is gone")
	errMembers = errors.New("two members answered on one connection: name the members themselves, not a proxy in front of them")
	errUnknown = errors.New("etcd's leader does not know the lease, but the session's record stands")
)

// renew is the verified renewal: a keepalive, then a proof on the same connection, by a read and by etcd's log.
//
// A leader acknowledges a keepalive by itself, also when it was deposed and does not know it yet. It has the lease, so it
// leads in the raft term that the lease was granted in, or in a later one. A linearizable read, asked for after the answer, is answered
// only where some leader has committed an entry of its own term and then had a majority. If its term was a later one than the lease's, all
// that is carried out from now on bears a later term. So requests that enter the log after that, and bear the very term of the
// grant, prove that the leader of that term had a majority after it had renewed: whoever leads next is elected later and gives the lease its
// whole ttl again, and whoever led before never knew of it. In any other term, see move. The model in spec shows what happens
// without each step.
func (l *lease) renew(ctx context.Context, at link) error {
	now := l.anchored()
	ka, err := l.beat.send(ctx, l.s.ctx, at, now.id)
	if err != nil {
		return err
	}
	if err := l.s.same(ka.Header); err != nil {
		return err
	}
	if l.s.unverified {
		if ka.TTL <= 0 {
			return errRecord
		}
		return nil
	}
	read, term, err := l.s.prove(ctx, at, l.key, doGet(l.key))
	if err != nil {
		return err
	}
	rec := one(read, 0)
	switch {
	case rec == nil || rec.CreateRevision != l.born || rec.Lease == 0:
		return errRecord
	case rec.Lease != now.id:
		// An earlier move was carried out and its answer lost, or somebody else did this.
		l.learn(rec.ModRevision, rec.Lease)
		return l.move(ctx, term)
	case term != now.term:
		return l.move(ctx, term) // the grant in it takes the keepalive's place
	case ka.TTL <= 0:
		return errUnknown
	case !now.settled:
		return l.settle(ctx)
	}
	return nil
}

// prove reads, and then sends two requests through etcd's log, both of which carry out the reads. It returns the answer of the later one, and a
// raft term that is at least that of the first one's entry. Key is any key that may be read and written; it is not changed.
//
// One request would not do. The term in an answer is that of the last entry the member has wholly applied, and an answer may leave before its own
// entry is that; a member that caught up by a snapshot shows the new state under the old term until it has applied its next entry.
// Where one member has answered two, the later answer left after the entry of the earlier was applied.
func (s *Store) prove(ctx context.Context, at link, key string, reads ...*pb.RequestOp) (*pb.TxnResponse, uint64, error) {
	kv := pb.NewKVClient(at.conn)
	// Without it the requests could be carried out by a later leader than the one that took them into its log, under that one's term.
	read, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte(key), CountOnly: true})
	if err == nil {
		err = s.same(read.Header)
	}
	if err != nil {
		return nil, 0, err
	}
	// Version never is below 0: it reads only. But it may delete, so it goes through the log; a put would be refused when etcd is full.
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{{Result: pb.Compare_LESS, Target: pb.Compare_VERSION, Key: []byte(key), TargetUnion: &pb.Compare_Version{}}},
		Success: []*pb.RequestOp{doDelete(key)},
		Failure: reads,
	}
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
	if err := cmp.Or(s.same(a.Header), s.same(b.Header)); err != nil {
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

// send renews once and waits for the answer. Ctx bounds this one; the stream outlives it if all goes well.
func (b *beat) send(ctx, life context.Context, at link, id int64) (*pb.LeaseKeepAliveResponse, error) {
	raw, cancel, err := b.open(ctx, life, at)
	if err != nil {
		return nil, err
	}
	// Send and Recv know only the stream's context: the attempt's end must end the stream.
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
	return resp, err
}

// open returns the stream, opened anew if the ring has moved on since.
func (b *beat) open(ctx, life context.Context, at link) (pb.Lease_LeaseKeepAliveClient, context.CancelFunc, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.raw != nil && b.link == at {
		return b.raw, b.cancel, nil
	}
	b.dropLocked()
	if b.closed {
		return nil, nil, errClosed
	}
	sctx, cancel := context.WithCancel(clientv3.WithRequireLeader(life))
	stop := context.AfterFunc(ctx, cancel)
	raw, err := pb.NewLeaseClient(at.conn).LeaseKeepAlive(sctx)
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
	b.link, b.raw, b.cancel = at, raw, cancel
	return raw, cancel, nil
}

// drop ends the stream; the next renewal opens another.
func (b *beat) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropLocked()
}

func (b *beat) dropLocked() {
	if b.cancel != nil {
		b.cancel()
	}
	b.raw, b.cancel, b.link = nil, nil, link{}
}

// close ends the stream for good.
func (b *beat) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.dropLocked()
}
