package supervise

import "time"

// plan is when a command gets its stop signal and when it is killed. The guardian follows one, and
// the supervisor follows a second one that kills a little later. It reads no clock and has no lock:
// in the guardian the main loop owns it, in the supervisor Process.mu guards it. All instants are
// on the boot clock.
type plan struct {
	deadline time.Duration // nothing of the command may be left by then
	grace    time.Duration // between the stop signal and SIGKILL
	margin   time.Duration // killing takes time too: it starts this long before the deadline
	stopping bool          // the stop signal is out; never reset, so a later deadline revives nothing
	graceEnd time.Duration // if stopping: when the grace is over
}

// extend moves the deadline. It never moves it back: an order that was overtaken on the way must
// not shorten what was promised.
func (p *plan) extend(deadline time.Duration) { p.deadline = max(p.deadline, deadline) }

// beginStop notes that the stop signal goes out at now, with that grace. It returns whether this is
// the first time; a second call can only shorten the grace.
func (p *plan) beginStop(now, grace time.Duration) bool {
	if p.stopping {
		p.graceEnd = min(p.graceEnd, now+grace)
		return false
	}
	p.stopping, p.graceEnd = true, now+grace
	return true
}

// stopAt is when the stop signal must go out if the deadline is not extended.
func (p *plan) stopAt() time.Duration { return p.deadline - p.grace }

// killAt is when SIGKILL must go out if the deadline is not extended.
func (p *plan) killAt() time.Duration {
	at := p.deadline - p.margin
	if p.stopping {
		at = min(at, p.graceEnd)
	}
	return at
}

// next is the next instant at which there is something to do.
func (p *plan) next() time.Duration {
	if p.stopping {
		return p.killAt()
	}
	return min(p.stopAt(), p.killAt())
}
