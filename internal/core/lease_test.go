package core

import (
	"math"
	"slices"
	"testing"
	"time"
)

const sec = time.Second

func at(s float64) Time { return Time(math.Round(s * float64(time.Second))) }

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
		"an endless interval":      {Every: math.MaxInt64},
		"an endless attempt":       {Attempt: math.MaxInt64},
		"an endless grace":         {Grace: math.MaxInt64},
	} {
		if err := bad.Fill(10 * sec).Validate(); err == nil {
			t.Errorf("%s: %+v was accepted", name, bad)
		}
	}
}

// renewals steps a lease from its grant at 100 s until end. It answers each renewal at once, as
// answer says. It returns when the renewals were sent.
func renewals(l *Lease, end Time, idle func(Time) bool, answer func(Time) LeaseEventKind) (sent []Time) {
	e := LeaseEvent{}
	for now := at(100); now < end && l.Phase() == Alive; {
		e.Idle = idle(now)
		o := l.Step(now, e)
		if e = (LeaseEvent{}); o.Renew {
			sent = append(sent, now)
			e = LeaseEvent{Kind: answer(now), Asked: now}
			continue
		}
		now = o.Wake
	}
	return sent
}

func TestEverySecondRenewalIsLeftOutWhileNothingIsHeld(t *testing.T) {
	never, always := func(Time) bool { return false }, func(Time) bool { return true }
	every := func(step float64) (all []Time) {
		for i := 1; Time(i)*at(step) < 20*sec; i++ {
			all = append(all, at(100)+Time(i)*at(step))
		}
		return all
	}
	timing := Timing{}.Fill(10 * sec)
	often, chained := Timing{Every: 2500 * time.Millisecond, HalfIdle: true}.Fill(20*sec), timing
	chained.HalfIdle = false
	for name, c := range map[string]struct {
		timing Timing
		idle   func(Time) bool
		failed Time // renewals that are sent earlier get no answer
		want   []Time
	}{
		"nothing is held": {timing, always, 0, every(4)},
		"held":            {timing, never, 0, every(2)},
		// The lease is stepped when it asks to be: at 108 it sees what it has to make up for.
		"held from 107 to 111": {timing, func(now Time) bool { return now < at(107) || now > at(111) }, 0,
			[]Time{at(104), at(108), at(110), at(114), at(118)}},
		"two get no answer": {often, always, at(105.05),
			[]Time{at(105), at(105.025), at(105.075), at(110.075), at(115.075)}},
		"each is needed":      {chained, always, 0, every(2)},
		"the caller says how": {Timing{Every: 2 * sec}.Fill(10 * sec), always, 0, every(2)},
		"a ttl of 6 s":        {Timing{}.Fill(6 * sec), always, 0, every(1.2)},
		"a ttl of 7 s":        {Timing{}.Fill(7 * sec), always, 0, every(2.8)},
	} {
		got := renewals(NewLease(c.timing, at(100)), at(120), c.idle, func(now Time) LeaseEventKind {
			if now < c.failed {
				return Unknown
			}
			return Accepted
		})
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: renewed at %v, want %v", name, got, c.want)
		}
	}
}

// Where a renewal was left out, the right of who begins to hold would be up to two fifths of a ttl
// old, and a short outage would end it.
func TestWhoBeginsToHoldMakesUpForARenewalThatWasLeftOut(t *testing.T) {
	l := lease10()
	if o := l.Step(at(102), LeaseEvent{Idle: true}); o.Renew {
		t.Fatal("the renewal at 102 s was not left out")
	}
	if o := l.Step(at(102.5), LeaseEvent{Idle: true}); o.Renew {
		t.Fatal("renewed at 102.5 s though nothing is held")
	}
	if o := l.Step(at(103), LeaseEvent{}); !o.Renew {
		t.Fatal("not renewed at 103 s though something is held")
	}
	l.Step(at(103.01), LeaseEvent{Kind: Accepted, Asked: at(103)})
	if o := l.Step(at(104), LeaseEvent{}); o.Renew || o.Wake != at(105) {
		t.Fatalf("renewed again at 104 s (%v), wake at %v: nothing was left out since", o.Renew, o.Wake)
	}
}

// A process that was frozen leaves no renewal out that could not be tried twice later, nor where
// the store may need two seconds to elect a leader.
func TestNoRenewalIsLeftOutThatWouldComeTooLate(t *testing.T) {
	for _, c := range []struct {
		now     Time
		leftOut bool
	}{{at(102), true}, {at(103), true}, {at(103.001), false}, {at(107), false}} {
		l := lease10()
		o := l.Step(c.now, LeaseEvent{Idle: true})
		if o.Renew == c.leftOut || c.leftOut && o.Wake != c.now+2*sec {
			t.Errorf("at %v: renew %v, wake %v; left out: want %v", c.now, o.Renew, o.Wake, c.leftOut)
		}
	}
}
