package supervise

import (
	"context"
	"fmt"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// rebindCall is a call of Bind or Unbind that has given its order. Process.mu guards heldBack and
// over; the other fields are only read.
type rebindCall struct {
	id       uint64
	deadline time.Duration
	answer   chan error    // has room for the one answer
	heldBack time.Duration // the latest deadline that Extend has got since; counts when the call succeeds
	over     bool          // the call has got its error, or is about to: no answer counts any more
}

// Bind gives the command a new deadline. The command had none before, or another one, also a later
// one. Bind returns nil when the guardian has confirmed that it keeps the new deadline, and both
// processes have an alarm for it. This is the promise: nothing of the command outlives the
// deadline. So the caller may let the command do what needs the right. [Process.Extend] moves the
// deadline on, as ever.
//
// Errors:
//   - [ErrTooLate]: no more than the grace or the margin is left. Nothing was changed.
//   - [ErrEnding]: the command has ended, or is being ended by a deadline or a Stop. The call does
//     not save it.
//   - ctx's: ctx ended before the guardian has confirmed. It is unknown whether the guardian keeps
//     the deadline, so the caller must not let the command do what needs the right. The supervisor
//     keeps it, and Extend does not move it: the command is ended by then, unless a later Bind
//     replaces the deadline, also one that fails in the same way, or an Unbind succeeds.
//
// Calls of Bind and Unbind wait for each other. If ctx ends during that, nothing was changed. Once
// it is its turn, Bind returns soon after the deadline, even if ctx never ends. Unbind of a command
// without a deadline has no such limit: it waits as long as a cgroup freezes the guardian.
func (p *Process) Bind(ctx context.Context, deadline time.Duration) error {
	return p.rebind(ctx, deadline)
}

// Unbind takes the deadline away: the command may run as long as this process does. It returns nil
// when the guardian has confirmed that. Call it only when the command needs the right no more.
//
// The errors are [ErrEnding] and ctx's, as with [Process.Bind]. After ctx's error the supervisor
// keeps the deadline, and ends the command by it as after a Bind that failed. The guardian may have
// none any more: if the supervisor dies then, the command has the stop signal and the grace.
func (p *Process) Unbind(ctx context.Context) error { return p.rebind(ctx, NoDeadline) }

// rebind is Bind and Unbind.
func (p *Process) rebind(ctx context.Context, deadline time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case p.rebindTurn <- struct{}{}:
		defer func() { <-p.rebindTurn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c, err := p.orderRebind(deadline)
	if err != nil {
		return err
	}
	select {
	case err := <-c.answer:
		return err
	case <-p.done:
		return ErrEnding
	case <-ctx.Done():
	}
	p.mu.Lock()
	c.over = true // p.unconfirmed stays, so Extend moves no deadline
	p.mu.Unlock()
	select {
	case err := <-c.answer:
		return err
	default:
		return fmt.Errorf("the guardian has not confirmed: %w", ctx.Err())
	}
}

// orderRebind gives the order to the guardian. After a Bind the supervisor's own plan has the new
// deadline at once. After an Unbind it has the old one until the guardian has confirmed. (The
// command's grace and margin say whether there is time enough: the guardian acts by them.)
func (p *Process) orderRebind(deadline time.Duration) (*rebindCall, error) {
	now := boottime.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plan.ending || now >= p.plan.killAt() {
		return nil, ErrEnding
	}
	if err := enoughTime(deadline-now, p.grace, p.margin); err != nil {
		return nil, err
	}
	if deadline != NoDeadline {
		p.plan.rebind(deadline)
	}
	p.rebinds++
	p.unconfirmed = &rebindCall{id: p.rebinds, deadline: deadline, answer: make(chan error, 1)}
	p.orderedDeadline = deadline
	p.queue = append(p.queue, order{Rebind: &rebindOrder{ID: p.rebinds, Deadline: deadline}})
	p.wakeLocked()
	return p.unconfirmed, nil
}

// rebindAnswered passes the guardian's answer on to the call that waits for it. The watcher calls
// it, and has set its alarm before. It removes unconfirmed only if the call succeeds. Otherwise
// Extend moves no deadline: the call has failed, or the command is being ended.
func (p *Process) rebindAnswered(a rebindAnswer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.unconfirmed
	if c == nil || c.over || c.id != a.ID {
		return // nobody waits for it any more
	}
	// From killAt on the watcher kills the tree, whatever the guardian keeps.
	if !a.Held || boottime.Now() >= p.plan.killAt() || !p.plan.rebind(c.deadline) {
		c.over = true
		c.answer <- ErrEnding
		return
	}
	p.plan.extend(c.heldBack)
	p.unconfirmed = nil
	c.answer <- nil
	p.wakeLocked()
}

// SetLastAction replaces the last action; nil removes it. It never blocks. The guardian has it
// before any Bind, Unbind, Signal and Stop that is called later: when a later [Process.Bind] has
// succeeded, the guardian has the new last action. If the command was started with a deadline and
// without a last action, what the handler writes to messages is dropped.
func (p *Process) SetLastAction(a *LastAction) { p.enqueue(order{LastAction: &lastActionOrder{a}}) }
