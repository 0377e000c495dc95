package zkstore

import (
	"context"
	"errors"
	"slices"

	"github.com/primacy-go/primacy/driver"
)

// Line returns the line of name.
func (s *Store) Line(ctx context.Context, name string) (driver.Line, error) {
	t, err := s.current(ctx)
	if err != nil {
		return driver.Line{}, err
	}
	ln, _, err := t.show(ctx, name, false)
	return ln, err
}

// Next blocks until the line of name is newer than after, and returns it. Who knows nothing yet
// (after is 0) gets one that is not older than the call, as from Line. Who knows an older one gets
// what the leader of our server has: a write each time would cost one for each observer and change.
func (s *Store) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	var asked *link // whose server has what was there at the call
	for {
		t, err := s.connected(ctx)
		if err == nil && t.link != asked {
			if after == 0 {
				err = t.barrier(ctx)
			} else {
				_, err = t.request(ctx, pathOp(opSync, s.root))
			}
			asked = t.link
		}
		var ln driver.Line
		var watches []*watch
		if err == nil {
			ln, watches, err = t.show(ctx, name, true)
		}
		switch {
		case errors.Is(err, errOwnEnded):
			continue // there is another session for the next try
		case err != nil || ln.Revision > after:
			return ln, err
		}
		if err := anyOf(ctx, s.ctx.Done(), watches...); err != nil {
			return driver.Line{}, err
		}
	}
}

// Lines returns the lines in which somebody stands whose name begins with prefix, by name.
func (s *Store) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	t, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	names, err := t.names(ctx, s.root, prefix)
	if err != nil {
		return nil, err
	}
	lines := make([]driver.Line, len(names))
	err = parallel(len(names), func(i int) (err error) {
		lines[i], _, err = t.show(ctx, names[i], false)
		return err
	})
	return slices.DeleteFunc(lines, func(ln driver.Line) bool { return ln.Holder == nil }), err
}

// show reads a line: what it returns stood so at one instant. Its parts are read one by one, so it
// looks again until nothing has changed between the first and the last: otherwise the revision of
// one part could hide a change of another for ever. With watched it returns watches, of which one
// fires when the line changes.
func (t tree) show(ctx context.Context, name string, watched bool) (driver.Line, []*watch, error) {
	for {
		ln, err := t.line(ctx, name, watched)
		if err != nil {
			return driver.Line{}, nil, err
		}
		if !ln.dir.exists {
			none := driver.Line{Name: name, Revision: 1}
			if !watched {
				return none, nil, nil
			}
			got, w, err := t.watch(ctx, ofComing, t.store.pathOf(name))
			if err == nil && got.exists {
				continue // it has come meanwhile, and that watch would not tell who comes into it
			}
			return none, []*watch{w}, err
		}
		found, watches, err := t.readAll(ctx, ln.nodes, watched)
		same := false
		if err == nil && found != nil {
			same, err = t.unchanged(ctx, name, ln, found)
		}
		if err != nil {
			return driver.Line{}, nil, err
		}
		if same {
			return assemble(name, ln, found), append(watches, ln.watch), nil
		}
	}
}

// readAll reads all nodes. Nil: one of them has gone.
func (t tree) readAll(ctx context.Context, nodes []node, watched bool) (found []looked, ws []*watch, err error) {
	found = make([]looked, len(nodes))
	if watched {
		ws = make([]*watch, len(nodes))
	}
	err = parallel(len(nodes), func(i int) (err error) {
		if watched {
			found[i], ws[i], err = t.watch(ctx, ofNode, nodes[i].path)
		} else {
			found[i], err = t.look(ctx, ofNode, nodes[i].path)
		}
		return err
	})
	if err != nil || slices.ContainsFunc(found, func(n looked) bool { return !n.exists }) {
		return nil, nil, err
	}
	return found, ws, nil
}

// unchanged says whether all that was read stood so at one instant. Where no value is newer than
// the last who came or went, there is nothing to look at.
func (t tree) unchanged(ctx context.Context, name string, ln lineNodes, found []looked) (bool, error) {
	last := ln.dir.stat.pzxid
	if !slices.ContainsFunc(found, func(n looked) bool { return n.stat.mzxid > last }) {
		return true, nil
	}
	again, err := t.look(ctx, ofChildren, t.store.pathOf(name))
	if err != nil || !again.exists || again.stat.pzxid != last {
		return false, err
	}
	if len(found) == 1 {
		return true, nil
	}
	second, _, err := t.readAll(ctx, ln.nodes, false)
	same := func(a, b looked) bool { return a.stat.mzxid == b.stat.mzxid }
	return err == nil && slices.EqualFunc(found, second, same), err
}

// assemble makes a line of what was read.
func assemble(name string, ln lineNodes, found []looked) driver.Line {
	got := driver.Line{Name: name, Revision: uint64(ln.dir.stat.pzxid)}
	if ln.dir.stat.cversion == 0 { // nobody ever stood here: the node itself is no change of the line
		got.Revision = 1
	}
	for i, n := range ln.nodes {
		owner, value := decode(found[i].data)
		st := driver.Entry{Owner: owner, Lease: n.lease, Slots: n.slots, Held: free(ln.nodes, i),
			Token: uint64(found[i].stat.czxid), Value: value}
		if found[i].stat.ephemeralOwner == 0 {
			st.Lease, st.Note = "", "has no session: it never ends by itself"
		}
		got.Revision = max(got.Revision, uint64(found[i].stat.mzxid))
		if i == 0 {
			got.Holder = &st
		} else {
			got.Waiters = append(got.Waiters, st)
		}
	}
	if got.Holder != nil {
		for _, child := range ln.foreign {
			got.Waiters = append(got.Waiters, driver.Entry{
				Note: "the node " + child + " is another program's: it does not count in this line"})
		}
	}
	return got
}
