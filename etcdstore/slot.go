package etcdstore

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
)

// spot is where a lease may have one claim: a seat of a name.
type spot struct{ name, seat string }

// slot is what a lease knows of its claim in one spot. A lease has one key for each spot, so verbs on it go one
// after another (turn); the fields are guarded by lease.mu, for News reads them at any time.
type slot struct {
	spot
	turn chan struct{}
	refs int // verbs that use the slot; with none, and no claim, it is forgotten

	id      string             // the claim that stands or may stand; "" none
	slots   int                // the claim's
	key     string             // the claim's; it changes with the claim, for those who have the turn only
	token   uint64             // its create revision; 0 not known
	mod     int64              // its mod revision as last known
	doubt   bool               // a put of it may still be under way to some member
	leaving bool               // we are giving it up: its end is no news
	handing bool               // a Transfer of it may still be under way to some member
	shown   bool               // who waits behind it has had a chance to learn that it holds
	stop    context.CancelFunc // ends the Claim under way
	asked   int64              // mod revision of the newest request told
	sub     *sub               // News watches the key

	ahead []*mvccpb.KeyValue // what its own entry found before it, as asked for by before; keys only
	at    int64              // the revision of that answer; 0: none is known, and the line must be read
}

// spent remembers claim IDs that were given up, the newest of them: they must not enter again. That no put of theirs is
// still under way is not its business; it stops a Claim that was called late.
type spent struct {
	ids  map[string]bool
	ring []string
	next int
}

// spentKept bounds what a lease remembers.
const spentKept = 1024

func (s *spent) add(id string) {
	if s.ids[id] {
		return
	}
	if s.ids == nil {
		s.ids, s.ring = map[string]bool{}, make([]string, spentKept)
	}
	delete(s.ids, s.ring[s.next])
	s.ids[id], s.ring[s.next] = true, id
	s.next = (s.next + 1) % spentKept
}

// open returns the slot of a spot, made if there is none. Each open needs a drop.
func (l *lease) open(at spot) *slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	sl := l.slots[at]
	if sl == nil {
		sl = &slot{spot: at, turn: make(chan struct{}, 1)}
		l.slots[at] = sl
	}
	sl.refs++
	return sl
}

// drop gives the slot back.
func (l *lease) drop(sl *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sl.refs--; sl.refs == 0 && sl.id == "" {
		delete(l.slots, sl.spot)
	}
}

// place returns the slot's claim. The caller holds lease.mu.
func (sl *slot) place() driver.Place {
	return driver.Place{Name: sl.name, Seat: sl.seat, Slots: sl.slots, ID: sl.id, Token: sl.token}
}

// lock waits for the slot's turn, unless ctx ends first.
func (sl *slot) lock(ctx context.Context) error {
	select {
	case sl.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case sl.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (sl *slot) unlock() { <-sl.turn }

// clear forgets the claim, which is known not to stand and not to come. The caller has the turn.
func (l *lease) clear(sl *slot) {
	l.mu.Lock()
	su, token := sl.sub, sl.token
	sl.id, sl.token, sl.mod, sl.doubt, sl.leaving, sl.handing, sl.shown, sl.asked, sl.sub = "", 0, 0, false, false, false, false, 0, nil
	sl.ahead, sl.at = nil, 0
	l.mu.Unlock()
	su.stop()
	l.news.released(sl.spot, token)
}

// retract takes the slot's claim out of the line, for good. The caller has the turn.
//
// Where the outcome of its put is unknown, to delete the key is not enough: the put may sit in a member that is frozen,
// and be executed when that wakes up, long after. So the session's record is rewritten in the same Txn. That moves its mod
// revision, which each put compares: whatever is still under way has failed from then on.
func (l *lease) retract(ctx context.Context, sl *slot, n *note) error {
	l.mu.Lock()
	sl.leaving = true
	token, doubt := int64(sl.token), sl.doubt
	l.mu.Unlock()
	var err error
	switch {
	case doubt:
		if err = l.fence(ctx, sl, token, n); noSpace(err) {
			// The fence is a put. What stands goes at once, or nobody could follow while etcd is full. The claim stays in doubt: the fence comes
			// later.
			if rerr := l.removeFound(ctx, sl); rerr != nil {
				err = rerr
			}
		}
	case token != 0:
		err = l.remove(ctx, sl.name, sl.key, token, n)
	}
	if err == nil {
		l.clear(sl)
	}
	return err
}

// remove deletes a claim's key if it still has that create revision, and leaves the record n, if any.
func (l *lease) remove(ctx context.Context, name, key string, create int64, n *note) error {
	_, _, err := l.together(ctx, "release", name, &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(key, create)},
		Success: []*pb.RequestOp{doDelete(key)},
	}, n)
	return err
}

// removeFound deletes the slot's key if it stands. By the create revision that it has now: a delete that arrives late must not meet a later claim.
func (l *lease) removeFound(ctx context.Context, sl *slot) error {
	resp, err := l.s.get(ctx, verb("release", sl.name), &pb.RangeRequest{Key: []byte(sl.key), KeysOnly: true})
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	return l.remove(ctx, sl.name, sl.key, resp.Kvs[0].CreateRevision, nil)
}

// fence is retract's Txn, tried until it fits what stands.
func (l *lease) fence(ctx context.Context, sl *slot, create int64, n *note) error {
	for {
		leaves := n

		req := &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(l.key, l.born), ifCreate(sl.key, create)},
			Success: []*pb.RequestOp{doReplace(l.key, l.record)},
			Failure: []*pb.RequestOp{doGet(sl.key), doGet(l.key)},
		}
		if create != 0 {
			req.Success = append(req.Success, doDelete(sl.key))
		} else {
			leaves = nil // it removes nothing
		}
		req.Success = append(req.Success, doGet(l.key)) // mark and lease of one instant: a move may have come between
		resp, out := l.s.shipNoted(ctx, req, leaves)
		err := l.s.told(ctx, verb("release", sl.name), out)
		if isGone(err) {
			return nil // the lease is gone, and with it every claim that stands or may come
		}
		if err != nil {
			return err
		}
		if resp.Succeeded {
			rec := one(resp, len(req.Success)-1)
			l.learn(rec.ModRevision, rec.Lease)
			return nil
		}
		own, rec := one(resp, 0), one(resp, 1)
		if rec == nil || rec.CreateRevision != l.born {
			// No put can enter without the record; what stands is all there will be.
			_ = l.lost("release")
			if own == nil {
				return nil
			}
			return l.remove(ctx, sl.name, sl.key, own.CreateRevision, n)
		}
		create = 0
		if own != nil {
			create = own.CreateRevision
		}
	}
}
