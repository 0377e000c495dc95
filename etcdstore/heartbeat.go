package etcdstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// A heartbeat keeps a ttl that is shorter than etcd keeps leases.
//
// The session is on an etcd lease of a longer ttl, the base. On that lease is the heartbeat too, a
// key that each renewal rewrites under a compare of its create revision. Whoever waits right behind
// the session watches the key. When it has not changed for 1.12 ttls, the waiter deletes it under a
// compare of the revision seen last (see livenessWatch), and the session's record in the same Txn.
// From then on every heartbeat fails, and so does every Txn by which a claim of the session enters
// or moves: the session is dead for good. Only then its lease is revoked.
//
// So a renewal counts if its heartbeat was written, and the base was proven so recently that it
// outlives the ttl. The base is renewed beside the heartbeats, which do not wait for it.

const (
	// minBase is the shortest base: it outlives an election of etcd's leader and a move after
	// that.
	minBase = 10 * time.Second
	// baseTTLs is how many times as long as the ttl a base is at least. A renewal counts while the
	// last proof of the base is at most maxProofAge old, which is half the base less one ttl. What
	// is promised then ends a ttl later, at most half the base after the proof. The other half is
	// margin.
	baseTTLs = 4
	// maxSilentTimes is how many heartbeats in turn a member may leave unanswered.
	maxSilentTimes = 3
)

func roundUp(d, unit time.Duration) time.Duration { return (d + unit - 1) / unit * unit }

// moment is an instant on both clocks: the boot clock counts suspended time, and tests fake Go's.
type moment struct {
	boot time.Duration
	mono time.Time
}

// now reads both clocks. Only a session with a heartbeat needs them: the age of the last proof
// tells whether the base still stands.
func now() moment { return moment{boottime.Now(), time.Now()} }

// ago returns how long ago i was, by the clock that shows more.
func (m moment) ago() time.Duration { return max(boottime.Now()-m.boot, time.Since(m.mono)) }

// heartbeat is that of a lease.
type heartbeat struct {
	key         string
	maxProofAge time.Duration // a heartbeat counts if the base was proven at most so long ago
	hedgeAfter  time.Duration // a heartbeat that has no answer for so long is sent to another member too

	mu       sync.Mutex    // guards what follows
	proven   moment        // before the last call that proved the base
	tried    moment        // before the last call that tried to
	pause    time.Duration // from tried to the next one
	underWay bool          // one is under way

	silent      etcdwire.MemberConn // the member asked first last time, if it gave no good answer
	silentTimes int                 // how many heartbeats in a row it gave none
	silentSince time.Time           // when the first of those began
}

func newHeartbeat(key string, ttl, base time.Duration, asked moment) *heartbeat {
	limit := base/2 - ttl
	return &heartbeat{key: key, maxProofAge: limit, hedgeAfter: ttl / 20, proven: asked, tried: asked, pause: limit / 4}
}

func (r *renewal) renewHeartbeat(ctx context.Context) error {
	r.renewBaseSoon()
	actx, cancel := context.WithTimeout(ctx, min(r.ttl/2, etcdwire.CallLimit))
	defer cancel()
	defer context.AfterFunc(r.s.wire.Context(), cancel)()
	resp, member, err := r.beatOnce(actx)
	switch {
	case err != nil && r.over():
		return r.goneErr("renew")
	case err != nil && member == (etcdwire.MemberConn{}):
		return fmt.Errorf("etcd: renew: %w", err)
	case err != nil:
		return etcdwire.Wrap(ctx, member.Host(), "renew", err)
	case !resp.Succeeded:
		return r.lost("renew")
	}
	r.heartbeat.mu.Lock()
	proven := r.heartbeat.proven
	r.heartbeat.mu.Unlock()
	if age := proven.ago(); age > r.heartbeat.maxProofAge {
		return fmt.Errorf("etcd: renew: the heartbeat was written, "+
			"but the lease below it was last proven %v ago, and %v is the limit",
			age.Round(time.Millisecond), r.heartbeat.maxProofAge)
	}
	return nil
}

type beatAnswer struct {
	resp *pb.TxnResponse
	at   etcdwire.MemberConn
	err  error
}

// beatOnce writes the heartbeat. A member that does not answer soon may be frozen, and a short ttl
// leaves no time to find out: another member is asked too, once, if there is one. The heartbeat may
// be written twice. beatAt ends with ctx, so beatOnce does.
func (r *renewal) beatOnce(ctx context.Context) (resp *pb.TxnResponse, member etcdwire.MemberConn, err error) {
	first, err := r.s.wire.Members.Current() // err is the named result, which the deferred call reads
	if err != nil {
		return nil, first, err
	}
	answers := make(chan beatAnswer, 2)
	send := func(member etcdwire.MemberConn) { go func() { answers <- r.beatAt(ctx, member) }() }
	begun, firstAnswered := time.Now(), false
	var other etcdwire.MemberConn
	defer func() { r.noteAnswers(ctx, begun, first, other, firstAnswered, err) }()
	send(first)
	more := time.NewTimer(r.heartbeat.hedgeAfter)
	defer more.Stop()
	second := func() bool {
		member, ok := r.s.wire.Members.Other(first)
		if ok {
			other = member
			send(member)
		}
		return ok
	}
	pending, sent := 1, false
	for {
		select {
		case a := <-answers:
			pending--
			firstAnswered = firstAnswered || a.at == first && a.err == nil
			if !sent && a.err != nil && ctx.Err() == nil {
				if sent = true; second() {
					pending++
				}
			}
			if a.err == nil || pending == 0 {
				return a.resp, a.at, a.err
			}
		case <-more.C:
			if !sent && second() {
				pending++
			}
			sent = true
		}
	}
}

// noteAnswers notes who has answered a heartbeat that began at begun and ended with err, nil if any
// member has written it. One heartbeat is too short to blame a member. So all calls leave first
// only after maxSilentTimes heartbeats in a row without firstAnswered: first has answered none of
// them, without an error, before beatOnce returned. If other has not answered either, the next
// heartbeat asks a third member beside first, if there is one.
func (r *renewal) noteAnswers(ctx context.Context, begun time.Time, first, other etcdwire.MemberConn,
	firstAnswered bool, err error,
) {
	if ctx.Err() == context.Canceled || r.s.wire.Context().Err() != nil {
		return
	}
	if err != nil && other != (etcdwire.MemberConn{}) {
		r.s.wire.Members.NoteFailure(other)
	}
	h := r.heartbeat
	h.mu.Lock()
	if firstAnswered || h.silent != first {
		h.silent, h.silentSince, h.silentTimes = etcdwire.MemberConn{}, begun, 0
	}
	if !firstAnswered {
		h.silent = first
		h.silentTimes++
	}
	silent := h.silentTimes >= maxSilentTimes && time.Since(h.silentSince) >= etcdwire.BlameAfter
	h.mu.Unlock()
	if silent {
		r.s.wire.Members.FailOver(first)
	}
}

func (r *renewal) beatAt(ctx context.Context, member etcdwire.MemberConn) beatAnswer {
	resp, err := pb.NewKVClient(member.Conn).Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(r.heartbeat.key, r.recordCreated), ifCreate(r.recordKey, r.recordCreated)},
		Success: []*pb.RequestOp{doReplace(r.heartbeat.key, nil)},
	}, grpc.WaitForReady(false))
	if err == nil {
		err = r.s.wire.Same(resp.Header)
	}
	return beatAnswer{resp, member, err}
}

// renewBaseSoon has the base renewed in the background where that is due, one renewal at a time.
// Only Renew calls it: a session that its owner has given up must not live on.
func (r *renewal) renewBaseSoon() {
	h := r.heartbeat
	h.mu.Lock()
	due := !h.underWay && h.tried.ago() >= h.pause
	if due {
		h.underWay, h.tried = true, now()
	}
	begun := h.tried
	h.mu.Unlock()
	if !due {
		return
	}
	r.s.wire.Go(func() {
		ctx, cancel := context.WithTimeout(r.s.wire.Context(), h.maxProofAge/4)
		defer cancel()
		err := r.renewBase(ctx)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.underWay, h.pause = false, h.maxProofAge/16
		if err == nil {
			h.proven, h.pause = begun, h.maxProofAge/4
		}
	})
}
