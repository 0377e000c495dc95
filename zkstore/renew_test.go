package zkstore

import (
	"slices"
	"testing"
	"time"
)

func TestASessionCarriesItsTTL(t *testing.T) {
	for _, tick := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
		for ttl := tick; ttl < 100*tick; ttl += tick / 7 {
			timeout := sessionFor(ttl, tick)
			if got := ttlWithin(timeout, tick); got < ttl {
				t.Fatalf("tick %v: a session of %v for a ttl of %v carries %v only", tick, timeout, ttl, got)
			}
		}
	}
}

// Of a chain of writes, only what has a ping between it and a write before the last one is proved,
// and another gap behind that: what a stopped leader or a follower that sends its table just then
// has missed of the first gap, the second one brings.
func TestAProofNeedsAPingAndAWriteAfterIt(t *testing.T) {
	const tick = time.Second
	r := &renewal{tick: tick}
	g := r.gap()
	if g <= tick/2*11/10 {
		t.Errorf("a gap of %v is less than half a tick of %v by a clock that runs fast", g, tick)
	}
	at := func(sent, answered time.Duration) write { return write{gen: 1, sent: sent, answered: answered} }
	for _, c := range []struct {
		what   string
		before []write
		last   write
		want   time.Duration
	}{
		{"one write", nil, at(10*g, 10*g), 0},
		{"two writes: the last may have overtaken the ping's answer", []write{at(10*g, 10*g)}, at(20*g, 20*g), 0},
		{"three, a gap between each two", []write{at(10*g, 11*g), at(12*g, 13*g)}, at(14*g, 15*g), 10 * g},
		{"less than a gap after the first's answer", []write{at(10*g, 11*g), at(12*g-1, 13*g)}, at(14*g, 15*g), 0},
		{"less than a gap after the second's answer", []write{at(10*g, 11*g), at(12*g, 13*g)}, at(14*g-1, 15*g), 0},
		{"the last was sent before the second's answer", []write{at(10*g, 11*g), at(12*g, 13*g+1)}, at(13*g, 14*g), 0},
		{"the youngest counts", []write{at(10*g, 10*g), at(11*g, 11*g), at(12*g, 12*g)}, at(13*g, 13*g), 11 * g},
	} {
		r.writes = append(slices.Clone(c.before), c.last)
		if got := r.proved(c.last, 0); got != c.want {
			t.Errorf("%s: proved %v, want %v", c.what, got, c.want)
		}
	}
	if got := trim([]write{{gen: 1, sent: tick}, {gen: 2, sent: 2 * tick}}, write{gen: 2, sent: 3 * tick}, 10*tick); len(got) != 1 || got[0].gen != 2 {
		t.Errorf("writes of two connections make one chain: %+v", got)
	}
}

// The age of what a renewal goes by is told by our clock. One that is 10 % slower than the leader's
// shows too little of it, and the deadline above takes its 10 % from the ttl alone.
func TestASlowClockMakesNoRenewalLastLonger(t *testing.T) {
	for _, tick := range []time.Duration{100 * time.Millisecond, time.Second, 2 * time.Second} {
		for ttl := tick; ttl < 100*tick; ttl += tick / 3 {
			timeout := sessionFor(ttl, tick)
			trusted := ttl * 9 / 10 // by our clock, from the call
			for age := time.Duration(0); age < timeout; age += tick / 5 {
				if passed := (age + trusted) * 10 / 9; lasts(age, timeout-ttl) && passed > timeout {
					t.Fatalf("tick %v, ttl %v: proved %v ago, trusted until %v of %v have passed on a faster clock", tick, ttl, age, passed, timeout)
				}
			}
		}
	}
}

// Renewals that come every fifth of a ttl, or need two gaps for that, are answered at once.
func TestASessionIsLongEnoughForRenewalsAtTheirPace(t *testing.T) {
	for _, tick := range []time.Duration{100 * time.Millisecond, time.Second, 2 * time.Second} {
		r := &renewal{tick: tick}
		for want := r.gap(); want < 40*r.gap(); want += r.gap() / 4 {
			timeout := sessionFor(want, tick)
			r.ttl, r.writes = ttlWithin(timeout, tick), nil
			const trip = 2 * time.Millisecond
			for at := time.Duration(0); at < 10*timeout; at += r.ttl / 5 {
				w := write{gen: 1, sent: at, answered: at + trip}
				r.writes = append(trim(r.writes, w, timeout), w)
				if !lasts(at-r.proved(w, 0), timeout-r.ttl) {
					t.Fatalf("tick %v, ttl %v: the renewal at %v has to wait, proved is %v", tick, r.ttl, at, r.proved(w, 0))
				}
			}
		}
	}
}

// Were every second renewal left out while nothing is held, the next would have to wait for its own
// proof, longer than one attempt lasts. So Caps says that none may be.
func TestARenewalRestsOnThoseBeforeIt(t *testing.T) {
	const tick, ttl, trip = 2 * time.Second, 10 * time.Second, 2 * time.Millisecond
	r := &renewal{tick: tick, ttl: ttl}
	timeout, waits := sessionFor(ttl, tick), time.Duration(0)
	for at := time.Duration(0); at < 10*timeout; at += ttl * 2 / 5 {
		w := write{gen: 1, sent: at, answered: at + trip}
		r.writes = append(trim(r.writes, w, timeout), w)
		if !lasts(at-r.proved(w, 0), timeout-ttl) {
			waits = max(waits, r.untilNext(at, timeout))
		}
	}
	if waits < ttl/10 || !capsOf("", tick, 2*tick, 20*tick).ChainedRenew {
		t.Errorf("a renewal waits %v of the %v of an attempt, and Caps allows to leave some out", waits, ttl/10)
	}
}

// Where nothing that is young enough was proved, writes that come as soon as the next may prove
// more prove it within two gaps and the three round trips.
func TestARenewalThatMakesItsOwnProofTakesTwoGaps(t *testing.T) {
	const tick, trip, timeout = time.Second, 5 * time.Millisecond, 15 * time.Second
	r := &renewal{tick: tick, ttl: 10 * time.Second}
	called := 100 * time.Second
	for at, n := called, 1; ; n++ {
		w := write{gen: 1, sent: at, answered: at + trip}
		r.writes = append(trim(r.writes, w, timeout), w)
		if lasts(called-r.proved(w, 0), timeout-r.ttl) {
			if took := w.answered - called; n != 3 || took != 2*r.gap()+3*trip {
				t.Errorf("%d writes in %v", n, took)
			}
			return
		}
		if at = w.answered + r.untilNext(called, timeout); n > 3 {
			t.Fatal("three writes prove nothing")
		}
	}
}
