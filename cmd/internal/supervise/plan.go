package supervise

import "time"

// plan says when a command gets its stop signal and when it is killed. The guardian has one. The
// supervisor has another, which kills a little later and sends no stop signal. A plan reads no
// clock and has no lock: in the guardian only the loop of GuardianMain uses it; in the supervisor
// Process.mu guards it. All instants are on the boot clock.
type plan struct {
	deadline time.Duration // nothing of the command may be left by then; NoDeadline: it may run on
	grace    time.Duration // from the stop signal at most to SIGKILL; 0 in the supervisor, which sends none
	margin   time.Duration // SIGKILL is sent this long before the deadline, because killing takes time
	stopSent bool          // the stop signal was sent; never reset: after it no later deadline saves the command
	graceEnd time.Duration // when the grace is over; valid if stopSent
}

// extend moves the deadline to a later instant. An earlier one is ignored: two goroutines may call
// Process.Extend, and the older deadline may come last.
func (p *plan) extend(deadline time.Duration) { p.deadline = max(p.deadline, deadline) }

// rebind replaces the deadline, also by an earlier one or by NoDeadline. It returns false, and
// changes nothing, when the stop signal was sent: the command is ending.
func (p *plan) rebind(deadline time.Duration) bool {
	if p.stopSent {
		return false
	}
	p.deadline = deadline
	return true
}

// unbound says that no instant is known by which the command must be stopped or killed.
func (p *plan) unbound() bool { return p.deadline == NoDeadline && !p.stopSent }

// beginStop notes that the stop signal is sent and that SIGKILL follows when the grace, counted
// from the instant from, is over. It returns true at the first call only. A later call can only
// shorten the grace.
func (p *plan) beginStop(from, grace time.Duration) bool {
	if p.stopSent {
		p.graceEnd = min(p.graceEnd, from+grace)
		return false
	}
	p.stopSent, p.graceEnd = true, from+grace
	return true
}

// stopAt is when the stop signal must be sent if the deadline is not extended.
func (p *plan) stopAt() time.Duration { return p.deadline - p.grace }

// killAt is when SIGKILL must be sent if the deadline is not extended.
func (p *plan) killAt() time.Duration {
	at := p.deadline - p.margin
	if p.stopSent {
		at = min(at, p.graceEnd)
	}
	return at
}

// next is the next instant at which there is something to do.
func (p *plan) next() time.Duration {
	if p.stopSent {
		return p.killAt()
	}
	return min(p.stopAt(), p.killAt())
}
