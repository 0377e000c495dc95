package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Claims and releases of one lease travel together.
//
// An operation goes at once, alone, and in its caller's own goroutine, while few others are under way, all of them alone: who is alone never
// waits for company. Otherwise it waits until one of those returns; then all that wait go in one Txn, each as a Txn within it, with its own
// compares: so one whose compare fails leaves the others alone. Of what etcd answers with an error it has done all or nothing, though one of
// them may be to blame; then they go again in halves, down to the one that is. Each is safe to repeat, and where it may have been done (see
// definite) it is in doubt: a claim that then finds its key knows it for its own.
//
// etcd decides all compares before it writes anything, and gives all keys of a Txn one revision. So no two operations on one name go
// together: two claims would stand in the line under one token.

// How many Txns of a lease are under way at once. On two cores with etcd beside it, a lock and unlock on names of their own cost 277 µs of
// both processors' time by themselves, 127 µs where 64 goroutines shared two Txns that were always under way, and 100 µs in one: so short
// queues get one. With 1,024 goroutines the cost is the same for one and eight, about 80 µs, and locks per second grew from one to four
// (1.7, 2.2 and 2.5 times those of etcd's own Mutex for one, two and four): so full ones get more.
const (
	// alone is how many operations may be under way by themselves.
	alone = 4
	// lanes is how many Txns of several may be; more than one only while enough wait to fill another.
	lanes = 4
	// opsAllowed is etcd's --max-txn-ops, as it is by default: for the operations of the outer Txn and of any one within it. More at once has
	// brought nothing.
	opsAllowed = 128
	// bytesTogether bounds what goes together. etcd takes requests of 1.5 MiB by default; one operation that is larger than this goes alone.
	bytesTogether = 256 << 10
)

// pool is where operations of a lease wait for each other. As long as any waits, some lane is in use or some operation under way alone, and
// whoever returns takes those along that wait.
type pool struct {
	mu     sync.Mutex
	single int // operations under way alone
	used   int // lanes in use
	queue  []*parcel
	bytes  int       // of what waits
	moved  time.Time // when something was sent or returned last
	most   int       // operations that the server is known not to refuse, where that are fewer than usual; 0: not known
}

// parcel is one operation that waits, or travels with others.
type parcel struct {
	name string
	req  *pb.TxnRequest  // with the record that it leaves
	bare *pb.TxnRequest  // without
	note *note           // nil: it leaves none
	ctx  context.Context // its caller's
	trip *trip           // what it travels with; nil: it waits
	left bool            // its caller has given up
	size int             // about how many bytes it has
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
// that of the whole Txn. Where ctx ends while the operation waits, it is not sent, and there is no doubt. N is the record that it leaves, if any.
func (l *lease) together(ctx context.Context, what, name string, req *pb.TxnRequest, n *note) (*pb.TxnResponse, bool, error) {
	p := &l.pool
	p.mu.Lock()
	if p.used == 0 && p.single < alone && len(p.queue) == 0 {
		p.single, p.moved = p.single+1, time.Now()
		p.mu.Unlock()
		defer l.landed()
		resp, out := l.s.shipNoted(ctx, req, n)
		if out.err != nil {
			return nil, out.doubt, l.s.told(ctx, verb(what, name), out)
		}
		return resp, out.doubt, nil
	}
	o := &parcel{name: name, req: n.with(req), bare: req, note: n, ctx: ctx, done: make(chan struct{})}
	o.size = weight(o.req)
	p.queue = append(p.queue, o)
	// What is under way may lie with a member that is silent, and the next request go to another one.
	stuck := time.Since(p.moved) > patience
	if p.bytes += o.size; p.used < lanes && (stuck || p.full()) {
		l.useLane()
	}
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
		// One whose time is over ends by itself, and is told so: cancelled, it would leave a silent member unblamed.
		if end, ok := o.trip.ctx.Deadline(); !ok || time.Now().Before(end) {
			o.trip.cancel()
		}
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
			p.queue, p.bytes = append(p.queue[:i], p.queue[i+1:]...), p.bytes-o.size
			break
		}
	}
	return true
}

// landed ends an operation that was under way alone. Those who have waited meanwhile go on.
func (l *lease) landed() {
	p := &l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved = time.Now()
	if p.single--; len(p.queue) > 0 && p.used == 0 {
		l.useLane()
	}
}

// useLane begins to carry those who wait. The caller holds the pool's lock.
func (l *lease) useLane() {
	l.pool.used++
	go func() {
		for t := l.board(true); t != nil; t = l.board(false) {
			l.carry(t, t.parcels, len(t.parcels))
			t.cancel()
			l.pool.gather()
		}
	}()
}

// full reports whether enough wait for a whole Txn. The caller holds the lock.
func (p *pool) full() bool { return len(p.queue) >= p.allowed()-2 || p.bytes >= bytesTogether }

// gather lets those go on who have just had their answers: many come back at once, and whoever is first would go alone, at the price of a
// whole request.
func (p *pool) gather() {
	for last, now, full := -1, 0, false; now > last && !full; {
		last = now
		runtime.Gosched()
		p.mu.Lock()
		now, full = len(p.queue), p.full()
		p.mu.Unlock()
	}
}

// board takes as many of those who wait as may go together. It gives the lane back where there are none or, unless the lane is new, where they
// are so few that they better go with those of another.
func (l *lease) board(anew bool) *trip {
	p := &l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved = time.Now()
	if len(p.queue) == 0 || !anew && p.used > 1 && !p.full() {
		p.used--
		return nil
	}
	t := &trip{}
	names, records := make(map[string]struct{}, len(p.queue)), map[string]struct{}{}
	var rest []*parcel
	wide, bytes := 0, 0
	for i, o := range p.queue {
		_, twice := names[o.name]
		if o.note != nil {
			_, same := records[o.note.key] // etcd takes no Txn that puts a key twice
			twice = twice || same
		}
		w, b := max(wide, width(o.req)), bytes+o.size
		if len(t.parcels) > 0 && (len(t.parcels)+1+w > p.allowed() || b > bytesTogether) {
			rest = append(rest, p.queue[i:]...)
			break
		}
		if twice {
			rest = append(rest, o)
			continue
		}
		names[o.name], wide, bytes = struct{}{}, w, b
		if o.note != nil {
			records[o.note.key] = struct{}{}
		}
		o.trip = t
		t.parcels = append(t.parcels, o)
	}
	p.queue, p.bytes = rest, p.bytes-bytes
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
