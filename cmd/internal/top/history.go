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
		rest := historyPace
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
	if t.tries++; err == nil {
		if t.terms = terms; slices.ContainsFunc(terms, Term.recorded) {
			w.recorded[name] = true
		}
	}
	onScreen := len(w.wanted) > 0 && w.wanted[0] == name
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
	due := func(n string, selected bool) bool {
		t := w.tracks[n]
		// A lock that goes round has no records: they are not looked for with each of its holders.
		return t != nil && t.stale(now) && (w.src.Recorded == nil || w.recorded[n] || selected && !t.read)
	}
	for i, n := range w.wanted {
		if due(n, i == 0) {
			return n, true
		}
	}
	for n := range w.tracks {
		if due(n, false) {
			return n, true
		}
	}
	return "", false
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
	return false
}

// view returns the picture at present.
func (w *watcher) view() *view {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := &view{asOf: w.asOf, err: w.err, every: w.every}
	for name, t := range w.tracks {
		if t.unseen && !t.wasLed(w.asOf) {
			if t.read && t.termErr == nil {
				w.old[name] = true
				delete(w.tracks, name)
			}
			continue
		}
		r := &row{name: name, state: t.state, elected: w.recorded[name], lease: t.lease, leased: t.leased}
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
	t.gone = slices.MaxFunc([]time.Time{last.From, last.To, last.ToAfter}, time.Time.Compare)
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
	for _, term := range t.terms {
		if term.Why != "" {
			r.last = term
			break
		}
	}
	r.changes = len(t.changes)
	r.whole = now.Sub(t.first) > window
	if !t.read || t.termErr != nil {
		return
	}
	recorded, oldest := map[primacy.Token]bool{}, now
	for _, term := range t.terms {
		if !term.recorded() {
			continue
		}
		recorded[term.Token] = true
		if term.From.IsZero() {
			continue
		}
		if oldest = term.From; now.Sub(term.From) <= window {
			r.changes++
		}
	}
	for _, c := range t.changes {
		if recorded[c.token] {
			r.changes-- // it was counted by its record, if at all
		}
	}
	if len(recorded) > 0 && t.readToken == t.token() && (len(t.terms) < termsRead || now.Sub(oldest) > window) {
		r.whole = true
	}
}
