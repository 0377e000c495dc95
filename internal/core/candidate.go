package core

import "time"

// A candidate, for as long as it runs:
//
//	follower ── Begin, after a pause ──▶ standing ── Won ──▶ leader
//	   ▲                                     │                  │
//	   └────── NotWon, TermLost, Finished ───┴──────────────────┘

// CandidateState is where a candidate stands.
type CandidateState int

const (
	Follower CandidateState = iota
	Standing
	Leader
)

// CandidateEvent is what happened to a candidate.
type CandidateEvent int

const (
	Begin    CandidateEvent = iota
	Won                     // a term began
	NotWon                  // the campaign ended without a term: refused, or the owner gave up
	TermLost                // the term ended before the work did; the work has returned since
	Finished                // the work returned by itself
)

// CandidateOrder is what to do after an event.
type CandidateOrder struct {
	Tries int // after Begin: so many terms in a row were quick; > 0: pause before, longer each time
}

// A term shorter than quick was of no use. After several in a row something is wrong with this
// candidate or the store. If it campaigned at once, it would only take turns away from others.
const quick = time.Second

// Candidate decides when to campaign.
type Candidate struct {
	state CandidateState
	since Time // when the present term was won
	short int  // quick terms in a row
}

// State is where the candidate stands.
func (c *Candidate) State() CandidateState { return c.state }

// Step takes one event.
func (c *Candidate) Step(now Time, e CandidateEvent) CandidateOrder {
	switch {
	case c.state == Follower && e == Begin:
		c.state = Standing
		return CandidateOrder{Tries: c.short}
	case c.state == Standing && e == Won:
		c.state, c.since = Leader, now
	case c.state == Standing && e == NotWon, c.state == Leader && e == Finished:
		c.state = Follower
	case c.state == Leader && e == TermLost:
		c.state = Follower
		if now-c.since < quick {
			c.short++
		} else {
			c.short = 0
		}
	}
	return CandidateOrder{}
}

// RunCandidate is the loop of a candidate, in the library and in the program. Step takes the events
// of a [Candidate]. Pause waits before a campaign, not at all for 0 tries. Win campaigns; the loop
// ends with its error. Lead runs the work, and returns when that has returned and the claim is given
// up: lost says that the term ended before the work did, and again that the loop goes on.
func RunCandidate[T any](step func(CandidateEvent) CandidateOrder, pause func(tries int) error, win func() (T, error),
	lead func(T) (lost, again bool, err error),
) error {
	for {
		if err := pause(step(Begin).Tries); err != nil {
			step(NotWon)
			return err
		}
		term, err := win()
		if err != nil {
			step(NotWon)
			return err
		}
		step(Won)
		lost, again, err := lead(term)
		if lost {
			step(TermLost)
		} else {
			step(Finished)
		}
		if !again {
			return err
		}
	}
}

// Press decides when a candidate with a priority asks the leader to hand over: when it has stood at
// one place under one leader for Steady, and again each time that Steady has passed. If it loses the
// place it begins anew.
type Press struct {
	Steady       Time
	mine, leader uint64
	since        Time
}

// The line is looked at so many times in Steady, but not more often than every lookFloor.
const (
	looks     = 4
	lookFloor = 50 * time.Millisecond
)

// Step takes what the line shows: the token of the candidate's place in it, and of the leader's; 0
// where it does not wait, or where nobody leads who could be asked. It says whether to ask now, and
// when to look again.
func (p *Press) Step(now Time, mine, leader uint64) (ask bool, wake Time) {
	if mine != p.mine || leader != p.leader {
		p.mine, p.leader, p.since = mine, leader, now
	}
	if mine == 0 || leader == 0 {
		p.since = now
	} else if ask = now-p.since >= p.Steady; ask {
		p.since = now
	}
	return ask, now + max(lookFloor, min(p.since+p.Steady-now, p.Steady/looks))
}

// GivesWay says whether a leader of priority own hands over to a candidate of priority asking. Two
// of equal priority never do: they would for ever.
func GivesWay(own, asking int) bool { return asking > own }
