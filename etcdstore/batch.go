package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Claims and releases of one lease travel together.
//
// While fewer than lanes Txns are under way an operation goes at once, alone, and in its caller's own goroutine: who is alone never waits for
// company. Otherwise it waits until one of them returns; then all that wait go in one Txn, each as a Txn within it, with its own compares: so
// one whose compare fails leaves the others alone. What etcd answers with an error it has not done at all, though one of them may be to
// blame; then they go again in halves, down to the one that is.
//
// etcd decides all compares before it writes anything, and gives all keys of a Txn one revision. So no two operations on one name go
// together: two claims would stand in the line under one token.

const (
	// lanes is how many Txns of a lease are under way at once, before operations wait for each other.
	lanes = 2
	// opsAllowed is etcd's --max-txn-ops, as it is by default: for the operations of the outer Txn and of any one within it.
	opsAllowed = 128
	// bytesTogether bounds what goes together. etcd takes requests of 1.5 MiB by default; one operation that is larger than this goes alone.
	bytesTogether = 256 << 10
)

// pool is where operations of a lease wait for each other.
type pool struct {
	mu     sync.Mutex
	flying int // Txns under way; as long as anybody waits, there are as many as lanes
	queue  []*parcel
	most   int // operations that the server is known not to refuse, where that are fewer than usual; 0: not known
}

// parcel is one operation that waits, or travels with others.
type parcel struct {
	name string
	req  *pb.TxnRequest
	ctx  context.Context // its caller's
	trip *trip           // what it travels with; nil: it waits
	left bool            // its caller has given up
	done chan struct{}   // closed when what follows is known

	resp  *pb.TxnResponse
	doubt bool
	out   outcome
}

// trip is one or more Txns, one after another, for parcels that left together.
type trip struct {
	ctx     context.Context
	cancel  context.CancelFunc
	parcels []*parcel
	waiting int // callers that have not given up
}

// together is Store.txn for an operation on one name, which may go in one Txn with those on other names. The revision of its answer is
// that of the whole Txn. Where ctx ends while the operation waits, it is not sent, and there is no doubt.
func (l *lease) together(ctx context.Context, what, name string, req *pb.TxnRequest) (*pb.TxnResponse, bool, error) {
	p := &l.pool
	p.mu.Lock()
	if p.flying < lanes {
		p.flying++
		p.mu.Unlock()
		defer l.landed()
		resp, out := l.s.ship(ctx, req)
		if out.err != nil {
			return nil, out.doubt, l.s.told(ctx, verb(what, name), out)
		}
		return resp, out.doubt, nil
	}
	o := &parcel{name: name, req: req, ctx: ctx, done: make(chan struct{})}
	p.queue = append(p.queue, o)
	p.mu.Unlock()
	closed := l.s.ctx.Done()
	for {
		select {
		case <-o.done:
			return o.answer(l.s, what)
		case <-ctx.Done():
			return nil, p.leave(o), fmt.Errorf("etcd: %s: %w", verb(what, name), ctx.Err())
		case <-closed:
			if closed = nil; p.withdraw(o) {
				return nil, false, fmt.Errorf("etcd: %s: %w", verb(what, name), errClosed)
			}
		}
	}
}

// answer is what became of the parcel, for its caller.
func (o *parcel) answer(s *Store, what string) (*pb.TxnResponse, bool, error) {
	if o.out.err == nil {
		return o.resp, o.doubt, nil
	}
	if errors.Is(o.trip.ctx.Err(), context.DeadlineExceeded) {
		<-o.ctx.Done() // it ends no later, and the error must say so
	}
	return nil, o.doubt, s.told(o.ctx, verb(what, o.name), o.out)
}

// leave has the parcel go without its caller. It reports whether it has been sent.
func (p *pool) leave(o *parcel) (sent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.take(o) {
		return false
	}
	o.left = true
	if o.trip.waiting--; o.trip.waiting == 0 {
		o.trip.cancel()
	}
	return true
}

// withdraw takes a parcel that waits out of the queue. It reports false for one that was sent.
func (p *pool) withdraw(o *parcel) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(o)
}

// take is withdraw under the lock.
func (p *pool) take(o *parcel) bool {
	if o.trip != nil {
		return false
	}
	for i, q := range p.queue {
		if q == o {
			p.queue = append(p.queue[:i], p.queue[i+1:]...)
			break
		}
	}
	return true
}

// landed gives a lane back, to those who wait if there are any.
func (l *lease) landed() {
	p := &l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.flying--
		return
	}
	go func() {
		for t := l.board(); t != nil; t = l.board() {
			l.carry(t, t.parcels, len(t.parcels))
			t.cancel()
		}
	}()
}

// board takes as many of those who wait as may go together. With none it gives the lane back.
func (l *lease) board() *trip {
	p := &l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.flying--
		return nil
	}
	t := &trip{}
	names := make(map[string]struct{}, len(p.queue))
	var rest []*parcel
	wide, bytes := 0, 0
	for i, o := range p.queue {
		_, twice := names[o.name]
		w, b := max(wide, width(o.req)), bytes+weight(o.req)
		if len(t.parcels) > 0 && (len(t.parcels)+1+w > p.allowed() || b > bytesTogether) {
			rest = append(rest, p.queue[i:]...)
			break
		}
		if twice {
			rest = append(rest, o)
			continue
		}
		names[o.name], wide, bytes = struct{}{}, w, b
		o.trip = t
		t.parcels = append(t.parcels, o)
	}
	p.queue = rest
	t.waiting = len(t.parcels)
	t.ctx, t.cancel = t.limit(l.s.ctx)
	return t
}

// limit returns the trip's context, which ends when the last of the callers' does. A deadline is told as such: a member that has said
// nothing until then is left.
func (t *trip) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	var last time.Time
	for _, o := range t.parcels {
		d, ok := o.ctx.Deadline()
		if !ok {
			return context.WithCancel(ctx)
		}
		if d.After(last) {
			last = d
		}
	}
	return context.WithDeadline(ctx, last)
}

// allowed returns how many operations a Txn may have, with those of the widest within it.
func (p *pool) allowed() int {
	if p.most > 0 {
		return p.most
	}
	return opsAllowed
}

// width returns how many operations etcd counts for a Txn.
func width(r *pb.TxnRequest) int { return max(len(r.Compare), len(r.Success), len(r.Failure)) }

// weight returns about how many bytes a request has, rather more than less.
func weight(r *pb.TxnRequest) int {
	n := 32
	for _, c := range r.Compare {
		n += 32 + len(c.Key) + len(c.RangeEnd)
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			n += 48
			if put := op.GetRequestPut(); put != nil {
				n += len(put.Key) + len(put.Value)
			} else if get := op.GetRequestRange(); get != nil {
				n += len(get.Key) + len(get.RangeEnd)
			} else {
				n += len(op.GetRequestDeleteRange().GetKey())
			}
		}
	}
	return n
}

// carry sends parcels, at most so many at once, and has their callers know the answers.
func (l *lease) carry(t *trip, all []*parcel, most int) {
	for len(all) > 0 {
		n := l.fit(all, most)
		some := l.present(all[:n])
		all = all[n:]
		if len(some) == 0 {
			continue
		}
		resp, out := l.s.ship(t.ctx, pack(some))
		if out.err == nil {
			if out.err = unpack(resp, some); out.err != nil {
				out.doubt = true
			}
		}
		for _, o := range some {
			o.doubt = o.doubt || out.doubt
		}
		if out.err != nil && len(some) > 1 && ofOne(out.err) {
			if tooMany(out.err) {
				l.learnMost(len(some))
			}
			l.carry(t, some, (len(some)+1)/2)
			continue
		}
		for _, o := range some {
			o.out = out
			close(o.done)
		}
	}
}

// fit returns how many of the first parcels the server takes at once.
func (l *lease) fit(all []*parcel, most int) int {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	wide := 0
	for n, o := range all {
		wide = max(wide, width(o.req))
		if n > 0 && (n == most || n+1+wide > l.pool.allowed()) {
			return n
		}
	}
	return len(all)
}

// present returns those parcels whose callers have not given up.
func (l *lease) present(all []*parcel) []*parcel {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	var some []*parcel
	for _, o := range all {
		if !o.left {
			some = append(some, o)
		}
	}
	return some
}

// learnMost notes that the server has refused so many parcels at once.
func (l *lease) learnMost(n int) {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.pool.most = min(l.pool.allowed(), n/2+2)
}

// pack returns one request for all parcels.
func pack(some []*parcel) *pb.TxnRequest {
	if len(some) == 1 {
		return some[0].req
	}
	req := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(some))}
	for i, o := range some {
		req.Success[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: o.req}}
	}
	return req
}

// unpack gives each parcel its answer. Those within a Txn's have no revision of their own in their header.
func unpack(resp *pb.TxnResponse, some []*parcel) error {
	if len(some) == 1 {
		some[0].resp = resp
		return nil
	}
	if len(resp.Responses) != len(some) {
		return fmt.Errorf("%d answers to %d operations", len(resp.Responses), len(some))
	}
	for i, o := range some {
		if o.resp = resp.Responses[i].GetResponseTxn(); o.resp == nil {
			return fmt.Errorf("no answer to operation %d of %d", i, len(some))
		}
		o.resp.Header = resp.Header
	}
	return nil
}

// ofOne reports whether one of several operations may be to blame for an error by which etcd has done none of them: its key may be
// forbidden, its value too large, its lease gone; and where etcd is full it takes no put, but it does take what only deletes.
func ofOne(err error) bool {
	known := rpctypes.Error(err)
	for _, e := range []error{rpctypes.ErrPermissionDenied, rpctypes.ErrRequestTooLarge, rpctypes.ErrLeaseNotFound, rpctypes.ErrNoSpace, rpctypes.ErrTooManyOps} {
		if errors.Is(known, e) {
			return true
		}
	}
	c := status.Code(err)
	return c == codes.PermissionDenied || c == codes.ResourceExhausted && classify(err) != nil
}

// tooMany reports whether etcd allows fewer operations in one Txn.
func tooMany(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrTooManyOps) }
