package supervise

import "time"

// plan is when a command is told to stop and when it is killed. Guardian and supervisor follow one each; it reads no
// clock, so it can be tested without one. All times are on the boot clock.
type plan struct {
	deadline time.Duration // nothing of the command may be left by then
	grace    time.Duration // between telling and killing
	margin   time.Duration // killing takes time too: it starts this long before the deadline
	told     bool          // the stop signal is out. Never taken back: a later deadline does not revive a command that is stopping
	limit    time.Duration // when told: the grace ends
}

// extend moves the deadline. Never back: an order that was overtaken on the way must not shorten what was promised.
func (p *plan) extend(deadline time.Duration) { p.deadline = max(p.deadline, deadline) }

// tell notes that the command is told to stop at now, with that grace. It returns whether that is news; a second
// telling can only shorten the grace.
func (p *plan) tell(now, grace time.Duration) bool {
	if p.told {
		p.limit = min(p.limit, now+grace)
		return false
	}
	p.told, p.limit = true, now+grace
	return true
}

// tellAt is when the command must be told to stop if the deadline is not extended.
func (p *plan) tellAt() time.Duration { return p.deadline - p.grace }

// killAt is when it must be killed.
func (p *plan) killAt() time.Duration {
	at := p.deadline - p.margin
	if p.told {
		at = min(at, p.limit)
	}
	return at
}

// next is the next instant at which there is something to do.
func (p *plan) next() time.Duration {
	if p.told {
		return p.killAt()
	}
	return min(p.tellAt(), p.killAt())
}
