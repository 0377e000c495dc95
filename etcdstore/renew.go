package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/boottime"
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

// Renew implements [driver.Lease]. It makes one attempt, at one member: to try again is the caller's decision, for
// only a call that begins anew counts from a new instant.
func (l *lease) Renew(ctx context.Context) error {
	if l.over() {
		return l.goneErr("renew")
	}
	at, err := l.s.ring.use()
	if err != nil {
		return fmt.Errorf("etcd: renew: %w", err)
	}
	// For callers without a limit of their own: half of the ttl, so that another attempt fits in, at another member.
	actx, cancel := context.WithTimeout(ctx, min(l.ttl/2, callLimit))
	defer cancel()
	defer context.AfterFunc(l.s.ctx, cancel)()
	start := boottime.Now()
	err = l.renew(actx, at)
	if err == nil {
		return nil
	}
	l.beat.drop()
	if l.over() {
		return l.goneErr("renew") // somebody else learnt it first, and ended the stream
	}
	if errors.Is(err, errRecord) {
		return l.lost("renew")
	}
	if !errors.Is(err, errTerm) && l.s.blame(ctx, err, boottime.Now()-start) {
		l.s.ring.leave(at)
	}
	return wrap(ctx, at.name(), "renew", err)
}

var (
	errRecord  = errors.New("the session's record is gone")
	errTerm    = errors.New("etcd changed its leader meanwhile")
	errUnknown = errors.New("etcd's leader does not know the lease, but the session's record stands")
)

// renew is the verified renewal: a keepalive, then a linearizable read of the session's record on the same connection.
// etcd's leader acknowledges a keepalive by itself, also when it was deposed and does not know it yet. Equal raft
// terms before the one and after the other mean that a majority confirmed that very leader after it had renewed, so
// whoever leads next knows of the renewal. If it is the term that the lease was granted in, whoever led before never
// knew of the lease; otherwise see move.
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
	resp, err := pb.NewKVClient(at.conn).Range(ctx, &pb.RangeRequest{Key: []byte(l.key)}) // not KeysOnly: etcd 3.7 leaves the lease out then
	switch {
	case err != nil:
		return err
	case resp.Header.ClusterId != ka.Header.ClusterId:
		return l.s.same(resp.Header)
	case len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != l.born || resp.Kvs[0].Lease == 0:
		return errRecord
	}
	rec, term := resp.Kvs[0], resp.Header.RaftTerm
	l.s.saw(term)
	switch {
	case rec.Lease != now.id:
		// An earlier move was carried out and its answer lost, or somebody else did this.
		l.learn(rec.ModRevision, rec.Lease)
		return l.move(ctx, term)
	case term != now.term:
		return l.move(ctx, term) // the grant in it takes the keepalive's place
	case ka.TTL <= 0:
		return errUnknown
	case term != ka.Header.RaftTerm:
		return errTerm
	case !now.settled:
		return l.settle(ctx)
	}
	return nil
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
