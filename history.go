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
	By        string         // the ID of who asked for its end
	Text      string         // why, in words; at most 512 bytes
	Successor string         // the ID to which it was handed over
	Gap       *time.Duration // from the end of the term before it, by the clocks of the two leaders; nil: not known
}

// Lasted returns how long the term lasted, and whether that is known: both ends are, and in order.
func (r TermRecord) Lasted() (time.Duration, bool) {
	if r.From.IsZero() || r.To.Before(r.From) {
		return 0, false
	}
	return r.To.Sub(r.From), true
}

// historyPage is how many records are read at once.
const historyPage = 256

// History returns what is known of the last terms of the election, the newest first: at most limit
// of them, or with 0 all that are kept. The leaders' sessions write it (see Options.History): who
// won, some 50 ms after the win, and why the term ended, in the call that releases the name. A
// leader that was killed or cut off for good writes no end: its term is [Unknown] once the line
// shows that it leads no more. A term may be missing if its process died within those 50 ms, or if
// another program won it and it does not lead any more.
//
// A record that cannot be read is left out, and counted in Stats.Unreadable. History needs no
// lease. Errors are those of [Election.State], and ErrInvalid on a store that keeps no records. No
// decision about who leads may rest on it.
func (e *Election) History(ctx context.Context, limit int) ([]TermRecord, error) {
	j, ok := e.s.store.(driver.Journal)
	switch {
	case !ok || e.s.store.Caps().Token == driver.TokenNone:
		return nil, invalid("%s keeps no history of elections", e.s.store.Caps().Store)
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
	return st.complete(all, limit), nil
}

// readAgain is for a newest term without an end, which did not lead when the line was read before
// the records. If it was won in between, the line shows it now. If it is over, the records, read
// again, have its end; terms that they have and that began after the line was read are left out.
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

// complete adds to the records what the line says of the leader, and computes the gaps.
func (st State) complete(all []TermRecord, limit int) []TermRecord {
	l := st.Leader
	if l != nil && l.Slots == 0 && (len(all) == 0 || all[0].Token < l.Token) {
		all = append([]TermRecord{{Name: st.Name, Token: l.Token, ID: l.ID, Value: l.Value, Reason: Unknown}}, all...)
	}
	for i := range all {
		r := &all[i]
		if r.Reason == Unknown && st.leads(r.Token) {
			r.Reason, r.Value = Leads, l.Value
		}
		if i+1 < len(all) && !r.From.IsZero() && !all[i+1].To.IsZero() {
			gap := max(0, r.From.Sub(all[i+1].To))
			r.Gap = &gap
		}
	}
	if limit > 0 && len(all) > limit {
		all = all[:limit]
	}
	return all
}

// records reads the terms, the newest first, one more than limit: the gap before the last one needs
// it. A term without an end is Unknown.
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
			t, r, appended, ok := readRecord(d)
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
			all[len(all)-1].merge(r, appended)
		}
		if len(page) < historyPage {
			return all, nil
		}
		before = page[len(page)-1].Key
	}
}

// merge takes what a record of the term says. Appended says that its key has endSuffix: it is read
// before the record that the leader left under the key without it, which overrides it.
func (r *TermRecord) merge(d record, appended bool) {
	if r.ID == "" || !appended && d.ID != "" {
		r.ID = strings.ToValidUTF8(d.ID, "\uFFFD")
	}
	if r.From.IsZero() || !appended && !d.From.IsZero() {
		r.From = d.From
	}
	if d.Value != nil {
		r.Value = d.Value
	}
	if d.Reason != "" {
		r.To, r.Reason, r.By, r.Text, r.Successor = d.To, d.Reason, d.By, d.Text, d.Successor
	}
}
