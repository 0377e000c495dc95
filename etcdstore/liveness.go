package etcdstore

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// livenessWatch watches the heartbeat of one session for all in this process who wait right behind
// a claim of it, and ends the session when the heartbeat is silent.
//
// It takes no decision about leadership: it ends what is dead. The proof is this.
//
//  1. Let N be the newest revision of the heartbeat that was received here. Each heartbeat that the
//     holder sends after that receipt gets a revision larger than N.
//  2. A ttl after the receipt, and a little more for the clocks, a Txn deletes the heartbeat if its
//     revision is N. If the Txn succeeds, no larger revision exists or ever will.
//  3. So the holder counts no heartbeat that was sent after the receipt. Its deadline, at most a
//     ttl after the receipt, is over.
//
// This holds however late etcd carries the Txn out, and however long this process slept before it.
// It needs both: that the silence counts from after the receipt, and that the Txn compares N. Go's
// clock measures the silence: in suspend it stands still, and the watch lasts longer.
//
// A missing heartbeat alone proves nothing: whoever deleted it may not have waited. The watch takes
// the deletion for one more change, and ends the session if the heartbeat is still missing one
// silence later. The proof holds then too, for the holder writes no heartbeat over a missing one.
// Hence no harm is done by two such watches, a lost answer, or a watch that died half way.
type livenessWatch struct {
	all     *livenessWatches
	s       *Store
	session string
	key     string        // of the heartbeat
	silence time.Duration // after which the session is dead
	end     context.CancelFunc

	// What follows is guarded by livenessWatches.mu.
	subs     map[*livenessSub]struct{}
	deleted  map[string]bool // claims that endSession has deleted; not nil: the session is dead
	forTry   *livenessSub    // of those who do not wait (see watchForTry); in subs from a Try until tryTimer
	tryTimer *time.Timer     // takes forTry out of subs; each Try sets it anew
}

// livenessWatches are all of a store, by session.
type livenessWatches struct {
	s  *Store
	mu sync.Mutex
	by map[string]*livenessWatch
}

// livenessSub is one who waits behind a claim.
type livenessSub struct {
	v      *livenessWatch
	claim  string // the key
	notify func()
}

const (
	// silenceTTLs is how long the silence is, in ttls. With a drift of d the holder stops after
	// (1 − d) ttls on its own clock. So 1.12 ttls on the waiter's clock are enough while that clock
	// runs at most 1.12 ÷ (1 − d) times as fast as the holder's. At the default d of 0.10 that
	// allows a factor of 1.244. If each clock differs from true time by at most d, the factor is at
	// most (1 + d) ÷ (1 − d), or 1.222.
	silenceTTLs = 1.12
	// deletedAtOnce is how many claims go at most in the Txn that ends the session. The others go
	// with its lease. A claim takes two operations, and all else three.
	deletedAtOnce = 40
)

// watch watches the session that a claim is of, until the subscription is stopped. It returns nil
// where the claim's key says that there is no heartbeat, or that it is another store's. Once the
// claim was removed here, notify is called, which must not block: the hub may have missed the end.
func (ls *livenessWatches) watch(claim string, notify func()) *livenessSub {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	v := ls.watchOfLocked(claim)
	if v == nil {
		return nil
	}
	p := &livenessSub{v: v, claim: claim, notify: notify}
	v.subs[p] = struct{}{}
	return p
}

// watchForTry watches the sessions of claims that were in the way of a Try, for a while: perhaps
// nobody waits behind them. Who tries again and again then takes over as soon as one who waits.
func (ls *livenessWatches) watchForTry(claims []*mvccpb.KeyValue) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, kv := range claims {
		ls.watchForTryLocked(string(kv.Key))
	}
}

func (ls *livenessWatches) watchForTryLocked(claim string) {
	v := ls.watchOfLocked(claim)
	if v == nil {
		return
	}
	if v.forTry == nil {
		v.forTry = &livenessSub{v: v, notify: func() {}}
		v.tryTimer = time.AfterFunc(2*v.silence, v.forTry.stop)
	}
	v.forTry.claim = claim
	v.subs[v.forTry] = struct{}{}
	v.tryTimer.Reset(2 * v.silence)
}

// watchOfLocked returns the watch of a claim's session, begun now if there is none; nil where the
// session has no heartbeat. The caller adds a subscription.
func (ls *livenessWatches) watchOfLocked(claim string) *livenessWatch {
	session, ttl := parseStem(claim)
	if ttl == 0 || !ls.s.isClaim(claim) {
		return nil // another store's heartbeat has another key: here it would seem to be missing
	}
	v := ls.by[session]
	if v == nil {
		ctx, cancel := context.WithCancel(ls.s.wire.Context())
		v = &livenessWatch{all: ls, s: ls.s, session: session, key: ls.s.beatKey(session), end: cancel,
			silence: time.Duration(float64(ttl) * silenceTTLs), subs: map[*livenessSub]struct{}{}}
		ls.by[session] = v
		ls.s.wire.Go(func() { v.run(ctx) })
	}
	return v
}

// livenessSubs has sessions watched for one waiter: News sets it up, and whoever gives the place
// up ends it, perhaps at the same time.
type livenessSubs struct {
	mu    sync.Mutex // livenessWatches.mu and the hub's lock are taken under it
	subs  []*livenessSub
	ended bool
}

// watchOnly has the sessions of those claims watched from now on, and no others, unless stop was
// called. It calls claims under the lock: of two calls at once, the one that comes later reads
// later.
func (g *livenessSubs) watchOnly(ls *livenessWatches, claims func() []string, notify func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	earlier := g.subs
	g.subs = nil
	for _, c := range claims() {
		if p := ls.watch(c, notify); p != nil {
			g.subs = append(g.subs, p)
		}
	}
	for _, p := range earlier { // only now: a watch that goes on is not begun anew
		p.stop()
	}
}

func (g *livenessSubs) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	for _, p := range g.subs {
		p.stop()
	}
	g.subs = nil
}

// stop ends the subscription. It may be called more than once.
func (p *livenessSub) stop() {
	p.v.all.mu.Lock()
	defer p.v.all.mu.Unlock()
	delete(p.v.subs, p)
	if len(p.v.subs) == 0 {
		p.v.leaveLocked()
	}
}

func (v *livenessWatch) leaveLocked() {
	v.end()
	if v.all.by[v.session] == v {
		delete(v.all.by, v.session)
	}
}

// claims returns keys of claims that are waited for and still stand: as many as go in one Txn.
func (v *livenessWatch) claims() (keys []string) {
	v.all.mu.Lock()
	defer v.all.mu.Unlock()
	return v.claimsLocked()
}

func (v *livenessWatch) claimsLocked() (keys []string) {
	seen := map[string]bool{}
	most := min(deletedAtOnce, max(1, (v.s.wire.Limit.Ops()-3)/2))
	for p := range v.subs {
		if !seen[p.claim] && !v.deleted[p.claim] && len(keys) < most {
			seen[p.claim] = true
			keys = append(keys, p.claim)
		}
	}
	return keys
}

// run watches until nobody waits behind the session any more: then ctx ends. Once the session is
// dead, run deletes the claims of it that somebody still waits for.
func (v *livenessWatch) run(ctx context.Context) {
	changed, notify := etcdwire.Signal()
	sub := v.s.wire.Hub.Watch(etcdwire.Span{Key: v.key, Puts: true}, notify)
	defer sub.Stop()
	mod, ok := v.first(ctx)
	last := beatState{mod: mod}
	for ok {
		since := time.Now() // read after the receipt of last, as the proof needs it
		last, ok = v.listen(ctx, sub, changed, last, since)
	}
	for ctx.Err() == nil { // the session is dead, and claims of it are left that somebody waits for
		_ = v.s.wire.Pause(ctx, changed, v.silence/8)
		_, _, _ = v.endSession(0)
	}
}

// first reads the heartbeat's revision, 0 where it is missing. It reports false if the watch ends.
func (v *livenessWatch) first(ctx context.Context) (int64, bool) {
	for ctx.Err() == nil {
		resp, err := v.try(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{doFind(v.key)}})
		if err == nil {
			return modRev(kvAt(resp, 0)), true
		}
		_ = storeutil.Sleep(ctx, v.silence/8)
	}
	return 0, false
}

// beatState is the newest state of a heartbeat that was received.
type beatState struct {
	mod  int64 // its mod revision; 0: it is missing
	told int64 // the newest revision that an event has told: that of the deletion where it was deleted
}

// listen waits for a change after last, which was received at since, and returns the new state. It
// reports false when the session is dead, or nobody waits any more.
func (v *livenessWatch) listen(ctx context.Context, sub *etcdwire.Sub, changed <-chan struct{}, last beatState,
	since time.Time,
) (beatState, bool) {
	pause := v.silence
	for {
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return last, false
		case <-changed:
			t.Stop()
			if rev, deleted := sub.NewestMod(); rev > max(last.mod, last.told) {
				if deleted {
					return beatState{told: rev}, true
				}
				return beatState{mod: rev, told: rev}, true
			}
		case <-t.C:
		}
		if pause = v.silence - time.Since(since); pause > 0 {
			continue
		}
		switch mod, dead, err := v.endSession(last.mod); {
		case dead:
			return last, false
		case err == nil:
			return beatState{mod, last.told}, true
		}
		pause = v.silence / 8
	}
}

// endSession deletes the heartbeat, the record and the claims waited for, if the heartbeat still
// has that revision (0: if it is still missing), and reports whether it did. Otherwise it returns
// the heartbeat's revision. It ends the watch once nobody waits for a claim that is left.
func (v *livenessWatch) endSession(last int64) (mod int64, dead bool, err error) {
	record := v.s.prefix + sessions + v.session
	claims := v.claims()
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifMod(v.key, last)},
		Success: []*pb.RequestOp{doGet(record)},
		Failure: []*pb.RequestOp{doFind(v.key)},
	}
	for _, key := range claims {
		req.Success = append(req.Success, doGet(key)) // for its lease: doFind does not return it on etcd 3.7
	}
	// The record goes in the same step: what lets a claim of the session enter or move compares it.
	req.Success = append(req.Success, doDelete(v.key), doDelete(record))
	for _, key := range claims {
		req.Success = append(req.Success, doDelete(key))
	}
	// Not under the watch's context: those who wait may hear of the claim's end before this answer
	// comes, and end the watch, and then nobody would revoke the leases.
	resp, err := v.try(v.s.wire.Context(), req)
	if etcdwire.TooMany(err) && len(claims) > 1 {
		v.s.wire.Limit.Refused(len(req.Success))
		return v.endSession(last) // with fewer claims: the silence is as long as before
	}
	if err != nil {
		return 0, false, err
	}
	if !resp.Succeeded {
		return modRev(kvAt(resp, 0)), false, nil
	}
	var kvs []*mvccpb.KeyValue
	for i := range claims {
		kvs = append(kvs, kvsAt(resp, 1+i)...)
	}
	v.ended(claims, append(kvs, kvsAt(resp, 0)...))
	return 0, true, nil
}

// ended notes which claims of the dead session were deleted, and ends the watch unless somebody
// waits for a claim that is left. In the background it revokes the leases of kvs, so that the
// claims that are left go with them; that may fail.
func (v *livenessWatch) ended(deleted []string, kvs []*mvccpb.KeyValue) {
	var leases []int64
	seen := map[int64]bool{0: true}
	for _, kv := range kvs {
		if !seen[kv.Lease] {
			seen[kv.Lease] = true
			leases = append(leases, kv.Lease)
		}
	}
	v.all.mu.Lock()
	if v.deleted == nil {
		v.deleted = map[string]bool{}
	}
	for _, key := range deleted {
		v.deleted[key] = true
	}
	if len(v.claimsLocked()) == 0 {
		v.leaveLocked()
	}
	v.all.mu.Unlock()
	v.s.wire.Background(v.remindWaiters)
	v.s.wire.Background(func(ctx context.Context) {
		for _, id := range leases {
			for v.s.wire.Revoke(ctx, "end a dead session", id) != nil && ctx.Err() == nil {
				_ = storeutil.Sleep(ctx, etcdwire.RetryPause)
			}
		}
	})
}

// remindWaiters waits a moment and then notifies those who still wait behind claims of the session.
// After that moment most waiters have heard of the end from the hub and wait no more. Without it
// thousands would ask etcd for nothing.
func (v *livenessWatch) remindWaiters(ctx context.Context) {
	_ = storeutil.Sleep(ctx, etcdwire.RetryPause/2)
	v.all.mu.Lock()
	subs := make([]*livenessSub, 0, len(v.subs))
	for p := range v.subs {
		subs = append(subs, p)
	}
	v.all.mu.Unlock()
	for _, p := range subs { // which takes the hub's lock
		p.notify()
	}
}

// try runs a Txn under a limit of its own, or a frozen member would cost too much time.
func (v *livenessWatch) try(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	actx, cancel := context.WithTimeout(ctx, max(v.silence/2, etcdwire.BlameAfter+50*time.Millisecond))
	defer cancel()
	resp, _, err := v.s.wire.Txn(actx, "watch a heartbeat", req)
	return resp, err
}

// modRev returns the mod revision of a key that was read, 0 where it is missing.
func modRev(kv *mvccpb.KeyValue) int64 {
	if kv == nil {
		return 0
	}
	return kv.ModRevision
}
