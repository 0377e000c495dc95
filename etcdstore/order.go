package etcdstore

import (
	"cmp"
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// What a claim waits for.
//
// An exclusive claim waits until all before it are gone (see waiter). A reader waits for the
// youngest exclusive claim before it: that one's end wakes all readers behind it, and nobody else.
//
// The slots of a semaphore come free in any order. Its first waiter watches all shared claims, and
// hears of the end of each. Each other waiter watches the key of the claim right before it. The key
// is deleted when that claim ends. It is rewritten when that claim comes to hold: then this waiter
// is the first (announce). If the rewrite fails, those behind have their timers.
//
// So a release costs its delete and a read by the first waiter. If others wait, it also costs a
// rewrite by the first waiter and two reads by the second, however long the line is.

// standing is how a place stands in its line at one revision. What is set:
//
//	the place                        ahead            waitsFor          justBefore
//	exclusive, waits                 who is before    -                 -
//	shared, waits for an exclusive   that claim       its key           that claim
//	shared, the first for a slot     -                all shared ones   those before it
//	shared, a later one for a slot*  -                the one before    the one before
//	holds                            -                -                 -
//
// * Also one behind an exclusive claim, if as many shared ones stand between as there are slots.
type standing struct {
	rev          int64
	stands       bool
	held         bool
	ahead        []predecessor // the youngest first, at most maxAhead of them
	waitsFor     etcdwire.Span // the next event there may end the waiting
	justBefore   []string      // the claims whose sessions are watched: their end may end the waiting
	othersBehind bool          // others stand behind it
}

// readAhead is the read by which a new exclusive claim learns who stands before it. It is part of
// the Txn that enters the claim, so all claims in the line stand before it. It reads at most
// maxAhead of them: if it finds as many, there may be more. It reads in the order of keys: to
// find the youngest, etcd would sort the whole line while everybody's writes wait.
func readAhead(dir string) *pb.RequestOp {
	o := &rangeOp{r: pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(etcdwire.PrefixEnd(dir)),
		KeysOnly: true, Limit: maxAhead}}
	return o.get()
}

// byAge returns what readAhead has read, the youngest first. It reports false where there may be
// more than it has read.
func byAge(kvs []*mvccpb.KeyValue) ([]*mvccpb.KeyValue, bool) {
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(b.CreateRevision, a.CreateRevision) })
	return kvs, len(kvs) < maxAhead
}

// readsBefore returns the reads that tell whether a claim made at rev holds, or a new one (rev 0).
func readsBefore(dir string, slots int, rev int64) []*pb.RequestOp {
	if slots == 0 {
		return []*pb.RequestOp{doRange(youngest(dir, etcdwire.PrefixEnd(dir), maxAhead, rev))}
	}
	ops := []*pb.RequestOp{doRange(youngest(dir, dir+etcdwire.SharedMark, 1, rev))}
	if slots != driver.Unlimited {
		ops = append(ops, doRange(youngest(dir+etcdwire.SharedMark, dir+etcdwire.SharedEnd, slots+1, rev)))
	}
	return ops
}

// evaluate returns, by the answers to readsBefore, whether the claim holds, and otherwise what it
// waits for.
func evaluate(dir string, slots int, first, shared []*mvccpb.KeyValue) (held bool, wait etcdwire.Span) {
	if slots <= 0 {
		if len(first) == 0 {
			return true, etcdwire.Span{}
		}
		return false, etcdwire.Span{Key: string(first[0].Key)}
	}
	if len(first) > 0 {
		n := 0 // shared claims between the exclusive one and this one
		for n < len(shared) && shared[n].CreateRevision > first[0].CreateRevision {
			n++
		}
		if n < slots {
			return false, etcdwire.Span{Key: string(first[0].Key)}
		}
		return false, etcdwire.Span{Key: string(shared[0].Key), Puts: true}
	}
	switch {
	case len(shared) < slots:
		return true, etcdwire.Span{}
	case len(shared) == slots:
		return false, etcdwire.Span{Key: dir + etcdwire.SharedMark, End: dir + etcdwire.SharedEnd}
	}
	return false, etcdwire.Span{Key: string(shared[0].Key), Puts: true}
}

// justBefore returns the claims whose end may end that wait of a shared one: their sessions are to
// be watched.
func justBefore(wait etcdwire.Span, shared []*mvccpb.KeyValue) (keys []string) {
	switch {
	case wait.End != "":
		for _, kv := range shared {
			keys = append(keys, string(kv.Key))
		}
	case wait.Key != "":
		keys = []string{wait.Key}
	}
	return keys
}

// look reads a place, and what stands before it, at one instant.
func (se *session) look(ctx context.Context, what string, p driver.Place) (standing, error) {
	resp, _, err := se.s.wire.Txn(ctx, what, &pb.TxnRequest{Success: se.lookOps(p)})
	if err != nil {
		return standing{}, err
	}
	return se.standingIn(p, resp, 0), nil
}

// lookOps returns the reads of look, for standingIn: first the place's key, then those of
// readsBefore (exclusive claims and, for a semaphore, shared ones), then, for a semaphore, a shared
// claim behind it.
func (se *session) lookOps(p driver.Place) []*pb.RequestOp {
	dir := se.s.lineDir(p.Name)
	ops := append([]*pb.RequestOp{doFind(se.keyOf(p))}, readsBefore(dir, p.Slots, int64(p.Token))...)
	if p.Slots > 0 {
		later := youngest(dir+etcdwire.SharedMark, dir+etcdwire.SharedEnd, 1, 0)
		later.MinCreateRevision = int64(p.Token) + 1
		ops = append(ops, doRange(later))
	}
	return ops
}

// standingIn returns how a place stands by the answers to lookOps, the first of which is at index
// at.
func (se *session) standingIn(p driver.Place, resp *pb.TxnResponse, at int) standing {
	kv := kvAt(resp, at)
	if kv == nil || uint64(kv.CreateRevision) != p.Token {
		return standing{}
	}
	st := standing{rev: resp.Header.Revision, stands: true, othersBehind: p.Slots > 0 && kvAt(resp, at+3) != nil}
	if p.Slots == 0 {
		st.ahead = predecessors(kvsAt(resp, at+1))
		st.held = len(st.ahead) == 0
		return st
	}
	var shared []*mvccpb.KeyValue
	if p.Slots > 0 {
		shared = kvsAt(resp, at+2)
	}
	first := kvsAt(resp, at+1)
	st.held, st.waitsFor = evaluate(se.s.lineDir(p.Name), p.Slots, first, shared)
	st.justBefore = justBefore(st.waitsFor, shared)
	if len(first) > 0 && string(first[0].Key) == st.waitsFor.Key && !st.waitsFor.Puts {
		st.ahead = predecessors(first) // of the two that evaluate may name it waits for the exclusive one
	}
	return st
}

// announce tells those behind a claim on a semaphore that it holds by now: it rewrites the claim's
// key, in the background. Where that fails they have their timers.
func (n *newsbox) announce(p driver.Place, st standing) {
	n.seats.mu.Lock()
	seat := n.seats.by[storeutil.SeatAt(p)]
	due := false
	if seat != nil && seat.token == p.Token {
		due = st.othersBehind && !seat.announced
		seat.announced = true // who enters from now on sees that it holds
	}
	n.seats.mu.Unlock()
	if !due {
		return
	}
	key := n.keyOf(p)
	n.s.wire.Background(func(ctx context.Context) {
		resp, _, err := n.s.wire.Txn(ctx, verb("wait for", p.Name), &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(key, int64(p.Token))},
			Success: []*pb.RequestOp{doTouch(key)},
		})
		if err == nil && resp.Succeeded {
			n.seats.modOf(p, resp.Header.Revision)
		}
	})
}

// maxLineReads is how many reads of waiters' lines, and of records by News, a store has under way
// at the same time: to find the youngest claims of a line etcd sorts all of it. After the stream
// was opened anew, thousands who wait in one line would read it together, get no answer in time,
// ask again, and hold the line up.
const maxLineReads = 8
