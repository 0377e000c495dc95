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
	young   []unwatched // claims whose keys are not watched yet, in the order in which they came

	// Only News uses these, of which one call is under way at a time.
	nextCheck   time.Time // when some places are checked though nothing was told; zero: not decided yet
	lastRecheck time.Time // when the record and some keys were read last for the same reason
	owesRead    bool      // the last call told what it knew, and read nothing
	told        []seatID  // places that the last call told as held by what was heard, without a read
}

// ownRecord stands for the session's record in newsbox.changed: no claim is without a name.
var ownRecord seatID

func newNewsbox(se *session, table *seats) *newsbox {
	return &newsbox{session: se, seats: table, changed: map[seatID]bool{},
		waiters: &waiters{wake: make(chan struct{}, 1), by: map[seatID]*waiter{}}}
}

// unwatched is a claim that has entered, or that is followed no more.
type unwatched struct {
	at    seatID
	token uint64
	since time.Time
}

// chunk is how many keys are read or removed in one Txn: etcd allows 128 operations.
const chunk = 100

// News implements [driver.Lease]. Nothing relies on a push alone: from time to time it reads
// though nothing was told.
func (n *newsbox) News(ctx context.Context) ([]driver.News, error) {
	n.watchRecord()
	n.readWhatWasTold()
	for rounds := 0; ; {
		if n.over() {
			return nil, n.goneErr("news")
		}
		if n.checkIfDue() {
			rounds++
		}
		young := n.watchPlaces()
		out, err := n.gather(ctx)
		if len(out) > 0 {
			return out, nil // also when err is not nil: what was read already is not told again
		}
		pause := n.untilCheck(rounds)
		switch {
		case driver.IsFinal(err):
			return nil, err
		case err != nil:
			pause = etcdwire.Again
		case young:
			pause = min(pause, etcdwire.Settling)
		}
		if err := n.s.wire.Pause(ctx, n.waiters.wake, pause); err != nil {
			return nil, fmt.Errorf("etcd: news: %w", err)
		}
	}
}

// gather returns the news of all that was heard of. If there is news that needs no read, it returns
// that and reads nothing. The next call reads in any case, or a busy lease would never read.
func (n *newsbox) gather(ctx context.Context) ([]driver.News, error) {
	out, doubtful := n.known()
	if n.owesRead = len(out) > 0 && !n.owesRead; n.owesRead {
		n.waiters.pushQuietly(doubtful...)
		return out, nil
	}
	out, err := n.askAbout(ctx, out, doubtful)
	if err != nil {
		return out, err
	}
	more, err := n.collect(ctx)
	return append(out, more...), err
}

// untilCheck returns for how long News may wait until the next check, after so many rounds that
// found nothing. The instant of the check stays the same across calls of News that return news: a
// busy lease has some all the time.
func (n *newsbox) untilCheck(rounds int) time.Duration {
	now := time.Now()
	if n.lastRecheck.IsZero() {
		n.lastRecheck = now
	}
	if n.nextCheck.IsZero() {
		n.nextCheck = now.Add(n.waiters.spread(etcdwire.PollAfter(rounds)))
	}
	return n.nextCheck.Sub(now)
}

// checkIfDue has some followed places checked where that is due. Every 4 s at most it also has some
// keys read, and then reports true.
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

// recheckSome has the record and some keys read.
func (n *newsbox) recheckSome() {
	some := []seatID{ownRecord}
	n.seats.mu.Lock()
	for at := range n.seats.by { // in random order, so each has its turn
		if some = append(some, at); len(some) > chunk {
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
	su := n.s.wire.Hub.Watch(etcdwire.Span{Key: n.key, End: sessionEnd(n.key), Puts: true},
		func() { n.readSoon(ownRecord) })
	n.readNext(ownRecord)
	n.mu.Lock()
	n.sub = su
	closed := n.closed
	n.mu.Unlock()
	if closed {
		su.Stop()
	}
}

// watchPlaces begins to watch the keys of claims that have stood for a while and are not followed.
// It reports whether some are too young.
func (n *newsbox) watchPlaces() (young bool) {
	old, young := n.oldEnough()
	for _, b := range old {
		n.seats.mu.Lock()
		sl := n.seats.by[b.at]
		due := sl != nil && sl.token == b.token && sl.sub == nil && !sl.leaving
		n.seats.mu.Unlock()
		if due && n.waiters.of(b.at) == nil {
			n.watchPlace(sl)
		}
	}
	return young
}

// watchPlace begins to watch one claim's key, unless it was given up meanwhile. No lock is held
// while the hub is called.
func (n *newsbox) watchPlace(sl *claimState) {
	at := sl.seatID
	n.seats.mu.Lock()
	key := sl.key
	n.seats.mu.Unlock()
	su := n.s.wire.Hub.Watch(etcdwire.Span{Key: key}, func() { n.readSoon(at) })
	n.seats.mu.Lock()
	keep := n.seats.by[at] == sl && sl.key == key && sl.token != 0 && sl.sub == nil && !n.over()
	if keep {
		sl.sub = su
	}
	n.seats.mu.Unlock()
	if !keep {
		su.Stop()
		return
	}
	if su.Stands() {
		n.readSoon(at) // a watch that stands already does not tell of what came before
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
	var batch []*claimState
	n.seats.mu.Lock()
	for at := range changed {
		if sl := n.seats.by[at]; sl != nil && sl.token != 0 && !sl.leaving {
			batch = append(batch, sl)
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
	for _, sl := range batch[done:] {
		n.readNext(sl.seatID)
	}
	return out, err
}

// readPlaces reads the keys of claims and returns news of those that are gone. Where the user may
// not read all of the keys it asks in halves, and tells nothing of those that are forbidden.
func (n *newsbox) readPlaces(ctx context.Context, claims []*claimState) ([]driver.News, error) {
	req := &pb.TxnRequest{}
	// What a seat holds is noted before the read: a claim that enters meanwhile is not looked for
	// in an older state.
	n.seats.mu.Lock()
	held := make([]driver.Place, len(claims))
	for i, sl := range claims {
		held[i] = sl.placeLocked()
		req.Success = append(req.Success, doFind(sl.key))
	}
	n.seats.mu.Unlock()
	resp, _, err := n.s.wire.Txn(ctx, "news", req)
	if forbidden(err) {
		return halves(claims, func(some []*claimState) ([]driver.News, error) { return n.readPlaces(ctx, some) })
	}
	if err != nil {
		return nil, err
	}
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	var out []driver.News
	for i, sl := range claims {
		kv := one(resp, i)
		if kv != nil && uint64(kv.CreateRevision) == held[i].Token || held[i].Token == 0 || sl.leaving ||
			sl.token != held[i].Token {
			continue
		}
		out = append(out, driver.News{Place: held[i], Gone: true})
		// Told: nothing more is to be said of it, and its ID must not enter again.
		sl.leaving = true
		n.seats.spent.Add(sl.id)
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
	done, err := n.s.turnToAsk(ctx) // when a stream is opened anew, all sessions of the process read
	if err != nil {
		return nil, err
	}
	defer done()
	resp, err := n.s.wire.Get(ctx, "news", within(n.key, sessionEnd(n.key)))
	if err != nil {
		return nil, err
	}
	kvs := resp.Kvs
	if len(kvs) == 0 || string(kvs[0].Key) != n.key || kvs[0].CreateRevision != n.born {
		return nil, n.lost("news")
	}
	var out []driver.News
	for _, kv := range kvs[1:] {
		if told, ok := n.request(kv); ok {
			out = append(out, told)
			// It is told once, and deleted so that it cannot reach the next term. Where the delete
			// fails, asked keeps it from being told again.
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
	name, ok := unescape(strings.TrimPrefix(string(kv.Key), n.key+"/ask/"))
	var r driver.Request
	if !ok || json.Unmarshal(kv.Value, &r) != nil {
		return driver.News{}, false
	}
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	for _, sl := range n.seats.by { // the request does not name a seat, but no two claims have one token
		if sl.Name != name || sl.token == 0 || sl.token != r.Token || kv.ModRevision <= sl.asked {
			continue
		}
		sl.asked = kv.ModRevision
		p := sl.placeLocked()
		p.Held = true
		return driver.News{Place: p, Request: &r}, true
	}
	return driver.News{}, false
}

// watchSoon has a claim's key watched if it stands for long enough. News is woken for the first
// such claim only: as long as there are some it comes back by itself.
func (n *newsbox) watchSoon(at seatID, token uint64) {
	n.mu.Lock()
	first := len(n.young) == 0
	n.young = append(n.young, unwatched{at, token, time.Now()})
	n.mu.Unlock()
	if first {
		n.waiters.poke()
	}
}

// oldEnough takes out the claims that have stood for long enough, and reports whether others have
// not.
func (n *newsbox) oldEnough() (old []unwatched, young bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := 0
	for i < len(n.young) && time.Since(n.young[i].since) >= etcdwire.Settling {
		i++
	}
	if old, n.young = n.young[:i:i], n.young[i:]; len(n.young) == 0 {
		n.young = nil // the array goes too
	}
	return old, n.young != nil
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
	for _, at := range some {
		n.changed[at] = true
	}
}

// close ends what News has watched. The lease is over.
func (n *newsbox) close() {
	n.mu.Lock()
	su := n.sub
	n.sub, n.closed = nil, true
	n.mu.Unlock()
	su.Stop()
	n.waiters.close()
	n.waiters.poke() // for News to find out
}
