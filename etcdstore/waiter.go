package etcdstore

import (
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// How a claim that waits learns that it holds without a read.
//
// The Txn that entered it, or a later read of the line, has shown at revision r which claims stood
// before it. A claim that came after r stands behind it, for create revisions decide the order.
// One watch tells of every deletion in the line after r, that of the claim itself included. So at
// a revision d > r the claim is the first of the line if each of those before it was deleted in
// (r, d] and it was not. That is as true as the answer to a linearizable read: members apply the
// log in order, and no watch tells what is not committed. It may be late, as an answer may be.
//
// This rests on four things. Without one of them the claim is unsure, and the line is read once.
//   - The watch began at r or before. etcd tells the revision at which a watch began, but reads it
//     after the watch stands: the true beginning is that or an earlier one.
//   - No gap: a watch that ended for any reason, and the one opened after it, are two watches.
//   - All deletions of one revision are taken together: a transfer removes the holder and those
//     who are passed over at once. etcd splits a revision between two messages only where
//     fragments are asked for.
//   - Deletions up to r are of earlier claims under the same keys, and count for nothing.

// maxAhead is how many claims before its own a waiter knows at most. A waiter that knows so many
// hears only of the farthest of them, or a release in a long line would be told to everybody in
// it. Once that one has gone the waiter reads the line.
const maxAhead = 16

// outcome is what has become of a waiter's claim.
type outcome int8

const (
	waits     outcome = iota
	holds             // it was the first of the line after it had entered; News has not told it
	holdsTold         // News has told it: only its end is news
	ended             // it was removed
)

type predecessor struct {
	key string
	rev int64 // its create revision
}

func predecessors(kvs []*mvccpb.KeyValue) []predecessor {
	out := make([]predecessor, len(kvs))
	for i, kv := range kvs {
		out[i] = predecessor{string(kv.Key), kv.CreateRevision}
	}
	return out
}

// waiter is a claim that is followed: News tells what becomes of it. Its states stand at
// [waiters].
type waiter struct {
	s      *Store
	all    *waiters
	seat   seatID
	key    string
	token  int64
	slots  int
	live   livenessGuard // watches the sessions that it stands right behind
	queued bool          // News is to look at it, and has not yet; guarded by waiters.mu

	// What follows is guarded by the hub's lock, under which the hub calls the exported methods.
	in      []*etcdwire.Watch // where it hears of its line
	dropped bool              // it is followed no more, and must not listen to anything again
	outcome outcome

	asOf        int64           // the revision of what follows; 0: nothing is known
	ahead       []predecessor   // who stood before it, the youngest first, without those that went since
	aheadIsAll  bool            // ahead has all of them
	wholeLine   bool            // the farthest of ahead has gone: it listens to the whole line
	spans       []etcdwire.Span // of a shared claim: any event there may be what it waits for
	rightBefore []string        // of a shared claim: see standing

	unsure  bool // it may have missed something: its line must be read
	recheck bool // it has heard nothing for long: what it knows is to be checked
	doubts  int  // how often doubt has made it unsure
	asked   int  // doubts at the last call of ask: later ones are newer than the read after that

	next     int64 // the create revision of ahead[0] at the last call of movedLocked
	watching bool  // the session of that one has a heartbeat
}

// newWaiterLocked returns a waiter for a claim, with what its entry has found before it. The
// claim's state forgets that, or thousands of places would keep it twice. The caller holds
// seats.mu.
func newWaiterLocked(s *Store, all *waiters, seat *seatState) *waiter {
	a := &waiter{s: s, all: all, seat: seat.seatID, key: seat.key, token: int64(seat.token), slots: seat.slots}
	if seat.aheadRev != 0 && a.slots == 0 {
		a.asOf, a.ahead, a.aheadIsAll = seat.aheadRev, predecessors(seat.ahead), len(seat.ahead) < maxAhead
	}
	seat.ahead, seat.aheadRev = nil, 0
	return a
}

func (a *waiter) hub() *etcdwire.Hub { return a.s.wire.Hub }

func (a *waiter) place() driver.Place {
	return driver.Place{Name: a.seat.Name, Seat: a.seat.Seat, Slots: a.slots, Token: uint64(a.token)}
}

func (a *waiter) startListening() {
	a.hub().Lock()
	defer a.hub().Unlock()
	if a.dropped {
		return // dropped meanwhile
	}
	if a.asOf == 0 || len(a.ahead) == 0 { // nothing is known; or Claim has told that it holds: does it still?
		a.unsure = true
	}
	a.listenLocked()
	a.MessageEnd()
}

// drop ends all listening, for good. It may be called more than once.
func (a *waiter) drop() {
	a.hub().Lock()
	in := a.in
	a.in, a.dropped = nil, true
	for _, w := range in {
		a.hub().Leave(a, w)
	}
	a.hub().Unlock()
	a.live.stop()
}

// noteLook takes over what a read of the line has shown.
func (a *waiter) noteLook(st standing) {
	a.hub().Lock()
	defer a.hub().Unlock()
	if a.dropped || st.rev < a.asOf {
		return // a late answer, of an earlier state than what is known
	}
	a.lookedLocked(st.rev)
	a.wholeLine = false
	a.ahead, a.aheadIsAll, a.spans = st.ahead, len(st.ahead) < maxAhead, nil
	if a.slots != 0 {
		a.spans, a.rightBefore = []etcdwire.Span{{Key: a.key}, st.waitsFor}, st.rightBefore
	}
	a.listenLocked()
	a.MessageEnd()
}

// lookedLocked notes that the line was read at rev. A doubt that came after the last ask may be of
// something later than the read, and stays.
func (a *waiter) lookedLocked(rev int64) {
	a.asOf, a.unsure, a.recheck = rev, a.doubts != a.asked, false
}

// keepListening goes on listening to the line for the end of a claim that is about to be told as
// held. A watch of its key instead would cost each hand-over a request to open it, a read and a
// request to end it. It reports false where the watch of the line does not stand.
func (a *waiter) keepListening() bool {
	a.hub().Lock()
	defer a.hub().Unlock()
	if a.dropped || a.outcome != holds || a.unsure || len(a.in) != 1 || a.hub().Source(a.in[0]).Since == 0 {
		return false
	}
	a.outcome, a.ahead, a.aheadIsAll = holdsTold, nil, true
	return true
}

// isHoldTold reports whether keepListening has succeeded, and the end has not come since.
func (a *waiter) isHoldTold() bool {
	a.hub().Lock()
	defer a.hub().Unlock()
	return a.outcome == holdsTold
}

// doubt makes a unsure: its line is to be read.
func (a *waiter) doubt() {
	a.hub().Lock()
	defer a.hub().Unlock()
	if a.dropped {
		return
	}
	a.unsure = true
	a.doubts++
	a.all.push(a)
}

// check has etcd asked whether what a knows is right.
func (a *waiter) check() {
	a.hub().Lock()
	defer a.hub().Unlock()
	if !a.dropped {
		a.recheck = true
		a.all.push(a)
	}
}

// ask returns what has become of a, and whether a read is needed to know it. The caller makes that
// read after ask, and gives its answer to noteLook or noteStillBlocked before it calls ask again.
func (a *waiter) ask() (o outcome, unsure bool) {
	a.hub().Lock()
	defer a.hub().Unlock()
	a.asked = a.doubts
	return a.outcome, (a.unsure || a.recheck) && !a.dropped
}

func (a *waiter) hasEnded() bool {
	a.hub().Lock()
	defer a.hub().Unlock()
	return a.outcome == ended
}

// claimsRightBefore returns the claims whose sessions are to be watched, as far as is known.
func (a *waiter) claimsRightBefore() []string {
	a.hub().Lock()
	defer a.hub().Unlock()
	switch {
	case a.slots != 0:
		return a.rightBefore
	case len(a.ahead) > 0:
		return []string{a.ahead[0].key}
	}
	return nil
}

// watchPredecessor has the sessions of those claims watched, where they have heartbeats, and no
// others any more.
func (a *waiter) watchPredecessor() { a.live.watchOnly(a.s.liveness, a.claimsRightBefore, a.doubt) }

// blocker returns a claim before a that keeps a waiting as long as it stands: in a long line the
// farthest that a knows, otherwise the one right before a. It returns the zero predecessor where
// none is known for sure: then the line must be read.
func (a *waiter) blocker() (p predecessor) {
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

// isFarLocked reports whether a knows only the youngest before it, and waits for the farthest of
// those to go.
func (a *waiter) isFarLocked() bool {
	return a.outcome == waits && a.slots == 0 && !a.aheadIsAll && !a.wholeLine && len(a.ahead) > 0
}

// noteStillBlocked notes that a's claim and its blocker stood at rev. Only in a long line a knows
// more by that. Other claims may have gone before rev: but a reads the whole line
// before it concludes anything from them.
func (a *waiter) noteStillBlocked(rev int64) {
	a.hub().Lock()
	defer a.hub().Unlock()
	if a.recheck = false; a.dropped || !a.isFarLocked() || rev < a.asOf {
		return
	}
	a.lookedLocked(rev)
	a.listenLocked()
	a.MessageEnd()
}

// listenLocked has a listen to the spans that matter to it now, and to no others.
func (a *waiter) listenLocked() {
	was := a.in
	a.in = make([]*etcdwire.Watch, 0, 2)
	switch {
	case a.slots != 0:
		for _, sp := range a.spans {
			a.joinLocked(sp)
		}
	case a.asOf == 0: // its line may be long, and not to be heard as a whole: that is known after a read
		a.joinLocked(etcdwire.Span{Key: a.key})
	case a.aheadIsAll || a.wholeLine || len(a.ahead) == 0:
		a.joinLocked(etcdwire.LineSpan(a.s.lineDir(a.seat.Name)))
	default:
		a.joinLocked(etcdwire.Span{Key: a.key})
		a.joinLocked(etcdwire.Span{Key: a.ahead[len(a.ahead)-1].key})
	}
	for _, w := range was { // only now: a watch that is still needed must not end in between
		a.hub().Leave(a, w)
	}
}

func (a *waiter) joinLocked(sp etcdwire.Span) { a.in = append(a.in, a.hub().Join(a, sp)) }

// Begun tells a what w has told since a last knew the line, or makes a unsure where that is not
// known. Its caller calls MessageEnd.
func (a *waiter) Begun(w *etcdwire.Watch) {
	src := a.hub().Source(w)
	switch {
	case src.Since == 0: // it does not stand yet: Begun or Refused is called later
	case a.asOf < src.Since || a.wholeLine:
		a.unsure = true
	default:
		for _, d := range src.Log {
			if d.Rev > a.asOf && w.Covers(d.Key) {
				a.Deleted(d.Key, d.Rev)
			}
		}
	}
}

// Refused makes a unsure: News reads its line now, and then from time to time.
func (a *waiter) Refused() { a.unsure = true }

func (a *waiter) Deleted(key string, rev int64) {
	if key == a.key {
		if rev > a.token {
			a.outcome = ended
		}
		return
	}
	if rev <= a.asOf {
		return
	}
	if a.spans != nil {
		a.unsure = true
	}
	for i, p := range a.ahead {
		if p.key == key {
			a.wholeLine = a.wholeLine || !a.aheadIsAll && i == len(a.ahead)-1
			a.ahead = slices.Delete(a.ahead, i, i+1)
			return
		}
	}
}

// Put notes that a claim came or was rewritten, where puts are heard of.
func (a *waiter) Put(kv *mvccpb.KeyValue) {
	if a.spans != nil && kv.ModRevision > a.asOf {
		a.unsure = true
	}
}

// MessageEnd draws the conclusion once all that one message holds has been noted.
func (a *waiter) MessageEnd() {
	if a.outcome == waits && a.slots == 0 && !a.unsure {
		switch {
		case a.wholeLine && len(a.in) > 1: // it still listens as in a long line: to its own key and the farthest
			a.listenLocked()
		case a.aheadIsAll && len(a.ahead) == 0:
			a.outcome = holds
		}
	}
	if moved := a.movedLocked(); moved || a.outcome == holds || a.outcome == ended || a.unsure {
		a.all.push(a)
	}
}

// movedLocked reports whether the claim right before a is another one than at the last call, and
// either of the two has a heartbeat: whose session is watched must change.
func (a *waiter) movedLocked() bool {
	if len(a.ahead) == 0 || a.ahead[0].rev == a.next {
		return false
	}
	had := a.watching
	a.next, a.watching = a.ahead[0].rev, strings.Contains(a.ahead[0].key, beatMark)
	return had || a.watching
}
