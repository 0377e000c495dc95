package zkstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/internal/storeutil"
)

// tree reads and changes nodes through one session.
type tree struct{ *link }

// looked is what was found at a node.
type looked struct {
	data     []byte
	children []string
	stat     stat
	exists   bool
}

// look reads a node, or its children.
func (t tree) look(ctx context.Context, k kind, path string) (looked, error) {
	return t.read(ctx, k, path, false)
}

// read reads a node, or its children, and has the server set a watch if watched.
func (t tree) read(ctx context.Context, k kind, path string, watched bool) (looked, error) {
	body, err := t.request(ctx, readOp(k.code(), path, watched))
	switch {
	case errors.Is(err, errNoNode):
		return looked{}, nil
	case err != nil:
		return looked{}, err
	}
	return readLooked(k.code(), body)
}

// lookAll looks at several nodes.
func (t tree) lookAll(ctx context.Context, k kind, paths []string) ([]looked, error) {
	found := make([]looked, len(paths))
	err := parallel(len(paths), func(i int) (err error) {
		found[i], err = t.look(ctx, k, paths[i])
		return err
	})
	return found, err
}

// watch does as look, and returns a watch that fires on the first change after it. A watch on a
// node that is not there has fired, but for ofComing.
func (t tree) watch(ctx context.Context, k kind, path string) (looked, *watch, error) {
	if _, err := t.ready(ctx); err != nil {
		return looked{}, nil, err
	}
	w, armed := t.watches.place(k, path)
	got, err := t.read(ctx, k, path, !armed)
	if !armed {
		t.watches.settle(k, path, w, err == nil && (got.exists || k == ofComing))
	}
	return got, w, err
}

// arm watches nodes in one request, and returns the watches in the same order. A watch on a node
// that is not there has fired.
func (t tree) arm(ctx context.Context, paths ...string) ([]*watch, error) {
	if _, err := t.ready(ctx); err != nil {
		return nil, err
	}
	all, fresh := make([]*watch, len(paths)), map[int]bool{}
	var unarmed []string
	for i, path := range paths {
		w, armed := t.watches.place(ofNode, path)
		if all[i] = w; !armed {
			fresh[i] = true
			unarmed = append(unarmed, path)
		}
	}
	if len(unarmed) == 0 {
		return all, nil
	}
	_, err := t.request(ctx, watchesOp(unarmed))
	for i := range fresh {
		t.watches.settle(ofNode, paths[i], all[i], err == nil)
	}
	return all, err
}

// onChange calls do with a node: at once, after each change, and now and then. It ends with the
// link, or when the node is not there. After an error of do it calls again.
func (t tree) onChange(path string, do func(looked) error) {
	for try := 1; !t.over(); {
		got, w, err := t.watch(context.Background(), ofNode, path)
		if err == nil {
			err = do(got)
		}
		switch {
		case err != nil:
			t.pause(try)
			try++
		case !got.exists:
			return
		default:
			try = 1
			_ = anyOf(t.ctx, nil, w)
		}
	}
}

// slowly is how often somebody who waits for an event looks also without one.
const slowly = 5 * time.Second

// anyOf waits until one of the watches fires, or for a while.
func anyOf(ctx context.Context, stop <-chan struct{}, watches ...*watch) error {
	woken := make(chan struct{}, 1)
	for _, w := range watches {
		defer w.on(func(bool) { storeutil.Signal(woken) })()
	}
	late := time.NewTimer(slowly)
	defer late.Stop()
	select {
	case <-woken:
	case <-late.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-stop:
		return errClosed
	}
	return nil
}

// create makes a persistent node.
func (t tree) create(ctx context.Context, path string, data []byte) error {
	_, err := t.request(ctx, createOp(path, data, t.store.acl, 0))
	return err
}

// ensure makes a persistent node and those above it.
func (t tree) ensure(ctx context.Context, path string) error {
	err := t.create(ctx, path, nil)
	above := path[:strings.LastIndexByte(path, '/')]
	switch {
	case errors.Is(err, errNodeExists):
		return nil
	case !errors.Is(err, errNoNode) || above == "":
		return err
	}
	if err := t.ensure(ctx, above); err != nil {
		return err
	}
	return t.ensure(ctx, path)
}

// set writes a node of that version, -1 for any.
func (t tree) set(ctx context.Context, path string, data []byte, version int32) (stat, error) {
	body, err := t.request(ctx, setOp(path, data, version))
	r := reader{rest: body}
	return r.stat(), err
}

// remove deletes a node. One that is gone already is no error.
func (t tree) remove(ctx context.Context, path string) error {
	_, err := t.request(ctx, deleteOp(path))
	if errors.Is(err, errNoNode) {
		return nil
	}
	return err
}

// multi does all of ops or none. Where none was done, the error is that of the op that was the
// reason ([failed]).
func (t tree) multi(ctx context.Context, ops ...op) ([]result, error) {
	body, err := t.request(ctx, multiOp(ops))
	if err != nil {
		return nil, err
	}
	all, err := readResults(body)
	return all, t.translate(err)
}

// failed returns which of the ops of a multi was the reason that none was done, or -1.
func failed(results []result) int {
	return slices.IndexFunc(results, func(r result) bool { return r.err != nil })
}

// barrier returns when our server has applied all that a quorum had before the call. It writes:
// ZooKeeper's own sync is answered also by a leader that was deposed and does not know.
func (t tree) barrier(ctx context.Context) error {
	path := t.store.at("@sync")
	_, err := t.set(ctx, path, nil, -1)
	if errors.Is(err, errNoNode) { // somebody has tidied up
		return t.ensure(ctx, path)
	}
	return err
}

// names returns the names below a node that begin with prefix, in order.
func (t tree) names(ctx context.Context, path, prefix string) (names []string, err error) {
	dir, err := t.look(ctx, ofChildren, path)
	for _, child := range dir.children {
		if name, ok := unescape(child); ok && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

// lineNodes is what stands in the line of a name, as one read found it.
type lineNodes struct {
	nodes   []node   // the claims, in order
	foreign []string // what else there is
	dir     looked
	watch   *watch // of the children, if it was asked for
}

// indexOf returns where the node of that path stands, -1 if it does not.
func (ln lineNodes) indexOf(path string) int {
	return slices.IndexFunc(ln.nodes, func(n node) bool { return n.path == path })
}

// line reads the line of name, with a watch on it if watched.
func (t tree) line(ctx context.Context, name string, watched bool) (ln lineNodes, err error) {
	path := t.store.pathOf(name)
	for {
		if watched {
			ln.dir, ln.watch, err = t.watch(ctx, ofChildren, path)
		} else {
			ln.dir, err = t.look(ctx, ofChildren, path)
		}
		if err != nil {
			return lineNodes{}, err
		}
		ln.nodes, ln.foreign = nil, nil
		for _, child := range ln.dir.children {
			if n, ok := parse(path, child); ok {
				ln.nodes = append(ln.nodes, n)
			} else {
				ln.foreign = append(ln.foreign, child)
			}
		}
		known := true
		if wrapped(ln.nodes) {
			if known, err = t.tokens(ctx, ln.nodes); err != nil {
				return lineNodes{}, err
			}
		}
		if known {
			inOrder(ln.nodes)
			return ln, nil
		}
	}
}

// find returns the claims in the line of name, and which of them has that token, or -1.
func (t tree) find(ctx context.Context, name string, token uint64) (nodes []node, at int, err error) {
	for {
		ln, err := t.line(ctx, name, false)
		if err != nil {
			return nil, 0, err
		}
		known, err := t.tokens(ctx, ln.nodes)
		if err != nil {
			return nil, 0, err
		}
		if known {
			at := slices.IndexFunc(ln.nodes, func(n node) bool { return n.czxid == int64(token) })
			return ln.nodes, at, nil
		}
	}
}

// tokens finds out the czxid of nodes. False: one of them has gone meanwhile.
func (t tree) tokens(ctx context.Context, nodes []node) (known bool, err error) {
	err = parallel(len(nodes), func(i int) error {
		if nodes[i].czxid != 0 {
			return nil
		}
		got, err := t.look(ctx, ofNode, nodes[i].path)
		if got.exists {
			nodes[i].czxid = got.stat.czxid
		}
		return err
	})
	return !slices.ContainsFunc(nodes, func(n node) bool { return n.czxid == 0 }), err
}

// endLease deletes the nodes of a lease, all in one step where they are few, and what stands in
// paths.
func (t tree) endLease(ctx context.Context, id string, paths []string) error {
	own := []string{t.store.at("@leases", id), t.store.at("@beats", id), t.store.at("@mail", id)}
	if len(paths) < 100 {
		var ops []op
		for _, path := range append(own, paths...) {
			ops = append(ops, deleteOp(path))
		}
		if _, err := t.multi(ctx, ops...); err == nil || !errors.Is(err, errNoNode) {
			return err
		}
	}
	for _, path := range own {
		if err := t.remove(ctx, path); err != nil {
			return err
		}
	}
	return t.removeAll(ctx, paths)
}

func (t tree) removeAll(ctx context.Context, paths []string) error {
	return parallel(len(paths), func(i int) error { return t.remove(ctx, paths[i]) })
}

// parallel does f for 0 to n-1, some at a time, and returns the first error.
func parallel(n int, f func(i int) error) error {
	const atOnce = 16
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
