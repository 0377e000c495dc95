package etcdstore

import (
	"context"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// seatID names a seat: for each, a lease has at most one claim.
type seatID = storeutil.Seat

// seatState is what a lease knows of its claim on one seat. A seat has one claim at most: claims,
// releases and transfers go one after another, and each takes the turn. seatID never changes, and
// turn not between an open and its drop. seats.mu guards all other fields. slots and key are
// changed by begin alone, whose caller has the turn: so whoever has the turn may read these two
// without seats.mu.
type seatState struct {
	seatID
	turn  chan struct{}      // a mutex that a context can interrupt: who holds it has put a value in; nil without refs
	refs  int                // calls of open without their drop; with none, and no claim, it is forgotten
	slots int                // of the claim, or of the last one
	key   string             // of the claim, or of the last one
	stop  context.CancelFunc // ends the Claim under way; nil: none is
	claimFields
}

// claimFields is what clear forgets.
type claimFields struct {
	id              string        // the claim that stands or may stand; "" none
	token           uint64        // its create revision; 0 not known
	mod             int64         // its mod revision as last known
	lease           int64         // the etcd lease that its key was on when this was noted last; 0: not known
	doubt           bool          // a put of it may still be under way to some member
	leaving         bool          // it is being given up: its end is no news
	transferInDoubt bool          // a Transfer of it may still be under way to some member
	announced       bool          // those behind it know that it holds, or see so as they enter (newsbox.announce)
	lastRequest     int64         // mod revision of the newest request that News has told
	sub             *etcdwire.Sub // News's subscription to a watch of the key; nil: none

	ahead    []*mvccpb.KeyValue // what its own entry found before it; keys only
	aheadRev int64              // the revision of that answer; 0: none is known, and the line must be read
}

// seats is what a lease knows of its claims, by seat.
type seats struct {
	mu    sync.Mutex // guards all of it, claims included
	by    map[seatID]*seatState
	spent storeutil.SpentIDs // claim IDs that were given up: they must not enter again
	turns []chan struct{}    // for seats to come: most seats wait or hold, and no call has them open
}

// keptTurns is how many turns are kept for other seats. More calls than that seldom end at once.
const keptTurns = 64

// open returns the state of a seat, made if there is none. Each open needs a drop.
func (ss *seats) open(id seatID) *seatState {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	seat := ss.by[id]
	if seat == nil {
		seat = &seatState{seatID: id}
		ss.by[id] = seat
	}
	if seat.refs++; seat.refs > 1 {
		return seat
	}
	if n := len(ss.turns); n > 0 {
		seat.turn, ss.turns = ss.turns[n-1], ss.turns[:n-1]
	} else {
		seat.turn = make(chan struct{}, 1)
	}
	return seat
}

func (ss *seats) drop(seat *seatState) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if seat.refs--; seat.refs > 0 {
		return
	}
	if len(ss.turns) < keptTurns {
		ss.turns = append(ss.turns, seat.turn)
	}
	if seat.turn = nil; seat.id == "" {
		delete(ss.by, seat.seatID)
	}
}

// notOn returns the states of the seats whose claim stands or may stand, and is not known to be on
// that etcd lease.
func (ss *seats) notOn(lease int64) (all []*seatState) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, seat := range ss.by {
		if seat.id != "" && seat.lease != lease {
			all = append(all, seat)
		}
	}
	return all
}

// missingClaim is a claim that should stand and does not.
type missingClaim struct {
	seat  *seatState
	token uint64
}

// noteMoved notes which claims a Txn has moved to that etcd lease, and returns those that it should
// have met and did not. Tokens are those that it compared. Without one, the answer to the entry had
// not come: the Txn has moved whatever stood.
func (ss *seats) noteMoved(some []*seatState, tokens []uint64, lease int64, resp *pb.TxnResponse,
) (missing []missingClaim) {
	rev := resp.Header.Revision
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for i, seat := range some {
		switch {
		case tokens[i] != 0 && seat.token != tokens[i]: // the seat has another claim by now
		case seat.token > uint64(rev): // or one that entered after the Txn
		case resp.Responses[i].GetResponseTxn().GetSucceeded():
			seat.lease, seat.mod = lease, max(seat.mod, rev)
		case seat.token != 0 && !seat.leaving && !seat.transferInDoubt:
			missing = append(missing, missingClaim{seat, seat.token})
		}
	}
	return missing
}

func (ss *seats) subs() (all []*etcdwire.Sub) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, seat := range ss.by {
		all = append(all, seat.sub)
	}
	return all
}

func (seat *seatState) placeLocked() driver.Place {
	return driver.Place{Name: seat.Name, Seat: seat.Seat, Slots: seat.slots, ID: seat.id, Token: seat.token}
}

func (seat *seatState) lock(ctx context.Context) error { return etcdwire.Acquire(ctx, seat.turn) }

func (seat *seatState) unlock() { <-seat.turn }

// known returns p with its claim's slots and, where p has no token, its token.
func (ss *seats) known(p driver.Place) (driver.Place, error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	seat := ss.by[storeutil.SeatAt(p)]
	ours := seat != nil && seat.id == p.ID
	if ours {
		p.Slots = seat.slots
	}
	if p.Token != 0 {
		return p, nil
	}
	if !ours {
		return p, placeGone("place", p.Name)
	}
	if seat.token == 0 {
		return p, fmt.Errorf("etcd: place %q has no token: claim it again under the same ID first", p.Name)
	}
	p.Token = seat.token
	return p, nil
}

// has reports whether the seat's claim is p's, as far as the token is known.
func (ss *seats) has(seat *seatState, p driver.Place) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return seat.hasLocked(p)
}

func (seat *seatState) hasLocked(p driver.Place) bool {
	return seat.id == p.ID && (p.Token == 0 || seat.token == 0 || p.Token == seat.token)
}

func (ss *seats) spend(id string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.spent.Add(id)
}

func (ss *seats) wasSpent(id string) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.spent.Has(id)
}

// begin notes that c is about to enter under a key: a Release from now on ends the context it
// returns. It reports false if a Release came before. The caller has the seat's turn.
func (ss *seats) begin(ctx context.Context, seat *seatState, c driver.Claim, key string) (context.Context, bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.spent.Has(c.ID) {
		return nil, false
	}
	seat.id, seat.slots, seat.key = c.ID, c.Slots, key
	ctx, seat.stop = context.WithCancel(ctx)
	return ctx, true
}

// finish ends what begin began.
func (ss *seats) finish(seat *seatState) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	seat.stop()
	seat.stop = nil
}

func (ss *seats) doubt(seat *seatState) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	seat.doubt = true
}

// noteAhead keeps what the i-th operation of the entering Txn has read of those before the seat's
// claim; nothing, where there may be more.
func (ss *seats) noteAhead(seat *seatState, resp *pb.TxnResponse, i int) {
	ahead, all := byAge(kvsAt(resp, i))
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if seat.ahead, seat.aheadRev = nil, 0; all {
		seat.ahead, seat.aheadRev = ahead, resp.Header.Revision
	}
}

// modOf notes a mod revision that the place's key has had, 0: none. It returns the newest one
// known.
func (ss *seats) modOf(p driver.Place, newer int64) int64 {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	seat := ss.by[storeutil.SeatAt(p)]
	if seat == nil || seat.token != p.Token {
		return int64(p.Token)
	}
	seat.mod = max(seat.mod, newer)
	return seat.mod
}

// exchangeable returns the token of the place that is given up, and whether one Txn will do. The
// caller has both seats' turns.
func (ss *seats) exchangeable(from, to *seatState, p driver.Place) (token int64, ok bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return int64(from.token), from.hasLocked(p) && from.token != 0 && !from.doubt && to.id == ""
}

// beginTransfer notes that the claim is about to leave: its end is no news. It returns whether it
// was leaving before, for transferFailed: a Release waits for the turn, or News has told its end.
func (ss *seats) beginTransfer(seat *seatState) (was bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	was, seat.leaving = seat.leaving, true
	return was
}

// transferFailed takes back what beginTransfer noted, unless a Release has come meanwhile.
func (ss *seats) transferFailed(seat *seatState, was bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	seat.leaving = was || ss.spent.Has(seat.id)
}

func (ss *seats) isTransferInDoubt(seat *seatState) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return seat.transferInDoubt
}

// markGivenUp notes that p's claim is given up, so that its ID never enters again, and ends a Claim
// of it that is under way. The caller need not have the seat's turn.
func (ss *seats) markGivenUp(seat *seatState, p driver.Place) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ours := seat.hasLocked(p)
	// Not where the seat has the claim of that ID under another token: that one is not given up.
	if ours || p.Token == 0 || seat.id != p.ID {
		ss.spent.Add(p.ID)
	}
	if ours {
		seat.leaving = true
		if seat.stop != nil {
			seat.stop()
		}
	}
}
