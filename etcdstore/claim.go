package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// Claim implements [driver.Lease]. Without a Try, claims on different names enter at the same time
// and those on one name in order. With a Try all enter one after another. After a final answer to
// one of them, the tries that entered before it are taken out again.
func (l *lease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if err := checkClaims(claims...); err != nil {
		return nil, err
	}
	if len(claims) > 1 && !slices.ContainsFunc(claims, func(c driver.Claim) bool { return c.Try }) {
		return l.claimMany(ctx, claims)
	}
	places := make([]driver.Place, 0, len(claims))
	for i, c := range claims {
		p, err := l.claim(ctx, c)
		if err != nil {
			if driver.IsFinal(err) {
				for j, back := range claims[:i] {
					if !back.Try {
						continue
					}
					if rerr := l.Release(ctx, places[j]); rerr != nil {
						return nil, rerr // unknown: something may be left in the line
					}
				}
			}
			return nil, err
		}
		places = append(places, p)
	}
	return places, nil
}

// maxParallel is how many claims or releases of one call are under way at once: they fill all
// batches.
const maxParallel = maxBatches * 128

// inParallel calls do for 0 to n-1, at most maxParallel at a time, until all are done or one says
// stop.
func inParallel(n int, do func(i int) (stop bool)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, maxParallel) {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || do(i) {
					next.Store(int64(n))
					return
				}
			}
		})
	}
	all.Wait()
}

// claimMany enters claims of which none is a Try. Once one has failed, no other name is begun. Of
// several errors it returns the first whose outcome is unknown, for its claim may stand; if all are
// final, the first.
func (l *lease) claimMany(ctx context.Context, claims []driver.Claim) ([]driver.Place, error) {
	places, errs := make([]driver.Place, len(claims)), make([]error, len(claims))
	names := byName(claims)
	inParallel(len(names), func(i int) (stop bool) {
		for _, at := range names[i] {
			if places[at], errs[at] = l.claim(ctx, claims[at]); errs[at] != nil {
				return true
			}
		}
		return false
	})
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || driver.IsFinal(first) && !driver.IsFinal(err)) {
			first = err
		}
	}
	if first != nil {
		return nil, first
	}
	return places, nil
}

// byName returns the indices of claims on the same name together, in order.
func byName(claims []driver.Claim) (names [][]int) {
	at := make(map[string]int, len(claims))
	for i, c := range claims {
		n, ok := at[c.Name]
		if !ok {
			n = len(names)
			at[c.Name] = n
			names = append(names, nil)
		}
		names[n] = append(names[n], i)
	}
	return names
}

func (l *lease) claim(ctx context.Context, c driver.Claim) (driver.Place, error) {
	seat := l.seats.open(storeutil.SeatOf(c))
	defer l.seats.drop(seat)
	if err := seat.lock(ctx); err != nil {
		return driver.Place{}, fmt.Errorf("etcd: %s: %w", verb("claim", c.Name), err)
	}
	defer seat.unlock()
	return l.claimIn(ctx, seat, c, l.enterOrFind)
}

// enterFunc enters a claim of which begin has been called. The caller has the seat's turn.
type enterFunc func(context.Context, *seatState, driver.Claim) (driver.Place, error)

// claimIn calls enter for c. Before, it removes another claim from the seat; after a final error,
// it removes what enter has left. The caller has the seat's turn.
func (l *lease) claimIn(ctx context.Context, seat *seatState, c driver.Claim, enter enterFunc) (driver.Place, error) {
	if l.over() {
		return driver.Place{}, l.goneErr(verb("claim", c.Name))
	}
	if l.seats.wasSpent(c.ID) {
		return driver.Place{}, placeGone("claim", c.Name) // the claim of another ID, if one stands, stays
	}
	// The seat may have the claim of another ID, or one that a failed release left. c does not take
	// that claim up: it is removed first.
	l.seats.mu.Lock()
	stale := seat.id != "" && (seat.id != c.ID || seat.leaving)
	differs := seat.id != "" && !stale && seat.slots != c.Slots
	if seat.id != "" && seat.id != c.ID {
		l.seats.spent.Add(seat.id) // it is displaced: a Claim of it that comes late must not displace c
	}
	l.seats.mu.Unlock()
	if differs {
		return driver.Place{}, refused(verb("claim", c.Name), "the same ID was claimed with other slots")
	}
	if stale {
		if err := l.retract(ctx, seat, nil); err != nil {
			return driver.Place{}, err
		}
	}
	cctx, ok := l.seats.begin(ctx, seat, c, l.s.claimKey(seat.seatID, c.Slots, l.stem))
	if !ok {
		return driver.Place{}, placeGone("claim", c.Name)
	}
	p, err := func() (driver.Place, error) {
		defer l.seats.finish(seat) // also if the client panics, and the application recovers
		return enter(cctx, seat, c)
	}()
	if err == nil || !driver.IsFinal(err) {
		return p, err
	}
	// A final answer promises that nothing of c is left in the line and nothing will come.
	if rerr := l.retract(ctx, seat, nil); rerr != nil {
		return p, rerr
	}
	if isGone(err) {
		l.seats.spend(c.ID) // what is gone never exists again
	}
	return p, err
}

// enterOrFind enters c, unless it stands already. The caller has the seat's turn.
func (l *lease) enterOrFind(ctx context.Context, seat *seatState, c driver.Claim) (driver.Place, error) {
	l.seats.mu.Lock()
	p := seat.placeLocked()
	l.seats.mu.Unlock()
	if p.Token == 0 {
		return l.enter(ctx, seat, c)
	}
	what := verb("claim", c.Name)
	st, err := l.look(ctx, what, p)
	if err != nil {
		return driver.Place{}, err
	}
	if !st.stands {
		return driver.Place{}, placeGone("claim", c.Name)
	}
	if p.Held = st.held; st.held {
		l.announce(p, st)
	}
	if c.Try && !st.held {
		return driver.Place{}, taken(what)
	}
	return p, nil
}

// enter puts the claim's key. It tries again where failed says so: each time something has changed,
// or was removed, between. The caller has the seat's turn and has called begin.
func (l *lease) enter(ctx context.Context, seat *seatState, c driver.Claim) (driver.Place, error) {
	// The first Txn of an exclusive claim is not expected to fail. It leaves out the reads that
	// tell why it failed, for every byte of it goes through etcd's log. If it fails, the next Txn
	// has them.
	for tellsWhy := c.Slots != 0 || c.Try; ; tellsWhy = true {
		att := l.attachment()
		req, err := l.entry(ctx, seat, c, att, tellsWhy)
		if err != nil {
			return driver.Place{}, err
		}
		resp, err := l.sendEntry(ctx, seat, c, req)
		if err != nil {
			if isGone(err) {
				l.end()
			}
			return driver.Place{}, err
		}
		if resp.Succeeded {
			if c.Slots == 0 && !c.Try {
				l.seats.noteAhead(seat, resp, 0)
			}
			rev := resp.Header.Revision
			p := l.entered(seat, rev, rev, att.lease, holdsOnEntry(c.Slots, resp))
			return l.unlessMoved(ctx, seat, c, p, att)
		}
		if !tellsWhy {
			continue
		}
		if p, err, done := l.failed(ctx, seat, c, att, resp); done {
			return p, err
		}
	}
}

// unlessMoved returns the place of a claim that has entered under att. If the session has moved
// since, it looks whether the claim stands: it may have ended with the old lease before the move,
// which did not know that it was there. The caller has the seat's turn, and has called entered.
func (l *lease) unlessMoved(ctx context.Context, seat *seatState, c driver.Claim, p driver.Place, att attachment,
) (driver.Place, error) {
	if l.attachment().lease == att.lease {
		return p, nil // a move from here on knows the claim
	}
	return l.enterOrFind(ctx, seat, c)
}

// sendEntry sends the Txn of an entry. A shared claim's is sent alone: it has many operations, and
// it changes the part of the line that the next shared claim compares.
func (l *lease) sendEntry(ctx context.Context, seat *seatState, c driver.Claim, req *pb.TxnRequest,
) (resp *pb.TxnResponse, err error) {
	doubt := true // if the client panics, and the application recovers, nobody knows whether c stands
	defer func() {
		if doubt {
			l.seats.doubt(seat)
		}
	}()
	if c.Slots != 0 {
		resp, doubt, err = l.s.wire.Txn(ctx, verb("claim", c.Name), req)
	} else {
		resp, doubt, err = l.batch.send(ctx, "claim", c.Name, req, nil)
	}
	return resp, err
}

// failed deals with an entry whose compares failed. What was read stands in the order of entry's
// and sharedEntry's Failure:
//
//	0     the claim's own key
//	1     the session's record
//	2, 3  of a shared claim: claims with fewer slots, and with more (as keys sort)
//	last  of a Try that asks for an empty line: who is in its way
//
// Done says that there is no further try. The caller has the seat's turn.
func (l *lease) failed(ctx context.Context, seat *seatState, c driver.Claim, att attachment, resp *pb.TxnResponse,
) (p driver.Place, err error, done bool) {
	own, rec := kvAt(resp, 0), kvAt(resp, 1)
	switch {
	case !l.stands(rec, att):
		return p, l.lost(verb("claim", c.Name)), true
	case own != nil:
		return l.adopt(ctx, seat, c, own)
	case rec.ModRevision != att.recordMod:
		// Another claim was retracted meanwhile, or all were moved. No earlier put of this claim
		// can enter any more: enter tries again.
		l.noteRecord(rec.ModRevision, rec.Lease)
	case c.Slots != 0 && (kvAt(resp, 2) != nil || kvAt(resp, 3) != nil):
		return p, l.mixed(verb("claim", c.Name), c, append(kvsAt(resp, 2), kvsAt(resp, 3)...)[0]), true
	case c.Try && c.Slots <= 0:
		l.s.liveness.watchForTry(kvsAt(resp, len(resp.Responses)-1))
		return p, taken(verb("claim", c.Name)), true
	}
	// With a Try on a semaphore: the line has changed since room read it. enter tries again.
	return p, nil, false
}

// entry is the Txn that puts a claim: only if the session's record is as we know it and the key is
// not there, and a Try only if it then holds. It reads who stands before it. Without tellsWhy it
// leaves out the reads that tell why it failed.
func (l *lease) entry(ctx context.Context, seat *seatState, c driver.Claim, att attachment, tellsWhy bool,
) (*pb.TxnRequest, error) {
	if c.Slots != 0 {
		return l.sharedEntry(ctx, seat, c, att)
	}
	dir, key := l.s.lineDir(c.Name), []byte(seat.key)
	put := doPut(key, c.Value, att.lease)
	req := &pb.TxnRequest{Compare: []*pb.Compare{ifMod(l.recordKey, att.recordMod), ifCreate(key, 0)}}
	if tellsWhy {
		req.Failure = []*pb.RequestOp{doGet(seat.key), doGet(l.recordKey)}
	}
	if c.Try {
		req.Compare[1] = ifNone(dir)
		req.Success = []*pb.RequestOp{put}
		req.Failure = append(req.Failure, readAhead(dir)) // who is in its way
		return req, nil
	}
	// The read comes before the put in the Txn, and does not find this claim.
	req.Success = []*pb.RequestOp{readAhead(dir), put}
	return req, nil
}

// adopt deals with a key of ours that stands already. It is this claim's if an earlier put of it
// was in doubt. Otherwise somebody else wrote it, and it is removed. Done says that there is no
// further try. The caller has the seat's turn.
func (l *lease) adopt(ctx context.Context, seat *seatState, c driver.Claim, own *mvccpb.KeyValue,
) (driver.Place, error, bool) {
	l.seats.mu.Lock()
	ours := seat.doubt && own.Lease != 0
	l.seats.mu.Unlock()
	if !ours {
		err := l.remove(ctx, seat.Name, seat.key, own.CreateRevision, nil)
		return driver.Place{}, err, err != nil
	}
	l.entered(seat, own.CreateRevision, own.ModRevision, own.Lease, false) // enterOrFind looks whether it holds
	p, err := l.enterOrFind(ctx, seat, c)
	return p, err, true
}

// entered notes that the claim stands, on that etcd lease, and returns its place. The caller has
// the seat's turn.
func (l *lease) entered(seat *seatState, create, mod, lease int64, held bool) driver.Place {
	l.seats.mu.Lock()
	if seat.token = uint64(create); mod > seat.mod { // otherwise it has been moved since
		seat.mod, seat.lease = mod, lease
	}
	seat.announced = held // who enters behind it from now on sees that it holds
	p := seat.placeLocked()
	l.seats.mu.Unlock()
	p.Held = held
	l.newsbox.watchSoon(seat.seatID, p.Token)
	return p
}

// sharedEntry is entry for a claim with slots. It compares that no shared claim with another number
// stands: of two that enter at once the later fails.
func (l *lease) sharedEntry(ctx context.Context, seat *seatState, c driver.Claim, att attachment,
) (*pb.TxnRequest, error) {
	dir := l.s.lineDir(c.Name)
	same := slotsDir(dir, c.Slots)
	below, above := [2]string{dir + etcdwire.SharedMark, same}, [2]string{etcdwire.PrefixEnd(same), dir +
		etcdwire.SharedEnd}
	other := func(in [2]string) *pb.RequestOp { return doRange(keysOnly(keyRange(in[0], in[1]), 1)) }
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifMod(l.recordKey, att.recordMod), ifCreate(seat.key, 0), ifEmpty(below[0], below[1]),
			ifEmpty(above[0], above[1])},
		Failure: []*pb.RequestOp{doGet(seat.key), doGet(l.recordKey), other(below), other(above)},
	}
	put := doPut(seat.key, c.Value, att.lease)
	switch {
	case !c.Try:
		req.Success = append(readsBefore(dir, c.Slots, 0), put)
		return req, nil
	case c.Slots == driver.Unlimited:
		req.Compare = append(req.Compare, ifEmpty(dir, dir+etcdwire.SharedMark))
		req.Failure = append(req.Failure, doRange(keysOnly(keyRange(dir, dir+etcdwire.SharedMark), maxAhead)))
	default:
		rev, err := l.room(ctx, seat, c)
		if err != nil {
			return nil, err
		}
		req.Compare = append(req.Compare, ifNoneAfter(dir, rev)) // if none has entered since, there is still room
	}
	req.Success = []*pb.RequestOp{put}
	return req, nil
}

// room returns a revision at which one more claim on the semaphore would have held: if no claim has
// entered since, it would still hold. Revision 0: only if the line is empty. It returns
// [driver.ErrTaken] if there was no room. So a Try that would fail does not enter, where it would
// be in others' way until it is removed.
func (l *lease) room(ctx context.Context, seat *seatState, c driver.Claim) (int64, error) {
	what, dir := verb("claim", c.Name), l.s.lineDir(c.Name)
	resp, _, err := l.s.wire.Txn(ctx, what, &pb.TxnRequest{Success: []*pb.RequestOp{
		doFind(seat.key), doRange(keysOnly(prefixRange(dir), c.Slots)),
	}})
	if err != nil {
		return 0, err
	}
	if kvAt(resp, 0) != nil {
		// An earlier put in doubt has entered, and the entering Txn adopts it. If somebody removes
		// it before, those who waited behind it may have taken all slots: the revision would not
		// tell.
		return 0, nil
	}
	line := kvsAt(resp, 1)
	full := len(line) == c.Slots
	for _, kv := range line {
		n, _ := parseClaim(dir, string(kv.Key))
		if n != 0 && n != c.Slots {
			return 0, l.mixed(what, c, kv)
		}
		full = full || n == 0
	}
	if full {
		l.s.liveness.watchForTry(line)
		return 0, taken(what)
	}
	return resp.Header.Revision, nil
}

func (l *lease) mixed(what string, c driver.Claim, other *mvccpb.KeyValue) error {
	n, _ := parseClaim(l.s.lineDir(c.Name), string(other.Key))
	return fmt.Errorf("etcd: %s: %w", what, driver.Misfit(c.Name, n, c.Slots))
}

// holdsOnEntry says whether the claim that this Txn entered holds, by what it read.
func holdsOnEntry(slots int, entered *pb.TxnResponse) bool {
	held, _ := evaluate("", slots, kvsAt(entered, 0), kvsAt(entered, 1))
	return held
}

// seatMax is how many letters and digits a seat has at most.
const seatMax = 16

func checkClaims(claims ...driver.Claim) error {
	if err := driver.CheckClaims(claims...); err != nil {
		return fmt.Errorf("etcd: claim: %w", err)
	}
	odd := func(c rune) bool { return (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') }
	for _, c := range claims {
		if len(c.Seat) > seatMax || strings.ContainsFunc(c.Seat, odd) {
			why := fmt.Sprintf("a seat has at most %d letters and digits, and nothing else, not %q", seatMax, c.Seat)
			return refused(verb("claim", c.Name), why)
		}
	}
	return nil
}
