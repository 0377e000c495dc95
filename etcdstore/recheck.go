package etcdstore

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
)

// A read of a line costs etcd as much as the line is long: it sorts all claims to find the youngest. If thousands who wait in one line read it
// at once, because their watches have just begun or their stream was opened anew, none has its answer in time, all ask again, and the line stands
// still. So few of a store's waiters ask at once, and who is far from its turn asks a question that costs the same however long the line is.

// asking is how many of those who wait for something may ask etcd at once.
const asking = 8

// turnToAsk waits until one more may ask, and returns what ends its turn.
func (s *Store) turnToAsk(ctx context.Context) (func(), error) {
	select {
	case s.asks <- struct{}{}:
		return func() { <-s.asks }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ctx.Done():
		return nil, errClosed
	}
}

// inspect is look for one who waits.
func (l *lease) inspect(ctx context.Context, what string, p driver.Place) (standing, error) {
	done, err := l.s.turnToAsk(ctx)
	if err != nil {
		return standing{}, err
	}
	defer done()
	return l.look(ctx, what, p)
}

// recheck clears a's doubt if a is still far from its turn, and reports whether it did. With an error nothing is known.
func (l *lease) recheck(ctx context.Context, what string, p driver.Place, a *await) (bool, error) {
	far := l.s.hub.farthest(a)
	if far.rev == 0 {
		return false, nil
	}
	rev, ok, err := l.still(ctx, what, p, far)
	return ok && l.s.hub.confirm(a, rev), err
}

// farthest returns the farthest claim that a knows to stand before it, where a need know no more than that this stands; nothing otherwise.
func (h *hub) farthest(a *await) (r rival) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.isFar() {
		r = a.ahead[len(a.ahead)-1]
	}
	return r
}

// isFar reports whether a, which knows its neighbours only, waits for the farthest of them to go.
func (a *await) isFar() bool {
	return a.fate == waits && a.slots == 0 && !a.wants && !a.whole && !a.near && len(a.ahead) > 0
}

// confirm notes that at rev a stood, and the farthest claim it knows of. Others between may have gone by then: a concludes nothing from
// them before it has read its line.
func (h *hub) confirm(a *await, rev int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.left || !a.isFar() || rev < a.seen {
		return false
	}
	a.looked(rev)
	h.listen(a)
	h.settle(a)
	return true
}

// still reports whether a place stands, and that claim before it, and at which revision they did.
func (l *lease) still(ctx context.Context, what string, p driver.Place, ahead rival) (rev int64, ok bool, err error) {
	if ahead.rev == 0 {
		return 0, false, nil
	}
	done, err := l.s.turnToAsk(ctx)
	if err != nil {
		return 0, false, err
	}
	defer done()
	own := l.keyOf(p)
	resp, _, err := l.s.txn(ctx, what, &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(own, int64(p.Token)), ifCreate(ahead.key, ahead.rev)},
		// Without a read etcd would answer from one member alone.
		Success: []*pb.RequestOp{doRange(&pb.RangeRequest{Key: []byte(own), CountOnly: true})},
	})
	if err != nil || !resp.Succeeded {
		return 0, false, err
	}
	return resp.Header.Revision, true, nil
}
