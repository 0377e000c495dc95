package etcdstore

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// Follow implements [driver.Lease]. A place costs a waiter, but no goroutine and no timer. Where a
// process follows many places, one watch of etcd serves them all.
func (n *newsbox) Follow(places ...driver.Place) {
	for _, p := range places {
		a := n.newWaiter(p)
		if a == nil {
			continue
		}
		earlier, ok := n.waiters.add(a)
		if earlier != nil {
			earlier.drop()
		}
		if ok {
			a.startListening()
			a.watchPredecessor()
		}
	}
}

// newWaiter returns a waiter for a place, nil where the place is not one of the lease's any more.
func (n *newsbox) newWaiter(p driver.Place) *waiter {
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	seat := n.seats.by[storeutil.SeatAt(p)]
	if seat == nil || seat.id != p.ID || seat.token == 0 || seat.leaving || n.over() ||
		p.Token != 0 && p.Token != seat.token {
		return nil
	}
	return newWaiterLocked(n.s, n.waiters, seat)
}

// unfollow ends the following of a. From then on News watches the claim's key. It reports false if
// the following has ended already.
func (n *newsbox) unfollow(a *waiter) bool {
	if !n.waiters.remove(a) {
		return false
	}
	a.drop()
	n.watchSoon(a.seat, uint64(a.token))
	return true
}

// released ends the following of a claim that its owner has given up.
func (n *newsbox) released(id seatID, token uint64) {
	if a := n.waiters.of(id); a != nil && a.token == int64(token) {
		n.unfollow(a)
	}
}

// known tells what is known of the queued places without a read. It returns those of which that is
// not enough: their lines must be read.
func (n *newsbox) known() (out []driver.News, doubtful []*waiter) {
	for _, a := range n.waiters.take(n.s.wire.Hub) {
		if n.over() {
			break // all of them, perhaps thousands, have been dropped
		}
		o, unsure := a.ask()
		switch {
		case o == holds && n.keepFollowing(a):
			out = n.tell(out, a, driver.News{Held: true})
		case o == holds:
			out = n.tellLast(out, a, driver.News{Held: true})
			n.toldUnread = append(n.toldUnread, a.seat)
		case o == ended:
			out = n.tellLast(out, a, driver.News{Gone: true})
		case unsure:
			doubtful = append(doubtful, a)
		default:
			a.watchPredecessor()
		}
	}
	return out, doubtful
}

// keepFollowing goes on following a place that is told as held, for its end. It reports false where
// the line cannot be listened to any longer.
func (n *newsbox) keepFollowing(a *waiter) bool {
	if n.waiters.of(a.seat) != a || !a.keepListening() {
		return false
	}
	a.watchPredecessor() // there is none any more
	return true
}

// readWhatWasTold has News read the keys of the places that the last call told as held without a
// read, unless they are followed again. Nothing listens to them, and they are not watched yet: one
// that somebody has removed meanwhile would seem held.
func (n *newsbox) readWhatWasTold() {
	for _, id := range n.toldUnread {
		if n.waiters.of(id) == nil {
			n.readNext(id)
		}
	}
	n.toldUnread = nil
}

// tellLast ends the following of a and adds the news of it. It adds nothing where a is not
// followed any more.
func (n *newsbox) tellLast(out []driver.News, a *waiter, news driver.News) []driver.News {
	if !n.unfollow(a) {
		return out
	}
	return n.tell(out, a, news)
}

// tell adds the news of a, unless its owner gives the claim up. Of a claim that is known by now to
// have ended it tells the end, whatever else was to be told.
func (n *newsbox) tell(out []driver.News, a *waiter, news driver.News) []driver.News {
	if a.hasEnded() {
		news = driver.News{Gone: true}
	}
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	seat := n.seats.by[a.seat]
	if seat == nil || int64(seat.token) != a.token || seat.leaving {
		return out
	}
	news.Place = seat.placeLocked()
	news.Place.Held = news.Held
	if news.Gone {
		seat.leaving = true
		n.seats.spent.Add(seat.id)
	}
	return append(out, news)
}

// quickAsks is how many places are asked about one by one in a row (see stillBlocked). Of more
// the lines are read, many at once.
const quickAsks = 8

// askAbout asks etcd what has become of places that are unsure, and adds the news.
func (n *newsbox) askAbout(ctx context.Context, out []driver.News, doubtful []*waiter) ([]driver.News, error) {
	var some []*waiter
	var err error
	asked := 0
	for i, a := range doubtful {
		known := false
		if p := a.blocker(); p.rev != 0 && asked < quickAsks && err == nil {
			asked++
			known, err = n.stillBlocked(ctx, a, p)
		}
		if known {
			a.watchPredecessor() // since it was queued, another claim may have come right before it
		} else {
			some = append(some, a)
		}
		if len(some) == looksPerTxn || i == len(doubtful)-1 && len(some) > 0 {
			if err == nil {
				var more []driver.News
				more, err = n.lookAt(ctx, some)
				out = append(out, more...)
			}
			if err != nil {
				n.waiters.pushQuietly(some...)
			}
			some = nil
		}
	}
	return out, err
}

// stillBlocked reports whether a's claim and p, its blocker, still stand. The question costs the
// same however long the line is.
func (n *newsbox) stillBlocked(ctx context.Context, a *waiter, p predecessor) (bool, error) {
	done, err := n.s.startLineRead(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	resp, _, err := n.s.wire.Txn(ctx, "news", &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(a.key, a.token), ifCreate(p.key, p.rev)},
		// Without a read etcd would answer from one member alone.
		Success: []*pb.RequestOp{doRange(&pb.RangeRequest{Key: []byte(a.key), CountOnly: true})},
	})
	if forbidden(err) {
		return false, nil // which lookAt tells
	}
	if err != nil || !resp.Succeeded {
		return false, err
	}
	a.noteStillBlocked(resp.Header.Revision)
	return true, nil
}

// lookAt reads the lines of some places, as many at a time as go in a Txn, and returns what is
// news. If etcd forbids one Txn for several places, both halves are tried again, down to a single
// place: that one is told as refused.
func (n *newsbox) lookAt(ctx context.Context, some []*waiter) (out []driver.News, err error) {
	limit := &n.s.wire.Limit
	for most := min(2*looksPerTxn, limit.Ops()); len(some) > 0 && !n.over(); {
		req := &pb.TxnRequest{}
		var at []int // where the answers about each begin
		for _, a := range some {
			ops := n.looking(a.place())
			if len(at) > 0 && len(req.Success)+len(ops) > most {
				break
			}
			at = append(at, len(req.Success))
			req.Success = append(req.Success, ops...)
		}
		k := len(at)
		done, err := n.s.startLineRead(ctx)
		if err != nil {
			return out, err
		}
		resp, _, err := n.s.wire.Txn(ctx, "news", req)
		done()
		switch {
		case k > 1 && etcdwire.TooMany(err):
			limit.Refused(len(req.Success))
			most = len(req.Success) / 2
			continue
		case k > 1 && forbidden(err):
			more, err := halves(some[:k], func(half []*waiter) ([]driver.News, error) { return n.lookAt(ctx, half) })
			if out = append(out, more...); err != nil {
				return out, err
			}
		case forbidden(err) && some[0].isHoldTold():
			// The watch that stands still tells of its end; told as refused, it would have none.
		case forbidden(err):
			out = n.tellLast(out, some[0], driver.News{Refused: err})
		case err != nil:
			return out, err
		default:
			for i, a := range some[:k] {
				out = n.seenOf(out, a, resp, at[i])
			}
		}
		some = some[k:]
	}
	return out, nil
}

// seenOf takes over what the answers from index at on say of a, and adds it where it is news.
func (n *newsbox) seenOf(out []driver.News, a *waiter, resp *pb.TxnResponse, at int) []driver.News {
	p := a.place()
	st := n.standingIn(p, resp, at)
	switch {
	case !st.stands:
		return n.tellLast(out, a, driver.News{Gone: true})
	case st.held && !a.isHoldTold():
		n.announce(p, st)
		return n.tellLast(out, a, driver.News{Held: true})
	}
	a.noteLook(st)
	a.watchPredecessor()
	return out
}
