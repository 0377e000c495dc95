package core

import (
	"math/rand/v2"
	"testing"
	"time"
)

func newHealth() *Health { return &Health{Rules: HealthRules{}.Fill(4 * time.Second)} }

// check takes outcomes, one in two seconds: '+' a success, '-' a failure.
func check(h *Health, now *Time, outcomes string) {
	for _, o := range outcomes {
		*now += 2 * time.Second
		h.Checked(*now, o == '+')
	}
}

func TestHealthFallsAndRises(t *testing.T) {
	for _, tc := range []struct {
		name, outcomes string
		want           bool
	}{
		{"nothing known", "", false},
		{"one success at the start", "+", true},
		{"failures at the start, then one success", "-----+", true},
		{"two failures", "+--", true},
		{"three failures", "+---", false},
		{"failures that are not in a row", "+--+--+--+--", true},
		{"four successes after a fall", "+---++++", false},
		{"five successes after a fall", "+---+++++", true},
		{"successes that are not in a row", "+---++++-++++-++++", false},
		{"it flaps", "+-+-+-+-+-+-+-", true},
	} {
		h, now := newHealth(), at(100)
		check(h, &now, tc.outcomes)
		if h.Healthy() != tc.want {
			t.Errorf("%s (%s): healthy %v, want %v", tc.name, tc.outcomes, h.Healthy(), tc.want)
		}
		if h.MayStand(now, true) != tc.want {
			t.Errorf("%s (%s): it may stand: %v, want %v", tc.name, tc.outcomes, !tc.want, tc.want)
		}
	}
}

func TestWhoIsUnhealthyFromTheStartTellsItOnce(t *testing.T) {
	h, told := newHealth(), ""
	for i, o := range "----+---+" {
		if h.Checked(at(float64(2*i)), o == '+') {
			told += string(o)
		}
	}
	if told != "-+-" { // the last success is one of five
		t.Errorf("told %q", told)
	}
}

func TestALeaderHandsOverOnceTheOthersHadTimeToFailToo(t *testing.T) {
	h, now := newHealth(), at(100)
	check(h, &now, "+++")
	if yes, _ := h.HandsOver(now); yes {
		t.Error("a healthy leader hands over")
	}
	check(h, &now, "---")
	yes, when := h.HandsOver(now)
	if yes || when != now+4*time.Second {
		t.Errorf("just unhealthy: hands over %v, asks again in %v", yes, when-now)
	}
	if yes, _ := h.HandsOver(now + 4*time.Second - 1); yes {
		t.Error("it hands over before the others had time")
	}
	if yes, _ := h.HandsOver(now + 4*time.Second); !yes {
		t.Error("it does not hand over")
	}
	check(h, &now, "--+")
	if yes, when := h.HandsOver(now); yes || when <= now {
		t.Errorf("getting well: hands over %v, asks again in %v", yes, when-now)
	}
	check(h, &now, "-")
	if yes, _ := h.HandsOver(now); !yes {
		t.Error("it does not hand over after all")
	}
}

func TestTheHoldDoublesAndIsForgotten(t *testing.T) {
	h, now := newHealth(), at(100)
	fall := func() Time { // it hands over, recovers at once, and tells for how long it is held
		check(h, &now, "+++++---")
		h.Left(now)
		h.Left(now) // of another election of the same process
		left := now
		check(h, &now, "+++++")
		return h.HeldUntil(left) - left
	}
	for n, want := range []float64{30, 60, 120, 240, 480, 600, 600} {
		if got := fall(); got != at(want) {
			t.Errorf("hold %d is %v, want %v", n+1, got, at(want))
		}
	}
	until := h.HeldUntil(now)
	if h.MayStand(now, true) || !h.MayStand(now, false) {
		t.Error("while held it stands behind a leader, or not where nobody leads")
	}
	if !h.MayStand(until, true) {
		t.Error("it may not stand when the hold is over")
	}
	if h.Presses(until) || h.Presses(now+59*time.Minute) {
		t.Error("its priority counts soon after it has handed over")
	}
	now += time.Hour
	if !h.Presses(now) {
		t.Error("its priority does not count after an hour")
	}
	if got := fall(); got != 30*time.Second {
		t.Errorf("the hold after an hour is %v", got)
	}
}

// TestNoOutcomesMakeAStorm: whatever a check says, a candidate that hands over each time it may do
// so does it at most twelve times in an hour.
func TestNoOutcomesMakeAStorm(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		h, now, left := newHealth(), at(100), []Time(nil)
		leads, good := false, r.Float64()
		for range 7200 { // four hours
			now += 2 * time.Second
			if r.IntN(20) == 0 {
				good = r.Float64()
			}
			h.Checked(now, r.Float64() < good)
			if yes, _ := h.HandsOver(now); leads && yes {
				h.Left(now)
				left, leads = append(left, now), false
			}
			leads = leads || h.MayStand(now, true) // it is elected at once
		}
		for i, from := range left {
			n := 0
			for _, l := range left[i:] {
				if l-from < time.Hour {
					n++
				}
			}
			if n > 12 {
				t.Fatalf("seed %d: %d hand-overs within an hour", seed, n)
			}
		}
	}
}
