package etcdstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// newsbox is what News tells of: the session's record, the requests below it, the keys of claims,
// and the places that are followed.
type newsbox struct {
	*session
	seats   *seats
	waiters *waiters

	mu      sync.Mutex      // guards what follows, up to the blank line
	changed map[seatID]bool // what is to be read: the keys of the claims in these seats, or ownRecord
	sub     *etcdwire.Sub   // watches the record and the requests
	closed  bool
	toWatch []unwatchedClaim // in the order in which they came

	// Only News uses these, of which one call is under way at a time.
	nextCheck   time.Time // when some places are checked though nothing was told; zero: not decided yet
	lastRecheck time.Time // when the record and some keys were read last for the same reason
	owesRead    bool      // the last call told what it knew and read nothing: this one reads
	toldUnread  []seatID  // places that the last call told as held by what was heard, without a read
}

// ownRecord stands for the session's record in newsbox.changed: no claim is without a name.
var ownRecord seatID

func newNewsbox(se *session, ss *seats) *newsbox {
	return &newsbox{session: se, seats: ss, changed: map[seatID]bool{},
		waiters: &waiters{wake: make(chan struct{}, 1), by: map[seatID]*waiter{}}}
}

// unwatchedClaim is one that has entered, or that is followed no more: its key is to be watched.
type unwatchedClaim struct {
	seat  seatID
	token uint64
	since time.Time
}

// News implements [driver.Lease]. Nothing relies on a push alone: from time to time it reads though
// nothing was told.
//   - A check has some waiters ask etcd whether what they know is right (waiters.checkSome).
//   - A recheck, which goes with a check if the last one is more than 4 s ago, has the record and
//     some claims' keys read (recheckSome).
//
// The more rechecks this call has made, the longer it pauses before the next check (PollAfter).
func (n *newsbox) News(ctx context.Context) ([]driver.News, error) {
	n.watchRecord()
	n.readWhatWasTold()
	for rechecks := 0; ; {
		if n.over() {
			return nil, n.goneErr("news")
		}
		if n.checkIfDue() {
			rechecks++
		}
		more := n.watchPlaces()
		out, err := n.gather(ctx)
		if len(out) > 0 {
			n.clearGone(out)
			return out, nil // also when err is not nil: what was read already is not told again
		}
		pause := n.untilCheck(rechecks)
		switch {
		case driver.IsFinal(err):
			return nil, err
		case err != nil:
			pause = etcdwire.RetryPause
		case more:
			pause = min(pause, etcdwire.WatchAfter)
		}
		if err := n.s.wire.Pause(ctx, n.waiters.wake, pause); err != nil {
			return nil, fmt.Errorf("etcd: news: %w", err)
		}
	}
}

// gather returns the news of all that was heard of. If there is news that needs no read, it returns
// that and reads nothing. But the call after such a one reads in any case, or a busy lease would
// never read.
func (n *newsbox) gather(ctx context.Context) ([]driver.News, error) {
	out, doubtful := n.tellKnown()
	if len(out) > 0 && !n.owesRead {
		n.owesRead = true
		n.waiters.pushQuietly(doubtful...)
		return out, nil
	}
	n.owesRead = false
	out, err := n.askAbout(ctx, out, doubtful)
	if err != nil {
		return out, err
	}
	more, err := n.collect(ctx)
	return append(out, more...), err
}

// untilCheck returns for how long News may wait until the next check, after so many rechecks that
// found nothing. A call that returns news leaves the instant of the next check as it is: a busy
// lease has news all the time, and would put its checks off for ever.
func (n *newsbox) untilCheck(rechecks int) time.Duration {
	now := time.Now()
	if n.lastRecheck.IsZero() {
		n.lastRecheck = now
	}
	if n.nextCheck.IsZero() {
		n.nextCheck = now.Add(n.waiters.checkPause(etcdwire.PollAfter(rechecks)))
	}
	return n.nextCheck.Sub(now)
}

// checkIfDue has some followed places checked where that is due. If the last time is more than 4 s
// ago, it also has the record and some keys read, and then reports true.
func (n *newsbox) checkIfDue() (rechecks bool) {
	now := time.Now()
	if n.nextCheck.IsZero() || now.Before(n.nextCheck) {
		return false
	}
	n.nextCheck = time.Time{}
	n.waiters.checkSome()
	if now.Sub(n.lastRecheck) <= 4*time.Second {
		return false
	}
	n.lastRecheck = now
	n.recheckSome()
	return true
}

func (n *newsbox) recheckSome() {
	some := []seatID{ownRecord}
	n.seats.mu.Lock()
	for id := range n.seats.by { // in random order, so each has its turn
		if some = append(some, id); len(some) > keysPerTxn {
			break
		}
	}
	n.seats.mu.Unlock()
	n.readSoon(some...)
}

// watchRecord begins to watch the session's record and the requests below it, once.
func (n *newsbox) watchRecord() {
	n.mu.Lock()
	begun := n.sub != nil || n.closed
	n.mu.Unlock()
	if begun {
		return
	}
	sub := n.s.wire.Hub.Watch(etcdwire.Span{Key: n.recordKey, End: sessionEnd(n.recordKey), Puts: true},
		func() { n.readSoon(ownRecord) })
	n.readNext(ownRecord)
	n.mu.Lock()
	n.sub = sub
	closed := n.closed
	n.mu.Unlock()
	if closed {
		sub.Stop()
	}
}

// watchPlaces begins to watch the keys of claims that have stood for a while and are not followed.
// It reports whether others have not stood long enough yet.
func (n *newsbox) watchPlaces() (more bool) {
	old, more := n.oldEnough()
	for _, b := range old {
		n.seats.mu.Lock()
		seat := n.seats.by[b.seat]
		due := seat != nil && seat.token == b.token && seat.sub == nil && !seat.leaving
		n.seats.mu.Unlock()
		if due && n.waiters.of(b.seat) == nil {
			n.watchPlace(seat)
		}
	}
	return more
}

// watchPlace begins to watch one claim's key, unless it was given up meanwhile. No lock is held
// while the hub is called.
func (n *newsbox) watchPlace(seat *seatState) {
	id := seat.seatID
	n.seats.mu.Lock()
	key := seat.key
	n.seats.mu.Unlock()
	sub := n.s.wire.Hub.Watch(etcdwire.Span{Key: key}, func() { n.readSoon(id) })
	n.seats.mu.Lock()
	keep := n.seats.by[id] == seat && seat.key == key && seat.token != 0 && seat.sub == nil && !n.over()
	if keep {
		seat.sub = sub
	}
	n.seats.mu.Unlock()
	if !keep {
		sub.Stop()
		return
	}
	if sub.Requested() {
		n.readSoon(id) // a watch that stands already does not tell of what came before
	}
}

// collect reads what changed and returns what is news about it. What could not be read is kept
// for the next time.
func (n *newsbox) collect(ctx context.Context) (out []driver.News, err error) {
	n.mu.Lock()
	changed := n.changed
	n.changed = map[seatID]bool{}
	n.mu.Unlock()
	if changed[ownRecord] {
		if out, err = n.readRequests(ctx); err != nil {
			n.readNext(ownRecord)
		}
	}
	var batch []*seatState
	n.seats.mu.Lock()
	for id := range changed {
		if seat := n.seats.by[id]; seat != nil && seat.token != 0 && !seat.leaving {
			batch = append(batch, seat)
		}
	}
	n.seats.mu.Unlock()
	done := 0
	if err == nil {
		done, err = n.s.wire.Limit.InChunks(len(batch), func(from, to int) (bool, error) {
			gone, err := n.readPlaces(ctx, batch[from:to])
			out = append(out, gone...)
			return true, err
		})
	}
	for _, seat := range batch[done:] {
		n.readNext(seat.seatID)
	}
	return out, err
}

// readPlaces reads the keys of claims and returns news of those that are gone. Where the user may
// not read all of the keys it asks in halves, and tells nothing of those that are forbidden.
func (n *newsbox) readPlaces(ctx context.Context, claims []*seatState) ([]driver.News, error) {
	req := &pb.TxnRequest{}
	// What a seat holds is noted before the read: a claim that enters meanwhile is not looked for
	// in an older state.
	n.seats.mu.Lock()
	held := make([]driver.Place, len(claims))
	for i, seat := range claims {
		held[i] = seat.placeLocked()
		req.Success = append(req.Success, doFind(seat.key))
	}
	n.seats.mu.Unlock()
	resp, _, err := n.s.wire.Txn(ctx, "news", req)
	if forbidden(err) {
		return halves(claims, func(some []*seatState) ([]driver.News, error) { return n.readPlaces(ctx, some) })
	}
	if err != nil {
		return nil, err
	}
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	var out []driver.News
	for i, seat := range claims {
		kv := kvAt(resp, i)
		if kv != nil && uint64(kv.CreateRevision) == held[i].Token || held[i].Token == 0 || seat.leaving ||
			seat.token != held[i].Token {
			continue
		}
		out = append(out, driver.News{Place: held[i], Gone: true})
		// Told: nothing more is to be said of it, and its ID must not enter again.
		seat.leaving = true
		n.seats.spent.Add(seat.id)
	}
	return out, nil
}

// halves does both halves of all by do, and nothing for a single one.
func halves[T any](all []T, do func([]T) ([]driver.News, error)) (out []driver.News, err error) {
	if len(all) < 2 {
		return nil, nil
	}
	for _, half := range [][]T{all[:len(all)/2], all[len(all)/2:]} {
		more, err := do(half)
		if out = append(out, more...); err != nil {
			return out, err
		}
	}
	return out, nil
}

// readRequests reads the session's record and the requests, and returns those meant for a place
// that stands.
func (n *newsbox) readRequests(ctx context.Context) ([]driver.News, error) {
	done, err := n.s.startLineRead(ctx) // when a stream is opened anew, all sessions of the process read
	if err != nil {
		return nil, err
	}
	defer done()
	resp, err := n.s.wire.Get(ctx, "news", keyRange(n.recordKey, sessionEnd(n.recordKey)))
	if err != nil {
		return nil, err
	}
	kvs := resp.Kvs
	if len(kvs) == 0 || string(kvs[0].Key) != n.recordKey || kvs[0].CreateRevision != n.recordCreated {
		return nil, n.lost("news")
	}
	var out []driver.News
	for _, kv := range kvs[1:] {
		if told, ok := n.request(kv); ok {
			out = append(out, told)
			// It is told once, and deleted so that it cannot reach the next term. Where the delete
			// fails, lastRequest keeps it from being told again.
			_, _, _ = n.s.wire.Txn(ctx, "news", &pb.TxnRequest{
				Compare: []*pb.Compare{ifMod(string(kv.Key), kv.ModRevision)},
				Success: []*pb.RequestOp{doDelete(string(kv.Key))}})
		}
	}
	return out, nil
}

// request reads one request. It reports false for one that was told already, or is not for a
// place of ours that stands.
func (n *newsbox) request(kv *mvccpb.KeyValue) (driver.News, bool) {
	name, ok := unescape(strings.TrimPrefix(string(kv.Key), n.recordKey+"/ask/"))
	var r driver.Request
	if !ok || json.Unmarshal(kv.Value, &r) != nil {
		return driver.News{}, false
	}
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	for _, seat := range n.seats.by { // the request does not name a seat, but no two claims have one token
		if seat.Name != name || seat.token == 0 || seat.token != r.Token || kv.ModRevision <= seat.lastRequest {
			continue
		}
		seat.lastRequest = kv.ModRevision
		p := seat.placeLocked()
		p.Held = true
		return driver.News{Place: p, Request: &r}, true
	}
	return driver.News{}, false
}

// watchSoon has a claim's key watched once the claim has stood for WatchAfter. It wakes News only
// for the first claim in toWatch: while there are any, News pauses for WatchAfter at most.
func (n *newsbox) watchSoon(id seatID, token uint64) {
	n.mu.Lock()
	first := len(n.toWatch) == 0
	n.toWatch = append(n.toWatch, unwatchedClaim{id, token, time.Now()})
	n.mu.Unlock()
	if first {
		n.waiters.poke()
	}
}

// oldEnough takes out the claims that have stood for long enough, and reports whether others have
// not.
func (n *newsbox) oldEnough() (old []unwatchedClaim, more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := 0
	for i < len(n.toWatch) && time.Since(n.toWatch[i].since) >= etcdwire.WatchAfter {
		i++
	}
	if old, n.toWatch = n.toWatch[:i:i], n.toWatch[i:]; len(n.toWatch) == 0 {
		n.toWatch = nil // the array goes too
	}
	return old, n.toWatch != nil
}

// readSoon has News read the keys of the claims in some seats, or ownRecord, and wakes it.
func (n *newsbox) readSoon(some ...seatID) {
	n.readNext(some...)
	n.waiters.poke()
}

// readNext has News read them when it wakes for something else.
func (n *newsbox) readNext(some ...seatID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, id := range some {
		n.changed[id] = true
	}
}

// close ends what News has watched. The lease is over.
func (n *newsbox) close() {
	n.mu.Lock()
	sub := n.sub
	n.sub, n.closed = nil, true
	n.mu.Unlock()
	sub.Stop()
	n.waiters.close()
	n.waiters.poke() // for News to find out
}
