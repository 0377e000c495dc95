package etcdstore

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A process that waits for thousands of names, or holds them, would have thousands of watches, each of which costs the server some kilobytes and a
// message to open. So where many keys and lines are watched for deletions only, one watch of the store's whole prefix stands in for them all. It
// hears of what does not concern us too, which is why it ends when few are left.
//
// In either direction a watch that begins to stand in for another tells everybody concerned that something may have been missed, but
// for those claims whose line is known at a later revision than the one it began at.
const (
	wideAbove = 64
	wideBelow = 16
)

// How many deletions a watch remembers, for claims that entered before them and listen after them.
const (
	logKept     = 32
	wideLogKept = 512
)

// isNarrow reports whether the wide watch can stand in for one of sp: spread finds what it needs to know.
func (h *hub) isNarrow(sp span) bool {
	prefix := h.s.prefix
	if sp.puts || prefix == "" || !strings.HasPrefix(sp.key, prefix) {
		return false
	}
	dir := dirOf(prefix, sp.key)
	switch {
	case dir == "":
		return false
	case sp.end == "":
		return true
	}
	return sp == lineSpan(dir) || sp == sharedSpan(dir)
}

// dirOf returns what all claims of key's line begin with, of those below prefix; nothing if it is in none.
func dirOf(prefix, key string) string {
	rest, ok := strings.CutPrefix(key, prefix)
	if i := strings.IndexByte(rest, '/'); ok && i >= 0 {
		return key[:len(prefix)+i+1]
	}
	return ""
}

// lineSpan and sharedSpan are those of the deletions of all claims, and of all shared claims, that begin with dir.
func lineSpan(dir string) span   { return span{key: dir, end: prefixEnd(dir)} }
func sharedSpan(dir string) span { return span{key: dir + sharedMark, end: dir + sharedEnd} }

// source returns the watch that tells what w is to see: w itself, or the wide one. The caller holds h.mu.
func (h *hub) source(w *watch) *watch {
	if w.since == 0 && w.narrow && h.wide != nil {
		return h.wide
	}
	return w
}

// widen opens the wide watch where there are many narrow ones. They stay until it stands.
func (h *hub) widen() {
	if h.narrow <= h.above || h.refused {
		return
	}
	h.narrowing = false
	if h.wide == nil {
		prefix := h.s.prefix
		h.wide = &watch{span: span{key: prefix, end: prefixEnd(prefix)}}
		h.todo = append(h.todo, h.wide)
		h.rouse()
	}
}

// straighten gives the wide watch up after some ticks in which few narrow ones were needed: first those are opened, then it ends.
func (h *hub) straighten() {
	if h.wide == nil || h.narrow > h.below {
		h.few = 0
		return
	}
	if h.few++; h.few <= 3 {
		return
	}
	if !h.narrowing {
		h.narrowing = true
		for _, w := range h.watches {
			if w.narrow && w.id == 0 && !w.refused {
				h.request(w)
			}
		}
	}
	h.narrowed()
}

// narrowed ends the wide watch once none needs it any more.
func (h *hub) narrowed() {
	if !h.narrowing {
		return
	}
	for _, w := range h.watches {
		if w.narrow && w.since == 0 && !w.refused {
			return
		}
	}
	h.cancel(h.wide)
	h.wide, h.narrowing, h.few = nil, false, 0
}

// stood notes that w stands, and sees all deletions after rev.
func (h *hub) stood(w *watch, rev int64) {
	w.since, w.log = rev, nil
	if w != h.wide {
		h.begun(w)
		h.narrowed()
		return
	}
	for _, n := range h.watches {
		if n.narrow {
			h.cancel(n)
			n.refused = false
			h.begun(n)
		}
	}
}

// begun tells all who need w that it has a new beginning.
func (h *hub) begun(w *watch) {
	for _, a := range w.awaits {
		h.catchUp(w, a)
	}
	h.settleAll(w)
	w.tell()
}

// settleAll settles all who await something in w. Some of them may leave it for another watch.
func (h *hub) settleAll(w *watch) {
	for i := len(w.awaits) - 1; i >= 0; i-- {
		h.settle(w.awaits[i])
	}
}

// lost notes that etcd has ended w, or refused it.
func (h *hub) lost(w *watch, refused bool) {
	delete(h.byID, w.id)
	w.forget()
	switch {
	case w == h.wide && refused:
		h.wide, h.refused, h.narrowing = nil, true, false
		for _, n := range h.watches {
			if n.narrow && n.id == 0 {
				h.request(n)
			}
		}
	case refused:
		w.refused = true
		for _, a := range w.awaits {
			a.unsure = true // they look once, and then poll
		}
		h.settleAll(w)
		w.tell()
		h.narrowed()
	case w == h.wide:
		h.todo = append(h.todo, w)
	default:
		h.request(w)
		if h.source(w).since != 0 {
			h.begun(w) // the wide watch stands in for it, and has told it nothing as long as it stood by itself
			return
		}
		w.tell()
	}
	h.rouse()
}

// deliver hands the events of one message to all whom they concern, and has them draw their conclusions only after the last.
func (h *hub) deliver(src *watch, events []*mvccpb.Event) {
	var touched []*watch
	for _, e := range events {
		h.remember(src, e)
		if src != h.wide {
			src.pass(e, &touched)
			continue
		}
		h.spread(e, &touched)
	}
	for _, w := range touched {
		w.touched = false
		h.settleAll(w)
		w.tell()
		// Who was here may not come again: in a crowd nobody does.
		if w.idle() && w.id != 0 {
			if w.wasted++; w.wasted > 2 {
				h.remove(w)
			}
		}
	}
}

// spread passes an event of the wide watch to the narrow ones.
func (h *hub) spread(e *mvccpb.Event, touched *[]*watch) {
	key := string(e.Kv.Key)
	dir := dirOf(h.s.prefix, key)
	if dir == "" {
		return
	}
	spans := [3]span{{key: key}, lineSpan(dir)}
	if strings.HasPrefix(key[len(dir):], sharedMark) {
		spans[2] = sharedSpan(dir)
	}
	for _, sp := range spans {
		if w := h.watches[sp]; w != nil && h.source(w) == h.wide {
			w.pass(e, touched)
		}
	}
}

// pass hands an event to all who await something in w.
func (w *watch) pass(e *mvccpb.Event, touched *[]*watch) {
	if !w.touched {
		w.touched = true
		*touched = append(*touched, w)
	}
	w.rev = max(w.rev, e.Kv.ModRevision)
	if e.Type == mvccpb.Event_EventType(0) { // a put; the names of these differ between versions of etcd's API
		for _, a := range w.awaits {
			a.put(e.Kv)
		}
		return
	}
	key := string(e.Kv.Key)
	for _, a := range w.awaits {
		a.deleted(key, e.Kv.ModRevision)
	}
}

// remember keeps an event of w for those who listen later. What is not kept any more moves the revision from which on w knows all; a watch that sees
// puts keeps none.
func (h *hub) remember(w *watch, e *mvccpb.Event) {
	rev, kept := e.Kv.ModRevision, logKept
	switch {
	case w == h.wide:
		kept = wideLogKept
	case !w.narrow:
		w.since = max(w.since, rev)
		return
	}
	if len(w.log) >= kept {
		drop := len(w.log) - kept/2
		w.since = max(w.since, w.log[drop-1].rev)
		w.log = append(w.log[:0], w.log[drop:]...)
	}
	w.log = append(w.log, deletion{string(e.Kv.Key), rev})
}
