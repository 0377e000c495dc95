package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// Exclusive claims, and releases, of one lease go to etcd in batches. A shared claim and a release
// in doubt go alone (see sendEntry and retractInDoubt).
//
// While no batch and fewer than maxAlone operations are under way, an operation goes at once, alone
// and in its caller's goroutine. Otherwise it is queued until one of those returns. Then all that
// are queued go in one Txn. Each is a Txn within it with its own compares: an operation whose
// compare fails does not fail the others.
//
// Where etcd answers with an error it has done all of the Txn or nothing. If one operation alone
// may be to blame, both halves are sent again, down to that operation: each may be repeated. After
// an error that is not definite (see etcdwire.Definite) all operations of the Txn are in doubt. A
// claim in doubt that finds its key takes it for its own.
//
// No two operations on one name go together: etcd gives all keys of a Txn one revision, so two
// claims would have one token.

// How many Txns of a lease are under way at once. Measured on two cores with etcd beside it, a lock
// and unlock cost 277 µs of processor time where each goes alone; with 64 goroutines, 100 µs with
// one Txn at a time and 127 µs with two. So a short queue gets one Txn at a time. With 1,024
// goroutines the cost is the same for one to eight Txns, and the locks per second grow up to four.
// So a queue that fills several Txns gets up to four at a time.
const (
	// maxAlone is how many operations may be under way alone.
	maxAlone = 4
	// maxBatches is how many Txns of several may be under way. A second one begins only when enough
	// are queued to fill it, or when nothing was sent or has returned for etcdwire.BlameAfter.
	maxBatches = 4
	// bytesTogether bounds the bytes of one Txn. etcd takes 1.5 MiB by default; a single operation
	// may be larger than this.
	bytesTogether = 256 << 10
)

// batcher has the queued operations of a lease. While any is queued, a batch or a single operation
// is under way; when that returns, the queued ones are sent.
type batcher struct {
	w *etcdwire.Wire
	j *journal

	mu           sync.Mutex // guards what follows
	alone        int        // operations under way by themselves
	batches      int        // batches under way
	queue        []*op
	bytes        int       // of what is queued
	lastProgress time.Time // when something was sent or returned last
}

// op is one operation that is queued, or goes with others.
type op struct {
	name string
	bare *pb.TxnRequest  // without a journal record
	ctx  context.Context // its caller's
	size int             // about how many bytes it has
	done chan struct{}   // closed when resp, doubt and out are final

	// batcher.mu guards these.
	batch     *batch // what it goes with; nil: it is queued
	abandoned bool   // its caller has given up

	// Once it has a batch, only the goroutine that sends the batch uses these, until done.
	req    *pb.TxnRequest // with the journal record that it leaves
	record *journalRecord // nil: it leaves none
	resp   *pb.TxnResponse
	doubt  bool
	out    etcdwire.Outcome
}

// batch is one or more Txns, one after another, for ops that began together.
type batch struct {
	ctx     context.Context
	cancel  context.CancelFunc
	ops     []*op
	waiting int // callers that have not given up
}

// send runs an operation on one name. The revision of its answer is that of the whole Txn it went
// in. Where ctx ends while it is queued it is not sent, and there is no doubt. Record is what it
// leaves in a journal, if anything.
func (p *batcher) send(ctx context.Context, what, name string, req *pb.TxnRequest, record *journalRecord,
) (*pb.TxnResponse, bool, error) {
	p.mu.Lock()
	if p.batches == 0 && p.alone < maxAlone && len(p.queue) == 0 {
		p.alone, p.lastProgress = p.alone+1, time.Now()
		p.mu.Unlock()
		defer p.done()
		resp, out := p.j.sendWithRecord(ctx, req, record)
		if out.Err != nil {
			return nil, out.Doubt, p.w.Explain(ctx, verb(what, name), out)
		}
		return resp, out.Doubt, nil
	}
	o := &op{name: name, req: record.with(req), bare: req, record: record, ctx: ctx, done: make(chan struct{})}
	o.size = weight(o.req)
	p.queue = append(p.queue, o)
	// The requests under way may be at a silent member, and a new one may go to another member.
	stuck := time.Since(p.lastProgress) > etcdwire.BlameAfter
	if p.bytes += o.size; p.batches < maxBatches && (stuck || p.fullLocked()) {
		p.startLocked()
	}
	p.mu.Unlock()
	closed := p.w.Context().Done()
	for {
		select {
		case <-o.done:
			return o.answer(p.w, what)
		case <-ctx.Done():
			return nil, p.giveUp(o), fmt.Errorf("etcd: %s: %w", verb(what, name), ctx.Err())
		case <-closed:
			if closed = nil; p.withdraw(o) {
				return nil, false, fmt.Errorf("etcd: %s: %w", verb(what, name), etcdwire.ErrClosed)
			}
		}
	}
}

func (o *op) answer(w *etcdwire.Wire, what string) (*pb.TxnResponse, bool, error) {
	if o.out.Err == nil {
		return o.resp, o.doubt, nil
	}
	if errors.Is(o.batch.ctx.Err(), context.DeadlineExceeded) {
		<-o.ctx.Done() // its deadline is not later than the batch's, and the error must name it
	}
	return nil, o.doubt, w.Explain(o.ctx, verb(what, o.name), o.out)
}

// giveUp notes that the operation's caller waits no more. It reports whether it was sent.
func (p *batcher) giveUp(o *op) (sent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dequeueLocked(o) {
		return false
	}
	o.abandoned = true
	if o.batch.waiting--; o.batch.waiting == 0 {
		// A batch whose deadline has passed ends by itself: cancelled, it would not blame the
		// member that is silent.
		if end, ok := o.batch.ctx.Deadline(); !ok || time.Now().Before(end) {
			o.batch.cancel()
		}
	}
	return true
}

// withdraw takes an operation out of the queue. It reports false for one that was sent.
func (p *batcher) withdraw(o *op) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dequeueLocked(o)
}

func (p *batcher) dequeueLocked(o *op) bool {
	if o.batch != nil {
		return false
	}
	for i, q := range p.queue {
		if q == o {
			p.queue, p.bytes = append(p.queue[:i], p.queue[i+1:]...), p.bytes-o.size
			break
		}
	}
	return true
}

// done ends an operation that was under way alone, and has the queued ones sent.
func (p *batcher) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastProgress = time.Now()
	if p.alone--; len(p.queue) > 0 && p.batches == 0 {
		p.startLocked()
	}
}

// startLocked begins to send what is queued, batch after batch.
func (p *batcher) startLocked() {
	p.batches++
	go func() {
		for t := p.fill(true); t != nil; t = p.fill(false) {
			p.sendOps(t, t.ops, len(t.ops))
			t.cancel()
			p.gather()
		}
	}()
}

// fullLocked reports whether enough are queued for a whole Txn.
func (p *batcher) fullLocked() bool {
	return len(p.queue) >= p.w.Limit.Ops()-2 || p.bytes >= bytesTogether
}

// gather lets the callers run that have just had their answers. Many come back at once with their
// next operations: otherwise the first of these would be sent alone.
func (p *batcher) gather() {
	for last, now, full := -1, 0, false; now > last && !full; {
		last = now
		runtime.Gosched()
		p.mu.Lock()
		now, full = len(p.queue), p.fullLocked()
		p.mu.Unlock()
	}
}

// fill takes as many out of the queue as may go together, the oldest first. It returns nil where
// the goroutine that sends is to end: nothing is queued, or less than a whole Txn while another
// such goroutine runs, whose next fill takes it. A goroutine's first fill (anew) takes what there
// is.
func (p *batcher) fill(anew bool) *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastProgress = time.Now()
	if len(p.queue) == 0 || !anew && p.batches > 1 && !p.fullLocked() {
		p.batches--
		return nil
	}
	t := &batch{}
	names, records := make(map[string]struct{}, len(p.queue)), map[string]struct{}{}
	var rest []*op
	widest, bytes := 0, 0
	for i, o := range p.queue {
		_, twice := names[o.name]
		if o.record != nil {
			_, same := records[o.record.key] // etcd takes no Txn that puts a key twice
			twice = twice || same
		}
		w, b := max(widest, width(o.req)), bytes+o.size
		if len(t.ops) > 0 && (len(t.ops)+1+w > p.w.Limit.Ops() || b > bytesTogether) {
			rest = append(rest, p.queue[i:]...)
			break
		}
		if twice {
			rest = append(rest, o)
			continue
		}
		names[o.name], widest, bytes = struct{}{}, w, b
		if o.record != nil {
			records[o.record.key] = struct{}{}
		}
		o.batch = t
		t.ops = append(t.ops, o)
	}
	p.queue, p.bytes = rest, p.bytes-bytes
	t.waiting = len(t.ops)
	t.ctx, t.cancel = t.limit(p.w.Context())
	return t
}

// limit returns the batch's context, which ends when the last of the callers' does. It has the last
// deadline as its own: only a call that ends by a deadline blames the member that was silent.
func (t *batch) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	var last time.Time
	for _, o := range t.ops {
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

// sendOps sends operations of a batch, at most so many at once, and gives their callers the
// answers. If one of several may be to blame for an error, it sends them again: where etcd is full
// and some leave records, all without their records; otherwise in halves, and where etcd found too
// many operations it notes the smaller limit first.
func (p *batcher) sendOps(t *batch, all []*op, most int) {
	for len(all) > 0 {
		n := p.fit(all, most)
		some := p.present(all[:n])
		all = all[n:]
		if len(some) == 0 {
			continue
		}
		resp, out := p.sendTogether(t.ctx, some)
		if out.Err == nil {
			if out.Err = unpack(resp, some); out.Err != nil {
				out.Doubt = true
			}
		}
		for _, o := range some {
			o.doubt = o.doubt || out.Doubt
		}
		if out.Err != nil && len(some) > 1 && (mayBlameOne(out.Err) || mayBlameRecord(out.Err) && anyRecord(some)) {
			if etcdwire.NoSpace(out.Err) && dropRecords(some) {
				p.j.turnOff()
				p.sendOps(t, some, len(some)) // what leaves no record only deletes
				continue
			}
			if etcdwire.TooMany(out.Err) {
				p.w.Limit.Refused(len(some))
			}
			p.sendOps(t, some, (len(some)+1)/2)
			continue
		}
		for _, o := range some {
			o.out = out
			close(o.done)
		}
	}
}

func (p *batcher) sendTogether(ctx context.Context, some []*op) (*pb.TxnResponse, etcdwire.Outcome) {
	if len(some) == 1 {
		return p.j.sendWithRecord(ctx, some[0].bare, some[0].record)
	}
	if p.j.isOff() {
		dropRecords(some)
	}
	return p.w.Send(ctx, pack(some))
}

func anyRecord(some []*op) bool {
	return slices.ContainsFunc(some, func(o *op) bool { return o.record != nil })
}

// fit returns how many of the first ops the server takes at once.
func (p *batcher) fit(all []*op, most int) int {
	widest := 0
	for n, o := range all {
		widest = max(widest, width(o.req))
		if n > 0 && (n == most || n+1+widest > p.w.Limit.Ops()) {
			return n
		}
	}
	return len(all)
}

// present returns those whose callers still wait.
func (p *batcher) present(all []*op) []*op {
	p.mu.Lock()
	defer p.mu.Unlock()
	var some []*op
	for _, o := range all {
		if !o.abandoned {
			some = append(some, o)
		}
	}
	return some
}

// pack returns one request for all operations, and unpack gives each its answer, with the header of
// the whole.
func pack(some []*op) *pb.TxnRequest {
	if len(some) == 1 {
		return some[0].req
	}
	req := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(some))}
	for i, o := range some {
		req.Success[i] = doTxn(o.req)
	}
	return req
}

func unpack(resp *pb.TxnResponse, some []*op) error {
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

// dropRecords takes the records off operations. It reports false where there were none.
func dropRecords(some []*op) (had bool) {
	for _, o := range some {
		if o.record != nil {
			o.record, o.req, had = nil, o.bare, true
		}
	}
	return had
}

// mayBlameOne reports whether one of several operations may be to blame for the error of all: its
// key is forbidden, its value too large, its lease gone; or etcd is full and takes no put.
func mayBlameOne(err error) bool {
	known := rpctypes.Error(err)
	for _, e := range []error{rpctypes.ErrPermissionDenied, rpctypes.ErrRequestTooLarge, rpctypes.ErrLeaseNotFound,
		rpctypes.ErrNoSpace, rpctypes.ErrTooManyOps} {
		if errors.Is(known, e) {
			return true
		}
	}
	c := status.Code(err)
	return c == codes.PermissionDenied || c == codes.ResourceExhausted && etcdwire.Final(err) != nil
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
