package core

import (
	"testing"
	"time"
)

const sec = time.Second

func at(s float64) Time { return Time(s * float64(time.Second)) }

// A lease of 10 s, granted in answer to a call made at 100 s: trusted until 109 s, contexts until 108 s, renewed every 2 s.
func lease10() *Lease { return NewLease(Timing{}.Fill(10*sec), at(100)) }

func TestDeadlineCountsFromBeforeTheCall(t *testing.T) {
	l := lease10()
	if got, want := l.Deadline(), at(109); got != want {
		t.Fatalf("deadline after grant: got %v, want %v", got, want)
	}
	if o := l.Step(at(102), LeaseEvent{}); !o.Renew {
		t.Fatal("no renewal was ordered at ttl/5")
	}
	l.Step(at(103.9), LeaseEvent{Kind: Accepted, Asked: at(102)}) // a slow reply
	if got, want := l.Deadline(), at(111); got != want {
		t.Fatalf("deadline after a renewal asked at 102: got %v, want %v", got, want)
	}
}

func TestAReplyAfterTheSoftEndRevivesNothing(t *testing.T) {
	for _, now := range []Time{at(108), at(108.9), at(109), at(120)} {
		l := lease10()
		l.Step(at(102), LeaseEvent{})
		o := l.Step(now, LeaseEvent{Kind: Accepted, Asked: at(107.9)})
		if o.Stop != Expired || l.Phase() == Alive || l.Deadline() != at(109) {
			t.Errorf("reply at %v: got %+v, phase %d, deadline %v", now, o, l.Phase(), l.Deadline())
		}
		if over := now >= at(109); (l.Phase() == Over) != over || o.EndRight != over {
			t.Errorf("reply at %v: phase %d, over %v, want over %v", now, l.Phase(), o.EndRight, over)
		}
	}
}

func TestAnOlderReplyNeverShortensTheDeadline(t *testing.T) {
	l := lease10()
	l.Step(at(102), LeaseEvent{})
	l.Step(at(104), LeaseEvent{}) // given up after its time limit, and tried again later
	l.Step(at(104.1), LeaseEvent{})
	l.Step(at(104.2), LeaseEvent{Kind: Accepted, Asked: at(104.1)})
	l.Step(at(104.3), LeaseEvent{Kind: Accepted, Asked: at(102)})
	if got, want := l.Deadline(), at(113.1); got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestAStoreClientThatNeverReturnsIsGivenUpAndTheLeaseEndsInTime(t *testing.T) {
	l, now := lease10(), at(100)
	renewals, ended, over := 0, Time(0), Time(0)
	for over == 0 {
		o := l.Step(now, LeaseEvent{})
		if o.Renew {
			renewals++
		}
		if o.Stop != None {
			ended = now
		}
		if o.EndRight {
			over = now
			break
		}
		if o.Wake <= now {
			t.Fatalf("at %v the lease wants to be woken at %v: a busy loop", now, o.Wake)
		}
		now = o.Wake
	}
	if renewals < 3 || ended != at(108) || over != at(109) {
		t.Fatalf("got %d renewals, contexts ended at %v, over at %v; want ≥ 3, 108s, 109s", renewals, ended, over)
	}
}

func TestGoneIsFinalAndTellsExpiredFromDeposed(t *testing.T) {
	l := lease10()
	o := l.Step(at(103), LeaseEvent{Kind: Gone})
	if o.Stop != Deposed || !o.EndRight || l.Deadline() != 0 {
		t.Fatalf("gone before the deadline: got %+v, deadline %v; want deposed, over, 0", o, l.Deadline())
	}
	l.Step(at(103.1), LeaseEvent{Kind: Accepted, Asked: at(103)})
	if l.Deadline() != 0 || l.Phase() != Over {
		t.Fatal("a renewal revived a lease that was gone")
	}
}

func TestTheGrantedTTLCounts(t *testing.T) {
	l := NewLease(Timing{Drift: 0.01}.Fill(4*sec), at(50))
	if got, want := l.Deadline(), at(53.96); got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestTimingRelations(t *testing.T) {
	if err := (Timing{}).Fill(10 * sec).Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for name, bad := range map[string]Timing{
		"no room for a second try": {Every: 4 * sec, Attempt: 4 * sec},
		"a grace over the whole":   {Grace: 9 * sec},
		"no drift":                 {Drift: 0.001},
		"all drift":                {Drift: 0.9},
		"a negative interval":      {Every: -sec},
	} {
		if err := bad.Fill(10 * sec).Validate(); err == nil {
			t.Errorf("%s: %+v was accepted", name, bad)
		}
	}
}
