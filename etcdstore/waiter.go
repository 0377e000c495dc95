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
//   - The watch began at r or before. etcd begins a watch first and then reads the revision that
//     it tells as the beginning. So the watch began at that revision or at an earlier one.
//   - No gap: a watch that ended for any reason, and the one opened after it, are two watches.
//   - All deletions of one revision are taken together: a transfer removes the holder and those
//     who are passed over at once. etcd splits a revision between two messages only where
//     fragments are asked for.
//   - Deletions up to r are of earlier claims under the same keys, and count for nothing.

// maxAhead is how many claims before its own a waiter knows at most. A waiter that knows so many
// listens only to its own key and to the farthest of them: otherwise each release in a long line
// would be told to everybody in it. Once the farthest has gone the waiter listens to the whole line
// and reads it.
const maxAhead = 16

// fate is what has become of a waiter's claim.
type fate int8

const (
	waits     fate = iota
	holds          // it was the first of the line after it had entered; News has not told it
	holdsTold      // News has told it: only its end is news
	ended          // it was removed
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
	live   livenessSubs // watches the sessions of the claims right before it
	queued bool         // News is to look at it, and has not yet; guarded by waiters.mu

	// What follows is guarded by the hub's lock, under which the hub calls the exported methods.
	watches []*etcdwire.Watch // by which it hears of its line
	dropped bool              // it is followed no more, and must not listen to anything again
	fate    fate              // of its claim, as far as was heard

	asOf       int64           // the revision of what follows; 0: nothing is known
	ahead      []predecessor   // who stood before it, the youngest first, without those that went since
	aheadIsAll bool            // ahead has all of them
	wholeLine  bool            // the farthest of ahead has gone: it listens to the whole line
	spans      []etcdwire.Span // of a shared claim: any event there may be what it waits for
	justBefore []string        // of a shared claim: see standing

	unsure      bool // it may have missed something: its line must be read
	recheck     bool // it has heard nothing for long: what it knows is to be checked
	unsureCalls int  // how often makeUnsure was called
	answered    int  // unsureCalls at the last call of ask: a read after ask answers these, and no later ones

	lastBefore  int64 // the create revision of ahead[0] at the last call of predecessorChangedLocked
	beforeBeats bool  // the session of that one has a heartbeat: it is watched
}

// newWaiterLocked returns a waiter for a claim, with what its entry has found before it. The
// claim's state forgets that, or thousands of places would keep it twice. The caller holds
// seats.mu.
func newWaiterLocked(s *Store, all *waiters, seat *seatState) *waiter {
	wt := &waiter{s: s, all: all, seat: seat.seatID, key: seat.key, token: int64(seat.token), slots: seat.slots}
	if seat.aheadRev != 0 && wt.slots == 0 {
		wt.asOf, wt.ahead, wt.aheadIsAll = seat.aheadRev, predecessors(seat.ahead), len(seat.ahead) < maxAhead
	}
	seat.ahead, seat.aheadRev = nil, 0
	return wt
}

func (wt *waiter) hub() *etcdwire.Hub { return wt.s.wire.Hub }

func (wt *waiter) place() driver.Place {
	return driver.Place{Name: wt.seat.Name, Seat: wt.seat.Seat, Slots: wt.slots, Token: uint64(wt.token)}
}

func (wt *waiter) startListening() {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	if wt.dropped {
		return // dropped meanwhile
	}
	if wt.asOf == 0 || len(wt.ahead) == 0 { // nothing is known; or Claim has told that it holds: does it still?
		wt.unsure = true
	}
	wt.listenLocked()
	wt.MessageEnd()
}

// drop ends all listening, for good. It may be called more than once.
func (wt *waiter) drop() {
	wt.hub().Lock()
	watches := wt.watches
	wt.watches, wt.dropped = nil, true
	for _, w := range watches {
		wt.hub().Leave(wt, w)
	}
	wt.hub().Unlock()
	wt.live.stop()
}

// noteLook takes over what a read of the line has shown.
func (wt *waiter) noteLook(st standing) {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	if wt.dropped || st.rev < wt.asOf {
		return // a late answer, of an earlier state than what is known
	}
	wt.lookedLocked(st.rev)
	wt.wholeLine = false
	wt.ahead, wt.aheadIsAll, wt.spans = st.ahead, len(st.ahead) < maxAhead, nil
	if wt.slots != 0 {
		wt.spans, wt.justBefore = []etcdwire.Span{{Key: wt.key}, st.waitsFor}, st.justBefore
	}
	wt.listenLocked()
	wt.MessageEnd()
}

// lookedLocked notes that the line was read at rev. If makeUnsure was called after the last ask,
// its cause may be later than the read: the waiter stays unsure.
func (wt *waiter) lookedLocked(rev int64) {
	wt.asOf, wt.unsure, wt.recheck = rev, wt.unsureCalls != wt.answered, false
}

// keepListening goes on listening to the line for the end of a claim that is about to be told as
// held. It reports false where the watch of the line does not stand: then the claim's key must be
// watched instead. That would cost each hand-over two requests for the watch, and a read.
func (wt *waiter) keepListening() bool {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	if wt.dropped || wt.fate != holds || wt.unsure || len(wt.watches) != 1 ||
		wt.hub().Source(wt.watches[0]).Since == 0 {
		return false
	}
	wt.fate, wt.ahead, wt.aheadIsAll = holdsTold, nil, true
	return true
}

// isHoldTold reports whether keepListening has succeeded, and the end has not come since.
func (wt *waiter) isHoldTold() bool {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	return wt.fate == holdsTold
}

// makeUnsure has News read the waiter's line.
func (wt *waiter) makeUnsure() {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	if wt.dropped {
		return
	}
	wt.unsure = true
	wt.unsureCalls++
	wt.all.push(wt)
}

// check has etcd asked whether what the waiter knows is right.
func (wt *waiter) check() {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	if !wt.dropped {
		wt.recheck = true
		wt.all.push(wt)
	}
}

// ask returns what has become of the claim, and whether a read is needed to know it. The caller
// makes that read after ask, and gives its answer to noteLook or noteStillBlocked before it asks
// again.
func (wt *waiter) ask() (f fate, unsure bool) {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	wt.answered = wt.unsureCalls
	return wt.fate, (wt.unsure || wt.recheck) && !wt.dropped
}

func (wt *waiter) hasEnded() bool {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	return wt.fate == ended
}

// claimsRightBefore returns the claims whose sessions are to be watched, as far as is known.
func (wt *waiter) claimsRightBefore() []string {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	switch {
	case wt.slots != 0:
		return wt.justBefore
	case len(wt.ahead) > 0:
		return []string{wt.ahead[0].key}
	}
	return nil
}

// watchPredecessor has the sessions of those claims watched, where they have heartbeats, and no
// others any more.
func (wt *waiter) watchPredecessor() {
	wt.live.watchOnly(wt.s.liveness, wt.claimsRightBefore, wt.makeUnsure)
}

// blocker returns a claim that keeps the waiter waiting as long as it stands: in a long line the
// farthest one known, otherwise the one right before. It returns the zero predecessor where none is
// known for sure: then the line must be read.
func (wt *waiter) blocker() (p predecessor) {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	switch {
	case wt.fate != waits || len(wt.ahead) == 0:
	case wt.isFarLocked():
		p = wt.ahead[len(wt.ahead)-1]
	case !wt.unsure:
		p = wt.ahead[0]
	}
	return p
}

// isFarLocked reports whether the waiter knows only the youngest claims before it, and waits for
// the farthest of those to go.
func (wt *waiter) isFarLocked() bool {
	return wt.fate == waits && wt.slots == 0 && !wt.aheadIsAll && !wt.wholeLine && len(wt.ahead) > 0
}

// noteStillBlocked notes that the claim and its blocker stood at rev. In a long line (isFarLocked)
// the blocker is the farthest claim known, and then the waiter is not unsure any more: it waits
// while that one stands, and reads the line once it has gone, whatever it has missed of the others.
// In a short line the blocker is the claim right before. Others may have gone unheard, so what the
// waiter knows does not become newer.
func (wt *waiter) noteStillBlocked(rev int64) {
	wt.hub().Lock()
	defer wt.hub().Unlock()
	if wt.recheck = false; wt.dropped || !wt.isFarLocked() || rev < wt.asOf {
		return
	}
	wt.lookedLocked(rev)
	wt.listenLocked()
	wt.MessageEnd()
}

// listenLocked has the waiter listen to the spans that matter to it now, and to no others.
func (wt *waiter) listenLocked() {
	was := wt.watches
	wt.watches = make([]*etcdwire.Watch, 0, 2)
	switch {
	case wt.slots != 0:
		for _, sp := range wt.spans {
			wt.joinLocked(sp)
		}
	case wt.asOf == 0: // a long line is not listened to as a whole: a read tells how long it is
		wt.joinLocked(etcdwire.Span{Key: wt.key})
	case wt.aheadIsAll || wt.wholeLine || len(wt.ahead) == 0:
		wt.joinLocked(etcdwire.LineSpan(wt.s.lineDir(wt.seat.Name)))
	default:
		wt.joinLocked(etcdwire.Span{Key: wt.key})
		wt.joinLocked(etcdwire.Span{Key: wt.ahead[len(wt.ahead)-1].key})
	}
	for _, w := range wt.watches {
		// etcd has refused it before this waiter came: Refused will not be called. Once is enough:
		// to be unsure after each read would read without end.
		wt.unsure = wt.unsure || w.IsRefused() && !slices.Contains(was, w)
	}
	for _, w := range was { // only now: a watch that is still needed must not end in between
		wt.hub().Leave(wt, w)
	}
}

func (wt *waiter) joinLocked(sp etcdwire.Span) {
	wt.watches = append(wt.watches, wt.hub().Join(wt, sp))
}

// Begun tells the waiter what w has told after asOf, the revision at which the waiter knows its
// line. It becomes unsure if w has begun after asOf, and also with wholeLine: then the waiter has
// heard of two keys alone until now. The caller calls MessageEnd after it.
func (wt *waiter) Begun(w *etcdwire.Watch) {
	src := wt.hub().Source(w)
	switch {
	case src.Since == 0: // it does not stand: Begun or Refused is called later, or it was refused (listenLocked)
	case wt.asOf < src.Since || wt.wholeLine:
		wt.unsure = true
	default:
		for _, d := range src.Log {
			if d.Rev > wt.asOf && w.Covers(d.Key) {
				wt.Deleted(d.Key, d.Rev)
			}
		}
	}
}

// Refused makes the waiter unsure: News reads its line now, and then from time to time.
func (wt *waiter) Refused() { wt.unsure = true }

func (wt *waiter) Deleted(key string, rev int64) {
	if key == wt.key {
		if rev > wt.token {
			wt.fate = ended
		}
		return
	}
	if rev <= wt.asOf {
		return
	}
	if wt.spans != nil {
		wt.unsure = true
	}
	for i, p := range wt.ahead {
		if p.key == key {
			wt.wholeLine = wt.wholeLine || !wt.aheadIsAll && i == len(wt.ahead)-1
			wt.ahead = slices.Delete(wt.ahead, i, i+1)
			return
		}
	}
}

// Put notes that a claim came or was rewritten, where puts are heard of.
func (wt *waiter) Put(kv *mvccpb.KeyValue) {
	if wt.spans != nil && kv.ModRevision > wt.asOf {
		wt.unsure = true
	}
}

// MessageEnd draws the conclusion once all that one message holds has been noted. It may join the
// watch of the whole line, which makes the waiter unsure (Begun): then it is queued for a read.
func (wt *waiter) MessageEnd() {
	if wt.fate == waits && wt.slots == 0 && !wt.unsure {
		switch {
		case wt.wholeLine && len(wt.watches) > 1: // it still listens as in a long line: to its own key and the farthest
			wt.listenLocked()
		case wt.aheadIsAll && len(wt.ahead) == 0:
			wt.fate = holds
		}
	}
	if moved := wt.predecessorChangedLocked(); moved || wt.fate == holds || wt.fate == ended || wt.unsure {
		wt.all.push(wt)
	}
}

// predecessorChangedLocked reports whether News must change whose session is watched: the claim
// right before is another one than at the last call, and one of the two has a heartbeat.
func (wt *waiter) predecessorChangedLocked() bool {
	if len(wt.ahead) == 0 || wt.ahead[0].rev == wt.lastBefore {
		return false
	}
	had := wt.beforeBeats
	wt.lastBefore, wt.beforeBeats = wt.ahead[0].rev, strings.Contains(wt.ahead[0].key, beatMark)
	return had || wt.beforeBeats
}
