package core

import "time"

// HealthRules say what the outcomes of a check mean. Fill gives what is zero its default.
type HealthRules struct {
	Fall int // so many failures in a row: unhealthy
	Rise int // so many successes in a row after that: healthy again
	// Settle is how long a leader has been unhealthy before it hands over. A check that fails on
	// every machine fails on each at another moment: by then the others have left the line too.
	Settle Time
	Hold   Time // how long who has handed over for its health stays out of the line; doubles each time
	Most   Time // the longest hold
	Forget Time // after so long without handing over the next hold is the first again
}

// Fill returns r with defaults.
func (r HealthRules) Fill(settle Time) HealthRules {
	set := func(at *Time, d Time) {
		if *at == 0 {
			*at = d
		}
	}
	if r.Fall == 0 {
		r.Fall = 3
	}
	if r.Rise == 0 {
		r.Rise = 5
	}
	set(&r.Settle, settle)
	set(&r.Hold, 30*time.Second)
	set(&r.Most, 10*time.Minute)
	set(&r.Forget, time.Hour)
	return r
}

// Health decides whether a candidate is healthy, and what follows for its candidacy:
//
//	            first success                Fall failures in a row
//	unknown ─────────────────────▶ healthy ─────────────────────────▶ unhealthy
//	                                  ▲      Rise successes in a row      │
//	                                  └───────────────────────────────────┘
//
// It never lengthens a term: it can only keep a candidate out of the line, and end a term early.
type Health struct {
	Rules HealthRules

	healthy bool
	begun   bool // it was healthy once
	failed  int  // so many failures before it was healthy once
	run     int  // outcomes of the same kind in a row that speak against the present state
	since   Time // when healthy changed

	handed bool // it has handed over since it became unhealthy
	last   Time // when it last handed over; it counts only if held is not 0
	held   Time // how long it stayed out of the line after that
}

// Healthy says whether the candidate is healthy. It is not before its first success.
func (h *Health) Healthy() bool { return h.healthy }

// Checked takes the outcome of a check. Changed says that the candidate is healthy now and was not,
// or the other way round; or that it has been unhealthy from the start, which is told once.
func (h *Health) Checked(now Time, ok bool) (changed bool) {
	if ok == h.healthy {
		h.run = 0
		if !ok && !h.begun {
			h.failed++
		}
		return h.failed == h.Rules.Fall && !h.begun
	}
	h.run++
	need := h.Rules.Fall
	if ok {
		need = h.Rules.Rise
	}
	if ok && !h.begun {
		need = 1
	}
	if h.run < need {
		return false
	}
	h.healthy, h.since, h.run, h.handed = ok, now, 0, false
	h.begun = h.begun || ok
	return true
}

// Left takes that the candidate has given up what it led, for its health. What is given up in the
// same sickness counts once.
func (h *Health) Left(now Time) {
	if h.handed {
		return
	}
	if h.forgotten(now) {
		h.held = h.Rules.Hold
	} else {
		h.held = min(2*h.held, h.Rules.Most)
	}
	h.handed, h.last = true, now
}

// forgotten says that it has not handed over for so long, or never, that this counts no more.
func (h *Health) forgotten(now Time) bool { return h.held == 0 || now-h.last >= h.Rules.Forget }

// HeldUntil returns until when the candidate stays out of a line in which somebody leads; 0: it
// does not.
func (h *Health) HeldUntil(now Time) Time {
	if until := h.last + h.held; h.held > 0 && now < until {
		return until
	}
	return 0
}

// MayStand says whether the candidate may enter a line. Led says that somebody leads there: nobody
// is kept out of a line that has no leader.
func (h *Health) MayStand(now Time, led bool) bool {
	return h.healthy && (!led || h.HeldUntil(now) == 0)
}

// HandsOver says whether the candidate, as leader, is to hand over. If it is unhealthy and does
// not, at is when to ask again. It does not while its last check has succeeded: where all get well
// together, some are healthy a moment before it.
func (h *Health) HandsOver(now Time) (yes bool, at Time) {
	switch {
	case h.healthy:
		return false, 0
	case h.run > 0:
		return false, now + h.Rules.Settle/2
	}
	at = h.since + h.Rules.Settle
	return now >= at, at
}

// Presses says whether the candidate's priority counts. It does not for as long as it is remembered
// that it has handed over for its health: else it would take the lead back as soon as it is
// healthy, and two would take turns.
func (h *Health) Presses(now Time) bool { return h.forgotten(now) }
