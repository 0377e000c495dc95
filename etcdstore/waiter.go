package etcdstore

import (
	"slices"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// How a claim that waits learns that it holds without a read.
//
// The Txn that entered it, or a later look, has shown at revision r which claims stood before it;
// who came after r stands behind it, for the order is that of create revisions. One watch hears
// of every deletion in the line after r, its own included. So at any later revision d the claim
// is the first of the line if each of those before it has been deleted in (r, d] and it has not.
// That is a true statement about what etcd has committed, as a linearizable read's is: members
// apply the log in order, and no watch tells what is not committed. An answer that is late is as
// late as the answer to a read may be: a claim that held goes by its owner's release, with its
// lease, which the session's deadline ends before, or by somebody's hand, of which News tells.
//
// It rests on four things. Where one is not given the claim is unsure, and the line is read once.
//   - The watch began at a revision not after r. etcd reads the revision in its answer to the
//     request after the watch stands, so what that says is the beginning at the earliest.
//   - Nothing is left out between: a watch that ended, of whatever cause, and its successor are
//     two watches.
//   - All deletions of one revision are looked at together: a transfer removes the holder and
//     those who are passed over at once. etcd never splits a revision between two messages of a
//     watch unless it is asked for fragments, which we do not.
//   - Deletions up to r are of earlier claims under the same keys. They may be told late, and
//     count for nothing.

// nearby is how many claims before its own a waiter knows at most. With that many it hears only
// of the farthest of them, for there may be more before that, and a release in a long line would
// be told to all; as that one goes it reads the line once.
const nearby = 16

// outcome is what has become of a waiter's claim.
type outcome int8

const (
	waits  outcome = iota
	holds          // it was the first of the line after it had entered
	wanted         // it holds, and another lease's claim stands behind it
	ended          // it was removed
)

// predecessor is a claim that stands before another.
type predecessor struct {
	key string
	rev int64 // its create revision
}

// predecessors makes them of what was read.
func predecessors(kvs []*mvccpb.KeyValue) []predecessor {
	out := make([]predecessor, len(kvs))
	for i, kv := range kvs {
		out[i] = predecessor{string(kv.Key), kv.CreateRevision}
	}
	return out
}

// waiter is a claim whose outcome somebody wants to know. It listens to the hub, whose lock
// guards what stands below the line; every exported method is called under that lock.
type waiter struct {
	n          *newsbox
	at         seatID
	key        string
	token      int64
	slots      int
	wants      bool          // it holds: who comes to stand behind it?
	keeps      bool          // it holds, and only its end is news
	queued     bool          // News is to look at it, and has not yet; guarded by newsbox.mu
	live       livenessGuard // who watches the sessions that it stands right behind
	behindMost atomic.Int64  // of a claim that holds: how many behind it are read at most; 0: nearby

	// ---
	in       []*etcdwire.Watch // where it hears of it
	left     bool              // nobody wants to know any more, and nothing may have it listen to anything again
	seen     int64             // all that follows holds for this revision; 0: nothing is known
	ahead    []predecessor     // who stood before it, the youngest first, without those that went since
	whole    bool              // that is all of them
	near     bool              // the farthest of them has gone: it is one of those who hear of the whole line
	spans    []etcdwire.Span   // of a shared claim: each event there may be what it waits for
	behind   []string          // of a shared claim: those it stands right behind
	unsure   bool              // something may have been missed
	doubts   int               // how often somebody said so
	due      bool              // nothing was heard for so long that it is to be asked whether that is right
	asked    int               // how many of those were known when ask said last that the line must be read
	outcome  outcome
	next     int64 // the create revision of ahead's first as whoever waits was told
	watching bool  // that one's session has a heartbeat
}

// newWaiter returns one for the claim p, with what its own entry has shown.
func (n *newsbox) newWaiter(p driver.Place) *waiter {
	a := &waiter{n: n, at: storeutil.SeatAt(p), token: int64(p.Token), slots: p.Slots}
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	sl := n.seats.by[a.at]
	if sl == nil || sl.token != p.Token {
		a.key = n.keyOf(p)
		return a
	}
	if a.key = sl.key; sl.at != 0 && a.slots == 0 {
		a.seen, a.ahead, a.whole = sl.at, predecessors(sl.ahead), len(sl.ahead) < nearby
	}
	return a
}

func (a *waiter) hub() *etcdwire.Hub { return a.n.s.wire.Hub }

// place returns the claim's place.
func (a *waiter) place() driver.Place {
	return driver.Place{Name: a.at.Name, Seat: a.at.Seat, Slots: a.slots, Token: uint64(a.token)}
}

// behindLimit returns how many claims behind a are read.
func (a *waiter) behindLimit() int64 { return max(nearby, a.behindMost.Load()) }

// enlist has a hear of its line from now on.
func (a *waiter) enlist() {
	a.hub().Lock()
	defer a.hub().Unlock()
	if a.left {
		return // given up meanwhile
	}
	if a.seen == 0 || len(a.ahead) == 0 && !a.wants {
		a.unsure = true
	}
	a.listenLocked()
	a.Settle()
}

// leave ends what enlist began. It may be called on nil and more than once.
func (a *waiter) leave() {
	if a == nil {
		return
	}
	a.hub().Lock()
	defer a.hub().Unlock()
	in := a.in
	a.in, a.left = nil, true
	for _, w := range in {
		a.hub().Leave(a, w)
	}
}

// drop ends the following of a. Whoever holds from now on is watched by its key.
func (a *waiter) drop() {
	a.leave()
	a.live.stop()
	a.n.cover(a.at, -1)
	a.n.watchSoon(a.at, uint64(a.token))
}

// learn takes over what a look at the line has shown. Who was told meanwhile that a is unsure
// once more has it looked at again.
func (a *waiter) learn(st standing) {
	a.hub().Lock()
	defer a.hub().Unlock()
	if a.left || st.rev < a.seen {
		return // an answer that came late, behind that of a later look
	}
	a.lookedLocked(st.rev)
	a.near = false
	a.ahead, a.whole, a.spans = st.before, len(st.before) < nearby, nil
	if a.slots != 0 {
		a.spans, a.behind = []etcdwire.Span{{Key: a.key}, st.ahead}, st.behind
	}
	a.listenLocked()
	a.Settle()
}

// lookedLocked notes that the line was read at rev. A doubt that came while that was under way is
// of what came after, and stays.
func (a *waiter) lookedLocked(rev int64) { a.seen, a.unsure, a.due = rev, a.doubts != a.asked, false }

// keep goes on with a claim that was told to hold, for its end, by the watch of its line: a watch
// of its key would cost each turn a request to open it, a read and another to end it. It reports
// false where the line's watch does not serve.
func (a *waiter) keep() bool {
	a.hub().Lock()
	defer a.hub().Unlock()
	if a.left || a.outcome != holds || a.unsure || len(a.in) != 1 || a.hub().Source(a.in[0]).Since == 0 {
		return false
	}
	a.keeps, a.outcome, a.ahead, a.whole = true, waits, nil, true
	return true
}

// doubt makes a unsure: its line is to be read.
func (a *waiter) doubt() {
	a.hub().Lock()
	defer a.hub().Unlock()
	if a.left {
		return
	}
	a.unsure = true
	a.doubts++
	a.n.queue(a)
}

// ask returns what has become of a, and whether etcd must be asked to know it. That is done after
// ask, and no other ask of a comes before its answer is taken over.
func (a *waiter) ask() (o outcome, unsure bool) {
	a.hub().Lock()
	defer a.hub().Unlock()
	a.asked = a.doubts
	return a.outcome, (a.unsure || a.due) && !a.left
}

// hasEnded reports whether a's claim is known to have been removed.
func (a *waiter) hasEnded() bool {
	a.hub().Lock()
	defer a.hub().Unlock()
	return a.outcome == ended
}

// rightBehind returns the claims that a stands right behind, as far as is known.
func (a *waiter) rightBehind() []string {
	a.hub().Lock()
	defer a.hub().Unlock()
	switch {
	case a.slots != 0:
		return a.behind
	case len(a.ahead) > 0:
		return []string{a.ahead[0].key}
	}
	return nil
}

// watchPredecessor has the sessions watched that a stands right behind, where they have
// heartbeats, and no others any more.
func (a *waiter) watchPredecessor() { a.live.over(a.n.s.liveness, a.rightBehind, a.doubt) }

// enough returns a claim before a that stands, if all is as a knows it: nothing more need be
// asked as long as it does. Of a long line it is the farthest that a knows of. Nothing where a
// may miss more than that: its line must be read.
func (a *waiter) enough() (p predecessor) {
	a.hub().Lock()
	defer a.hub().Unlock()
	switch {
	case a.outcome != waits || len(a.ahead) == 0:
	case a.isFarLocked():
		p = a.ahead[len(a.ahead)-1]
	case !a.unsure:
		p = a.ahead[0]
	}
	return p
}

// check has it asked whether what a knows is right: it has heard nothing for long.
func (a *waiter) check() {
	a.hub().Lock()
	defer a.hub().Unlock()
	if !a.left {
		a.due = true
		a.n.queue(a)
	}
}

// isFarLocked reports whether a, which knows its neighbours only, waits for the farthest of them
// to go.
func (a *waiter) isFarLocked() bool {
	return a.outcome == waits && a.slots == 0 && !a.wants && !a.whole && !a.near && len(a.ahead) > 0
}

// confirm notes that at rev a stood, and the claim that enough has returned. Others may have gone
// by then: of a long line a concludes nothing from them before it has read it.
func (a *waiter) confirm(rev int64) {
	a.hub().Lock()
	defer a.hub().Unlock()
	if a.due = false; a.left || !a.isFarLocked() || rev < a.seen {
		return
	}
	a.lookedLocked(rev)
	a.listenLocked()
	a.Settle()
}

// listenLocked has a hear of those spans that matter to it now, and only of those.
func (a *waiter) listenLocked() {
	was := a.in
	a.in = make([]*etcdwire.Watch, 0, 2)
	dir := a.n.s.lineDir(a.at.Name)
	switch {
	case a.slots != 0 && !a.wants:
		for _, sp := range a.spans {
			a.joinLocked(sp)
		}
	case a.seen == 0 && !a.wants: // in a long line perhaps: not all of it before that is known
		a.joinLocked(etcdwire.Span{Key: a.key})
	case a.wants || a.whole || a.near || len(a.ahead) == 0:
		a.joinLocked(etcdwire.Span{Key: dir, End: etcdwire.PrefixEnd(dir), Puts: a.wants})
	default:
		a.joinLocked(etcdwire.Span{Key: a.key})
		a.joinLocked(etcdwire.Span{Key: a.ahead[len(a.ahead)-1].key})
	}
	for _, w := range was { // only now: a watch that is needed still must not end between
		a.hub().Leave(a, w)
	}
}

func (a *waiter) joinLocked(sp etcdwire.Span) { a.in = append(a.in, a.hub().Join(a, sp)) }

// Begun tells a what w has told since a last knew the line, or makes it unsure where that is not
// known. Whoever calls it settles a.
func (a *waiter) Begun(w *etcdwire.Watch) {
	src := a.hub().Source(w)
	switch {
	case src.Since == 0: // when it stands this comes again; where etcd refuses it there is the timer
	case a.seen < src.Since || a.near:
		a.unsure = true
	default:
		for _, d := range src.Log {
			if d.Rev > a.seen && w.Covers(d.Key) {
				a.Deleted(d.Key, d.Rev)
			}
		}
	}
}

// Refused makes a unsure: whoever waits looks once, and then asks from time to time.
func (a *waiter) Refused() { a.unsure = true }

// Deleted notes that a claim is gone.
func (a *waiter) Deleted(key string, rev int64) {
	if key == a.key {
		if rev > a.token {
			a.outcome = ended
		}
		return
	}
	if rev <= a.seen {
		return
	}
	if a.spans != nil {
		a.unsure = true
	}
	for i, p := range a.ahead {
		if p.key == key {
			a.near = a.near || !a.whole && i == len(a.ahead)-1
			a.ahead = slices.Delete(a.ahead, i, i+1)
			return
		}
	}
}

// Put notes that a claim came or was rewritten, where puts are heard of.
func (a *waiter) Put(kv *mvccpb.KeyValue) {
	if a.spans != nil && kv.ModRevision > a.seen {
		a.unsure = true
	}
	if a.wants && a.outcome == waits && a.follows(kv) {
		a.outcome = wanted
	}
}

// follows reports whether kv is a claim of another lease that stands behind a.
func (a *waiter) follows(kv *mvccpb.KeyValue) bool {
	_, session := parseClaim(a.n.s.lineDir(a.at.Name), string(kv.Key))
	return kv.CreateRevision > a.token && session != a.n.ID()
}

// Settle draws the conclusion once all that one message holds has been noted.
func (a *waiter) Settle() {
	if a.near && !a.unsure && a.outcome == waits && a.spans == nil && len(a.in) > 1 {
		a.listenLocked()
	}
	if a.outcome == waits && a.whole && !a.unsure && !a.wants && !a.keeps && a.slots == 0 && len(a.ahead) == 0 {
		a.outcome = holds
	}
	if moved := a.movedLocked(); moved || a.outcome != waits || a.unsure {
		a.n.queue(a)
	}
}

// movedLocked reports whether a stands right behind another claim than when it said so last,
// where that matters to whoever waits: the watch over a session is to begin or to end.
func (a *waiter) movedLocked() bool {
	if len(a.ahead) == 0 || a.ahead[0].rev == a.next {
		return false
	}
	had := a.watching
	a.next, a.watching = a.ahead[0].rev, strings.Contains(a.ahead[0].key, beatMark)
	return had || a.watching
}
