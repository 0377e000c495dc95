package core

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Answer is what a sealed member says of itself to the leader of one term. It has durably stopped
// listening to any primary of an earlier term before it says so.
type Answer struct {
	Token uint64 `json:"token,string"` // of the term it is sealed for
	Identity
	Position
	SystemID   string `json:"system_id,omitempty"` // of the database system
	Priority   int    `json:"priority,omitempty"`
	NoFailover bool   `json:"nofailover,omitempty"` // never to be promoted
}

// Survey is what the leader of a term knows when it decides who is to be promoted.
type Survey struct {
	Record  Record // read after the term was won
	Token   uint64 // of the term
	Holder  string // who leads: among equals it is promoted itself
	Answers []Answer
	Present []string      // the members who stand in the election, by name: these can still answer
	Waited  time.Duration // since this term's survey began
	Linger  time.Duration // how long to wait for voters who are present, once enough have answered
	Accept  *Failover     // what a person has accepted, or nil
	// Patience is how long whoever may have more is waited for before a loss that was accepted.
	Patience time.Duration
	LastLSN  LSN // of the last primary, as it was heard to say
	MaxLag   LSN // for Async: how far behind LastLSN the promoted one may be
}

// Verdict is who is to be promoted, or why nobody is yet.
type Verdict struct {
	Best   *Answer
	Ground string        // why it may be promoted, for a person
	Why    string        // where Best is nil: for a person
	Again  time.Duration // Waited at which it is to be judged again, though nothing has changed; 0: never
}

// Judge decides. Enough is a complete answer of the record's primary, or of q voters, or the LSN at
// which the primary was shut down and anybody who has it. An answer counts for the incarnation that
// the record names, and for this term only.
func (s Survey) Judge() Verdict {
	r := s.Record
	c := s.count()
	electable := c.electable
	enough := c.primary || c.stopped || len(c.voted) >= max(1, r.Needed)
	if r.Durability == Async {
		enough = len(electable) > 0
	}
	why := ""
	switch {
	case !enough:
		why = s.missing(c.voted, c.void)
	case electable[0].NoFailover:
		why = fmt.Sprintf("%s has the most data and must not be promoted: take nofailover out of its file and restart "+
			"its agent", electable[0].Name)
	case r.Durability == Async && !c.primary && electable[0].LSN+s.MaxLag < s.LastLSN:
		why = fmt.Sprintf("%s is %d bytes behind %s, the last primary: bring that back, or raise "+
			"maximum_lag_on_failover, which gives them up", electable[0].Name, s.LastLSN-electable[0].LSN,
			r.Primary.Name)
	}
	switch {
	case why != "" && s.Accept != nil:
		return s.accepted()
	case why != "":
		return Verdict{Why: why}
	case s.Waited < s.Linger && s.expected() && !c.stopped:
		return Verdict{Why: "waits a moment for voters who can be reached", Again: s.Linger}
	}
	return Verdict{Best: &electable[0], Ground: s.ground(c)}
}

// ground says what the promotion rests on.
func (s Survey) ground(c counted) string {
	r := s.Record
	switch {
	case c.primary:
		return "the answer of " + r.Primary.Name + ", the last primary"
	case c.stopped:
		return fmt.Sprintf("%s was shut down at %v", r.Primary.Name, r.Stopped)
	case r.Durability == Async:
		return "async: the best of those who answered" + s.behind(c.electable[0])
	}
	slices.Sort(c.voted)
	return "the answers of " + strings.Join(c.voted, ", ")
}

// behind says how much of the last primary's WAL is known to be lost with a promotion.
func (s Survey) behind(a Answer) string {
	if s.LastLSN <= a.LSN {
		return ""
	}
	return fmt.Sprintf("; %s was heard to have %d bytes more", s.Record.Primary.Name, s.LastLSN-a.LSN)
}

// accepted has the member promoted that a person has named: what others alone have is lost. Whoever
// may have more has a while to answer: its lease may have ended a moment ago.
func (s Survey) accepted() Verdict {
	r, f := s.Record, s.Accept
	for i, a := range s.Answers {
		switch {
		case a.Name != f.To || a.Token != s.Token || a.SystemID != r.SystemID || r.byHand(a.Timeline):
		case a.Incarnation != f.Life || a.Position.Before(f.From):
			return Verdict{Why: fmt.Sprintf("the loss that %s accepted was for other data of %s: accept it anew", f.By,
				f.To)}
		case s.Waited < s.Patience:
			return Verdict{Why: fmt.Sprintf("%s is to be promoted; others have %v to answer", f.To, s.Patience),
				Again: s.Patience}
		default:
			return Verdict{Best: &s.Answers[i], Ground: "a loss was accepted by " + f.By + s.behind(a)}
		}
	}
	return Verdict{Why: fmt.Sprintf("waits for the answer of %s, which is to be promoted: %s has accepted the loss",
		f.To, f.By)}
}

// counted is what the answers are worth.
type counted struct {
	electable        []Answer // the best first
	voted, void      []string
	primary, stopped bool // it has answered; somebody has all that it had when it was shut down
}

func (s Survey) count() counted {
	r, c := s.Record, counted{}
	once := map[Identity]bool{}
	for _, a := range slices.Backward(s.Answers) {
		// A member whose machine was restarted stands twice, until the lease of its former life
		// ends: it has one vote, and what it said last counts.
		if a.Token != s.Token || a.SystemID != r.SystemID || once[a.Identity] {
			continue
		}
		once[a.Identity] = true
		if r.byHand(a.Timeline) {
			c.void = append(c.void, a.Name)
			continue
		}
		has := r.Stopped != 0 && a.Timeline == r.Timeline && a.LSN >= r.Stopped
		votes := r.votes(a.Identity)
		switch {
		case a.Identity == r.Primary:
			c.primary = true
		case votes:
			c.voted = append(c.voted, a.Name)
		case r.Durability != Async && !has:
			continue
		}
		c.stopped = c.stopped || has
		c.electable = append(c.electable, a)
	}
	slices.SortFunc(c.electable, s.compare)
	return c
}

// compare puts the better one first: data, then what people chose.
func (s Survey) compare(a, b Answer) int {
	switch {
	case a.Position.Before(b.Position):
		return 1
	case b.Position.Before(a.Position):
		return -1
	}
	holder := compareBool(b.Name == s.Holder, a.Name == s.Holder)
	if s.Record.Stopped != 0 { // a switchover: the holder was named, whatever the priorities are
		return cmp.Or(compareBool(a.NoFailover, b.NoFailover), holder, cmp.Compare(a.Name, b.Name))
	}
	return cmp.Or(compareBool(a.NoFailover, b.NoFailover), cmp.Compare(b.Priority, a.Priority), holder,
		cmp.Compare(a.Name, b.Name))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// expected says whether a voter is present and has not answered: it may have more WAL than those
// who have, and would have to be rewound. The former primary is not waited for: its server may be
// recovering for minutes.
func (s Survey) expected() bool {
	for _, i := range s.Record.Voters {
		if slices.Contains(s.Present, i.Name) && !s.answered(i.Name) {
			return true
		}
	}
	return false
}

func (s Survey) answered(name string) bool {
	return slices.ContainsFunc(s.Answers, func(a Answer) bool { return a.Name == name && a.Token == s.Token })
}

// missing says whose answer the survey waits for.
func (s Survey) missing(voted, void []string) string {
	var wait []string
	for _, i := range append([]Identity{s.Record.Primary}, s.Record.Voters...) {
		if slices.Contains(voted, i.Name) {
			continue
		}
		why := "down, or cut off from the store"
		for _, a := range s.Answers {
			if a.Name == i.Name && a.Token == s.Token {
				why = "set up anew since, put back from a backup, or its state.json is lost: it does not count"
			}
		}
		switch {
		case slices.Contains(void, i.Name):
			why = "it was promoted by hand: its answer does not count"
		case why == "down, or cut off from the store" && slices.Contains(s.Present, i.Name):
			why = "it has not answered yet"
		}
		wait = append(wait, fmt.Sprintf("%s (%s)", i.Name, why))
	}
	text := fmt.Sprintf("%d of the %d voters that are needed have answered; the answer of %s, the last primary, "+
		"is enough too", len(voted), max(1, s.Record.Needed), s.Record.Primary.Name)
	if s.Record.onlyPrimary() {
		text = fmt.Sprintf("the answer of %s is needed, which alone may have all acknowledged commits",
			s.Record.Primary.Name)
	}
	return text + "; waits for " + strings.Join(wait, ", ")
}
