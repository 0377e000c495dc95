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
// another look, for a server tells a connection of changes in the order in which they happened, and
// before the answers of later reads. So our node stood when the last of the others went if a watch
// on it was set by then and has not fired, and if all was learned by the present connection.
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
	gone map[string]uint64 // nodes that have gone since the look, and the connection that told
	lost bool              // a node is not watched any more, though it may stand
}

// sight is how a line stood, as its claim found it.
type sight struct {
	nodes []node
	at    int
	gen   uint64 // the connection that told
}

func newTurnWait(l *lease, c *claim) *turnWait {
	return &turnWait{l: l, c: c, watched: map[string]func(){}, woken: make(chan struct{}, 1), gone: map[string]uint64{}}
}

// run returns nil when the claim has come to hold, and an error when it has left or the link is
// over.
func (v *turnWait) run() error {
	defer v.forget()
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

// forget calls off all watches, and forgets what they told: on another server, which lags behind,
// one may stand that had gone on the last.
func (v *turnWait) forget() {
	for _, off := range v.watched {
		off()
	}
	clear(v.watched)
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.gone)
	v.lost = false
}

// look reads the line and watches those in front that matter. True: the claim holds.
func (v *turnWait) look() (turn bool, err error) {
	v.forget()
	if v.seen, err = v.read(); err != nil {
		return false, err
	}
	if free(v.seen.nodes, v.seen.at) {
		return true, nil
	}
	return false, v.watch(lookouts(v.seen.nodes, v.seen.at))
}

// read reads the line. The first time it takes the line as the claim's call has just found it: what
// has gone since is found so when it is to be watched.
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

// watch watches nodes in front and our own, in one request.
func (v *turnWait) watch(nodes []node) error {
	gen, _, _ := v.l.generation()
	paths := []string{v.c.path}
	for _, n := range nodes {
		paths = append(paths, n.path)
	}
	all, err := v.l.arm(context.Background(), paths...)
	if err != nil {
		return err
	}
	v.l.guardWith(v.c, all[0], gen)
	for i, path := range paths[1:] {
		v.watched[path] = all[i+1].on(func(deleted bool) { v.notify(path, deleted, gen) })
	}
	return nil
}

// notify notes that a node has gone, or is not watched any more.
func (v *turnWait) notify(path string, deleted bool, gen uint64) {
	v.mu.Lock()
	if deleted {
		v.gone[path] = gen
	} else {
		v.lost = true
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
	case <-v.c.gone:
		return false, driver.ErrGone
	case <-late.C:
		v.seen = nil
		return false, nil
	case <-v.l.ctx.Done():
		return false, v.l.reason()
	}
	rest, ok := v.rest()
	switch {
	case !ok:
		v.seen = nil
	case driver.Free(v.c.want.Slots, slotsOf(rest)...):
		if v.c.own.stands(v.seen.gen) && !v.c.isGone() && !v.l.over() {
			return true, nil
		}
		v.seen = nil
	case slices.ContainsFunc(rest, func(n node) bool { return v.watched[n.path] == nil }):
		v.seen = nil // one who is not watched may have gone too
	}
	return false, nil
}

// rest returns who is left of those that stood in front. False: that is not known, for another
// connection told it or a node is not watched any more.
func (v *turnWait) rest() (rest []node, known bool) {
	now, _, _ := v.l.generation()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, n := range v.seen.nodes[:v.seen.at] {
		if v.gone[n.path] != now {
			rest = append(rest, n)
		}
	}
	return rest, now == v.seen.gen && !v.lost
}

// ownWatch is the watch on a claim's own node, by which its lease notices that somebody removed it.
type ownWatch struct {
	mu  sync.Mutex
	w   *watch // nil: none yet
	gen uint64 // the connection by which it was set
}

// use takes w, which was set on that connection. False: it is in use already.
func (o *ownWatch) use(w *watch, gen uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	fresh := o.w != w
	o.w, o.gen = w, gen
	return fresh
}

// stands says whether a watch is set that has not fired, on that connection (0: any): one of an
// earlier connection may not know yet that it is none any more.
func (o *ownWatch) stands(gen uint64) bool {
	o.mu.Lock()
	w, by := o.w, o.gen
	o.mu.Unlock()
	return w != nil && (gen == 0 || gen == by) && !w.hasFired()
}
