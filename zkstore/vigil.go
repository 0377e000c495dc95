package zkstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// vigil is a claim's wait for its turn.
//
// It knows who stood in front when it looked at the line, and which of them have gone since: nobody enters in front of a claim that stands. When nobody is left
// who blocks it, it holds without another look, for the servers tell a connection of changes in the order in which they happened, and before the answers of later
// reads. So if a watch on our own node is set, by which time it stood, and has not fired, and all was learned by the present connection, our node stood when the
// last of the others went.
//
// Who is far behind does not know when all in front have gone. So it watches more than one of them ([lookouts]), and looks again when the first of these goes: then the next
// one holds, and nobody waits for the look.
type vigil struct {
	l       *lease
	c       *claim
	seen    *sight            // how the line stood; nil: it must look
	watched map[string]func() // nodes with a watch of ours, and what calls it off
	woken   chan struct{}

	mu   sync.Mutex
	gone map[string]uint64 // nodes that are known to have gone, and by which connection
	lost map[string]bool   // nodes that are not watched any more, though they may stand
}

// held returns nil when a claim has come to hold.
func (l *lease) held(ctx context.Context, c *claim) error {
	v := &vigil{l: l, c: c, watched: map[string]func(){}, woken: make(chan struct{}, 1), gone: map[string]uint64{}, lost: map[string]bool{}}
	defer func() {
		for _, off := range v.watched {
			off()
		}
	}()
	for {
		turn, err := v.look(ctx)
		for err == nil && !turn && v.seen != nil {
			turn, err = v.wait(ctx)
		}
		if turn || err != nil {
			return err
		}
	}
}

// look reads the line, or takes it as the claim's call has just found it, and watches those in front that matter. True: the claim holds.
func (v *vigil) look(ctx context.Context) (turn bool, err error) {
	v.mu.Lock()
	for path := range v.gone { // on another server, which lags behind, one may stand that had gone on the last: it is to be watched again
		delete(v.watched, path)
	}
	clear(v.gone)
	v.mu.Unlock()
	if v.seen, err = v.l.lookFor(ctx, v.c); err != nil {
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
	return false, v.watch(ctx, lookouts(v.seen.nodes, v.seen.at))
}

// watch sets those watches on nodes in front and on our own that are not set, in one request.
func (v *vigil) watch(ctx context.Context, nodes []node) error {
	gen, _, _ := v.l.link.generation()
	var paths []string
	for _, n := range nodes {
		if v.watched[n.path] == nil {
			paths = append(paths, n.path)
		}
	}
	own := !v.l.guarded(v.c, gen)
	if own {
		paths = append(paths, v.c.path)
	}
	if len(paths) == 0 {
		return nil
	}
	all, err := v.l.link.arm(ctx, paths...)
	if err != nil {
		return err
	}
	if own {
		v.l.guardWith(v.c, all[len(all)-1], gen)
		paths = paths[:len(paths)-1]
	}
	for i, path := range paths {
		v.watched[path] = all[i].on(func(deleted bool) { v.tell(path, deleted, gen) }) // no watch outlives its connection
	}
	return nil
}

// tell notes that a node has gone, or is not watched any more.
func (v *vigil) tell(path string, deleted bool, gen uint64) {
	v.mu.Lock()
	if deleted {
		v.gone[path] = gen
	} else {
		v.lost[path] = true
	}
	v.mu.Unlock()
	select {
	case v.woken <- struct{}{}:
	default:
	}
}

// wait waits for news of those in front. True: the claim holds. If that is not known and another look is worth it, what was seen is forgotten.
func (v *vigil) wait(ctx context.Context) (turn bool, err error) {
	late := time.NewTimer(slowly)
	defer late.Stop()
	select {
	case <-v.woken:
	case <-v.c.left:
		return false, driver.ErrGone
	case <-late.C:
		v.seen = nil
		return false, nil
	case <-v.l.link.dead:
		return false, v.l.link.why
	case <-ctx.Done():
		return false, ctx.Err()
	}
	rest, ok := v.rest()
	switch {
	case !ok:
		v.seen = nil
	case driver.Free(v.c.want.Slots, slotsOf(rest)...):
		if v.l.guarded(v.c, v.seen.gen) && !v.l.link.over() {
			return true, nil
		}
		v.seen = nil
	case slices.ContainsFunc(rest, func(n node) bool { return v.watched[n.path] == nil }):
		v.seen = nil // one who is not watched may have gone too
	}
	return false, nil
}

// rest returns who is left of those that stood in front. False: what is known of them is not of the present connection, or one is not watched any more.
func (v *vigil) rest() (rest []node, ok bool) {
	now, _, _ := v.l.link.generation()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, n := range v.seen.nodes[:v.seen.at] {
		if v.gone[n.path] != now {
			rest = append(rest, n)
		}
	}
	return rest, now == v.seen.gen && len(v.lost) == 0
}
