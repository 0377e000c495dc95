package primacy

import (
	"context"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// TermRecord is one term of an election, as its history has it. Its times are of the wall clock of
// whoever wrote them: they are for people, and decide nothing.
type TermRecord struct {
	Name      string
	Token     Token
	ID        string    // of the session that led; empty if it is not known
	Value     []byte    // announced; none if it had more than 512 bytes
	From      time.Time // zero: not known
	To        time.Time // zero: it leads, or nobody wrote its end
	Reason    Reason
	By        string         // who asked for its end
	Text      string         // why, in words; at most 512 bytes
	Successor string         // the ID to which it was handed over
	Gap       *time.Duration // from the end of the term before it, by the clocks of the two leaders; nil: not known

	// If nobody wrote the end, it lies between these two: at ToAfter the term was seen to lead, and
	// at ToBefore it led no more. Zero: not known.
	ToAfter, ToBefore time.Time
	// If nobody wrote the end of the term before: the gap is at most GapMost. Nil: not known.
	GapMost *time.Duration
	// Overlap is for how long the term before went on after this one had begun, by the clocks of
	// the two leaders: Gap is 0 then. Their clocks differ by so much, or the claim of the term
	// before was removed from the store, and its leader heard of that later. 0: it did not.
	Overlap time.Duration

	// Paused is, for a term that expired, how long its process did not run, at least: it was
	// frozen, suspended or starved. 0: it ran, or nobody knows.
	Paused time.Duration
	// DownFrom and DownTo are when the store was silent. A term that expired has them from its own
	// session; a term whose end nobody wrote, from the next leader's. Zero: the store was not
	// silent, or nobody knows.
	DownFrom, DownTo time.Time
	// Outlived is for how long after the end of its right the term's work was seen alive: a fence
	// refuses what it wrote then. 0: it was not, or nobody knows.
	Outlived time.Duration

	before *recordBefore // what its leader knew of the time before it
}

// Lasted returns how long the term lasted, and whether that is known.
func (r TermRecord) Lasted() (time.Duration, bool) {
	if r.From.IsZero() || r.To.Before(r.From) {
		return 0, false
	}
	return r.To.Sub(r.From), true
}

// History returns what is known of the last terms of the election, the newest first: at most limit
// of them, or with 0 all that are kept. The leaders' sessions write it (see Options.History): who
// won, some 50 ms after the win, and why the term ended, in the call that releases the name. A
// leader that was killed or cut off for good writes no end: its term is [Unknown] once the line
// shows that it leads no more. What is known then are bounds: the leader's last sign of life, and
// the next leader's beginning. A session writes signs of life for up to 100 terms that were won by
// Campaign: one a minute, or one each six TTLs if that is less. A term may be missing if its
// process died within those 50 ms, or if another program won it and it does not lead any more.
//
// A record that cannot be read is left out, and counted in Stats.Unreadable. History needs no
// lease. Errors are those of [Election.State], and ErrInvalid on a store that keeps no records. No
// decision about who leads may rest on it.
func (e *Election) History(ctx context.Context, limit int) ([]TermRecord, error) {
	j, err := e.journal()
	switch {
	case err != nil:
		return nil, err
	case limit < 0:
		return nil, invalid("history of %s: the limit %d must not be negative", e.name, limit)
	}
	st, err := e.State(ctx)
	if err != nil {
		return nil, err
	}
	all, err := e.records(ctx, j, limit)
	if err != nil {
		return nil, err
	}
	if len(all) > 0 && all[0].Reason == Unknown && !st.leads(all[0].Token) {
		if st, all, err = e.readAgain(ctx, j, all, limit); err != nil {
			return nil, err
		}
	}
	all = st.withLeader(all)
	if n := len(all); n > 0 && all[0].Reason == Unknown {
		err = e.s.retry(ctx, "read the history of "+e.name, func(ctx context.Context) (err error) {
			all[0].ToAfter, err = readAlive(ctx, j, e.name, all[0].Token)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return complete(all, limit), nil
}

// readAgain reads the line and then the records again. It is called if the records show no end of
// the newest term, and the line does not show that term. The line was read before the records, so
// one of these is true:
//
//	it was won between the two readings   the line shows it now
//	it is over                            the records have its end now, if anybody wrote it
//
// The records are newer than the line. A term that only they have is left out, since the line says
// nothing of it: it would be told as Unknown.
func (e *Election) readAgain(
	ctx context.Context, j driver.Journal, all []TermRecord, limit int,
) (State, []TermRecord, error) {
	newest := all[0].Token
	st, err := e.State(ctx)
	if err != nil || st.leads(newest) {
		return st, all, err
	}
	all, err = e.records(ctx, j, limit)
	for len(all) > 0 && all[0].Token > newest && !st.leads(all[0].Token) {
		all = all[1:]
	}
	return st, all, err
}

// leads says whether the line shows the term with that token as the leader's.
func (st State) leads(t Token) bool {
	return st.Leader != nil && st.Leader.Slots == 0 && st.Leader.Token == t
}

// withLeader adds to the records what the line says of the leader.
func (st State) withLeader(all []TermRecord) []TermRecord {
	l := st.Leader
	if l != nil && l.Slots == 0 && (len(all) == 0 || all[0].Token < l.Token) {
		all = append([]TermRecord{{Name: st.Name, Token: l.Token, ID: l.ID, Value: l.Value, Reason: Unknown}}, all...)
	}
	for i := range all {
		if r := &all[i]; r.Reason == Unknown && st.leads(r.Token) {
			r.Reason, r.Value = Leads, l.Value
		}
	}
	return all
}

// complete adds to each term what the record of the term after it says of its end, and computes
// bounds and gaps. The newest term is the first: the one after all[i] is all[i-1].
func complete(all []TermRecord, limit int) []TermRecord {
	for i := range all {
		r := &all[i]
		if i > 0 {
			r.learnEndFrom(&all[i-1])
		}
		if r.Reason == Unknown && r.To.IsZero() && r.ToAfter.Before(r.From) {
			r.ToAfter = r.From
		}
		if i == 0 || all[i-1].From.IsZero() {
			continue
		}
		next := &all[i-1]
		switch gap := next.From.Sub(r.To); {
		case !r.To.IsZero():
			next.Overlap = max(0, -gap)
			gap = max(0, gap)
			next.Gap = &gap
		case !r.ToAfter.IsZero():
			gap = max(0, next.From.Sub(r.ToAfter))
			next.GapMost = &gap
		}
	}
	if limit > 0 && len(all) > limit {
		all = all[:limit]
	}
	return all
}

// learnEndFrom takes what the next term's record says of the end of r.
func (r *TermRecord) learnEndFrom(next *TermRecord) {
	unknown := r.Reason == Unknown && r.To.IsZero()
	if unknown {
		r.ToBefore = next.From
	}
	b := next.before
	if b == nil {
		return
	}
	if unknown && b.Token == r.Token && !b.Led.After(next.From) {
		r.ToAfter = b.Led
	}
	// The next leader saw an outage, from b.DownFrom to b.DownTo, that ended after r began. It is
	// told only if it may have ended r.
	if b.DownTo.After(r.From) && b.DownTo.After(b.DownFrom) && !r.From.IsZero() {
		switch {
		case unknown && b.DownTo.After(r.ToAfter): // not over when r was last known to lead
			r.DownFrom, r.DownTo = b.DownFrom, b.DownTo
		case !r.DownFrom.IsZero() && b.DownTo.After(r.To) && !b.DownFrom.After(r.To):
			// DownFrom stays: r's own record says when the outage began.
			r.DownTo = b.DownTo
		}
	}
}

// records reads the terms, the newest first. It reads one more than limit: the gap before the last
// one is counted from it. A term without an end is Unknown.
func (e *Election) records(ctx context.Context, j driver.Journal, limit int) (all []TermRecord, err error) {
	for before := ""; ; {
		var page []driver.Record
		err := e.s.retry(ctx, "read the history of "+e.name, func(ctx context.Context) (err error) {
			page, err = j.Records(ctx, historyPrefix+e.name, before, historyPage)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, d := range page {
			t, r, kind, ok := readRecord(d)
			if !ok {
				e.s.stats.unreadable.Add(1)
				continue
			}
			if len(all) == 0 || all[len(all)-1].Token != t {
				if limit > 0 && len(all) > limit {
					return all, nil
				}
				all = append(all, TermRecord{Name: e.name, Token: t, Reason: Unknown})
			}
			all[len(all)-1].merge(r, kind)
		}
		if len(page) < historyPage {
			return all, nil
		}
		before = page[len(page)-1].Key
	}
}

// merge takes what a record of the term says. Records come by descending key: those with a suffix
// first, then the plain key, which the leader itself wrote and which overrides them.
func (r *TermRecord) merge(d record, kind recordKind) {
	if r.ID == "" || kind == ofTerm && d.ID != "" {
		r.ID = strings.ToValidUTF8(d.ID, "\uFFFD")
	}
	if r.From.IsZero() || kind == ofTerm && !d.From.IsZero() {
		r.From = d.From
	}
	r.Outlived = max(r.Outlived, time.Duration(d.Outlived)*time.Millisecond)
	if kind == ofOverrun {
		return
	}
	if d.Value != nil {
		r.Value = d.Value
	}
	if d.Before != nil {
		r.before = d.Before
	}
	if d.Reason != "" {
		r.To, r.Reason, r.By, r.Text, r.Successor = d.To, d.Reason, d.By, d.Text, d.Successor
		r.Paused, r.DownFrom = time.Duration(d.Paused)*time.Millisecond, d.DownFrom
	}
}

// Tally counts the terms of the election that its history knows, of all processes and since the
// history began: how many began, and how many ended for which reason. A term counts as Unknown if
// nobody had written its end when the next one began. An end that is written later, as by a leader
// that was cut off, is in History only. Tally makes one call on the store as a rule, and a few if
// none of the newest 32 records sums up the earlier terms. It needs no lease. Errors are those of
// [Election.History].
func (e *Election) Tally(ctx context.Context) (Tally, error) {
	t := Tally{Name: e.name}
	j, err := e.journal()
	if err != nil {
		return t, err
	}
	if err := CheckName(e.name); err != nil {
		return t, err
	}
	err = e.s.retry(ctx, "read the history of "+e.name, func(ctx context.Context) error {
		past, last, err := readPast(ctx, j, e.name, "")
		if t.Ended = map[Reason]uint64{}; err != nil {
			return err
		}
		t.Elected = 0
		for r, n := range past {
			t.Ended[r] = uint64(n)
			t.Elected += uint64(n)
		}
		if last.endUnknown {
			t.Ended[Unknown]-- // the newest term may still lead: it has not ended for a reason yet
		}
		if t.Ended[Unknown] == 0 {
			delete(t.Ended, Unknown)
		}
		return nil
	})
	return t, err
}

// journal returns the store's journal, or an ErrInvalid if the store keeps no history.
func (e *Election) journal() (driver.Journal, error) {
	j, ok := e.s.store.(driver.Journal)
	if !ok || e.s.store.Caps().Token == driver.TokenNone {
		return nil, invalid("%s keeps no history of elections", e.s.store.Caps().Store)
	}
	return j, nil
}
