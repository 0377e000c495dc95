package etcdstore

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// pairs is how many places are looked at in one Txn, with two reads each: etcd allows 128.
const pairs = 60

// spreadLeast is the shortest time between two looks that nothing gave cause for.
const spreadLeast = 500 * time.Millisecond

// Follow implements [driver.Lease]. A place that waits costs a waiter, and no goroutine, timer or
// watch of its own where the process follows many. One that is held costs a watch of its line,
// for what comes behind it is a put: etcd has one small watch for each such name, opened once and
// quiet as long as nobody comes.
func (n *newsbox) Follow(places ...driver.Place) {
	for _, p := range places {
		n.follow(p)
	}
}

func (n *newsbox) follow(p driver.Place) {
	n.seats.mu.Lock()
	sl := n.seats.by[storeutil.SeatAt(p)]
	if sl == nil || sl.id != p.ID || sl.token == 0 || sl.leaving || p.Token != 0 && p.Token != sl.token || n.over() {
		n.seats.mu.Unlock()
		return
	}
	held := p.Held
	p = sl.place()
	n.seats.mu.Unlock()
	a := n.newWaiter(p)
	n.seats.mu.Lock()
	if int64(sl.token) == a.token {
		sl.ahead, sl.at = nil, 0 // a has it: thousands of places would keep it twice
	}
	n.seats.mu.Unlock()
	if a.wants = held; held {
		a.seen, a.ahead = a.token, nil // as it entered nobody stood behind it
	}
	n.mu.Lock()
	old := n.follows[a.at]
	if n.closed || old != nil && old.token > a.token { // a later claim came to the seat meanwhile
		n.mu.Unlock()
		return
	}
	n.follows[a.at] = a
	n.covered[a.at]++
	n.mu.Unlock()
	if old != nil {
		old.drop()
	}
	a.enlist()
	a.watchPredecessor()
}

// unfollow ends the following of a, once. It reports false if that has happened already.
func (n *newsbox) unfollow(a *waiter) bool {
	n.mu.Lock()
	ours := n.follows[a.at] == a
	if ours {
		delete(n.follows, a.at)
	}
	n.mu.Unlock()
	if ours {
		a.drop()
	}
	return ours
}

// released ends the following of a claim that its owner has given up.
func (n *newsbox) released(at seatID, token uint64) {
	n.mu.Lock()
	a := n.follows[at]
	n.mu.Unlock()
	if a != nil && a.token == int64(token) {
		n.unfollow(a)
	}
}

// queue has News look at a.
func (n *newsbox) queue(a *waiter) {
	n.queueQuietly(a)
	n.poke()
}

// queueQuietly has News look at a when it wakes for something else.
func (n *newsbox) queueQuietly(a *waiter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !a.queued && !n.closed {
		a.queued = true
		n.queued = append(n.queued, a)
	}
}

// spreadLocked returns how long News may wait until it looks without a signal, so that in d, or in
// half a second for each Txn that this takes, all followed places have had their turn.
func (n *newsbox) spreadLocked(d time.Duration) time.Duration {
	if len(n.follows) <= pairs {
		return d
	}
	return max(spreadLeast, d*pairs/time.Duration(len(n.follows)))
}

// next has the next few of the followed places looked at, though nothing was told of them.
func (n *newsbox) next() {
	n.mu.Lock()
	if len(n.round) == 0 {
		for _, a := range n.follows {
			n.round = append(n.round, a)
		}
	}
	k := min(pairs, len(n.round))
	some := n.round[:k]
	n.round = n.round[k:]
	n.mu.Unlock()
	for _, a := range some {
		a.check()
	}
}

// takeQueued returns the followed places that were heard of. A message that the hub is dealing
// with just now may be of many: they are told in one piece.
func (n *newsbox) takeQueued(h *etcdwire.Hub) []*waiter {
	h.Lock()
	defer h.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	queued := n.queued
	n.queued = nil
	for _, a := range queued {
		a.queued = false
	}
	return queued
}

// queuedNews tells what has become of the followed places that were heard of, and reads the lines
// of those that are unsure. What is known is told first: it does not wait for what is read.
func (n *newsbox) queuedNews(ctx context.Context) (out []driver.News, err error) {
	var doubtful []*waiter
	for _, a := range n.takeQueued(n.s.wire.Hub) {
		if n.over() {
			return out, nil // what is followed has been given up, thousands it may be
		}
		o, unsure := a.ask()
		switch {
		case o == holds && n.keep(a):
			out = n.tell(out, a, o)
		case o != waits:
			out = n.newsOf(out, a, o)
			if o == holds {
				n.noteHeld(a.at)
			}
		case unsure:
			doubtful = append(doubtful, a)
		default:
			a.watchPredecessor()
		}
	}
	if n.tellsFirst(out) {
		n.queueAgain(doubtful)
		return out, nil
	}
	return n.askAbout(ctx, out, doubtful)
}

// tellsFirst reports whether News returns what it knows before it reads anything: not twice in
// turn, or a busy lease would never read.
func (n *newsbox) tellsFirst(known []driver.News) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.toldFirst = len(known) > 0 && !n.toldFirst
	return n.toldFirst
}

// hasToldFirst reports whether tellsFirst has just said so.
func (n *newsbox) hasToldFirst() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.toldFirst
}

// queueAgain has News look at those when it comes back.
func (n *newsbox) queueAgain(some []*waiter) {
	for _, a := range some {
		n.queueQuietly(a)
	}
}

// askAbout asks what has become of those followed places that are unsure.
func (n *newsbox) askAbout(ctx context.Context, out []driver.News, doubtful []*waiter) ([]driver.News, error) {
	var some []*waiter
	var err error
	asked := 0
	for i, a := range doubtful {
		known := false
		if near := a.enough(); near.rev != 0 && asked < quickAsks && err == nil {
			asked++
			known, err = n.still(ctx, a, near)
		}
		if known {
			a.watchPredecessor() // another one perhaps than when it was queued
		} else {
			some = append(some, a)
		}
		if len(some) == pairs || i == len(doubtful)-1 && len(some) > 0 {
			if err == nil {
				out, err = n.lookAt(ctx, out, some)
			}
			if err != nil {
				n.queueAgain(some)
			}
			some = nil
		}
	}
	return out, err
}

// quickAsks is how many followed places are asked about one by one in a row, by a question that
// costs the same however long a line is. Of more their lines are read, many at once.
const quickAsks = 8

// still reports whether a's claim and one before it stand, so that nothing more need be known of
// its line.
func (n *newsbox) still(ctx context.Context, a *waiter, near predecessor) (bool, error) {
	done, err := n.s.turnToAsk(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	resp, _, err := n.s.wire.Txn(ctx, "news", &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(a.key, a.token), ifCreate(near.key, near.rev)},
		// Without a read etcd would answer from one member alone.
		Success: []*pb.RequestOp{doRange(&pb.RangeRequest{Key: []byte(a.key), CountOnly: true})},
	})
	if err != nil || !resp.Succeeded {
		return false, err
	}
	a.confirm(resp.Header.Revision)
	return true, nil
}

// keep goes on with a place that is followed and is held by now, for its end. It reports false
// where that cannot be.
func (n *newsbox) keep(a *waiter) bool {
	n.mu.Lock()
	ours := n.follows[a.at] == a
	n.mu.Unlock()
	if !ours || !a.keep() {
		return false
	}
	a.watchPredecessor() // there is none any more
	return true
}

// newsOf adds the news of a's outcome, unless the claim is not the owner's any more.
func (n *newsbox) newsOf(out []driver.News, a *waiter, o outcome) []driver.News {
	if !n.unfollow(a) {
		return out
	}
	return n.tell(out, a, o)
}

// tell adds the news of a's outcome, unless the claim is given up. Of one that held and is known by
// now to have ended it tells the end only.
func (n *newsbox) tell(out []driver.News, a *waiter, o outcome) []driver.News {
	if a.hasEnded() {
		o = ended
	}
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	sl := n.seats.by[a.at]
	if sl == nil || int64(sl.token) != a.token || sl.leaving {
		return out
	}
	tell := driver.News{Place: sl.place(), Gone: o == ended, Held: o == holds, Wanted: o == wanted}
	tell.Place.Held = o != ended
	if o == ended {
		sl.leaving = true
		n.seats.spent.Add(sl.id)
	}
	return append(out, tell)
}

// noteHeld notes that News is about to tell that the place on a seat is held, without having read
// it.
func (n *newsbox) noteHeld(at seatID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = append(n.held, at)
}

// review has News read the places of which it has told so, unless they are followed again by now:
// the events may have come late, and a claim that was removed by hand since would be taken for
// held until its key has come to be watched.
func (n *newsbox) review() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, at := range n.held {
		if n.covered[at] == 0 {
			n.changed[at] = true
		}
	}
	n.held = nil
}

// lookAt reads the lines of some followed places, as many at one instant as go in a Txn.
func (n *newsbox) lookAt(ctx context.Context, out []driver.News, some []*waiter) ([]driver.News, error) {
	limit := &n.s.wire.Limit
	for most := min(2*pairs, limit.Ops()); len(some) > 0 && !n.over(); {
		req, k := &pb.TxnRequest{}, 0
		var at []int
		for k < len(some) {
			ops := n.lookingAt(some[k])
			if k > 0 && len(req.Success)+len(ops) > most {
				break
			}
			at = append(at, len(req.Success))
			req.Success = append(req.Success, ops...)
			k++
		}
		done, err := n.s.turnToAsk(ctx)
		if err != nil {
			return out, err
		}
		resp, _, err := n.s.wire.Txn(ctx, "news", req)
		done()
		if k > 1 && etcdwire.TooMany(err) {
			limit.Refused(len(req.Success))
			most = len(req.Success) / 2
			continue
		}
		if err != nil {
			return out, err
		}
		for i, a := range some[:k] {
			out = n.seenOf(out, a, resp, at[i])
		}
		some = some[k:]
	}
	return out, nil
}

// lookingAt is what is read of a: its line, or where it holds the first few behind it.
func (n *newsbox) lookingAt(a *waiter) []*pb.RequestOp {
	if !a.wants && !a.keeps {
		return n.looking(a.place())
	}
	dir := n.s.lineDir(a.at.Name)
	return []*pb.RequestOp{
		doRange(&pb.RangeRequest{Key: []byte(a.key), KeysOnly: true}),
		doRange(&pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(etcdwire.PrefixEnd(dir)), KeysOnly: true,
			Limit: a.behindLimit(), MinCreateRevision: a.token + 1,
			SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_CREATE}),
	}
}

// seenOf takes over what the answers from index at on say of a, and adds it where it is news.
func (n *newsbox) seenOf(out []driver.News, a *waiter, resp *pb.TxnResponse, at int) []driver.News {
	if a.wants || a.keeps {
		own := one(resp, at)
		if own == nil || own.CreateRevision != a.token {
			return n.newsOf(out, a, ended)
		}
		behind := found(resp, at+1)
		for _, kv := range behind {
			if a.wants && a.follows(kv) {
				return n.newsOf(out, a, wanted)
			}
		}
		if limit := a.behindLimit(); a.wants && int64(len(behind)) >= limit {
			a.behindMost.Store(8 * limit) // all of them are its own session's: another's may stand behind those
			n.queue(a)
			return out
		}
		a.learn(standing{rev: resp.Header.Revision})
		return out
	}
	p := a.place()
	st := n.seen(p, resp, at)
	switch {
	case !st.stands:
		return n.newsOf(out, a, ended)
	case st.held:
		n.show(p, st)
		return n.newsOf(out, a, holds)
	}
	a.learn(st)
	a.watchPredecessor()
	return out
}
