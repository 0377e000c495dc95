package shown

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/pause"
)

// Elected finds those who are elected and do not lead. In a pause in which nobody new is elected
// whoever is next in a line holds the name for the moment that it takes to give it back, and the
// store shows it as the leader. It is safe for concurrent use.
type Elected struct {
	session *primacy.Session
	pauses  *pause.Reader
	live    bool

	mu    sync.Mutex
	leads map[string]primacy.Token // by name: the term that leads, as was found out; nil: at no time yet
	seen  map[string]holder        // by name: whose term has no beginning
}

// doubt is a state whose leader may be about to give the name back, and the pause that forbids it.
type doubt struct {
	state *primacy.State
	pause *pause.Pause
}

// holder is a claim that holds a name.
type holder struct {
	token primacy.Token
	since time.Time // when it was first seen
}

// NewElected returns an Elected for the names of one store. Live says that it is asked again and
// again: then it takes those that it sees first for leaders, and asks the history of later ones
// only.
func NewElected(s *primacy.Session, st driver.Store, live bool) *Elected {
	return &Elected{session: s, pauses: pause.NewReader(st, 2*time.Second), live: live}
}

const (
	electedAge  = 2 * time.Second // a reading of the pauses that is no older will do
	electedMost = 200             // histories that are read for one list
	givesBack   = 3 * time.Second // who holds the name for longer leads: its beginning was not recorded
)

// Correct changes states, as they were just read, so that nobody leads where whoever is elected
// does not: then it comes first of those who wait, with a note. What cannot be found out it leaves
// as the store shows it.
func (e *Elected) Correct(ctx context.Context, states ...primacy.State) []primacy.State {
	now, err := e.pauses.Since(ctx, time.Now().Add(-electedAge))
	e.mu.Lock()
	defer e.mu.Unlock()
	before, seen := e.leads, e.seen
	e.leads, e.seen = map[string]primacy.Token{}, map[string]holder{}
	reads := 0
	var doubtful []doubt
	for i := range states {
		st := &states[i]
		l := st.Leader
		if l == nil || l.ID == "" || l.Slots != 0 {
			continue
		}
		p := now.Forbids(st.Name, l.ID, uint64(l.Token))
		if err == nil && p != nil && before[st.Name] != l.Token && (before != nil || !e.live) && reads < electedMost {
			reads++
			if !e.began(ctx, st.Name, l.Token) {
				h := seen[st.Name]
				if h.token != l.Token {
					h = holder{l.Token, time.Now()}
				}
				e.seen[st.Name] = h
				if time.Since(h.since) < givesBack {
					doubtful = append(doubtful, doubt{st, p})
					continue
				}
			}
		}
		e.leads[st.Name] = l.Token
	}
	if len(doubtful) > 0 && !e.live {
		doubtful = e.waited(ctx, doubtful)
	}
	for _, d := range doubtful {
		st, note := d.state, *d.state.Leader
		note.Held, note.Note = false, "elected, and not leading: "+d.pause.String()
		st.Leader, st.Waiting = nil, append([]primacy.Entry{note}, st.Waiting...)
	}
	return states
}

// waited returns those of the doubtful states whose leader gives the name back within givesBack.
// Of the others, as of those that cannot be read again, the leader stays.
func (e *Elected) waited(ctx context.Context, doubtful []doubt) []doubt {
	select {
	case <-time.After(givesBack):
	case <-ctx.Done():
	}
	return slices.DeleteFunc(doubtful, func(d doubt) bool {
		l, err := e.session.Election(d.state.Name).Leader(ctx)
		return err == nil && l.Token == d.state.Leader.Token || err != nil && !errors.Is(err, primacy.ErrNoLeader)
	})
}

// began says whether the term with that token has begun: then it has a record. Locks have none, and
// nor have names of which nothing was ever recorded.
func (e *Elected) began(ctx context.Context, name string, token primacy.Token) bool {
	past, err := e.session.Election(name).History(ctx, 2)
	for _, r := range past {
		if r.Token == token {
			return !r.From.IsZero() || len(past) == 1
		}
	}
	return err != nil || len(past) == 0
}

// WithoutElected returns the terms, the newest first, without that of who is elected and does not
// lead: the store shows it as the leader's, and it has no beginning. Leads says whether anybody
// leads, as [Elected.Correct] has it.
func WithoutElected(past []primacy.TermRecord, leads bool) []primacy.TermRecord {
	if !leads && len(past) > 0 && past[0].Reason == primacy.Leads && past[0].From.IsZero() {
		return past[1:]
	}
	return past
}
