package zkstore

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

func TestNamesDoNotCollide(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"a", "a/b", "a%2Fb", "a%2fb", ".", "..", "...", "@leases", "%40leases", "", " ", "ö", "\xff", "\x00", "a.b", ".a", "A"} {
		part := escape(name)
		if other, ok := seen[part]; ok {
			t.Errorf("%q and %q are both %q", name, other, part)
		}
		seen[part] = name
		if back, ok := unescape(part); !ok || back != name {
			t.Errorf("%q = %q = %q, %v", name, part, back, ok)
		}
	}
	for _, part := range []string{"@leases", "%", "%2", "%2f", "%61", ".a", "a b", "%zz"} {
		if name, ok := unescape(part); ok {
			t.Errorf("%q was taken for the name %q", part, name)
		}
	}
}

func TestANodeIsReadAsItWasWritten(t *testing.T) {
	for _, c := range []driver.Claim{{ID: "x"}, {ID: "y/ü", Slots: 3, Seat: "abc1"}, {ID: "", Slots: driver.Unlimited, Seat: "2"}} {
		n, ok := parse("/d", nodeName("0123456789abcdef", c)+"0000000012")
		if !ok || n.slots != c.Slots || n.seat != c.Seat || n.hash != hashOf(c.ID) || n.seq != 12 || n.lease != "0123456789abcdef" {
			t.Errorf("%+v = %+v, %v", c, n, ok)
		}
	}
}

// ZooKeeper's counter of children has 32 bits; where it has come to its end, only the czxid tells who came first.
func TestTheOrderOutlivesTheCounterOfChildren(t *testing.T) {
	for _, seqs := range [][]int64{{1, 2, 3}, {math.MaxInt32, math.MaxInt32, math.MaxInt32}, {math.MaxInt32 - 1, math.MinInt32, math.MinInt32 + 1}, {math.MaxInt32 - 1, math.MaxInt32, math.MaxInt32}} {
		nodes := []node{{seq: seqs[2], czxid: 30}, {seq: seqs[0], czxid: 10}, {seq: seqs[1], czxid: 20}}
		inOrder(nodes)
		if nodes[0].czxid != 10 || nodes[1].czxid != 20 || nodes[2].czxid != 30 {
			t.Errorf("%v: order %+v", seqs, nodes)
		}
	}
}

func TestWhoIsWatched(t *testing.T) {
	for _, c := range []struct {
		slots []int // of those in front, then our own
		want  []int
	}{
		{[]int{0}, nil},
		{[]int{0, 0, 0}, []int{0, 1}},
		{[]int{0, 0, 0, 0, 0, 0}, []int{2, 3, 4}},
		{[]int{-1, -1, 0}, []int{0, 1}},
		{[]int{-1, -1, -1}, nil},
		{[]int{0, -1, 0, -1, -1}, []int{2}},
		{[]int{2, 2, 2}, []int{0, 1}},
		{[]int{2, 2, 2, 2}, []int{1, 2}},
		{[]int{2, 2}, nil},
		{[]int{2, 0, 2}, []int{1}},
	} {
		nodes := make([]node, len(c.slots))
		for i, n := range c.slots {
			nodes[i] = node{seq: int64(i), slots: n}
		}
		var got []int
		for _, n := range lookouts(nodes, len(nodes)-1) {
			got = append(got, int(n.seq))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: watches %v, want %v", c.slots, got, c.want)
		}
	}
}

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

// Of a chain of writes, only what has a ping between it and a write before the last one is proved, and another gap behind that: what a stopped leader or a follower
// that sends its table just then has missed of the first gap, the second one brings.
func TestAProofNeedsAPingAndAWriteAfterIt(t *testing.T) {
	const tick = time.Second
	l := &lease{store: &Store{tick: tick}}
	g := l.gap()
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
		l.writes = append(slices.Clone(c.before), c.last)
		if got := l.proved(c.last, 0); got != c.want {
			t.Errorf("%s: proved %v, want %v", c.what, got, c.want)
		}
	}
	if got := trim([]write{{gen: 1, sent: tick}, {gen: 2, sent: 2 * tick}}, write{gen: 2, sent: 3 * tick}, 10*tick); len(got) != 1 || got[0].gen != 2 {
		t.Errorf("writes of two connections make one chain: %+v", got)
	}
}

// The age of what a renewal goes by is told by our clock. One that is 10 % slower than the leader's shows too little of it, and the deadline above takes its 10 %
// from the ttl alone.
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
		l := &lease{store: &Store{tick: tick}}
		for want := l.gap(); want < 40*l.gap(); want += l.gap() / 4 {
			timeout := sessionFor(want, tick)
			l.ttl, l.writes = ttlWithin(timeout, tick), nil
			const trip = 2 * time.Millisecond
			for at := time.Duration(0); at < 10*timeout; at += l.ttl / 5 {
				w := write{gen: 1, sent: at, answered: at + trip}
				l.writes = append(trim(l.writes, w, timeout), w)
				if !lasts(at-l.proved(w, 0), timeout-l.ttl) {
					t.Fatalf("tick %v, ttl %v: the renewal at %v has to wait, proved is %v", tick, l.ttl, at, l.proved(w, 0))
				}
			}
		}
	}
}

// Where nothing that is young enough was proved, writes that come as soon as the next may prove more prove it within two gaps and the three round trips.
func TestARenewalThatMakesItsOwnProofTakesTwoGaps(t *testing.T) {
	const tick, trip, timeout = time.Second, 5 * time.Millisecond, 15 * time.Second
	l := &lease{store: &Store{tick: tick}, ttl: 10 * time.Second}
	called := 100 * time.Second
	for at, n := called, 1; ; n++ {
		w := write{gen: 1, sent: at, answered: at + trip}
		l.writes = append(trim(l.writes, w, timeout), w)
		if lasts(called-l.proved(w, 0), timeout-l.ttl) {
			if took := w.answered - called; n != 3 || took != 2*l.gap()+3*trip {
				t.Errorf("%d writes in %v", n, took)
			}
			return
		}
		if at = w.answered + l.untilNext(called, timeout); n > 3 {
			t.Fatal("three writes prove nothing")
		}
	}
}

// Who waits looks again every few seconds, at a watch that may be there for months.
func TestWhoHasStoppedWaitingIsNotCalled(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	w := &watch{fired: make(chan struct{})}
	for range 100 {
		_ = anyOf(ended, t.Context(), []*watch{w})
	}
	if len(w.also) != 0 {
		t.Errorf("%d are called by a watch that nobody waits for", len(w.also))
	}
	called := 0
	off := w.on(func(bool) { called++ })
	w.on(func(bool) { called++ })
	off()
	w.tell(true)
	off()
	if w.on(func(bool) { called++ }); called != 2 {
		t.Errorf("%d were called, want two", called)
	}
}

// A watch of an earlier connection has not fired, and guards nothing.
func TestAWatchOfAnEarlierConnectionGuardsNothing(t *testing.T) {
	l, c := &lease{}, &claim{arm: 1, armGen: 3}
	if !l.guarded(c, 3) || l.guarded(c, 4) || l.guarded(&claim{armGen: 3}, 3) {
		t.Error("guarded, though no watch of this connection is set")
	}
}
