package top

import (
	"context"
	"slices"
	"time"

	"github.com/primacy-go/primacy"
)

// readHistories reads the recorded terms of one election after the other: once for each leader,
// those on the screen first.
func (w *watcher) readHistories(ctx context.Context) {
	for ctx.Err() == nil {
		rest := w.costs.pace
		name, ok := w.unread()
		if !ok {
			rest = historyRests
		} else {
			w.readHistory(ctx, name)
		}
		t := time.NewTimer(rest)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

func (w *watcher) readHistory(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w.mu.Lock()
	t := w.tracks[name]
	if t == nil {
		w.mu.Unlock()
		return
	}
	token := t.token()
	w.mu.Unlock()
	terms, err := w.src.History(ctx, name, termsRead)
	w.mu.Lock()
	t.readToken, t.readAt, t.read, t.termErr = token, w.now(), true, err
	w.version++
	if t.tries++; err == nil {
		if token == 0 && len(terms) > 0 && terms[0].Reason == primacy.Leads && !terms[0].recorded() {
			terms = terms[1:] // who is elected in a pause, and does not lead
		}
		if t.terms = terms; slices.ContainsFunc(terms, Term.recorded) {
			w.recorded[name] = true
		}
	}
	onScreen := slices.Contains(w.wanted, name)
	w.mu.Unlock()
	if onScreen {
		w.ready()
	}
}

// unread returns an election whose terms are not known yet. The record of a term comes a moment
// after its leader: it is looked for again.
func (w *watcher) unread() (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for i, n := range w.wanted {
		if w.isDueLocked(n, i == 0, now) {
			return n, true
		}
	}
	// To look through thousands of names costs more than to read the terms of one.
	if w.dueAsOf.IsZero() || now.Sub(w.dueAsOf) >= historyRests {
		w.due, w.dueAsOf = w.allDueLocked(now), now
	}
	for len(w.due) > 0 {
		n := w.due[0]
		w.due = w.due[1:]
		if w.isDueLocked(n, false, now) {
			return n, true
		}
	}
	return "", false
}

// isDueLocked says whether the terms of a name should be read. A lock that goes round has no
// records: they are not looked for with each of its holders.
func (w *watcher) isDueLocked(name string, selected bool, now time.Time) bool {
	t := w.tracks[name]
	return t != nil && t.stale(now) && (w.src.Recorded == nil || w.recorded[name] || selected && !t.read)
}

// allDueLocked returns the names whose terms should be read. What nobody stands for comes before
// the others: it is in trouble, or none of ours.
func (w *watcher) allDueLocked(now time.Time) (names []string) {
	var others []string
	for n, t := range w.tracks {
		switch {
		case !w.isDueLocked(n, false, now):
		case t.unseen:
			names = append(names, n)
		default:
			others = append(others, n)
		}
	}
	return append(names, others...)
}

func (t *track) token() primacy.Token {
	if t.state.Leader == nil {
		return 0
	}
	return t.state.Leader.Token
}

// stale says whether the terms should be read, again or at all.
func (t *track) stale(now time.Time) bool {
	switch {
	case t.state.Leader != nil && t.state.Leader.Slots != 0:
		return false // a lock has none
	case !t.read || t.readToken != t.token():
		return !t.exact || now.Sub(t.led) > time.Second
	case t.termErr != nil:
		return now.Sub(t.readAt) > patience
	case len(t.terms) > 0 && t.token() != 0 && t.terms[0].Token != t.token() && t.tries < 4:
		return now.Sub(t.readAt) > time.Duration(t.tries)*2*time.Second
	}
	return t.endMayCome(now)
}

// endMayCome says whether nobody had recorded the end of the last term that ended, and it is time
// to look again, after pauses that double: its leader writes that when it reaches the store again.
func (t *track) endMayCome(now time.Time) bool {
	i := slices.IndexFunc(t.terms, func(term Term) bool { return term.Reason != primacy.Leads })
	if i < 0 || t.terms[i].Reason != primacy.Unknown || !t.terms[i].To.IsZero() {
		return false
	}
	known := t.readAt.Sub(later(t.terms[i].From, t.terms[i].ToAfter, t.terms[i].ToBefore))
	return known < keptFor && now.Sub(t.readAt) > max(patience, known)
}

func later(all ...time.Time) time.Time { return slices.MaxFunc(all, time.Time.Compare) }

// view returns the picture at present.
func (w *watcher) view() *view {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := &view{asOf: w.asOf, err: w.err, every: w.every, lasts: w.lasts, version: w.version, paused: w.paused,
		rows: make([]*row, 0, len(w.tracks)), unlooked: w.missed}
	rows := make([]row, len(w.tracks)) // one piece of memory, not thousands
	for name, t := range w.tracks {
		if t.unseen && !t.wasLed(w.asOf) {
			if t.read && t.termErr == nil {
				w.old[name] = true
				delete(w.tracks, name)
			} else {
				v.unlooked++
			}
			continue
		}
		r := &rows[len(v.rows)]
		*r = row{name: name, state: t.state, elected: w.recorded[name], lease: t.lease, leased: t.leased,
			terms: t.terms, read: t.read && t.termErr == nil && t.readToken == t.token()}
		t.reckon(r, w.asOf)
		r.judge()
		v.rows = append(v.rows, r)
	}
	return v
}

// wasLed says whether the records that were read are of the last day, and if so keeps when the last
// term ended.
func (t *track) wasLed(now time.Time) bool {
	if !t.read || len(t.terms) == 0 {
		return false
	}
	last := t.terms[0]
	t.gone = later(last.From, last.To, last.ToAfter)
	return now.Sub(t.gone) < keptFor
}

// recorded says whether anybody wrote it down: who leads at present is told without.
func (t Term) recorded() bool { return !t.From.IsZero() || !t.To.IsZero() }

// finished says whether the last leader gave it up by itself. Terms that were read while somebody
// led do not say how the last one ended.
func (t *track) finished() bool {
	return t.read && t.termErr == nil && t.readToken == 0 && len(t.terms) > 0 && t.terms[0].finished()
}

// reckon finds since when the leader leads and how often it changed, as of now, from what was
// recorded and what was seen.
func (t *track) reckon(r *row, now time.Time) {
	if r.before = t.led; t.exact {
		r.since = t.led
	}
	if len(t.terms) > 0 && t.token() != 0 && t.terms[0].Token == t.token() && !t.terms[0].From.IsZero() {
		r.since = t.terms[0].From
	}
	if t.state.Leader == nil {
		r.since = t.gone
		r.done = t.finished()
	}
	if i := slices.IndexFunc(t.terms, func(term Term) bool { return term.Why != "" }); i >= 0 {
		r.last = t.terms[i]
	}
	r.changes = len(t.changes)
	r.whole = now.Sub(t.first) > window
	if !t.read || t.termErr != nil {
		return
	}
	recorded, oldest := 0, now
	for i := range t.terms {
		term := &t.terms[i]
		if !term.recorded() {
			continue
		}
		recorded++
		if term.From.IsZero() {
			continue
		}
		if oldest = term.From; now.Sub(term.From) <= window {
			r.changes++
		}
	}
	for _, c := range t.changes {
		if slices.ContainsFunc(t.terms, func(term Term) bool { return term.Token == c.token && term.recorded() }) {
			r.changes-- // it was counted by its record, if at all
		}
	}
	if recorded > 0 && t.readToken == t.token() && (len(t.terms) < termsRead || now.Sub(oldest) > window) {
		r.whole = true
	}
}
