package zkstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// turnWait is a claim's wait for its turn.
//
// It knows who stood in front when it looked at the line, and which of them have gone since: nobody
// enters in front of a claim that stands. When nobody is left who blocks it, it holds without
// another look, for the servers tell a connection of changes in the order in which they happened,
// and before the answers of later reads. So if a watch on our own node is set, by which time it
// stood, and has not fired, and all was learned by the present connection, our node stood when the
// last of the others went.
//
// Who is far behind does not know when all in front have gone. So it watches more than one of them
// ([lookouts]), and looks again when the first of these goes: then the next one holds, and nobody
// waits for the look.
type turnWait struct {
	l       *lease
	c       *claim
	seen    *sight            // how the line stood; nil: it must look
	watched map[string]func() // nodes with a watch of ours, and what calls it off
	woken   chan struct{}

	mu   sync.Mutex
	gone map[string]uint64 // nodes that are known to have gone, and by which connection
	lost map[string]bool   // nodes that are not watched any more, though they may stand
}

// sight is how a line stood, as its claim found it.
type sight struct {
	nodes []node
	at    int
	gen   uint64
}

func newTurnWait(l *lease, c *claim) *turnWait {
	return &turnWait{l: l, c: c, watched: map[string]func(){}, woken: make(chan struct{}, 1),
		gone: map[string]uint64{}, lost: map[string]bool{}}
}

// run returns nil when the claim has come to hold. It waits for nothing more when the claim has
// left or the link is over.
func (v *turnWait) run() error {
	defer func() {
		for _, off := range v.watched {
			off()
		}
	}()
	for {
		turn, err := v.look()
		for err == nil && !turn && v.seen != nil {
			turn, err = v.wait()
		}
		if turn || err != nil {
			return err
		}
	}
}

// look reads the line, or takes it as the claim's call has just found it, and watches those in
// front that matter. True: the claim holds.
func (v *turnWait) look() (turn bool, err error) {
	v.mu.Lock()
	for path := range v.gone { // on another server, which lags behind, one may stand that had gone on the last
		delete(v.watched, path)
	}
	clear(v.gone)
	v.mu.Unlock()
	if v.seen, err = v.read(); err != nil {
		return false, err
	}
	if free(v.seen.nodes, v.seen.at) {
		return true, nil
	}
	v.mu.Lock()
	for path := range v.lost {
		delete(v.watched, path)
	}
	clear(v.lost)
	v.mu.Unlock()
	return false, v.watch(lookouts(v.seen.nodes, v.seen.at))
}

// read returns the line as the claim's call has just found it, once, or reads it: who waits right
// after a claim need not ask twice. Nothing is lost by a late look: what has gone since is found so
// when it is to be watched.
func (v *turnWait) read() (*sight, error) {
	v.l.claims.mu.Lock()
	seen := v.c.seen
	v.c.seen = nil
	v.l.claims.mu.Unlock()
	gen, _, _ := v.l.generation()
	if seen != nil && seen.gen == gen && !free(seen.nodes, seen.at) {
		return seen, nil
	}
	nodes, at, err := v.l.position(context.Background(), v.c)
	return &sight{nodes, at, gen}, err
}

// watch sets those watches on nodes in front and on our own that are not set, in one request.
func (v *turnWait) watch(nodes []node) error {
	gen, _, _ := v.l.generation()
	var paths []string
	for _, n := range nodes {
		if v.watched[n.path] == nil {
			paths = append(paths, n.path)
		}
	}
	own := !v.c.own.stands(gen)
	if own {
		paths = append(paths, v.c.path)
	}
	if len(paths) == 0 {
		return nil
	}
	all, err := v.l.arm(context.Background(), paths...)
	if err != nil {
		return err
	}
	if own {
		v.l.guardWith(v.c, all[len(all)-1], gen)
		paths = paths[:len(paths)-1]
	}
	for i, path := range paths {
		// No watch outlives its connection.
		v.watched[path] = all[i].on(func(deleted bool) { v.notify(path, deleted, gen) })
	}
	return nil
}

// notify notes that a node has gone, or is not watched any more.
func (v *turnWait) notify(path string, deleted bool, gen uint64) {
	v.mu.Lock()
	if deleted {
		v.gone[path] = gen
	} else {
		v.lost[path] = true
	}
	v.mu.Unlock()
	storeutil.Signal(v.woken)
}

// wait waits for a change of those in front. True: the claim holds. If that is not known and
// another look is worth it, what was seen is forgotten.
func (v *turnWait) wait() (turn bool, err error) {
	late := time.NewTimer(slowly)
	defer late.Stop()
	select {
	case <-v.woken:
	case <-v.c.left:
		return false, driver.ErrGone
	case <-late.C:
		v.seen = nil
		return false, nil
	case <-v.l.dead:
		return false, v.l.why
	}
	rest, ok := v.rest()
	switch {
	case !ok:
		v.seen = nil
	case driver.Free(v.c.want.Slots, slotsOf(rest)...):
		if v.c.own.stands(v.seen.gen) && !v.c.gone() && !v.l.over() {
			return true, nil
		}
		v.seen = nil
	case slices.ContainsFunc(rest, func(n node) bool { return v.watched[n.path] == nil }):
		v.seen = nil // one who is not watched may have gone too
	}
	return false, nil
}

// rest returns who is left of those that stood in front. False: what is known of them is not of the
// present connection, or one is not watched any more.
func (v *turnWait) rest() (rest []node, ok bool) {
	now, _, _ := v.l.generation()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, n := range v.seen.nodes[:v.seen.at] {
		if v.gone[n.path] != now {
			rest = append(rest, n)
		}
	}
	return rest, now == v.seen.gen && len(v.lost) == 0
}

// ownWatch is the watch on a claim's own node, by which its lease notices that somebody removed it.
type ownWatch struct {
	mu    sync.Mutex
	set   uint64 // differs for each watch; 0: none is set
	gen   uint64 // the connection by which it was set
	count uint64
}

// stands says whether a watch is set that has not fired, on that connection: one of an earlier
// connection may not know yet that it is none any more.
func (o *ownWatch) stands(gen uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.set != 0 && o.gen == gen
}

// use takes w as the watch, which was set on that connection. It stands only when it is known that
// w has not fired: one on a node that had gone already fires at once. Lost is called when it fires
// though the node was not deleted, removed when the node was.
func (o *ownWatch) use(w *watch, gen uint64, lost, removed func()) {
	o.mu.Lock()
	o.count++
	me := o.count
	o.mu.Unlock()
	ready, fired := false, false // guarded by mu
	w.on(func(deleted bool) {
		o.mu.Lock()
		fired = true
		current := !ready || o.set == me
		if ready && current {
			o.set = 0
		}
		o.mu.Unlock()
		if deleted {
			removed()
		} else if current {
			go lost()
		}
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	if ready = true; !fired {
		o.set, o.gen = me, gen
	}
}

func (o *ownWatch) isSet() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.set != 0
}
