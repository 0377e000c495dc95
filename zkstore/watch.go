package zkstore

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"
)

// watch is a watch on one node, which all who look at the node share. go-zookeeper knows of none: it keeps one for each call until the node changes, so that
// somebody who looks again and again would fill its memory.
type watch struct {
	fired chan struct{} // closed when the node has changed, or may have
	armed bool          // the server has it. Guarded by the link's mutex

	mu      sync.Mutex
	done    bool
	deleted bool                       // it fired because the node was deleted
	also    map[int]func(deleted bool) // called when it fires, in the order of the servers' events
	count   int                        // of all that were ever in also
}

// tell wakes all who share the watch.
func (w *watch) tell(deleted bool) {
	w.mu.Lock()
	if w.done {
		w.mu.Unlock()
		return
	}
	w.done, w.deleted = true, deleted
	also := w.also
	w.also = nil
	w.mu.Unlock()
	for _, f := range also {
		f(deleted)
	}
	close(w.fired)
}

// on calls f when the watch fires, at once if it has. Who waits no longer calls off: a watch on what does not change outlives many who look at it.
func (w *watch) on(f func(deleted bool)) (off func()) {
	w.mu.Lock()
	if !w.done {
		n := w.count
		w.count++
		if w.also == nil {
			w.also = map[int]func(bool){}
		}
		w.also[n] = f
		w.mu.Unlock()
		return func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.also, n)
		}
	}
	deleted := w.deleted
	w.mu.Unlock()
	f(deleted)
	return func() {}
}

// Kinds of watches: of a node that is there, of one that may come, and of a node's children. A claim's node that has gone never comes again: a watch for that would stay
// for ever, with us and with the server.
const (
	ofNode     kind = "n"
	ofComing   kind = "e"
	ofChildren kind = "c"
)

type kind string

// code is that of the request that reads it, and sets such a watch.
func (k kind) code() uint32 {
	switch k {
	case ofChildren:
		return codeChildren
	case ofComing:
		return codeExists
	}
	return codeData // which leaves no watch for a node to come
}

// fire takes out the watches that an event is about. The caller has the mutex.
func (l *link) fire(ev zk.Event) (fired []*watch) {
	kinds := []kind{ofNode, ofComing, ofChildren}
	switch ev.Type {
	case zk.EventNodeCreated, zk.EventNodeDataChanged:
		kinds = kinds[:2]
	case zk.EventNodeChildrenChanged:
		kinds = kinds[2:]
	}
	for _, kind := range kinds {
		if w := l.watches[string(kind)+ev.Path]; w != nil {
			fired = append(fired, w)
			delete(l.watches, string(kind)+ev.Path)
		}
	}
	return fired
}

// looked is what was found at a node.
type looked struct {
	data     []byte
	children []string
	stat     *zk.Stat
	exists   bool
}

// look reads a node, or its children. With watched it returns a watch that fires on the first change after the reading; one on a node that is not there has fired, but for
// ofComing.
func (l *link) look(ctx context.Context, kind kind, path string, watched bool) (looked, *watch, error) {
	if err := l.ready(ctx); err != nil {
		return looked{}, nil, err
	}
	var w *watch
	armed := false
	if watched {
		l.mu.Lock()
		if w = l.watches[string(kind)+path]; w == nil || !w.armed {
			w = l.newWatch(string(kind) + path)
		} else {
			armed = true
		}
		l.mu.Unlock()
	}
	var got looked
	var err error
	if body, failed := l.beside(ctx, readPacket(kind.code(), path, watched && !armed)); failed == nil {
		got, err = readAnswer(kind.code(), body)
	} else if !errors.Is(failed, zk.ErrNoNode) {
		err = failed
	}
	if w == nil || armed {
		return got, w, err
	}
	l.mu.Lock()
	if err == nil && (got.exists || kind == ofComing) {
		w.armed = true
		l.mu.Unlock()
		return got, w, nil
	}
	if l.watches[string(kind)+path] == w {
		delete(l.watches, string(kind)+path)
	}
	l.mu.Unlock()
	w.tell(false)
	return got, w, err
}

// arm watches nodes in one request, and returns the watches in the same order: that on a node that is not there has fired. They
// are not set again on another connection: then all of a link's watches have fired ([link.connected]).
func (l *link) arm(ctx context.Context, paths ...string) ([]*watch, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	all := make([]*watch, len(paths))
	var fresh []string
	l.mu.Lock()
	for i, path := range paths {
		if all[i] = l.watches[string(ofNode)+path]; all[i] == nil || !all[i].armed {
			all[i] = l.newWatch(string(ofNode) + path)
			fresh = append(fresh, path)
		}
	}
	l.mu.Unlock()
	if len(fresh) == 0 {
		return all, nil
	}
	_, err := l.beside(ctx, watchesPacket(fresh))
	l.mu.Lock()
	var failed []*watch
	for i, path := range paths {
		switch w := all[i]; {
		case err == nil:
			w.armed = true
		case !w.armed:
			if l.watches[string(ofNode)+path] == w {
				delete(l.watches, string(ofNode)+path)
			}
			failed = append(failed, w)
		}
	}
	l.mu.Unlock()
	for _, w := range failed {
		w.tell(false)
	}
	return all, err
}

// newWatch puts a watch in place, before it is asked for: the event may overtake the answer. The caller has the mutex.
func (l *link) newWatch(key string) *watch {
	w := &watch{fired: make(chan struct{})}
	if old := l.watches[key]; old != nil { // its call is under way: both fire, this one takes its place
		w.on(old.tell)
	}
	l.watches[key] = w
	return w
}
