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

// newsbox is what News still has to look at, and the claims that are followed. The hub calls in
// under its own lock.
type newsbox struct {
	*session
	seats *seats
	wake  chan struct{}

	mu            sync.Mutex      // guards what follows; nothing is called while it is held
	recordChanged bool            // the session's record or a request changed
	changed       map[seatID]bool // so did the keys of the claims in these
	sub           *etcdwire.Sub   // watches the record and the requests
	closed        bool

	young      []unwatched        // claims that nobody hears of yet, in the order in which that began
	covered    map[seatID]int     // claims that a Follow hears of already
	follows    map[seatID]*waiter // the places that are followed
	queued     []*waiter          // those of them that are to be looked at
	toldFirst  bool               // News has told what it knew, and read nothing
	unprompted unprompted         // when some are looked at that nothing was told of
	round      []*waiter          // those that have not had their turn in this round of looks without a signal
	// those of which events alone have said that they are held, as the last call of News told
	held []seatID
}

func newNewsbox(se *session, table *seats) *newsbox {
	return &newsbox{session: se, seats: table, wake: make(chan struct{}, 1), changed: map[seatID]bool{},
		covered: map[seatID]int{},
		follows: map[seatID]*waiter{}}
}

// unwatched is a claim that came to stand, or that is followed no more.
type unwatched struct {
	at    seatID
	token uint64
	since time.Time
}

// chunk is how many sessions' records are read in one Txn, and claims removed (etcd allows 128
// operations).
const chunk = 100

// News implements [driver.Lease].
func (n *newsbox) News(ctx context.Context) ([]driver.News, error) {
	n.watchRecord()
	n.review()
	for rounds := 0; ; {
		if n.over() {
			return nil, n.goneErr("news")
		}
		if n.lookUnprompted() {
			rounds++
		}
		fresh := n.watchPlaces()
		out, err := n.queuedNews(ctx)
		if err == nil && !n.hasToldFirst() {
			var more []driver.News
			more, err = n.collect(ctx)
			out = append(out, more...)
		}
		if len(out) > 0 {
			return out, nil // also when err is not nil: what was read already is not told again
		}
		pause := n.untilLook(rounds)
		switch {
		case final(err):
			return nil, err
		case err != nil:
			pause = etcdwire.Again
		case fresh:
			pause = min(pause, etcdwire.Settling)
		}
		if _, err := n.pause(ctx, n.wake, pause); err != nil {
			return nil, fmt.Errorf("etcd: news: %w", err)
		}
	}
}

// unprompted is when News looks though nothing was told: no push is relied upon alone. Neither
// what is told nor the end of a call of News puts it off, for a busy lease has news all the time.
type unprompted struct {
	next      time.Time // when some of the followed places are looked at; zero: not decided yet
	rechecked time.Time // when the record and some of the other places were read last
}

// untilLook returns for how long News may wait until it looks unprompted, after so many rounds
// that found nothing.
func (n *newsbox) untilLook(rounds int) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if n.unprompted.rechecked.IsZero() {
		n.unprompted.rechecked = now
	}
	if n.unprompted.next.IsZero() {
		n.unprompted.next = now.Add(n.spreadLocked(etcdwire.PollAfter(rounds)))
	}
	return n.unprompted.next.Sub(now)
}

// lookUnprompted has some of what is followed looked at where that is due. It reports whether the
// record and other places are read too.
func (n *newsbox) lookUnprompted() (rechecks bool) {
	now := time.Now()
	n.mu.Lock()
	due := !n.unprompted.next.IsZero() && !now.Before(n.unprompted.next)
	if due {
		n.unprompted.next = time.Time{}
		if rechecks = now.Sub(n.unprompted.rechecked) > 4*time.Second; rechecks {
			n.unprompted.rechecked = now
		}
	}
	n.mu.Unlock()
	if due {
		n.next()
	}
	if rechecks {
		n.recheckSome()
	}
	return rechecks
}

// watchRecord begins to watch the session's record and the requests below it, once.
func (n *newsbox) watchRecord() {
	n.mu.Lock()
	begun := n.sub != nil || n.closed
	n.mu.Unlock()
	if begun {
		return
	}
	su := n.s.wire.Hub.Watch(etcdwire.Span{Key: n.key, End: sessionEnd(n.key), Puts: true}, n.addRecord)
	n.mu.Lock()
	n.sub, n.recordChanged = su, true
	closed := n.closed
	n.mu.Unlock()
	if closed {
		su.Stop()
	}
}

// watchPlaces begins to watch the keys of claims that have stood for a while. It reports whether
// some are too young.
func (n *newsbox) watchPlaces() (young bool) {
	old, young := n.due()
	for _, b := range old {
		n.seats.mu.Lock()
		sl := n.seats.by[b.at]
		due := sl != nil && sl.token == b.token && sl.sub == nil && !sl.leaving
		n.seats.mu.Unlock()
		if due && !n.isCovered(b.at) {
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
	su := n.s.wire.Hub.Watch(etcdwire.Span{Key: key}, func() { n.add(at) })
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
		n.add(at) // it tells nothing at first: the key is read once in any case
	}
}

// recheckSome has the record and some of the places read though nothing was told: no push is
// relied upon alone.
func (n *newsbox) recheckSome() {
	n.seats.mu.Lock()
	var some []seatID
	for at := range n.seats.by { // in random order, so each has its turn
		if some = append(some, at); len(some) == chunk {
			break
		}
	}
	n.seats.mu.Unlock()
	n.addRecord()
	for _, at := range some {
		n.add(at)
	}
}

// collect reads what changed and returns what is news about it. What could not be read is kept
// for the next time.
func (n *newsbox) collect(ctx context.Context) ([]driver.News, error) {
	n.mu.Lock()
	rec, changed := n.recordChanged, n.changed
	n.recordChanged, n.changed = false, map[seatID]bool{}
	n.mu.Unlock()
	var out []driver.News
	var err error
	if rec {
		if out, err = n.readRequests(ctx); err != nil {
			n.addRecordQuietly()
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
		n.addQuietly(sl.seatID)
	}
	return out, err
}

// readPlaces reads the keys of slots and returns news of those that are gone.
func (n *newsbox) readPlaces(ctx context.Context, slots []*claimState) ([]driver.News, error) {
	req := &pb.TxnRequest{}
	// What a slot holds is noted before the read: a claim that enters meanwhile is not looked for
	// in an older state.
	n.seats.mu.Lock()
	held := make([]driver.Place, len(slots))
	for i, sl := range slots {
		held[i] = sl.place()
		req.Success = append(req.Success, doRange(&pb.RangeRequest{Key: []byte(sl.key), KeysOnly: true}))
	}
	n.seats.mu.Unlock()
	resp, _, err := n.s.wire.Txn(ctx, "news", req)
	if err != nil {
		return nil, err
	}
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	var out []driver.News
	for i, sl := range slots {
		kv := one(resp, i)
		if kv != nil && uint64(kv.CreateRevision) == held[i].Token || held[i].Token == 0 || sl.leaving ||
			sl.token != held[i].Token {
			continue
		}
		out = append(out, driver.News{Place: held[i], Gone: true})
		// Told; there is nothing more to say about it, and its ID must not enter again.
		sl.leaving = true
		n.seats.spent.Add(sl.id)
	}
	return out, nil
}

// readRequests reads the session's record and the requests, and returns those meant for a place
// that stands.
func (n *newsbox) readRequests(ctx context.Context) ([]driver.News, error) {
	done, err := n.s.turnToAsk(ctx) // a stream that is opened anew has all sessions of the process ask
	if err != nil {
		return nil, err
	}
	defer done()
	resp, err := n.s.wire.Get(ctx, "news", &pb.RangeRequest{Key: []byte(n.key), RangeEnd: []byte(sessionEnd(n.key))})
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
			// Told once; with it gone, the next term starts clean. If this fails, asked still
			// knows it.
			_, _, _ = n.s.wire.Txn(ctx, "news", &pb.TxnRequest{
				Compare: []*pb.Compare{ifMod(string(kv.Key),
					kv.ModRevision)}, Success: []*pb.RequestOp{doDelete(string(kv.Key))}})
		}
	}
	return out, nil
}

// request reads one request. It reports false for one that is not for a place of ours as it
// stands, or was told.
func (n *newsbox) request(kv *mvccpb.KeyValue) (driver.News, bool) {
	name, ok := unescape(strings.TrimPrefix(string(kv.Key), n.key+"/ask/"))
	var r driver.Request
	if !ok || json.Unmarshal(kv.Value, &r) != nil {
		return driver.News{}, false
	}
	n.seats.mu.Lock()
	defer n.seats.mu.Unlock()
	for _, sl := range n.seats.by { // it does not say which seat, but no two claims have one token
		if sl.Name != name || sl.token == 0 || sl.token != r.Token || kv.ModRevision <= sl.asked {
			continue
		}
		sl.asked = kv.ModRevision
		p := sl.place()
		p.Held = true
		return driver.News{Place: p, Request: &r}, true
	}
	return driver.News{}, false
}

// poke wakes News.
func (n *newsbox) poke() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// cover notes that one more waiter, or one less, hears of the claim on a seat. While one
// does News need not watch its key.
func (n *newsbox) cover(at seatID, more int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.covered[at] += more; n.covered[at] == 0 {
		delete(n.covered, at)
	}
}

// watchSoon notes a claim that News is to watch if it stands for long enough. News is woken for
// the first of them only: it comes back by itself as long as there are some.
func (n *newsbox) watchSoon(at seatID, token uint64) {
	n.mu.Lock()
	first := len(n.young) == 0
	n.young = append(n.young, unwatched{at, token, time.Now()})
	n.mu.Unlock()
	if first {
		n.poke()
	}
}

// due takes out those that are old enough, and reports whether some are not.
func (n *newsbox) due() (old []unwatched, young bool) {
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

// isCovered reports whether a waiter hears of the claim on a seat.
func (n *newsbox) isCovered(at seatID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.covered[at] > 0
}

// add notes that the key of the claim on a seat changed.
func (n *newsbox) add(at seatID) {
	n.addQuietly(at)
	n.poke()
}

// addRecord notes that the session's record changed.
func (n *newsbox) addRecord() {
	n.addRecordQuietly()
	n.poke()
}

// addQuietly notes it without waking News: what could not be read waits for the pause to be over.
func (n *newsbox) addQuietly(at seatID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed[at] = true
}

// addRecordQuietly notes it without waking News.
func (n *newsbox) addRecordQuietly() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.recordChanged = true
}

// close ends the watch on the record.
func (n *newsbox) close() {
	n.mu.Lock()
	su, follows := n.sub, n.follows
	n.sub, n.closed, n.follows, n.queued, n.round, n.held = nil, true, map[seatID]*waiter{}, nil, nil, nil
	n.mu.Unlock()
	su.Stop()
	for _, a := range follows {
		a.drop()
	}
}
