package etcdwire

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A process that waits for thousands of names, or holds them, would have thousands of watches. Each
// costs the server some kilobytes and a message to open. So where many keys and lines are watched
// for deletions only, one watch of the store's whole prefix, the prefix watch, stands in for them.
// It hears of much that does not concern us, so it ends when few are left.
//
// When a watch begins to stand in for others, all their subscribers and listeners are told that
// they may have missed something. A listener that knows its line at a later revision has missed
// nothing.
const (
	prefixWatchAbove = 64
	prefixWatchBelow = 16
)

// How many deletions a watch remembers: the log of a small watch, and that of the prefix watch. A
// claim that entered before a deletion and listens only after it finds it there.
const (
	LogKept       = 32
	PrefixLogKept = 512
)

// The caller of each function below that takes no lock holds the hub's lock.

// isReplaceable reports whether the prefix watch can stand in for one of sp.
func (h *Hub) isReplaceable(sp Span) bool {
	prefix := h.prefix
	if sp.Puts || prefix == "" || !strings.HasPrefix(sp.Key, prefix) {
		return false
	}
	dir := dirOf(prefix, sp.Key)
	switch {
	case dir == "":
		return false
	case sp.End == "":
		return true
	}
	return sp == LineSpan(dir) || sp == SharedSpan(dir)
}

// dirOf returns what all claims of key's line begin with, "" if it is in none below prefix.
func dirOf(prefix, key string) string {
	rest, ok := strings.CutPrefix(key, prefix)
	if i := strings.IndexByte(rest, '/'); ok && i >= 0 {
		return key[:len(prefix)+i+1]
	}
	return ""
}

// SharedMark follows the line's directory in the key of a shared claim. SharedEnd ends the range of
// such keys. An exclusive claim has a hex digit there, and "~" sorts behind all of those. So the
// exclusive claims of a line are one range of keys, and the shared ones another.
const (
	SharedMark = "~"
	SharedEnd  = "\x7f"
)

// LineSpan is the span of a line's deletions, whose keys begin with dir.
func LineSpan(dir string) Span { return Span{Key: dir, End: PrefixEnd(dir)} }

// SharedSpan is that of the line's shared claims.
func SharedSpan(dir string) Span { return Span{Key: dir + SharedMark, End: dir + SharedEnd} }

// PrefixEnd returns the end of the range of all keys that begin with prefix.
func PrefixEnd(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return string(b[:i+1])
		}
	}
	return "\x00" // etcd's sign for "to the last key"
}

// Source returns the watch that tells what w is to see: w while it stands, otherwise the prefix
// watch if that may replace w. The prefix watch may not stand yet: then its Since is 0, and w's
// listeners are told (Begun) once it stands. The caller holds the lock.
func (h *Hub) Source(w *Watch) *Watch {
	if w.Since == 0 && w.Replaceable && h.PrefixWatch != nil {
		return h.PrefixWatch
	}
	return w
}

// openPrefixWatch opens the prefix watch where there are many small ones. Those stay until it
// stands. If it is about to be given up, it stays.
func (h *Hub) openPrefixWatch() {
	if h.replaceable <= h.Above || h.refused {
		return
	}
	h.dropping = false
	if h.PrefixWatch == nil {
		prefix := h.prefix
		h.PrefixWatch = &Watch{Span: Span{Key: prefix, End: PrefixEnd(prefix)}}
		h.todo = append(h.todo, h.PrefixWatch)
		h.rouse()
	}
}

// dropPrefixWatch gives the prefix watch up after some ticks with few small ones: first those are
// opened, then it ends.
func (h *Hub) dropPrefixWatch() {
	if h.PrefixWatch == nil || h.replaceable > h.Below {
		h.few = 0
		return
	}
	if h.few++; h.few <= 3 {
		return
	}
	if !h.dropping {
		h.dropping = true
		for _, w := range h.Watches {
			if w.Replaceable && w.ID == 0 && !w.refused {
				h.request(w)
			}
		}
	}
	h.endDrop()
}

// endDrop ends the prefix watch once none needs it any more.
func (h *Hub) endDrop() {
	if !h.dropping {
		return
	}
	for _, w := range h.Watches {
		if w.Replaceable && w.Since == 0 && !w.refused {
			return
		}
	}
	h.cancel(h.PrefixWatch)
	h.PrefixWatch, h.dropping, h.few = nil, false, 0
}

// Stood notes that w stands, and sees all deletions after rev.
func (h *Hub) Stood(w *Watch, rev int64) {
	w.Since, w.Log = rev, nil
	if w != h.PrefixWatch {
		h.begun(w)
		h.endDrop()
		return
	}
	h.few, h.dropping = 0, false // what was requested to take its place is cancelled here
	for _, n := range h.Watches {
		if n.Replaceable {
			h.cancel(n)
			n.refused = false
			h.begun(n)
		}
	}
}

// begun tells all who need w that it has a new beginning.
func (h *Hub) begun(w *Watch) {
	for _, l := range w.Listeners {
		l.Begun(w)
	}
	w.messageEnd()
	w.tell()
}

// messageEnd tells all listeners. Some of them may leave w for another watch.
func (w *Watch) messageEnd() {
	for i := len(w.Listeners) - 1; i >= 0; i-- {
		w.Listeners[i].MessageEnd()
	}
}

// Lost notes that etcd has ended w, or refused it.
func (h *Hub) Lost(w *Watch, refused bool) {
	delete(h.ByID, w.ID)
	w.Forget()
	switch {
	case w == h.PrefixWatch && refused:
		h.PrefixWatch, h.refused, h.dropping = nil, true, false
		for _, n := range h.Watches {
			if n.Replaceable && n.ID == 0 {
				h.request(n)
			}
		}
	case refused:
		w.refused = true
		for _, l := range w.Listeners {
			l.Refused()
		}
		w.messageEnd()
		w.tell()
		h.endDrop()
	case w == h.PrefixWatch:
		h.todo = append(h.todo, w)
	default:
		h.request(w)
		if h.Source(w).Since != 0 {
			h.begun(w) // the prefix watch tells it from now on, and told it nothing while it stood by itself
			return
		}
		w.tell()
	}
	h.rouse()
}

// Deliver hands the events of one message to all whom they concern, and calls MessageEnd after the
// last.
func (h *Hub) Deliver(src *Watch, events []*mvccpb.Event) {
	var touched []*Watch
	for _, e := range events {
		h.remember(src, e)
		if src != h.PrefixWatch {
			src.pass(e, &touched)
			continue
		}
		h.spread(e, &touched)
	}
	for _, w := range touched {
		w.touched = false
		w.messageEnd()
		w.tell()
		// Whoever left may not come back: where many wait in one line, nobody does.
		if w.idle() && w.ID != 0 {
			if w.wasted++; w.wasted > 2 {
				h.remove(w)
			}
		}
	}
}

// spread passes an event of the prefix watch to the small ones.
func (h *Hub) spread(e *mvccpb.Event, touched *[]*Watch) {
	key := string(e.Kv.Key)
	dir := dirOf(h.prefix, key)
	if dir == "" {
		return
	}
	spans := [3]Span{{Key: key}, LineSpan(dir)}
	if strings.HasPrefix(key[len(dir):], SharedMark) {
		spans[2] = SharedSpan(dir)
	}
	for _, sp := range spans {
		if w := h.Watches[sp]; w != nil && h.Source(w) == h.PrefixWatch {
			w.pass(e, touched)
		}
	}
}

// pass hands an event to all who listen to w.
func (w *Watch) pass(e *mvccpb.Event, touched *[]*Watch) {
	if !w.touched {
		w.touched = true
		*touched = append(*touched, w)
	}
	put := e.Type == mvccpb.Event_EventType(0) // the names of these differ between versions of etcd's API
	if e.Kv.ModRevision >= w.rev {
		w.rev, w.revDeleted = e.Kv.ModRevision, !put
	}
	if put {
		for _, l := range w.Listeners {
			l.Put(e.Kv)
		}
		return
	}
	key := string(e.Kv.Key)
	for _, l := range w.Listeners {
		l.Deleted(key, e.Kv.ModRevision)
	}
}

// remember keeps a deletion in w's log, for those who listen later. When it drops old ones, w.Since
// moves up to the newest of those. A watch that sees puts keeps no log.
func (h *Hub) remember(w *Watch, e *mvccpb.Event) {
	rev, kept := e.Kv.ModRevision, LogKept
	switch {
	case w == h.PrefixWatch:
		kept = PrefixLogKept
	case !w.Replaceable:
		w.Since = max(w.Since, rev)
		return
	}
	if len(w.Log) >= kept {
		drop := len(w.Log) - kept/2
		w.Since = max(w.Since, w.Log[drop-1].Rev)
		w.Log = append(w.Log[:0], w.Log[drop:]...)
	}
	w.Log = append(w.Log, Deletion{string(e.Kv.Key), rev})
}
