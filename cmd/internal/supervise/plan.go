package supervise

import "time"

// plan says when a command gets its stop signal and when it is killed. All instants are on the boot
// clock, which a plan never reads. Each of the two processes has one:
//
//   - The guardian's has the command's own grace and margin. Only the guardian's loop uses it.
//   - The supervisor's has no grace: the supervisor sends no stop signal. It has three quarters of
//     the margin: the supervisor kills only if the guardian has not. Process.mu guards it.
type plan struct {
	deadline time.Duration // nothing of the command may be left by then; NoDeadline: it may run on
	grace    time.Duration // the longest time between the stop signal and SIGKILL
	margin   time.Duration // SIGKILL is sent this long before the deadline, because killing takes time
	ending   bool          // SIGKILL follows at killAt, and no later deadline saves the command; never reset
	graceEnd time.Duration // SIGKILL is sent then, or earlier for the deadline; valid if ending
}

// extend moves the deadline to a later instant. An earlier one is ignored: two goroutines may call
// Process.Extend, and the older deadline may come last.
func (p *plan) extend(deadline time.Duration) { p.deadline = max(p.deadline, deadline) }

// rebind replaces the deadline, also by an earlier one or by NoDeadline. It returns false, and
// changes nothing, when the command is ending. Bind and Unbind do this.
func (p *plan) rebind(deadline time.Duration) bool {
	if p.ending {
		return false
	}
	p.deadline = deadline
	return true
}

// unbound says that no instant is known by which the command must be stopped or killed: it has no
// deadline, and nobody has begun its end.
func (p *plan) unbound() bool { return p.deadline == NoDeadline && !p.ending }

// endBy begins the command's end: SIGKILL is sent at graceEnd at the latest. Whether a stop signal
// goes before it is the caller's affair. endBy returns true at the first call only; a later one can
// only make graceEnd earlier.
func (p *plan) endBy(graceEnd time.Duration) bool {
	if p.ending {
		p.graceEnd = min(p.graceEnd, graceEnd)
		return false
	}
	p.ending, p.graceEnd = true, graceEnd
	return true
}

// stopAt is when the stop signal must be sent if the deadline is not extended.
func (p *plan) stopAt() time.Duration { return p.deadline - p.grace }

// killAt is when SIGKILL must be sent if the deadline is not extended.
func (p *plan) killAt() time.Duration {
	at := p.deadline - p.margin
	if p.ending {
		at = min(at, p.graceEnd)
	}
	return at
}

// next is the next instant at which there is something to do.
func (p *plan) next() time.Duration {
	if p.ending {
		return p.killAt()
	}
	return min(p.stopAt(), p.killAt())
}
