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
// The slots of a semaphore come free in any order. Its first waiter hears of the end of every
// shared claim. Each other waiter waits for the end or the turn of the claim before it: a claim
// that comes to hold rewrites its own key (show), if anybody stands behind it. So a release costs
// its delete, a read by the first waiter and, where others wait, a rewrite and two reads by the
// next one, however long the line is. A claim that comes to hold and does not look is a case for
// the timer.

// standing is how a place stands in its line at one revision.
type standing struct {
	rev    int64 // at which it does
	stands bool
	held   bool
	// of an exclusive claim: who stands before it, the youngest first, at most nearby of them;
	// of a shared one: whose end it waits for
	before   []predecessor
	ahead    etcdwire.Span // of a shared one that waits: the next event there may end the waiting
	behind   []string      // of a shared one that waits: the claims that it stands right behind
	followed bool          // others stand behind a claim on a semaphore
}

// neighbours is the read by which a new exclusive claim learns who stands before it: all of them,
// where these are fewer than nearby. It reads in the order of keys. To find the youngest etcd would
// sort the whole line, while everybody's writes wait.
func neighbours(dir string) *pb.RequestOp {
	return doRange(keysOf(under(dir), nearby))
}

// byAge returns what neighbours has read, the youngest first. It reports false where there may be
// more.
func byAge(kvs []*mvccpb.KeyValue) ([]*mvccpb.KeyValue, bool) {
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(b.CreateRevision, a.CreateRevision) })
	return kvs, len(kvs) < nearby
}

// before returns the reads that tell whether a claim made at rev holds, or a new one with rev 0.
func before(dir string, slots int, rev int64) []*pb.RequestOp {
	if slots == 0 {
		return []*pb.RequestOp{doRange(youngest(dir, etcdwire.PrefixEnd(dir), nearby, rev))}
	}
	ops := []*pb.RequestOp{doRange(youngest(dir, dir+etcdwire.SharedMark, 1, rev))}
	if slots != driver.Unlimited {
		ops = append(ops, doRange(youngest(dir+etcdwire.SharedMark, dir+etcdwire.SharedEnd, slots+1, rev)))
	}
	return ops
}

// verdict returns, by the answers to before, whether the claim holds, and otherwise what it waits
// for.
func verdict(dir string, slots int, first, shared []*mvccpb.KeyValue) (held bool, wait etcdwire.Span) {
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

// behind returns the claims that a shared one with that wait stands right behind: their sessions
// are to be watched.
func behind(wait etcdwire.Span, shared []*mvccpb.KeyValue) (keys []string) {
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
	resp, _, err := se.s.wire.Txn(ctx, what, &pb.TxnRequest{Success: se.looking(p)})
	if err != nil {
		return standing{}, err
	}
	return se.seen(p, resp, 0), nil
}

// looking is what look reads. seen says what the answers mean, the first of which has that index.
func (se *session) looking(p driver.Place) []*pb.RequestOp {
	dir := se.s.lineDir(p.Name)
	ops := append([]*pb.RequestOp{doFind(se.keyOf(p))}, before(dir, p.Slots, int64(p.Token))...)
	if p.Slots > 0 {
		later := youngest(dir+etcdwire.SharedMark, dir+etcdwire.SharedEnd, 1, 0)
		later.MinCreateRevision = int64(p.Token) + 1
		ops = append(ops, doRange(later))
	}
	return ops
}

func (se *session) seen(p driver.Place, resp *pb.TxnResponse, at int) standing {
	kv := one(resp, at)
	if kv == nil || uint64(kv.CreateRevision) != p.Token {
		return standing{}
	}
	st := standing{rev: resp.Header.Revision, stands: true, followed: p.Slots > 0 && one(resp, at+3) != nil}
	if p.Slots == 0 {
		st.before = predecessors(found(resp, at+1))
		st.held = len(st.before) == 0
		return st
	}
	var shared []*mvccpb.KeyValue
	if p.Slots > 0 {
		shared = found(resp, at+2)
	}
	first := found(resp, at+1)
	st.held, st.ahead = verdict(se.s.lineDir(p.Name), p.Slots, first, shared)
	st.behind = behind(st.ahead, shared)
	if len(first) > 0 && string(first[0].Key) == st.ahead.Key && !st.ahead.Puts {
		st.before = predecessors(first) // it waits for that one's end
	}
	return st
}

// show has those behind a claim on a semaphore learn that it holds by now. It happens in the
// background; where it fails their timers are left.
func (n *newsbox) show(p driver.Place, st standing) {
	n.seats.mu.Lock()
	sl := n.seats.by[storeutil.SeatAt(p)]
	due := false
	if sl != nil && sl.token == p.Token {
		due = st.followed && !sl.shown
		sl.shown = true // who enters from now on sees that it holds
	}
	n.seats.mu.Unlock()
	if !due {
		return
	}
	key := n.keyOf(p)
	n.s.wire.Later(func(ctx context.Context) {
		resp, _, err := n.s.wire.Txn(ctx, verb("wait for", p.Name), &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(key, int64(p.Token))},
			Success: []*pb.RequestOp{doTouch(key)},
		})
		if err == nil && resp.Succeeded {
			n.seats.modOf(p, resp.Header.Revision)
		}
	})
}

// asking is how many waiters of a store may read lines at the same time. To find the youngest
// claims etcd sorts the whole line. Thousands who wait in one line and read it together, after
// their stream was opened anew, would get no answer in time, ask again, and hold the line up.
const asking = 8
