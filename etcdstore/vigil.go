package etcdstore

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// vigil watches the heartbeat of one session, for everybody in this process who waits right behind a claim of it, and ends the session when it falls silent.
//
// It takes no decision about leadership, it only ends what is dead. Say the last revision of the heartbeat that it has received is N. Whatever
// heartbeat the holder counts was sent before its write, and so before N was received here, or it has a later revision. A full ttl after N came, and a
// little more for the clocks, the heartbeat is deleted under compare of N. If that succeeds there is no later revision, and never will be; so
// the holder's deadline, which is shorter and counts from earlier, is over. That holds however late the Txn is carried out and however long this process slept
// before it sent it, with the holder's heartbeats unread: those fail the compare. Counted from before the receipt it would not hold, nor if another
// revision than N were compared. Go's own clock measures the silence: where it stands still, in suspend, the vigil only lasts longer.
//
// That the heartbeat is missing says nothing by itself: who deleted it may not have waited. It is taken for one more change, and after a full ttl without
// it the session is dead all the same. So two vigils, a lost answer and a vigil that died half way end well.
type vigil struct {
	s       *Store
	session string
	key     string        // of the heartbeat
	silence time.Duration // after which the session is dead
	end     context.CancelFunc

	posts  map[*post]struct{} // guarded by vigils.mu, as what follows
	struck map[string]bool    // claims that were deleted; not nil: the session is dead
	passer *post              // of those who pass by (see passing)
	leaves *time.Timer        // ends it
}

// vigils are all of a store, by session.
type vigils struct {
	mu sync.Mutex
	by map[string]*vigil
}

// post is one who waits behind a claim.
type post struct {
	v      *vigil
	claim  string // the key
	notify func()
}

const (
	// overTTL is by how much the vigil's silence is longer than the ttl. With a drift of d the holder trusts 1 − d of the ttl on its own clock. Two clocks
	// that each miss d of the true one differ by a factor of (1 + d) ÷ (1 − d) at most, and where d is taken of the faster one, by 1 ÷ (1 − d)².
	// So the silence must be 1 + d of the ttl, or 1 ÷ (1 − d): with the 0.10 that is the default 1.10, or 1.112. A larger d lets the holder's
	// clock miss more, and the waiter's 0.12 all the same: the two may differ by a factor of up to 1.12 ÷ (1 − d).
	overTTL = 1.12
	// strikes is how many claims go in the Txn that ends the session. The others go with its lease.
	strikes = 40
)

// keepVigil watches over the session that a claim is of, until the post is stopped: by a nil one, where the claim's key says that there is no heartbeat, or
// that it is not this store's.
// Notify is called some time after the claim was removed if the post has not been stopped by then, and must not block: the watch on the claim may be deaf.
func (s *Store) keepVigil(claim string, notify func()) *post {
	s.vigils.mu.Lock()
	defer s.vigils.mu.Unlock()
	v := s.vigilOver(claim)
	if v == nil {
		return nil
	}
	p := &post{v: v, claim: claim, notify: notify}
	v.posts[p] = struct{}{}
	return p
}

// passing keeps vigil for a while over the session that a claim is of, after a Try found it in its way: nobody may wait behind it. Who tries again
// and again finds it dead after hardly more than the ttl, as who waits does.
func (s *Store) passing(claim string) {
	s.vigils.mu.Lock()
	defer s.vigils.mu.Unlock()
	v := s.vigilOver(claim)
	if v == nil {
		return
	}
	if v.passer == nil {
		v.passer = &post{v: v, notify: func() {}}
		v.leaves = time.AfterFunc(2*v.silence, v.passer.stop)
	}
	v.passer.claim = claim
	v.posts[v.passer] = struct{}{}
	v.leaves.Reset(2 * v.silence)
}

// passingAll does it for all those claims.
func (s *Store) passingAll(claims []*mvccpb.KeyValue) {
	for _, kv := range claims {
		s.passing(string(kv.Key))
	}
}

// vigilOver returns the vigil over a claim's session, begun now where there is none yet, nil where the session has no heartbeat. The caller holds
// vigils.mu, and adds a post.
func (s *Store) vigilOver(claim string) *vigil {
	session, ttl := parseStem(claim)
	if ttl == 0 || !s.isClaim(claim) {
		return nil // a stranger's heartbeat is none of ours: here it would seem to be missing
	}
	v := s.vigils.by[session]
	if v == nil {
		ctx, cancel := context.WithCancel(s.ctx)
		v = &vigil{s: s, session: session, key: s.beatKey(session), silence: time.Duration(float64(ttl) * overTTL), end: cancel, posts: map[*post]struct{}{}}
		if s.vigils.by == nil {
			s.vigils.by = map[string]*vigil{}
		}
		s.vigils.by[session] = v
		s.spawn(func() { v.run(ctx) })
	}
	return v
}

// posts are one's who waits behind several claims.
type posts []*post

// keepVigils keeps vigil over the sessions of all those claims, instead of earlier ones. In a line of sessions without heartbeats it does nothing.
func (s *Store) keepVigils(earlier posts, claims []string, notify func()) posts {
	var ps posts
	for _, c := range claims {
		if p := s.keepVigil(c, notify); p != nil {
			ps = append(ps, p)
		}
	}
	earlier.stop() // last: a vigil that goes on is not begun anew
	return ps
}

func (ps posts) stop() {
	for _, p := range ps {
		p.stop()
	}
}

// guards is who keeps vigil for a place that is followed: News sets them up, and whoever gives the place up ends them, also at the same time.
type guards struct {
	mu    sync.Mutex
	posts posts
	ended bool
}

// over keeps vigil over the sessions of those claims from now on, unless that was ended already.
func (g *guards) over(s *Store, claims []string, notify func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		g.posts = s.keepVigils(g.posts, claims, notify)
	}
}

func (g *guards) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.posts.stop()
	g.posts = nil
}

// stop ends the post. It may be called on nil and more than once.
func (p *post) stop() {
	if p == nil {
		return
	}
	vs := &p.v.s.vigils
	vs.mu.Lock()
	defer vs.mu.Unlock()
	delete(p.v.posts, p)
	if len(p.v.posts) == 0 {
		p.v.leave()
	}
}

// leave ends the vigil. The caller holds vigils.mu.
func (v *vigil) leave() {
	v.end()
	if v.s.vigils.by[v.session] == v {
		delete(v.s.vigils.by, v.session)
	}
}

// claims returns the keys of the claims that are waited for and stand yet, some of them if they are many.
func (v *vigil) claims() (keys []string) {
	v.s.vigils.mu.Lock()
	defer v.s.vigils.mu.Unlock()
	return v.claimsLocked()
}

func (v *vigil) claimsLocked() (keys []string) {
	seen := map[string]bool{}
	for p := range v.posts {
		if !seen[p.claim] && !v.struck[p.claim] && len(keys) < strikes {
			seen[p.claim] = true
			keys = append(keys, p.claim)
		}
	}
	return keys
}

// run keeps the vigil until the session is dead or nobody waits behind it any more.
func (v *vigil) run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	su := v.s.hub.watch(span{key: v.key, puts: true}, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer su.stop()
	last, ok := v.first(ctx)
	for ok {
		since := time.Now() // after the receipt, or a heartbeat sent meanwhile would be older than it looks
		if last, ok = v.listen(ctx, su, changed, last, since); !ok {
			return
		}
	}
}

// first reads the heartbeat's revision, 0 where it is missing. It reports false if the vigil ends.
func (v *vigil) first(ctx context.Context) (int64, bool) {
	for ctx.Err() == nil {
		resp, err := v.try(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{doRange(&pb.RangeRequest{Key: []byte(v.key), KeysOnly: true})}})
		if err == nil {
			return modRev(one(resp, 0)), true
		}
		sleep(ctx, v.silence/8)
	}
	return 0, false
}

// listen waits for a change after revision last, which was received at since. It returns the revision that the heartbeat has then. It reports false when the
// vigil is over: the session is dead, or nobody asks any more.
func (v *vigil) listen(ctx context.Context, su *sub, changed <-chan struct{}, last int64, since time.Time) (int64, bool) {
	pause := v.silence
	for {
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return 0, false
		case <-changed:
			t.Stop()
			if rev := su.seen(); rev > last && !v.isDead() {
				return rev, true
			}
		case <-t.C:
		}
		if pause = v.silence - time.Since(since); pause > 0 {
			continue
		}
		mod, done, err := v.strike(last)
		switch {
		case done:
			return 0, false
		case v.isDead():
			last = 0 // there is more to strike, or there was no answer
		case err == nil:
			return mod, true
		}
		pause = v.silence / 8
	}
}

// strike ends the session if its heartbeat still has that revision. Otherwise it returns the one it has. Done says that nobody waits for a claim any more
// that was not deleted with it.
func (v *vigil) strike(last int64) (mod int64, done bool, err error) {
	record := v.s.prefix + sessions + v.session
	claims := v.claims()
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifMod(v.key, last)},
		Success: []*pb.RequestOp{doGet(record)},
		Failure: []*pb.RequestOp{doRange(&pb.RangeRequest{Key: []byte(v.key), KeysOnly: true})},
	}
	for _, key := range claims {
		req.Success = append(req.Success, doGet(key)) // not its key only: etcd 3.7 would leave its lease out
	}
	// The record goes in the same step: whatever lets a claim of the session enter or move compares it, and must not bring back what is dead.
	req.Success = append(req.Success, doDelete(v.key), doDelete(record))
	for _, key := range claims {
		req.Success = append(req.Success, doDelete(key))
	}
	// Not under the vigil's own context: the news that the claim is gone may come before this answer, and end the vigil before the rest is buried.
	resp, err := v.try(v.s.ctx, req)
	if err != nil {
		return 0, false, err
	}
	if !resp.Succeeded {
		return modRev(one(resp, 0)), false, nil
	}
	var kvs []*mvccpb.KeyValue
	for i := range claims {
		kvs = append(kvs, found(resp, 1+i)...)
	}
	return 0, v.bury(claims, append(kvs, found(resp, 0)...)), nil
}

// isDead reports whether the session was ended here.
func (v *vigil) isDead() bool {
	v.s.vigils.mu.Lock()
	defer v.s.vigils.mu.Unlock()
	return v.struck != nil
}

// bury revokes the leases of a dead session, the record's last: the claims that are left go with them. Nobody waits for it, and it may fail: it
// reports whether the vigil is over, which goes on while somebody waits for a claim that is left.
func (v *vigil) bury(struck []string, kvs []*mvccpb.KeyValue) (over bool) {
	var leases []int64
	seen := map[int64]bool{0: true}
	for _, kv := range kvs {
		if !seen[kv.Lease] {
			seen[kv.Lease] = true
			leases = append(leases, kv.Lease)
		}
	}
	v.s.vigils.mu.Lock()
	if v.struck == nil {
		v.struck = map[string]bool{}
	}
	for _, key := range struck {
		v.struck[key] = true
	}
	if over = len(v.claimsLocked()) == 0; over {
		v.leave()
	}
	v.s.vigils.mu.Unlock()
	v.s.later(v.remind)
	v.s.later(func(ctx context.Context) {
		for _, id := range leases {
			for v.s.revoke(ctx, "end a dead session", id) != nil && ctx.Err() == nil {
				sleep(ctx, again)
			}
		}
	})
	return over
}

// remind has those look who still wait, a moment after their claims went: the others have heard of it by the watches on them, and thousands need not ask.
func (v *vigil) remind(ctx context.Context) {
	sleep(ctx, again/2)
	v.s.vigils.mu.Lock()
	posts := make([]*post, 0, len(v.posts))
	for p := range v.posts {
		posts = append(posts, p)
	}
	v.s.vigils.mu.Unlock()
	for _, p := range posts { // which takes the hub's lock
		p.notify()
	}
}

// try runs a Txn under a limit of its own: a frozen member must not cost more than it takes to find out.
func (v *vigil) try(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	actx, cancel := context.WithTimeout(ctx, max(v.silence/2, patience+50*time.Millisecond))
	defer cancel()
	resp, _, err := v.s.txn(actx, "keep vigil", req)
	return resp, err
}

// modRev returns the mod revision of a key that was read, 0 where it is missing.
func modRev(kv *mvccpb.KeyValue) int64 {
	if kv == nil {
		return 0
	}
	return kv.ModRevision
}
