package zkstore

import (
	"sync"
)

// watch is a watch on one node, which all who look at the node share: somebody who looks again and
// again sets one.
type watch struct {
	fired chan struct{} // closed when the node has changed, or may have
	armed bool          // the server has it. Guarded by the mutex of watches

	mu      sync.Mutex
	done    bool
	deleted bool                       // it fired because the node was deleted
	calls   map[int]func(deleted bool) // called when it fires, in the order of the servers' events
	count   int                        // of all that were ever in calls
}

// fire wakes all who share the watch.
func (w *watch) fire(deleted bool) {
	w.mu.Lock()
	if w.done {
		w.mu.Unlock()
		return
	}
	w.done, w.deleted = true, deleted
	calls := w.calls
	w.calls = nil
	w.mu.Unlock()
	for _, f := range calls {
		f(deleted)
	}
	close(w.fired)
}

// hasFired says whether the node has changed, or may have.
func (w *watch) hasFired() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done
}

// on has f called when the watch fires, at once if it has. Who no longer waits calls off.
func (w *watch) on(f func(deleted bool)) (off func()) {
	w.mu.Lock()
	if !w.done {
		n := w.count
		w.count++
		if w.calls == nil {
			w.calls = map[int]func(bool){}
		}
		w.calls[n] = f
		w.mu.Unlock()
		return func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.calls, n)
		}
	}
	deleted := w.deleted
	w.mu.Unlock()
	f(deleted)
	return func() {}
}

// Kinds of watches: of a node that is there, of one that may come, and of a node's children. A
// claim's node that has gone never comes again: a watch for that would stay for ever, with us and
// with the server.
const (
	ofNode     kind = "n"
	ofComing   kind = "e"
	ofChildren kind = "c"
)

type kind string

// code is that of the request that reads it, and sets such a watch.
func (k kind) code() opcode {
	switch k {
	case ofChildren:
		return opChildren
	case ofComing:
		return opExists
	}
	return opGetData // which leaves no watch for a node to come
}

// watches are those of a link. No watch outlives its connection.
type watches struct {
	mu  sync.Mutex
	all map[string]*watch // by kind and path
}

// place returns the watch of that kind and path. If armed is false, it is a new one: the caller
// asks the server for it, and tells settle what came of that. It is in place before, for the event
// may come before the answer.
func (ws *watches) place(k kind, path string) (w *watch, armed bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	key := string(k) + path
	old := ws.all[key]
	if old != nil && old.armed {
		return old, true
	}
	w = &watch{fired: make(chan struct{})}
	if old != nil { // its call is under way: both fire, this one takes its place
		w.on(old.fire)
	}
	ws.all[key] = w
	return w, false
}

// settle notes whether the server has the watch that was placed. If not, it fires.
func (ws *watches) settle(k kind, path string, w *watch, armed bool) {
	ws.mu.Lock()
	if w.armed = armed; !armed && ws.all[string(k)+path] == w {
		delete(ws.all, string(k)+path)
	}
	ws.mu.Unlock()
	if !armed {
		w.fire(false)
	}
}

// eventKind says what has happened to a node.
type eventKind int32

const (
	created         eventKind = 1
	deleted         eventKind = 2
	dataChanged     eventKind = 3
	childrenChanged eventKind = 4
)

// event fires the watches that an event is about.
func (ws *watches) event(ev eventKind, path string) {
	kinds := []kind{ofNode, ofComing, ofChildren}
	switch ev {
	case created, dataChanged:
		kinds = kinds[:2]
	case childrenChanged:
		kinds = kinds[2:]
	}
	var fired []*watch
	ws.mu.Lock()
	for _, k := range kinds {
		if w := ws.all[string(k)+path]; w != nil {
			fired = append(fired, w)
			delete(ws.all, string(k)+path)
		}
	}
	ws.mu.Unlock()
	for _, w := range fired {
		w.fire(ev == deleted)
	}
}

// fireAll has all who watch look again: the connection was lost or the session is over.
func (ws *watches) fireAll() {
	ws.mu.Lock()
	all := ws.all
	ws.all = map[string]*watch{}
	ws.mu.Unlock()
	for _, w := range all {
		w.fire(false)
	}
}
