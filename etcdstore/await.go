package etcdstore

import (
	"slices"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
)

// How a claim that waits learns that it holds without a read.
//
// The Txn that entered it, or a later look, has shown at revision r which claims stood before it; who came after r stands behind it, for the
// order is that of create revisions. One watch hears of every deletion in the line after r, its own included. So at any later
// revision d the claim is the first of the line if each of those before it has been deleted in (r, d] and it has not. That is a true statement
// about what etcd has committed, as a linearizable read's is: members apply the log in order, and no watch tells what is not
// committed. An answer that is late is as late as the answer to a read may be: a claim that held goes by its owner's
// release, with its lease, which the session's deadline ends before, or by somebody's hand, of which News tells.
//
// It rests on four things, each of which makes the claim unsure, so that the line is read once, where it is not given:
//   - The watch began at a revision not after r. etcd reads the revision in its answer to the request after the watch stands, so what that
//     says is the beginning at the earliest.
//   - Nothing is left out between: a watch that ended, of whatever cause, and its successor are two watches.
//   - All deletions of one revision are looked at together: a transfer removes the holder and those who are passed over at once.
//     etcd never splits a revision between two messages of a watch unless it is asked for fragments, which we do not.
//   - Deletions up to r are of earlier claims under the same keys. They may be told late, and count for nothing.

// nearby is how many claims before its own a waiter knows at most. With that many it hears only of the farthest of them, for there may be
// more before that, and a release in a long line would be told to all; as that one goes it reads the line once.
const nearby = 16

// fate is what has become of an awaited claim.
type fate int8

const (
	waits  fate = iota
	holds       // it was the first of the line after it had entered
	wanted      // it holds, and another lease's claim stands behind it
	ended       // it was removed
)

// rival is a claim that stands before another.
type rival struct {
	key string
	rev int64 // its create revision
}

// await is a claim whose fate somebody wants to know. What is below the line is guarded by hub.mu.
type await struct {
	l          *lease
	at         spot
	key        string
	token      int64
	slots      int
	wants      bool          // it holds: who comes to stand behind it?
	keeps      bool          // it holds, and only its end is news
	changed    chan struct{} // told when there is something to do; nil: News is
	queued     bool          // News was, and has not looked yet; guarded by news.mu
	guards     guards        // where it is followed, who keeps vigil
	behindMost atomic.Int64  // of a claim that holds: how many behind it are read at most; 0: nearby

	// ---
	in     []*watch // where it hears of it
	left   bool     // nobody wants to know any more: whatever still comes for it must not have it hear of anything again
	seen   int64    // all that follows holds for this revision; 0: nothing is known
	ahead  []rival  // who stood before it, the youngest first, without those that went since
	whole  bool     // that is all of them
	near   bool     // the farthest of them has gone: it is one of those who hear of the whole line
	spans  []span   // of a shared claim: each event there may be what it waits for
	behind []string // of a shared claim: those it stands right behind
	unsure bool     // something may have been missed
	doubts int      // how often somebody said so
	asked  int      // how many of those were known when ask said last that the line must be read
	fate   fate
	next   int64 // the create revision of ahead's first as whoever waits was told
	beats  bool  // that one's session has a heartbeat
}

// tell has whoever waits look at a. The caller holds hub.mu.
func (a *await) tell() {
	if a.changed == nil {
		a.l.news.turn(a)
		return
	}
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// rivals makes rivals of what was read.
func rivals(kvs []*mvccpb.KeyValue) []rival {
	out := make([]rival, len(kvs))
	for i, kv := range kvs {
		out[i] = rival{string(kv.Key), kv.CreateRevision}
	}
	return out
}

// enlist has a hear of its line from now on, and leave ends that. One may leave twice.
func (h *hub) enlist(a *await) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.left {
		return // given up meanwhile
	}
	if a.seen == 0 || len(a.ahead) == 0 && !a.wants {
		a.unsure = true
	}
	h.listen(a)
	h.settle(a)
}

func (h *hub) leave(a *await) {
	if a == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	in := a.in
	a.in, a.left = nil, true
	for _, w := range in {
		h.without(w, a)
	}
}

// learn takes over what a look at the line has shown. Who was told meanwhile that a is unsure once more has a look again.
func (h *hub) learn(a *await, st standing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.left || st.rev < a.seen {
		return // an answer that came late, behind that of a later look
	}
	a.looked(st.rev)
	a.near = false
	a.ahead, a.whole, a.spans = st.before, len(st.before) < nearby, nil
	if a.slots != 0 {
		a.spans, a.behind = []span{{key: a.key}, st.ahead}, st.behind
	}
	h.listen(a)
	h.settle(a)
}

// looked notes that the line was read at rev. A doubt that came while that was under way is of what came after, and stays. The caller holds hub.mu.
func (a *await) looked(rev int64) { a.seen, a.unsure = rev, a.doubts != a.asked }

// keep has News hear of the end of a claim that was waited for and holds, by the watch of its line: one of its own would cost each turn a request to open
// it, a read and another to end it. It reports false where that watch does not serve.
func (h *hub) keep(a *await) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.left || a.fate != holds || a.unsure || len(a.in) != 1 || h.source(a.in[0]).since == 0 {
		return false
	}
	a.keeps, a.fate, a.changed, a.ahead, a.whole = true, waits, nil, nil, true
	return true
}

// doubt makes a unsure: its line is to be read.
func (h *hub) doubt(a *await) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.left {
		return
	}
	a.unsure = true
	a.doubts++
	a.tell()
}

// ask returns what has become of a, whether the line must be read to know it, and the claims that a stands right behind, as far as is known.
// The read comes after ask, and no other ask of a before its answer is taken over.
func (h *hub) ask(a *await) (f fate, unsure bool, behind []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a.asked = a.doubts
	return a.fate, a.unsure && !a.left, a.neighbours()
}

// rightBehind returns the claims that a stands right behind, as far as is known.
func (h *hub) rightBehind(a *await) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return a.neighbours()
}

// hasEnded reports whether a's claim is known to have been removed.
func (h *hub) hasEnded(a *await) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return a.fate == ended
}

// neighbours is rightBehind under the lock.
func (a *await) neighbours() []string {
	switch {
	case a.slots != 0:
		return a.behind
	case len(a.ahead) > 0:
		return []string{a.ahead[0].key}
	}
	return nil
}

// right returns the claim right before a, where a waits for that one's end first.
func (h *hub) right(a *await) (r rival) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(a.ahead) > 0 {
		r = a.ahead[0]
	}
	return r
}

// listen has a hear of those spans that matter to it now, and only of those. The caller holds h.mu.
func (h *hub) listen(a *await) {
	was := a.in
	a.in = make([]*watch, 0, 2)
	dir := a.l.s.lineDir(a.at.name)
	switch {
	case a.slots != 0 && !a.wants:
		for _, sp := range a.spans {
			h.join(a, sp)
		}
	case a.seen == 0 && !a.wants: // in a long line perhaps: not all of it before that is known
		h.join(a, span{key: a.key})
	case a.wants || a.whole || a.near || len(a.ahead) == 0:
		h.join(a, span{key: dir, end: prefixEnd(dir), puts: a.wants})
	default:
		h.join(a, span{key: a.key})
		h.join(a, span{key: a.ahead[len(a.ahead)-1].key})
	}
	for _, w := range was { // only now: a watch that is needed still must not end between
		h.without(w, a)
	}
}

// join has a hear of sp, also of what it has missed and is still known.
func (h *hub) join(a *await, sp span) {
	w := h.open(sp)
	w.awaits = append(w.awaits, a)
	a.in = append(a.in, w)
	h.catchUp(w, a)
}

// without takes a out of those who hear of w.
func (h *hub) without(w *watch, a *await) {
	if i := slices.Index(w.awaits, a); i >= 0 {
		w.awaits = slices.Delete(w.awaits, i, i+1)
		h.spare(w)
	}
}

// catchUp tells a what w has told since a last knew the line, or makes it unsure where that is not known. The caller settles a.
func (h *hub) catchUp(w *watch, a *await) {
	src := h.source(w)
	switch {
	case src.since == 0: // when it stands this comes again; where etcd refuses it there is the timer
	case a.seen < src.since || a.near:
		a.unsure = true
	default:
		for _, d := range src.log {
			if d.rev > a.seen && w.covers(d.key) {
				a.deleted(d.key, d.rev)
			}
		}
	}
}

// deleted notes that a claim is gone.
func (a *await) deleted(key string, rev int64) {
	if key == a.key {
		if rev > a.token {
			a.fate = ended
		}
		return
	}
	if rev <= a.seen {
		return
	}
	if a.spans != nil {
		a.unsure = true
	}
	for i, r := range a.ahead {
		if r.key == key {
			a.near = a.near || !a.whole && i == len(a.ahead)-1
			a.ahead = slices.Delete(a.ahead, i, i+1)
			return
		}
	}
}

// put notes that a claim came or was rewritten, where puts are heard of.
func (a *await) put(kv *mvccpb.KeyValue) {
	if a.spans != nil && kv.ModRevision > a.seen {
		a.unsure = true
	}
	if a.wants && a.fate == waits && a.follows(kv) {
		a.fate = wanted
	}
}

// follows reports whether kv is a claim of another lease that stands behind a.
func (a *await) follows(kv *mvccpb.KeyValue) bool {
	_, session := parseClaim(a.l.s.lineDir(a.at.name), string(kv.Key))
	return kv.CreateRevision > a.token && session != a.l.ID()
}

// settle draws the conclusion once all that one message holds has been noted. The caller holds h.mu.
func (h *hub) settle(a *await) {
	if a.near && !a.unsure && a.fate == waits && a.spans == nil && len(a.in) > 1 {
		h.listen(a)
	}
	if a.fate == waits && a.whole && !a.unsure && !a.wants && !a.keeps && a.slots == 0 && len(a.ahead) == 0 {
		a.fate = holds
	}
	if moved := a.moved(); moved || a.fate != waits || a.unsure {
		a.tell()
	}
}

// moved reports whether a stands right behind another claim than when it said so last, where that matters to whoever waits: a vigil is to begin or to end.
func (a *await) moved() bool {
	if len(a.ahead) == 0 || a.ahead[0].rev == a.next {
		return false
	}
	had := a.beats
	a.next, a.beats = a.ahead[0].rev, strings.Contains(a.ahead[0].key, beatMark)
	return a.changed != nil || had || a.beats
}

// newAwait returns one for the claim p, with what its own entry has shown.
func (l *lease) newAwait(p driver.Place, changed chan struct{}) *await {
	a := &await{l: l, at: spotOf(p), token: int64(p.Token), slots: p.Slots, changed: changed}
	l.mu.Lock()
	defer l.mu.Unlock()
	sl := l.slots[a.at]
	if sl == nil || sl.token != p.Token {
		a.key = l.keyOf(p)
		return a
	}
	if a.key = sl.key; sl.at != 0 && a.slots == 0 {
		a.seen, a.ahead, a.whole = sl.at, rivals(sl.ahead), len(sl.ahead) < nearby
	}
	return a
}

// covers reports whether key is in the span.
func (sp span) covers(key string) bool {
	if sp.end == "" {
		return key == sp.key
	}
	return key >= sp.key && (key < sp.end || sp.end == "\x00")
}
