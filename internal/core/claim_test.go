package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// play steps a claim through events and returns what it ordered, one word an event.
func play(events ...ClaimEvent) (c *Claim, got string) {
	c = &Claim{}
	var words []string
	for _, e := range events {
		words = append(words, word(c.Step(e)))
	}
	return c, strings.Join(words, " ")
}

func word(o ClaimOrder) string {
	w := [...]string{"-", "enter", "await", "lead", "leave", "handover", "finish"}[o.Do]
	if o.NewID {
		w += "+fresh"
	}
	if o.Stop {
		w += "+stop"
	}
	if o.EndRight {
		w += "+right"
	}
	if o.Free {
		w += "+free"
	}
	if o.Successor != 0 {
		w += fmt.Sprint("=", o.Successor)
	}
	if o.Tries > 0 {
		w += fmt.Sprint("+", o.Tries)
	}
	if o.Cause != None {
		w += "(" + o.Cause.String() + ")"
	}
	return w
}

func TestClaimStories(t *testing.T) {
	var (
		stand   = ClaimEvent{Kind: Stand}
		entered = ClaimEvent{Kind: Entered}
		held    = ClaimEvent{Kind: Entered, Held: true}
		woken   = ClaimEvent{Kind: Woken}
		lost    = ClaimEvent{Kind: Lost}
		failed  = ClaimEvent{Kind: Failed}
		giveUp  = ClaimEvent{Kind: GiveUp}
		left    = ClaimEvent{Kind: Left}
		ask     = ClaimEvent{Kind: Ask, Cause: Resigned}
		handed  = ClaimEvent{Kind: Ask, Cause: Transferred}
		ending  = ClaimEvent{Kind: LeaseEnding, Cause: Expired}
		closing = ClaimEvent{Kind: LeaseEnding, Cause: Closed}
		over    = ClaimEvent{Kind: LeaseOver, Cause: Expired}
		refused = ClaimEvent{Kind: Rejected}
		to7     = ClaimEvent{Kind: Ask, Cause: Transferred, Successor: 7}
		to8     = ClaimEvent{Kind: Ask, Cause: Transferred, Successor: 8}
		give7   = ClaimEvent{Kind: GiveUp, Successor: 7}
		noHeir  = ClaimEvent{Kind: NoSuccessor}
		missing = ClaimEvent{Kind: Missing}
	)
	for _, tc := range []struct {
		name   string
		events []ClaimEvent
		want   string
	}{
		{"a free name", []ClaimEvent{stand, held, giveUp, left},
			"enter+fresh lead leave+stop+right(resigned) finish+free(resigned)"},
		{"waiting first", []ClaimEvent{stand, entered, woken}, "enter+fresh await lead"},
		{"an unknown outcome is repeated under the same claim ID", []ClaimEvent{stand, failed, failed, entered},
			"enter+fresh enter+1 enter+2 await"},
		{"a claim lost while waiting stands again under a fresh ID", []ClaimEvent{stand, entered, lost, entered, woken},
			"enter+fresh await enter+fresh await lead"},
		{"lost while entering pauses before each next try", []ClaimEvent{stand, lost, lost, entered, lost},
			"enter+fresh enter+fresh+1 enter+fresh+2 await enter+fresh"},
		{"asked to resign: the context ends, the work returns, only then the right and the claim", []ClaimEvent{stand, held, ask, giveUp, left},
			"enter+fresh lead -+stop(resigned) leave+right(resigned) finish+free(resigned)"},
		{"handed over", []ClaimEvent{stand, held, handed, giveUp, left},
			"enter+fresh lead -+stop(transferred) leave+right(transferred) finish+free(transferred)"},
		{"renewals fail, the work stops in time", []ClaimEvent{stand, held, ending, giveUp, failed, left},
			"enter+fresh lead -+stop(expired) leave+right(expired) leave+1 finish+free(expired)"},
		{"renewals fail, the work does not stop", []ClaimEvent{stand, held, ending, over, giveUp},
			"enter+fresh lead -+stop(expired) -+right+free(expired) finish+free(expired)"},
		{"deposed: the right is over at once and nothing is released", []ClaimEvent{stand, held, lost, giveUp},
			"enter+fresh lead -+stop+right+free(deposed) finish+free(deposed)"},
		{"given up while waiting", []ClaimEvent{stand, entered, giveUp, failed, left},
			"enter+fresh await leave leave+1 finish+free(resigned)"},
		{"given up while the outcome of entering is unknown", []ClaimEvent{stand, failed, giveUp, left},
			"enter+fresh enter+1 leave finish+free(resigned)"},
		{"the lease ends while waiting", []ClaimEvent{stand, entered, ending, woken},
			"enter+fresh await finish+free(expired) -"},
		{"the session closes while waiting: the lease lives on, so the place is given up",
			[]ClaimEvent{stand, entered, closing, woken, failed, left},
			"enter+fresh await leave - leave+1 finish+free(resigned)"},
		{"the session closes while entering: the claim may stand", []ClaimEvent{stand, closing, held, left},
			"enter+fresh leave - finish+free(resigned)"},
		{"the lease is over before a release is confirmed", []ClaimEvent{stand, held, giveUp, failed, over, left},
			"enter+fresh lead leave+stop+right(resigned) leave+1 finish+free(resigned) -"},
		{"a release goes on while the lease ends: it may stand until that is over", []ClaimEvent{stand, held, giveUp, failed, ending, failed, left},
			"enter+fresh lead leave+stop+right(resigned) leave+1 - leave+2 finish+free(resigned)"},
		{"refused", []ClaimEvent{stand, refused}, "enter+fresh finish+free"},
		{"refused while it stands: it must not stay", []ClaimEvent{stand, entered, refused, left}, "enter+fresh await leave finish+free(resigned)"},
		{"refused after an unknown outcome: it may stand", []ClaimEvent{stand, failed, refused, left},
			"enter+fresh enter+1 leave finish+free(resigned)"},
		{"asked before the win is known: the term stops as it begins", []ClaimEvent{stand, entered, ask, woken, giveUp},
			"enter+fresh await - lead+stop(resigned) leave+right(resigned)"},
		{"asked for a place that was lost since", []ClaimEvent{stand, entered, ask, lost, held}, "enter+fresh await - enter+fresh lead"},
		{"handed over by the owner", []ClaimEvent{stand, held, give7, left},
			"enter+fresh lead handover+stop+right=7(transferred) finish+free(transferred)"},
		{"asked to hand over: the successor is kept until the work has returned", []ClaimEvent{stand, held, to7, giveUp, left},
			"enter+fresh lead -+stop(transferred) handover+right=7(transferred) finish+free(transferred)"},
		{"a hand-over with an unknown outcome is repeated", []ClaimEvent{stand, held, give7, failed, failed, missing},
			"enter+fresh lead handover+stop+right=7(transferred) handover=7+1 handover=7+2 finish+free(transferred)"},
		{"the successor has gone: released after all", []ClaimEvent{stand, held, give7, failed, noHeir, failed, left},
			"enter+fresh lead handover+stop+right=7(transferred) handover=7+1 leave leave+1 finish+free(transferred)"},
		{"asked to hand over, and the successor has gone when the work returns", []ClaimEvent{stand, held, to7, giveUp, noHeir, left},
			"enter+fresh lead -+stop(transferred) handover+right=7(transferred) leave finish+free(transferred)"},
		{"the news that it is gone may be our own doing: the answer tells", []ClaimEvent{stand, held, give7, lost, left},
			"enter+fresh lead handover+stop+right=7(transferred) - finish+free(transferred)"},
		{"the lease ends during a hand-over", []ClaimEvent{stand, held, give7, failed, ending, over, left},
			"enter+fresh lead handover+stop+right=7(transferred) handover=7+1 - finish+free(transferred) -"},
		{"asked twice: the first counts", []ClaimEvent{stand, held, to7, to8, giveUp},
			"enter+fresh lead -+stop(transferred) - handover+right=7(transferred)"},
		{"asked to resign, and then in favour of somebody", []ClaimEvent{stand, held, ask, to7, giveUp},
			"enter+fresh lead -+stop(resigned) - handover+right=7(resigned)"},
		{"the owner's own word counts more than what was asked", []ClaimEvent{stand, held, to8, give7},
			"enter+fresh lead -+stop(transferred) handover+right=7(transferred)"},
		{"deposed while it stops: nothing is handed over", []ClaimEvent{stand, held, to7, lost, giveUp},
			"enter+fresh lead -+stop(transferred) -+right+free(deposed) finish+free(transferred)"},
		{"a hand-over of what waits is a release", []ClaimEvent{stand, entered, to7, give7, left},
			"enter+fresh await - leave finish+free(resigned)"},
		{"asked to hand over before the win is known", []ClaimEvent{stand, entered, to7, woken, giveUp},
			"enter+fresh await - lead+stop(transferred) handover+right=7(transferred)"},
		{"asked to hand over a place that was lost since", []ClaimEvent{stand, entered, to7, lost, held, giveUp},
			"enter+fresh await - enter+fresh lead leave+stop+right(resigned)"},
		{"a second resignation during a hand-over changes nothing", []ClaimEvent{stand, held, give7, giveUp, left},
			"enter+fresh lead handover+stop+right=7(transferred) - finish+free(transferred)"},
		{"a hand-over that comes after a resignation changes nothing", []ClaimEvent{stand, held, giveUp, give7, failed},
			"enter+fresh lead leave+stop+right(resigned) - leave+1"},
		{"a wake-up that comes after giving up leads nobody", []ClaimEvent{stand, entered, giveUp, woken, left},
			"enter+fresh await leave - finish+free(resigned)"},
	} {
		if _, got := play(tc.events...); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
}

// No sequence of events, however odd, releases a claim or hands it over before its context and right have ended, leads twice, hands over to
// two, or hands over what was ordered to be released.
func TestNoSequenceReleasesBeforeTheRightEnded(t *testing.T) {
	var kinds []ClaimEvent
	for k := Stand; k <= LeaseOver; k++ {
		kinds = append(kinds, ClaimEvent{Kind: k, Cause: Expired})
	}
	kinds = append(kinds, ClaimEvent{Kind: Entered, Held: true})
	for successor := uint64(7); successor <= 8; successor++ {
		kinds = append(kinds, ClaimEvent{Kind: Ask, Cause: Transferred, Successor: successor}, ClaimEvent{Kind: GiveUp, Successor: successor})
	}
	type state struct {
		c                 Claim
		led, stop, noMore bool
		released          bool
		successor         uint64 // handed over to
	}
	seen, handed := map[state]bool{}, 0
	var walk func(s state, depth int)
	walk = func(s state, depth int) {
		if depth == 0 || seen[s] {
			return
		}
		seen[s] = true
		for _, e := range kinds {
			n := s
			o := n.c.Step(e)
			n.c.tries = min(n.c.tries, 2)
			if o.Do == Lead && n.led {
				t.Fatalf("one claim led twice after %+v", e)
			}
			n.led = n.led || o.Do == Lead
			n.stop, n.noMore = n.stop || o.Stop, n.noMore || o.EndRight
			if (n.led && (o.Do == Leave || o.Do == Finish) || o.Do == HandOver) && !(n.stop && n.noMore) {
				t.Fatalf("%v after %+v: the context ended %v, the right ended %v", o.Do, e, n.stop, n.noMore)
			}
			switch {
			case o.Do == HandOver && (n.released || n.successor != 0 && n.successor != o.Successor || o.Successor == 0 || !n.led):
				t.Fatalf("handed over to %d after %+v; led %v, released %v, handed over to %d before", o.Successor, e, n.led, n.released, n.successor)
			case o.Do == Leave && n.successor != 0 && !n.released && e.Kind != NoSuccessor:
				t.Fatalf("released after %+v though a hand-over may be under way", e)
			case o.Do == HandOver:
				n.successor = o.Successor
				handed++
			}
			n.released = n.released || o.Do == Leave
			walk(n, depth-1)
		}
	}
	walk(state{}, 40)
	if len(seen) < 10 || handed < 10 {
		t.Fatalf("only %d states were reached, and %d hand-overs", len(seen), handed)
	}
}

func TestOutcomeOfAHandOver(t *testing.T) {
	begin := []ClaimEvent{{Kind: Stand}, {Kind: Entered, Held: true}, {Kind: GiveUp, Successor: 7}}
	for _, tc := range []struct {
		then []ClaimEventKind
		want Outcome
	}{
		{[]ClaimEventKind{Left}, Handed},
		{[]ClaimEventKind{Lost}, Undecided},
		{[]ClaimEventKind{Lost, Left}, Handed},
		{[]ClaimEventKind{Failed, Missing}, ClaimMissing},
		{[]ClaimEventKind{NoSuccessor, Left}, SuccessorGone},
		{[]ClaimEventKind{LeaseOver}, Undecided},
	} {
		events := slices.Clone(begin)
		for _, k := range tc.then {
			events = append(events, ClaimEvent{Kind: k})
		}
		if c, _ := play(events...); c.Outcome() != tc.want || c.Successor() != 7 {
			t.Errorf("%v: outcome %d of successor %d, want %d", tc.then, c.Outcome(), c.Successor(), tc.want)
		}
	}
}

func TestCandidateBacksOffOnlyAfterShortTerms(t *testing.T) {
	c := &Candidate{}
	now, tries := at(0), []int{}
	for _, term := range []Time{at(0.1), at(0.2), at(5), at(0.1)} {
		tries = append(tries, c.Step(now, Begin).Tries)
		c.Step(now, Won)
		now += term
		c.Step(now, TermLost)
	}
	if got, want := fmt.Sprint(tries), "[0 1 2 0]"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	c.Step(now, Begin)
	if c.Step(now, NotWon); c.State() != Follower {
		t.Fatalf("a refused campaign: the state is %d", c.State())
	}
}
