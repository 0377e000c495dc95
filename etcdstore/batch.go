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

// Exclusive claims, exchanges and releases of one lease go to etcd in batches. A shared claim, a
// transfer and a release in doubt go alone (see sendEntry, handOver and retractInDoubt). A store's
// calls of Append go in batches too, and so do those of Records: a process that wins 10,000
// elections writes as many records.
//
// While no batch and fewer than maxAlone operations are under way, an operation goes at once, alone
// and in its caller's goroutine. Otherwise it is queued until one of those returns. Then all that
// are queued go in one Txn. Each is a Txn within it with its own compares: an operation whose
// compare fails does not fail the others. Nobody who leads waits for a journal: its operations are
// always queued, and go one Txn after the other. Reads of records are no Txns within: etcd puts a
// Txn with others within into its log, also where all of them only read.
//
// Where etcd answers with an error it has done all of the Txn or nothing. If one operation alone
// may be to blame, both halves are sent again, down to that operation: each may be repeated. After
// an error that is not definite (see etcdwire.Definite) all operations of the Txn are in doubt. A
// claim in doubt that finds its key takes it for its own.
//
// No two operations on one name go together: etcd gives all keys of a Txn one revision, so two
// claims would have one token. For appends this holds of one record only, for reads not at all.

// How many Txns of a lease are under way at once. A short queue gets one Txn at a time: with 64
// goroutines a lock and unlock then cost 100 µs of processor time, with two Txns at a time 127 µs,
// and each alone 277 µs (measured on two cores with etcd beside it). A queue that fills several
// Txns gets up to four at a time: with 1,024 goroutines the locks per second grow up to four, and a
// lock costs the same.
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

	ofJournal bool // its operations are calls of Append, or of Records, and no lease's
	ofReads   bool // they are calls of Records: each is one range

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
	only string          // what no two operations of a Txn may have both; empty: nothing
	bare *pb.TxnRequest  // without a journal record
	ctx  context.Context // its caller's
	size int             // about how many bytes it has
	done chan struct{}   // closed when resp, doubt and out are final

	// batcher.mu guards these.
	batch     *batch // what it goes with; nil: it is queued
	abandoned bool   // its caller has given up

	// Once it has a batch, only the goroutine that sends the batch uses these, until done.
	req    *pb.TxnRequest // with the journal record that it leaves
	within txnOp          // req in the Txn of the batch
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
func (b *batcher) send(ctx context.Context, what, name string, req *pb.TxnRequest, record *journalRecord,
) (*pb.TxnResponse, bool, error) {
	b.mu.Lock()
	if !b.ofJournal && b.batches == 0 && b.alone < maxAlone && len(b.queue) == 0 {
		b.alone, b.lastProgress = b.alone+1, time.Now()
		b.mu.Unlock()
		defer b.done()
		resp, out := b.j.sendWithRecord(ctx, req, record)
		if out.Err != nil {
			return nil, out.Doubt, b.w.Explain(ctx, verb(what, name), out)
		}
		return resp, out.Doubt, nil
	}
	o := &op{name: name, only: b.only(name, req), req: record.with(req), bare: req, record: record, ctx: ctx,
		done: make(chan struct{})}
	if o.size = weight(o.req); b.ofJournal {
		o.size += answerWeight(o.req)
	}
	b.queue = append(b.queue, o)
	// The requests under way may be at a silent member, and a new one may go to another member.
	// Progress is older than those only if none was under way.
	idle := b.batches+b.alone == 0
	stuck := !idle && time.Since(b.lastProgress) > etcdwire.BlameAfter
	b.bytes += o.size
	now := idle || stuck || b.fullLocked() && !b.ofJournal
	if now && b.batches < maxBatches {
		b.startLocked()
	}
	b.mu.Unlock()
	closed := b.w.Context().Done()
	for {
		select {
		case <-o.done:
			return o.answer(b.w, what)
		case <-ctx.Done():
			return nil, b.giveUp(o), fmt.Errorf("etcd: %s: %w", verb(what, name), ctx.Err())
		case <-closed:
			if closed = nil; b.withdraw(o) {
				return nil, false, fmt.Errorf("etcd: %s: %w", verb(what, name), etcdwire.ErrClosed)
			}
		}
	}
}

// only returns what op.only says of a request on that name.
func (b *batcher) only(name string, req *pb.TxnRequest) string {
	switch {
	case b.ofReads:
		return ""
	case b.ofJournal:
		return string(req.Compare[0].Key)
	}
	return name
}

func (o *op) answer(w *etcdwire.Wire, what string) (*pb.TxnResponse, bool, error) {
	if o.out.Err == nil {
		return o.resp, o.doubt, nil
	}
	if errors.Is(o.batch.ctx.Err(), context.DeadlineExceeded) {
		// o.ctx ends now too, for its deadline is not after the batch's. Explain tells a deadline
		// only of a context that has ended.
		<-o.ctx.Done()
	}
	return nil, o.doubt, w.Explain(o.ctx, verb(what, o.name), o.out)
}

// giveUp notes that the operation's caller waits no more. It reports whether it was sent.
func (b *batcher) giveUp(o *op) (sent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dequeueLocked(o) {
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
func (b *batcher) withdraw(o *op) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dequeueLocked(o)
}

func (b *batcher) dequeueLocked(o *op) bool {
	if o.batch != nil {
		return false
	}
	for i, q := range b.queue {
		if q == o {
			b.queue, b.bytes = append(b.queue[:i], b.queue[i+1:]...), b.bytes-o.size
			break
		}
	}
	return true
}

// done ends an operation that was under way alone, and has the queued ones sent.
func (b *batcher) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastProgress = time.Now()
	if b.alone--; len(b.queue) > 0 && b.batches == 0 {
		b.startLocked()
	}
}

// startLocked begins to send what is queued, batch after batch.
func (b *batcher) startLocked() {
	b.batches, b.lastProgress = b.batches+1, time.Now()
	go func() {
		if b.ofJournal {
			b.gather()
		}
		for t := b.fill(true); t != nil; t = b.fill(false) {
			b.sendOps(t, t.ops, len(t.ops))
			t.cancel()
			b.gather()
		}
	}()
}

// fullLocked reports whether enough are queued for a whole Txn. Each operation is a Txn within, and
// the compares of the widest count too (etcdwire.OpsLimit): two at least.
func (b *batcher) fullLocked() bool {
	return len(b.queue) >= b.w.Limit.Ops()-2 || b.bytes >= bytesTogether
}

// gather lets the callers run that have just had their answers. Many come back at once with their
// next operations: otherwise the first of these would be sent alone.
func (b *batcher) gather() {
	for last, now, full := -1, 0, false; now > last && !full; {
		last = now
		runtime.Gosched()
		b.mu.Lock()
		now, full = len(b.queue), b.fullLocked()
		b.mu.Unlock()
	}
}

// fill takes as many out of the queue as may go together, the oldest first, for a goroutine that
// sends. It returns nil where that goroutine is to end: if nothing is queued. It also ends if less
// is queued than a whole Txn and another such goroutine runs: that one takes it next. But its first
// fill (anew) takes what there is.
func (b *batcher) fill(anew bool) *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastProgress = time.Now()
	if len(b.queue) == 0 || !anew && b.batches > 1 && !b.fullLocked() {
		b.batches--
		return nil
	}
	t := &batch{}
	names, records := make(map[string]struct{}, len(b.queue)), map[string]struct{}{}
	var rest []*op
	widest, bytes := 0, 0
	for i, o := range b.queue {
		_, twice := names[o.only]
		if o.record != nil {
			_, same := records[o.record.key] // etcd takes no Txn that puts a key twice
			twice = twice || same
		}
		w, sum := max(widest, width(o.req)), bytes+o.size
		if len(t.ops) > 0 && (len(t.ops)+1+w > b.w.Limit.Ops() || sum > bytesTogether) {
			rest = append(rest, b.queue[i:]...)
			break
		}
		if twice {
			rest = append(rest, o)
			continue
		}
		if widest, bytes = w, sum; o.only != "" {
			names[o.only] = struct{}{}
		}
		if o.record != nil {
			records[o.record.key] = struct{}{}
		}
		o.batch = t
		t.ops = append(t.ops, o)
	}
	b.queue, b.bytes = rest, b.bytes-bytes
	t.waiting = len(t.ops)
	t.ctx, t.cancel = t.limit(b.w.Context())
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
// answers. If one of several may be to blame for an error, it sends them again:
//   - etcd is full, and some leave records: all of them without their records
//   - otherwise in halves; if etcd has found too many operations, the smaller limit is noted first
func (b *batcher) sendOps(t *batch, all []*op, most int) {
	for len(all) > 0 {
		n := b.fit(all, most)
		some := b.present(all[:n])
		all = all[n:]
		if len(some) == 0 {
			continue
		}
		resp, out := b.sendTogether(t.ctx, some)
		if out.Err == nil {
			if out.Err = b.unpack(resp, some); out.Err != nil {
				out.Doubt = true
			}
		}
		for _, o := range some {
			o.doubt = o.doubt || out.Doubt
		}
		if out.Err != nil && len(some) > 1 && b.mayBlameSome(out.Err, some) {
			if etcdwire.NoSpace(out.Err) && dropRecords(some) {
				b.j.turnOff()
				b.sendOps(t, some, len(some)) // a release without a record only deletes, which a full etcd takes
				continue
			}
			if etcdwire.TooMany(out.Err) {
				b.w.Limit.Refused(len(some))
			}
			b.sendOps(t, some, (len(some)+1)/2)
			continue
		}
		for _, o := range some {
			o.out = out
			close(o.done)
		}
	}
}

func (b *batcher) sendTogether(ctx context.Context, some []*op) (*pb.TxnResponse, etcdwire.Outcome) {
	if len(some) == 1 {
		return b.j.sendWithRecord(ctx, some[0].bare, some[0].record)
	}
	if b.j.isOff() {
		dropRecords(some)
	}
	return b.w.Send(ctx, b.pack(some))
}

// mayBlameSome reports whether some of the operations of a Txn may be to blame for its error, and
// others may do without them. While etcd is full each append is refused alike: to send them again
// in halves would be twice as many requests as there are records.
func (b *batcher) mayBlameSome(err error, some []*op) bool {
	if b.ofJournal && etcdwire.NoSpace(err) {
		return false
	}
	return mayBlameOne(err) || mayBlameRecord(err) && anyRecord(some)
}

func anyRecord(some []*op) bool {
	return slices.ContainsFunc(some, func(o *op) bool { return o.record != nil })
}

// fit returns how many of the first ops the server takes at once.
func (b *batcher) fit(all []*op, most int) int {
	widest := 0
	for n, o := range all {
		widest = max(widest, width(o.req))
		if n > 0 && (n == most || n+1+widest > b.w.Limit.Ops()) {
			return n
		}
	}
	return len(all)
}

// present returns those whose callers still wait.
func (b *batcher) present(all []*op) []*op {
	b.mu.Lock()
	defer b.mu.Unlock()
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
func (b *batcher) pack(some []*op) *pb.TxnRequest {
	if len(some) == 1 {
		return some[0].req
	}
	req := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(some))}
	for i, o := range some {
		if req.Success[i] = o.within.get(o.req); b.ofReads {
			req.Success[i] = o.req.Success[0]
		}
	}
	return req
}

func (b *batcher) unpack(resp *pb.TxnResponse, some []*op) error {
	if len(some) == 1 {
		some[0].resp = resp
		return nil
	}
	if len(resp.Responses) != len(some) {
		return fmt.Errorf("%d answers to %d operations", len(resp.Responses), len(some))
	}
	for i, o := range some {
		if o.resp = resp.Responses[i].GetResponseTxn(); b.ofReads && resp.Responses[i].GetResponseRange() != nil {
			o.resp = &pb.TxnResponse{Succeeded: true, Responses: resp.Responses[i : i+1]}
		}
		if o.resp == nil {
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

// answerWeight returns about how many bytes the answer to a read of records has, for bytesTogether:
// as many reads go together as have 4,096 records at most.
func answerWeight(r *pb.TxnRequest) (n int) {
	const record = bytesTogether / 4096
	for _, op := range r.Success {
		n += record * int(min(op.GetRequestRange().GetLimit(), 4096))
	}
	return n
}
