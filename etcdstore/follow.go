package etcdstore

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// Follow implements [driver.Lease]. A place costs a waiter. There is a goroutine and a timer only
// for each session with a heartbeat right before a place (livenessWatch). Where a process follows
// many places, one watch of etcd serves them all.
func (n *newsbox) Follow(places ...driver.Place) {
	for _, p := range places {
		wt := n.newWaiter(p)
		if wt == nil {
			continue
		}
		earlier, ok := n.waiters.add(wt)
		if earlier != nil {
			earlier.drop()
		}
		// A Release may have come after newWaiter. Then nobody drops this waiter here: its first
		// read finds the place gone, which drops it, and tell says nothing of it.
		if ok {
			wt.startListening()
			wt.watchPredecessor()
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

// unfollow ends the following of a claim. From then on News watches the claim's key. It reports
// false if the following has ended already.
func (n *newsbox) unfollow(wt *waiter) bool {
	if !n.waiters.remove(wt) {
		return false
	}
	wt.drop()
	n.watchSoon(wt.seat, uint64(wt.token))
	return true
}

// released ends the following of a claim that its owner has given up.
func (n *newsbox) released(id seatID, token uint64) {
	if wt := n.waiters.of(id); wt != nil && wt.token == int64(token) {
		n.unfollow(wt)
	}
}

// clear forgets the claim, which does not stand and cannot come. The caller has the seat's turn.
func (n *newsbox) clear(seat *seatState) {
	n.seats.mu.Lock()
	sub, token := seat.sub, seat.token
	seat.claimFields = claimFields{}
	n.seats.mu.Unlock()
	sub.Stop()
	n.released(seat.seatID, token)
}

// clearGone forgets the claims that are told as gone, or a session of many short-lived names would
// keep each for its life: their owners need not release what is gone. A claim with an open doubt
// stays until its owner settles that. So does one whose seat's turn somebody has: he removes it, or
// the next to enter there does.
func (n *newsbox) clearGone(told []driver.News) {
	for _, one := range told {
		if !one.Gone {
			continue
		}
		seat := n.seats.open(storeutil.SeatAt(one.Place))
		select {
		case seat.turn <- struct{}{}:
			n.seats.mu.Lock()
			over := seat.token == one.Place.Token && seat.leaving && !seat.doubt && !seat.transferInDoubt
			n.seats.mu.Unlock()
			if over {
				n.clear(seat)
			}
			seat.unlock()
		default:
		}
		n.seats.drop(seat)
	}
}

// tellKnown tells the queued places of which enough is known without a read. It returns the others:
// their lines must be read.
func (n *newsbox) tellKnown() (out []driver.News, doubtful []*waiter) {
	for _, wt := range n.waiters.take(n.s.wire.Hub) {
		if n.over() {
			break // all of them, perhaps thousands, have been dropped
		}
		o, unsure := wt.ask()
		switch {
		case o == holds && n.keepFollowing(wt):
			out = n.tell(out, wt, driver.News{Held: true})
		case o == holds:
			out = n.tellLast(out, wt, driver.News{Held: true})
			n.toldUnread = append(n.toldUnread, wt.seat)
		case o == ended:
			out = n.tellLast(out, wt, driver.News{Gone: true})
		case unsure:
			doubtful = append(doubtful, wt)
		default: // it waits, perhaps behind another one; or it was told as held, and nothing has changed
			wt.watchPredecessor()
		}
	}
	return out, doubtful
}

// keepFollowing goes on following a place that is told as held, for its end. It reports false where
// the line cannot be listened to any longer.
func (n *newsbox) keepFollowing(wt *waiter) bool {
	if n.waiters.of(wt.seat) != wt || !wt.keepListening() {
		return false
	}
	wt.watchPredecessor() // there is none any more
	return true
}

// readWhatWasTold has News read the keys of the places that the last call told as held, by what was
// heard, and follows no more. No waiter listens to such a place, and its key is watched only after
// WatchAfter (watchSoon). If somebody removes it in between, nobody hears of that without this
// read.
func (n *newsbox) readWhatWasTold() {
	for _, id := range n.toldUnread {
		if n.waiters.of(id) == nil {
			n.readNext(id)
		}
	}
	n.toldUnread = nil
}

// tellLast ends the following of a claim and adds the news of it. It adds nothing where the claim
// is not followed any more.
func (n *newsbox) tellLast(out []driver.News, wt *waiter, news driver.News) []driver.News {
	if !n.unfollow(wt) {
		return out
	}
	return n.tell(out, wt, news)
}

// tell adds the news of a claim, unless its owner is giving it up. If the claim is known to have
// ended by now, it tells the end instead.
func (n *newsbox) tell(out []driver.News, wt *waiter, news driver.News) []driver.News {
	if wt.hasEnded() {
		news = driver.News{Gone: true}
	}
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	seat := n.seats.by[wt.seat]
	if seat == nil || int64(seat.token) != wt.token || seat.leaving {
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

// askAbout asks etcd what has become of places that are unsure, and adds the news. It asks about
// the first ones one by one, and reads the lines of the others. After an error it asks nothing
// more: all that have no answer are queued again, for the next call of gather.
func (n *newsbox) askAbout(ctx context.Context, out []driver.News, doubtful []*waiter) ([]driver.News, error) {
	var some []*waiter
	var err error
	asked := 0
	for i, wt := range doubtful {
		known := false
		if p := wt.blocker(); p.rev != 0 && asked < quickAsks && err == nil {
			asked++
			known, err = n.stillBlocked(ctx, wt, p)
		}
		if known {
			wt.watchPredecessor() // since it was queued, another claim may have come right before it
		} else {
			some = append(some, wt)
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

// stillBlocked reports whether the claim and p, its blocker, still stand. The question costs the
// same however long the line is.
func (n *newsbox) stillBlocked(ctx context.Context, wt *waiter, p predecessor) (bool, error) {
	done, err := n.s.startLineRead(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	resp, _, err := n.s.wire.Txn(ctx, "news", &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(wt.key, wt.token), ifCreate(p.key, p.rev)},
		// Without a read etcd would answer from one member alone.
		Success: []*pb.RequestOp{doRange(&pb.RangeRequest{Key: []byte(wt.key), CountOnly: true})},
	})
	if forbidden(err) {
		return false, nil // lookAt tells it as refused
	}
	if err != nil || !resp.Succeeded {
		return false, err
	}
	wt.noteStillBlocked(resp.Header.Revision)
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
		for _, wt := range some {
			ops := n.lookOps(wt.place())
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
			for i, wt := range some[:k] {
				out = n.seenOf(out, wt, resp, at[i])
			}
		}
		some = some[k:]
	}
	return out, nil
}

// seenOf hands wt the answers about it, which begin at index at, and adds them where they are news.
func (n *newsbox) seenOf(out []driver.News, wt *waiter, resp *pb.TxnResponse, at int) []driver.News {
	p := wt.place()
	st := n.standingIn(p, resp, at)
	switch {
	case !st.stands:
		return n.tellLast(out, wt, driver.News{Gone: true})
	case st.held && !wt.isHoldTold():
		n.announce(p, st)
		return n.tellLast(out, wt, driver.News{Held: true})
	}
	wt.noteLook(st)
	wt.watchPredecessor()
	return out
}
