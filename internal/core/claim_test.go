package core

import (
	"fmt"
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
	w := [...]string{"-", "enter", "await", "lead", "leave", "finish"}[o.Do]
	if o.Fresh {
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
		over    = ClaimEvent{Kind: LeaseOver, Cause: Expired}
		refused = ClaimEvent{Kind: Rejected}
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
		{"a wake-up that comes after giving up leads nobody", []ClaimEvent{stand, entered, giveUp, woken, left},
			"enter+fresh await leave - finish+free(resigned)"},
	} {
		if _, got := play(tc.events...); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
}

// No sequence of events, however odd, releases a claim whose context and right have not ended before, or leads twice.
func TestNoSequenceReleasesBeforeTheRightEnded(t *testing.T) {
	var kinds []ClaimEvent
	for k := Stand; k <= LeaseOver; k++ {
		kinds = append(kinds, ClaimEvent{Kind: k, Cause: Expired})
	}
	kinds = append(kinds, ClaimEvent{Kind: Entered, Held: true})
	type state struct {
		c                 Claim
		led, stop, noMore bool
	}
	seen := map[state]bool{}
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
			if n.led && (o.Do == Leave || o.Do == Finish) && !(n.stop && n.noMore) {
				t.Fatalf("%v after %+v: the context ended %v, the right ended %v", o.Do, e, n.stop, n.noMore)
			}
			walk(n, depth-1)
		}
	}
	walk(state{}, 40)
	if len(seen) < 10 {
		t.Fatalf("only %d states were reached", len(seen))
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
	if o := c.Step(now, NotWon); !o.Quit || c.State() != Follower {
		t.Fatalf("a refused campaign: got %+v in state %d", o, c.State())
	}
}
