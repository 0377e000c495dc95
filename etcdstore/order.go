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

// Who waits for what.
//
// An exclusive claim waits until all before it are gone (see waiter), a reader for the youngest
// exclusive one: so all readers behind one writer are woken by its end, and nobody else. The
// slots of a semaphore come free in any order. Its first waiter hears of the end of every shared
// claim; whoever waits behind another waits for that one's end, or for its turn: as it comes to
// hold it touches its own key, if anybody stands behind it. So a release costs, whatever the
// length of the line, its delete, a read by the first waiter and, where others wait, a touch and
// two reads by the next one, who is then the first. Who comes to hold and does not look is a case
// for the timer beside the watch.

// standing is what a place looks like in the store.
type standing struct {
	rev    int64 // at which it does
	stands bool
	held   bool
	// who stands before an exclusive claim, the youngest first, nearby of them at most; of a
	// shared one, for whose end alone it waits
	before   []predecessor
	ahead    etcdwire.Span // whose next event may change that, where a shared one is not held
	behind   []string      // the keys of the claims that a shared one stands right behind, where it is not held
	followed bool          // others stand behind a claim on a semaphore
}

// neighbours is the read by which a new exclusive claim learns who stands before it, in the Txn
// that enters it: all of them, where these are fewer than nearby. It takes them in the order of
// their keys: to find the youngest etcd would read and sort the whole line, with everybody's
// writes waiting behind it.
func neighbours(dir string) *pb.RequestOp {
	return doRange(keysOf(under(dir), nearby))
}

// byAge returns what neighbours has read, the youngest first. It reports false where there may be
// more.
func byAge(kvs []*mvccpb.KeyValue) ([]*mvccpb.KeyValue, bool) {
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(b.CreateRevision, a.CreateRevision) })
	return kvs, len(kvs) < nearby
}

// before returns the reads that tell what stands before a claim made at rev, as far as that
// decides whether it holds. Rev 0: a new claim.
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

// verdict reads the answers to before. It returns whether the claim holds, and otherwise what it
// has to wait for.
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

// behind returns the claims that a shared one which is awaited stands right behind: whose
// sessions it must watch.
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

// looking is what look reads, and seen says what the answers mean, which begin with the one at
// that index.
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

// show has whoever waits behind a claim on a semaphore learn that this one holds, which it did
// not when that one last looked. Nobody waits for it: if it fails, the timer is left.
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

// A read of a line costs etcd as much as the line is long: it sorts all claims to find the
// youngest. If thousands who wait in one line read it at once, because their watches have just
// begun or their stream was opened anew, none has its answer in time, all ask again, and the line
// stands still. So few of a store's waiters ask at once, and who is far from its turn asks a
// question that costs the same however long the line is.

// asking is how many of those who wait for something may ask etcd at once.
const asking = 8
