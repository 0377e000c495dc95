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
)

// news is what News still has to look at. Its lock is a leaf: the hub calls in under its own.
type news struct {
	wake chan struct{}

	mu     sync.Mutex
	record bool          // the session's record or a request changed
	spots  map[spot]bool // so did the keys of the claims in these
	sub    *sub          // watches the record and the requests
	closed bool

	young   []newborn       // claims that nobody hears of yet, in the order in which that began
	covered map[spot]int    // claims that a Wait or a Follow hears of already
	follows map[spot]*await // the places that are followed
	turned  []*await        // those of them that are to be looked at
	round   []*await        // those that have not had their turn in this round of looks without a signal
	told    []spot          // those of which events alone have said that they are held, as the last call of News told
}

// newborn is a claim that came to stand, or that a Wait has ceased to hear of.
type newborn struct {
	at    spot
	token uint64
	since time.Time
}

const (
	// settling is how old a claim must be before its key is watched: a lock held for a millisecond need not pay for it.
	settling = 100 * time.Millisecond
	// chunk is how many keys are read in one Txn (etcd allows 128).
	chunk = 100
)

func (n *news) init() {
	n.wake, n.spots, n.covered, n.follows = make(chan struct{}, 1), map[spot]bool{}, map[spot]int{}, map[spot]*await{}
}

// poke wakes News.
func (n *news) poke() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// cover notes that one more Wait or Follow, or one less, hears of the claim in a spot. While one does News need not watch its key.
func (n *news) cover(at spot, more int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.covered[at] += more; n.covered[at] == 0 {
		delete(n.covered, at)
	}
}

// bear notes a claim that News is to watch if it stands for long enough. News is woken for the first of them only: it comes back by itself as long as there
// are some.
func (n *news) bear(at spot, token uint64) {
	n.mu.Lock()
	first := len(n.young) == 0
	n.young = append(n.young, newborn{at, token, time.Now()})
	n.mu.Unlock()
	if first {
		n.poke()
	}
}

// grown takes out those that are old enough, and reports whether some are not.
func (n *news) grown() (old []newborn, young bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := 0
	for i < len(n.young) && time.Since(n.young[i].since) >= settling {
		i++
	}
	if old, n.young = n.young[:i:i], n.young[i:]; len(n.young) == 0 {
		n.young = nil // the array goes too
	}
	return old, n.young != nil
}

// isCovered reports whether a Wait or a Follow hears of the claim in a spot.
func (n *news) isCovered(at spot) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.covered[at] > 0
}

// add notes that the key of the claim in a spot changed.
func (n *news) add(at spot) {
	n.keep(at)
	n.poke()
}

// addRecord notes that the session's record changed.
func (n *news) addRecord() {
	n.keepRecord()
	n.poke()
}

// keep is add without waking News: what could not be read waits for the pause to be over.
func (n *news) keep(at spot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.spots[at] = true
}

// keepRecord is addRecord without waking News.
func (n *news) keepRecord() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.record = true
}

// tellsHeld notes that News is about to tell that the place in a spot is held, without having read it.
func (n *news) tellsHeld(at spot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, at)
}

// review has News read the places of which it has told so, unless they are followed again by now: the events may have come late, and a claim that was
// removed by hand since would be taken for held until its key has come to be watched.
func (n *news) review() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, at := range n.told {
		if n.covered[at] == 0 {
			n.spots[at] = true
		}
	}
	n.told = nil
}

// close ends the watch on the record.
func (n *news) close() {
	n.mu.Lock()
	su, follows := n.sub, n.follows
	n.sub, n.closed, n.follows, n.turned, n.round, n.told = nil, true, map[spot]*await{}, nil, nil, nil
	n.mu.Unlock()
	su.stop()
	for _, a := range follows {
		a.drop()
	}
}

// News implements [driver.Lease].
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	l.watchRecord()
	l.news.review()
	suspected := time.Now()
	for rounds := 0; ; {
		if l.over() {
			return nil, l.goneErr("news")
		}
		fresh := l.watchPlaces()
		out, err := l.turns(ctx)
		if err == nil {
			var more []driver.News
			more, err = l.collect(ctx)
			out = append(out, more...)
		}
		if len(out) > 0 {
			return out, nil // also when err is not nil: what was read already is not told again
		}
		pause := l.news.spread(pollAfter(rounds))
		switch {
		case final(err):
			return nil, err
		case err != nil:
			pause = again
		case fresh:
			pause = settling
		}
		quiet, perr := l.pause(ctx, l.news.wake, pause)
		switch {
		case perr != nil:
			return nil, fmt.Errorf("etcd: news: %w", perr)
		case !quiet || err != nil || fresh:
			continue
		}
		l.news.next()
		if time.Since(suspected) > 4*time.Second {
			suspected = time.Now()
			rounds++
			l.suspect()
		}
	}
}

// watchRecord begins to watch the session's record and the requests below it, once.
func (l *lease) watchRecord() {
	l.news.mu.Lock()
	begun := l.news.sub != nil || l.news.closed
	l.news.mu.Unlock()
	if begun {
		return
	}
	su := l.s.hub.watch(span{key: l.key, end: sessionEnd(l.key), puts: true}, l.news.addRecord)
	l.news.mu.Lock()
	l.news.sub, l.news.record = su, true
	closed := l.news.closed
	l.news.mu.Unlock()
	if closed {
		su.stop()
	}
}

// watchPlaces begins to watch the keys of claims that have stood for a while. It reports whether some are too young.
func (l *lease) watchPlaces() (young bool) {
	old, young := l.news.grown()
	for _, b := range old {
		l.mu.Lock()
		sl := l.slots[b.at]
		due := sl != nil && sl.token == b.token && sl.sub == nil && !sl.leaving
		l.mu.Unlock()
		if due && !l.news.isCovered(b.at) {
			l.watchPlace(sl)
		}
	}
	return young
}

// watchPlace begins to watch one claim's key, unless it was given up meanwhile. No lock is held while the hub is called.
func (l *lease) watchPlace(sl *slot) {
	at := sl.spot
	l.mu.Lock()
	key := sl.key
	l.mu.Unlock()
	su := l.s.hub.watch(span{key: key}, func() { l.news.add(at) })
	l.mu.Lock()
	keep := l.slots[at] == sl && sl.key == key && sl.token != 0 && sl.sub == nil && !l.over()
	if keep {
		sl.sub = su
	}
	l.mu.Unlock()
	if !keep {
		su.stop()
		return
	}
	if l.s.hub.stands(su) {
		l.news.add(at) // it tells nothing at first: the key is read once in any case
	}
}

// suspect has the record and some of the places read though nothing was told: no push is relied upon alone.
func (l *lease) suspect() {
	l.mu.Lock()
	var spots []spot
	for at := range l.slots { // in random order, so each has its turn
		if spots = append(spots, at); len(spots) == chunk {
			break
		}
	}
	l.mu.Unlock()
	l.news.addRecord()
	for _, at := range spots {
		l.news.add(at)
	}
}

// collect reads what changed and returns what is news about it. What could not be read is kept for the next time.
func (l *lease) collect(ctx context.Context) ([]driver.News, error) {
	l.news.mu.Lock()
	rec, spots := l.news.record, l.news.spots
	l.news.record, l.news.spots = false, map[spot]bool{}
	l.news.mu.Unlock()
	var out []driver.News
	var err error
	if rec {
		if out, err = l.readRequests(ctx); err != nil {
			l.news.keepRecord()
		}
	}
	var batch []*slot
	l.mu.Lock()
	for at := range spots {
		if sl := l.slots[at]; sl != nil && sl.token != 0 && !sl.leaving {
			batch = append(batch, sl)
		}
	}
	l.mu.Unlock()
	done := 0
	if err == nil {
		done, err = l.inChunks(len(batch), l.reads(chunk), func(from, to int) (bool, error) {
			gone, err := l.readPlaces(ctx, batch[from:to])
			out = append(out, gone...)
			return true, err
		})
	}
	for _, sl := range batch[done:] {
		l.news.keep(sl.spot)
	}
	return out, err
}

// readPlaces reads the keys of slots and returns news of those that are gone.
func (l *lease) readPlaces(ctx context.Context, slots []*slot) ([]driver.News, error) {
	req := &pb.TxnRequest{}
	// What a slot holds is noted before the read: a claim that enters meanwhile is not looked for in an older state.
	l.mu.Lock()
	held := make([]driver.Place, len(slots))
	for i, sl := range slots {
		held[i] = sl.place()
		req.Success = append(req.Success, doRange(&pb.RangeRequest{Key: []byte(sl.key), KeysOnly: true}))
	}
	l.mu.Unlock()
	resp, _, err := l.s.txn(ctx, "news", req)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []driver.News
	for i, sl := range slots {
		kv := one(resp, i)
		if kv != nil && uint64(kv.CreateRevision) == held[i].Token || held[i].Token == 0 || sl.leaving || sl.token != held[i].Token {
			continue
		}
		out = append(out, driver.News{Place: held[i], Gone: true})
		// Told; there is nothing more to say about it, and its ID must not enter again.
		sl.leaving = true
		l.spent.add(sl.id)
	}
	return out, nil
}

// readRequests reads the session's record and the requests, and returns those meant for a place that stands.
func (l *lease) readRequests(ctx context.Context) ([]driver.News, error) {
	done, err := l.s.turnToAsk(ctx) // a stream that is opened anew has all sessions of the process ask
	if err != nil {
		return nil, err
	}
	defer done()
	resp, err := l.s.get(ctx, "news", &pb.RangeRequest{Key: []byte(l.key), RangeEnd: []byte(sessionEnd(l.key))})
	if err != nil {
		return nil, err
	}
	kvs := resp.Kvs
	if len(kvs) == 0 || string(kvs[0].Key) != l.key || kvs[0].CreateRevision != l.born {
		return nil, l.lost("news")
	}
	var out []driver.News
	for _, kv := range kvs[1:] {
		if n, ok := l.request(kv); ok {
			out = append(out, n)
			// Told once; with it gone, the next term starts clean. If this fails, asked still knows it.
			_, _, _ = l.s.txn(ctx, "news", &pb.TxnRequest{
				Compare: []*pb.Compare{ifMod(string(kv.Key), kv.ModRevision)}, Success: []*pb.RequestOp{doDelete(string(kv.Key))}})
		}
	}
	return out, nil
}

// request reads one request. It reports false for one that is not for a place of ours as it stands, or was told.
func (l *lease) request(kv *mvccpb.KeyValue) (driver.News, bool) {
	name, ok := unescape(strings.TrimPrefix(string(kv.Key), l.key+"/ask/"))
	var r driver.Request
	if !ok || json.Unmarshal(kv.Value, &r) != nil {
		return driver.News{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sl := range l.slots { // it does not say which seat, but no two claims have one token
		if sl.name != name || sl.token == 0 || sl.token != r.Token || kv.ModRevision <= sl.asked {
			continue
		}
		sl.asked = kv.ModRevision
		p := sl.place()
		p.Held = true
		return driver.News{Place: p, Request: &r}, true
	}
	return driver.News{}, false
}
