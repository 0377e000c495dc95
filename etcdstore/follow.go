package etcdstore

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
)

// pairs is how many places are looked at in one Txn, with two reads each: etcd allows 128.
const pairs = 60

// spreadLeast is the shortest time between two looks that nothing gave cause for.
const spreadLeast = 500 * time.Millisecond

// Follow implements [driver.Lease]. A place that waits costs an await, and no goroutine, timer or watch of its own where the process follows many. One that is
// held costs a watch of its line, for what comes behind it is a put: etcd has one small watch for each such name, opened once and quiet as long as nobody comes.
func (l *lease) Follow(places ...driver.Place) {
	for _, p := range places {
		l.follow(p)
	}
}

func (l *lease) follow(p driver.Place) {
	l.mu.Lock()
	sl := l.slots[spotOf(p)]
	if sl == nil || sl.id != p.ID || sl.token == 0 || sl.leaving || p.Token != 0 && p.Token != sl.token || l.over() {
		l.mu.Unlock()
		return
	}
	held := p.Held
	p = sl.place()
	l.mu.Unlock()
	a := l.newAwait(p, nil)
	l.mu.Lock()
	if int64(sl.token) == a.token {
		sl.ahead, sl.at = nil, 0 // a has it: thousands of places would keep it twice
	}
	l.mu.Unlock()
	if a.wants = held; held {
		a.seen, a.ahead = a.token, nil // as it entered nobody stood behind it
	}
	n := &l.news
	n.mu.Lock()
	old := n.follows[a.at]
	if n.closed {
		n.mu.Unlock()
		return
	}
	n.follows[a.at] = a
	n.covered[a.at]++
	n.mu.Unlock()
	if old != nil {
		old.drop()
	}
	l.s.hub.enlist(a)
	a.guard()
}

// drop ends the following of a.
func (a *await) drop() {
	a.l.s.hub.leave(a)
	a.guards.stop()
	a.l.news.cover(a.at, -1)
	a.l.news.bear(a.at, uint64(a.token)) // who holds from now on is watched by itself
}

// keepHeld follows a, which Wait has found to hold, to its end. It reports false if that cannot be, or a later Follow does so already; Wait then ends what it
// began for a. True is also for a claim that was given up meanwhile, by whoever did that: ended twice, the claim would never be watched again.
func (n *news) keepHeld(a *await) bool {
	n.mu.Lock()
	old := n.follows[a.at]
	if n.closed || old != nil && old.token >= a.token {
		n.mu.Unlock()
		return false
	}
	n.follows[a.at] = a
	n.mu.Unlock()
	if old != nil {
		old.drop()
	}
	if a.l.s.hub.keep(a) {
		return true
	}
	n.mu.Lock()
	ours := n.follows[a.at] == a
	if ours {
		delete(n.follows, a.at)
	}
	n.mu.Unlock()
	if ours {
		n.add(a.at) // events said that it holds, and no watch goes on to say when it ends: News reads it now
	}
	return !ours
}

// hasEnded reports whether the claim that a Wait is for has ended by now, and has News say so.
func (l *lease) hasEnded(a *await) bool {
	gone := l.s.hub.hasEnded(a)
	if gone {
		l.news.add(a.at)
	}
	return gone
}

// unfollow ends the following of a, once. It reports false if that has happened already.
func (n *news) unfollow(a *await) bool {
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
func (n *news) released(at spot, token uint64) {
	n.mu.Lock()
	a := n.follows[at]
	n.mu.Unlock()
	if a != nil && a.token == int64(token) {
		n.unfollow(a)
	}
}

// guard keeps vigil over whom a stands right behind, where their sessions have heartbeats, and over nobody else any more.
func (a *await) guard() {
	a.guards.over(a.l.s, a.l.s.hub.rightBehind(a), func() { a.l.s.hub.doubt(a) })
}

// turn has News look at a.
func (n *news) turn(a *await) {
	n.keepTurn(a)
	n.poke()
}

// keepTurn is turn without waking News.
func (n *news) keepTurn(a *await) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !a.queued && !n.closed {
		a.queued = true
		n.turned = append(n.turned, a)
	}
}

// spread returns how long News may wait until it looks without a signal, so that in d, or in half a second for each Txn that this takes, all followed
// places have had their turn.
func (n *news) spread(d time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.follows) <= pairs {
		return d
	}
	return max(spreadLeast, d*pairs/time.Duration(len(n.follows)))
}

// next has the next few of the followed places looked at, though nothing was told of them.
func (n *news) next() {
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
		a.l.s.hub.doubt(a)
	}
}

// takeTurned returns the followed places that were heard of. A message that the hub is dealing with just now may be of many: they are told in one piece.
func (n *news) takeTurned(h *hub) []*await {
	h.mu.Lock()
	defer h.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	turned := n.turned
	n.turned = nil
	for _, a := range turned {
		a.queued = false
	}
	return turned
}

// turns tells what has become of the followed places that were heard of, and reads the lines of those that are unsure.
func (l *lease) turns(ctx context.Context) (out []driver.News, err error) {
	n := &l.news
	turned := n.takeTurned(l.s.hub)
	var some []*await
	for i, a := range turned {
		if l.over() {
			break // what is followed has been given up, thousands it may be
		}
		f, unsure, _ := l.s.hub.ask(a)
		switch {
		case f != waits:
			out = l.tellOf(out, a, f)
			if f == holds {
				n.tellsHeld(a.at)
			}
		case unsure:
			some = append(some, a)
		default:
			a.guard()
		}
		if len(some) == pairs || i == len(turned)-1 && len(some) > 0 {
			if err == nil {
				out, err = l.lookAt(ctx, out, some)
			}
			if err != nil {
				for _, a := range some {
					n.keepTurn(a)
				}
			}
			some = nil
		}
	}
	return out, err
}

// tellOf adds the news of a's fate, unless the claim is not the owner's any more.
func (l *lease) tellOf(out []driver.News, a *await, f fate) []driver.News {
	if !l.news.unfollow(a) {
		return out
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	sl := l.slots[a.at]
	if sl == nil || int64(sl.token) != a.token || sl.leaving {
		return out
	}
	tell := driver.News{Place: sl.place(), Gone: f == ended, Held: f == holds, Wanted: f == wanted}
	tell.Place.Held = f != ended
	if f == ended {
		sl.leaving = true
		l.spent.add(sl.id)
	}
	return append(out, tell)
}

// lookAt reads the lines of some followed places, as many at one instant as go in a Txn.
func (l *lease) lookAt(ctx context.Context, out []driver.News, some []*await) ([]driver.News, error) {
	for most := l.reads(2 * pairs); len(some) > 0 && !l.over(); {
		req, n := &pb.TxnRequest{}, 0
		var at []int
		for n < len(some) {
			ops := l.lookingAt(some[n])
			if n > 0 && len(req.Success)+len(ops) > most {
				break
			}
			at = append(at, len(req.Success))
			req.Success = append(req.Success, ops...)
			n++
		}
		resp, _, err := l.s.txn(ctx, "news", req)
		if n > 1 && tooMany(err) {
			l.learnMost(len(req.Success))
			most = len(req.Success) / 2
			continue
		}
		if err != nil {
			return out, err
		}
		for i, a := range some[:n] {
			out = l.seenOf(out, a, resp, at[i])
		}
		some = some[n:]
	}
	return out, nil
}

// reads returns how many of so many reads go in one Txn: a server may be known to take fewer.
func (l *lease) reads(n int) int {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	return min(n, l.pool.allowed())
}

// lookingAt is what is read of a: its line, or where it holds the first few behind it.
func (l *lease) lookingAt(a *await) []*pb.RequestOp {
	if !a.wants && !a.keeps {
		return l.looking(a.place())
	}
	dir := l.s.lineDir(a.at.name)
	return []*pb.RequestOp{
		doRange(&pb.RangeRequest{Key: []byte(a.key), KeysOnly: true}),
		doRange(&pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(prefixEnd(dir)), KeysOnly: true, Limit: a.behindLimit(), MinCreateRevision: a.token + 1,
			SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_CREATE}),
	}
}

// behindLimit returns how many claims behind a are read.
func (a *await) behindLimit() int64 { return max(nearby, a.behindMost.Load()) }

// place returns the claim's place.
func (a *await) place() driver.Place {
	return driver.Place{Name: a.at.name, Seat: a.at.seat, Slots: a.slots, Token: uint64(a.token)}
}

// seenOf takes over what the answers from index at on say of a, and adds it where it is news.
func (l *lease) seenOf(out []driver.News, a *await, resp *pb.TxnResponse, at int) []driver.News {
	if a.wants || a.keeps {
		own := one(resp, at)
		if own == nil || own.CreateRevision != a.token {
			return l.tellOf(out, a, ended)
		}
		behind := found(resp, at+1)
		for _, kv := range behind {
			if a.wants && a.follows(kv) {
				return l.tellOf(out, a, wanted)
			}
		}
		if limit := a.behindLimit(); a.wants && int64(len(behind)) >= limit {
			a.behindMost.Store(8 * limit) // all of them are its own session's: another's may stand behind those
			l.news.turn(a)
			return out
		}
		l.s.hub.learn(a, standing{rev: resp.Header.Revision})
		return out
	}
	p := a.place()
	st := l.seen(p, resp, at)
	switch {
	case !st.stands:
		return l.tellOf(out, a, ended)
	case st.held:
		l.show(p, st)
		return l.tellOf(out, a, holds)
	}
	l.s.hub.learn(a, st)
	a.guard()
	return out
}
