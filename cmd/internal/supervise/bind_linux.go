package supervise

import (
	"context"
	"fmt"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// rebindCall is a call of Bind or Unbind whose order is with the guardian. Process.mu guards it,
// but for id, deadline and answer, which are only read.
type rebindCall struct {
	id       uint64
	deadline time.Duration
	answer   chan error    // has room for the one answer
	heldBack time.Duration // the latest deadline that Extend got since then; it counts if the call succeeds
	over     bool          // the call has returned or will return an error: no answer counts any more
}

// Bind replaces the deadline: that of a command that had none, or another one, which may have been
// later. It returns nil when the guardian has confirmed that it keeps the new deadline, and both it
// and this process have an alarm for it. From then on nothing of the command is left by the
// deadline, so the caller may let the command do what needs the right. [Process.Extend] moves the
// deadline on, as ever.
//
// Errors: [ErrTooLate], if no more than the grace or the margin is left, and [ErrEnding], if the
// command has ended or is being ended; nothing was changed then. If ctx ends first, Bind returns
// its error, and it is unknown whether the guardian keeps the deadline. The caller must not let the
// command do what needs the right. The command is then ended by the deadline, which Extend does not
// move, unless a later Bind or Unbind succeeds. Even if ctx never ends, Bind returns soon after the
// deadline.
//
// Calls of Bind and Unbind wait for each other. If ctx ends during that, nothing was changed.
func (p *Process) Bind(ctx context.Context, deadline time.Duration) error {
	return p.rebind(ctx, deadline)
}

// Unbind takes the deadline away: the command may run as long as this process does. It returns nil
// when the guardian has confirmed that. Call it only when the command needs the right no more.
//
// If Unbind fails, the deadline stays. The errors are [ErrEnding] and ctx's, as with
// [Process.Bind]. After ctx's error Extend does not move the deadline, so the command is ended by
// it, unless a later Bind or Unbind succeeds.
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
	c.over = true // p.unconfirmed stays: see Extend
	p.mu.Unlock()
	select {
	case err := <-c.answer:
		return err
	default:
		return fmt.Errorf("the guardian has not confirmed: %w", ctx.Err())
	}
}

// orderRebind gives the order to the guardian. In the supervisor's own plan a new deadline holds at
// once, but the former one ends only when the guardian has confirmed that there is none any more.
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
// it.
func (p *Process) rebindAnswered(a rebindAnswer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.unconfirmed
	if c == nil || c.over || c.id != a.ID {
		return // nobody waits for it any more
	}
	// The watcher kills from killAt on, whatever the guardian says.
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
