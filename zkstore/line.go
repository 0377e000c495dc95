package zkstore

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
)

// slowly is how often somebody who waits for an event looks also without one.
const slowly = 5 * time.Second

// atOnce is how many reads of one call are under way at a time.
const atOnce = 16

// children returns the claims that stand in the line of name, in order, and what else there is.
func (s *Store) children(ctx context.Context, l *link, name string, watched bool) (nodes []node, foreign []string, dir looked, w *watch, err error) {
	path := s.at(escape(name))
	for {
		dir, w, err = l.look(ctx, ofChildren, path, watched)
		if err != nil {
			return nil, nil, dir, w, err
		}
		nodes, foreign = nil, nil
		for _, child := range dir.children {
			if n, ok := parse(path, child); ok {
				nodes = append(nodes, n)
			} else {
				foreign = append(foreign, child)
			}
		}
		if !wrapped(nodes) {
			break
		}
		ok, err := s.stat(ctx, l, nodes)
		if err != nil {
			return nil, nil, dir, w, err
		}
		if ok {
			break
		}
	}
	inOrder(nodes)
	return nodes, foreign, dir, w, nil
}

// stat finds out the czxid of nodes. False: one of them has gone meanwhile.
func (s *Store) stat(ctx context.Context, l *link, nodes []node) (bool, error) {
	all := true
	var mu sync.Mutex
	err := each(len(nodes), func(i int) error {
		if nodes[i].czxid != 0 {
			return nil
		}
		got, _, err := l.look(ctx, ofNode, nodes[i].path, false)
		if err != nil {
			return err
		}
		if got.exists {
			nodes[i].czxid = got.stat.Czxid
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		all = false
		return nil
	})
	return all, err
}

// each does f for 0 to n-1, some at a time, and returns the first error.
func each(n int, f func(i int) error) error {
	if n == 1 {
		return f(0)
	}
	var work sync.WaitGroup
	var mu sync.Mutex
	var first error
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			if err := f(i); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = err
				}
			}
		})
	}
	work.Wait()
	return first
}

// Line returns the line of name.
func (s *Store) Line(ctx context.Context, name string) (driver.Line, error) {
	l, err := s.main(ctx)
	if err == nil {
		err = s.barrier(ctx, l)
	}
	if err != nil {
		return driver.Line{}, err
	}
	ln, _, err := s.show(ctx, l, name, false)
	return ln, err
}

// Next blocks until the line of name is newer than after, and returns it. Who knows nothing yet (after is 0) gets one that is not older than the call, as from
// Line. Who knows an older one gets what the leader of our server has: a write each time would cost one for each observer and change.
func (s *Store) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	for try := 0; ; try++ {
		l, err := s.main(ctx)
		switch {
		case err != nil || try > 0: // an event has woken us
		case after == 0:
			err = s.barrier(ctx, l)
		default:
			_, err = call(ctx, l, func(c *zk.Conn) (string, error) { return c.Sync(s.root) })
		}
		if err != nil {
			return driver.Line{}, err
		}
		ln, watches, err := s.show(ctx, l, name, true)
		if err != nil && l.over() && ctx.Err() == nil && s.ctx.Err() == nil {
			continue // the session ended, which is no lease's: the next call begins another one
		}
		if err != nil || ln.Revision > after {
			return ln, err
		}
		if err := anyOf(ctx, s.ctx, watches); err != nil {
			return driver.Line{}, err
		}
	}
}

// anyOf waits until one of the watches fires, or for a while.
func anyOf(ctx, stop context.Context, watches []*watch) error {
	woken := make(chan struct{}, 1)
	for _, w := range watches {
		off := w.on(func(bool) {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
		defer off()
	}
	late := time.NewTimer(slowly)
	defer late.Stop()
	select {
	case <-woken:
	case <-late.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-stop.Done():
		return errClosed
	}
	return nil
}

// show reads a line: what it returns stood so at one instant. Its parts are read one by one, so it looks again until nothing has changed
// between the first and the last: otherwise the revision of one part could hide a change of another for ever.
func (s *Store) show(ctx context.Context, l *link, name string, watched bool) (driver.Line, []*watch, error) {
	for {
		nodes, foreign, dir, w, err := s.children(ctx, l, name, watched)
		if err != nil {
			return driver.Line{}, nil, err
		}
		watches := []*watch{w}
		if !dir.exists {
			if watched {
				got, w, err := l.look(ctx, ofComing, s.at(escape(name)), true)
				if err == nil && got.exists {
					continue // it has come meanwhile, and that watch would not tell who comes into it
				}
				return driver.Line{Name: name, Revision: 1}, []*watch{w}, err
			}
			return driver.Line{Name: name, Revision: 1}, nil, nil
		}
		found, more, err := s.readAll(ctx, l, nodes, watched)
		if err != nil {
			return driver.Line{}, nil, err
		}
		watches = append(watches, more...)
		if found == nil {
			continue
		}
		same, err := s.unchanged(ctx, l, name, dir, nodes, found)
		if err != nil {
			return driver.Line{}, nil, err
		}
		if same {
			return assemble(name, dir, nodes, found, foreign), watches, nil
		}
	}
}

// readAll reads all nodes. Nil: one of them has gone.
func (s *Store) readAll(ctx context.Context, l *link, nodes []node, watched bool) ([]looked, []*watch, error) {
	found, watches := make([]looked, len(nodes)), make([]*watch, len(nodes))
	err := each(len(nodes), func(i int) (err error) {
		found[i], watches[i], err = l.look(ctx, ofNode, nodes[i].path, watched)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if !watched {
		watches = nil
	}
	if slices.ContainsFunc(found, func(n looked) bool { return !n.exists }) {
		return nil, watches, nil
	}
	return found, watches, nil
}

// unchanged says whether all that was read stood so at one instant. Where no value is newer than the last who came or went, there is nothing to look at.
func (s *Store) unchanged(ctx context.Context, l *link, name string, dir looked, nodes []node, found []looked) (bool, error) {
	newer := slices.ContainsFunc(found, func(n looked) bool { return n.stat.Mzxid > dir.stat.Pzxid })
	if !newer {
		return true, nil
	}
	again, _, err := l.look(ctx, ofChildren, s.at(escape(name)), false)
	if err != nil || !again.exists || again.stat.Pzxid != dir.stat.Pzxid {
		return false, err
	}
	if len(nodes) == 1 {
		return true, nil
	}
	second, _, err := s.readAll(ctx, l, nodes, false)
	if err != nil || second == nil {
		return false, err
	}
	for i := range found {
		if found[i].stat.Mzxid != second[i].stat.Mzxid {
			return false, nil
		}
	}
	return true, nil
}

func assemble(name string, dir looked, nodes []node, found []looked, foreign []string) driver.Line {
	ln := driver.Line{Name: name, Revision: uint64(dir.stat.Pzxid)}
	if dir.stat.Cversion == 0 { // nobody ever stood here: the node itself is no change of the line
		ln.Revision = 1
	}
	for i, n := range nodes {
		owner, value := decode(found[i].data)
		st := driver.Entry{Owner: owner, Lease: n.lease, Slots: n.slots, Held: free(nodes, i), Token: uint64(found[i].stat.Czxid), Value: value}
		if found[i].stat.EphemeralOwner == 0 {
			st.Lease, st.Note = "", "has no session: it never ends by itself"
		}
		ln.Revision = max(ln.Revision, uint64(found[i].stat.Mzxid))
		if i == 0 {
			ln.Holder = &st
		} else {
			ln.Waiters = append(ln.Waiters, st)
		}
	}
	if ln.Holder != nil {
		for _, child := range foreign {
			ln.Waiters = append(ln.Waiters, driver.Entry{Note: "the node " + child + " is another program's: it does not count in this line"})
		}
	}
	return ln
}

// Lines returns the lines in which somebody stands whose name begins with prefix, by name.
func (s *Store) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	l, err := s.main(ctx)
	if err == nil {
		err = s.barrier(ctx, l)
	}
	if err != nil {
		return nil, err
	}
	names, err := s.names(ctx, l, s.root, prefix)
	if err != nil {
		return nil, err
	}
	lines := make([]driver.Line, len(names))
	err = each(len(names), func(i int) (err error) {
		lines[i], _, err = s.show(ctx, l, names[i], false)
		return err
	})
	lines = slices.DeleteFunc(lines, func(ln driver.Line) bool { return ln.Holder == nil })
	return lines, err
}

// names returns the names below a node that begin with prefix, in order.
func (s *Store) names(ctx context.Context, l *link, path, prefix string) (names []string, err error) {
	dir, _, err := l.look(ctx, ofChildren, path, false)
	for _, child := range dir.children {
		if name, ok := unescape(child); ok && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

// find returns the node in the line of name that has that token.
func (s *Store) find(ctx context.Context, l *link, name string, token uint64) (nodes []node, at int, err error) {
	for {
		nodes, _, _, _, err = s.children(ctx, l, name, false)
		if err != nil {
			return nil, 0, err
		}
		ok, err := s.stat(ctx, l, nodes)
		if err != nil {
			return nil, 0, err
		}
		if ok {
			return nodes, slices.IndexFunc(nodes, func(n node) bool { return n.czxid == int64(token) }), nil
		}
	}
}

// remove deletes a node. One that is gone already is no error.
func (s *Store) remove(ctx context.Context, l *link, path string) error {
	_, err := call(ctx, l, func(c *zk.Conn) (bool, error) {
		err := c.Delete(path, -1)
		if err == zk.ErrNoNode {
			err = nil
		}
		return true, err
	})
	return err
}
