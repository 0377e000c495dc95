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
	To        time.Time // zero: it leads, or nobody said
	Reason    Reason
	By        string         // the ID of who asked for its end
	Text      string         // why, in words; at most 512 bytes
	Successor string         // the ID to which it was handed over
	Gap       *time.Duration // in which nobody led before it, as far as the two clocks agree; nil: not known
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
// of them, or with 0 all that are kept. Sessions write it (see Options.History): who won, some 50
// ms later, and why the term ended in the same step as its release. What a leader could not write,
// because it was killed or cut off for good, is read off the line: a term without an end that leads
// no more is [Unknown]. A term that was over within those 50 ms and whose process died with it, and
// one that another program won, may be missing, but for the present one.
//
// A record that cannot be read is left out, and counted in Stats.Unreadable. It needs no lease.
// Errors are those of [Election.State], and ErrInvalid on a store that keeps no records. No
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
		// It was over before we looked, or it was won after that: the line says which, and the
		// records once more why.
		newest := all[0].Token
		if st, err = e.State(ctx); err != nil {
			return nil, err
		}
		if !st.leads(newest) {
			if all, err = e.records(ctx, j, limit); err != nil {
				return nil, err
			}
			for len(all) > 0 && all[0].Token > newest && !st.leads(all[0].Token) {
				all = all[1:] // later than the line
			}
		}
	}
	return st.complete(all, limit), nil
}

// leads says whether the term with that token leads.
func (st State) leads(t Token) bool {
	return st.Leader != nil && st.Leader.Slots == 0 && st.Leader.Token == t
}

// complete adds what the line says to what the records say.
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

// records reads one more than limit terms, the newest first; those without an end are Unknown.
func (e *Election) records(ctx context.Context, j driver.Journal, limit int) (all []TermRecord, err error) {
	bad := 0
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
			t, r, end, ok := readRecord(d)
			if !ok {
				bad++
				continue
			}
			if len(all) == 0 || all[len(all)-1].Token != t {
				if limit > 0 && len(all) > limit {
					page = nil
					break
				}
				all = append(all, TermRecord{Name: e.name, Token: t, Reason: Unknown})
			}
			all[len(all)-1].learn(r, end)
		}
		if len(page) < historyPage {
			break
		}
		before = page[len(page)-1].Key
	}
	e.s.stats.unreadable.Add(uint64(bad))
	return all, nil
}

// learn takes what a record says. What the leader left with its release, which is read after what
// others added, counts first.
func (r *TermRecord) learn(d record, end bool) {
	if r.ID == "" || !end && d.ID != "" {
		r.ID = strings.ToValidUTF8(d.ID, "\uFFFD")
	}
	if r.From.IsZero() || !end && !d.From.IsZero() {
		r.From = d.From
	}
	if d.Value != nil {
		r.Value = d.Value
	}
	if d.Reason != "" {
		r.To, r.Reason, r.By, r.Text, r.Successor = d.To, d.Reason, d.By, d.Text, d.Successor
	}
}
