//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// kind is one sort of participant.
type kind struct {
	name string
	// join makes a participant: a session, or what starts a program.
	join func(w *world, id string) stander
	// dies says that a participant can end without a word, and how it is gone from the line then.
	dies  death
	try   bool // it does not wait
	reads bool // it shares the line with others that do
}

// death is what becomes of the claim of a participant that has died.
type death int

const (
	never  death = iota // there is no process of its own, nor a lease that can be left alone
	leased              // its lease runs out, soon
	hardly              // its lease runs for a minute: the test revokes it
)

// stander stands in the line, acts while it holds, until told to leave, and returns when its claim
// is gone. Nil also for a turn that was told to give up while it waited. A stander has one turn at
// a time.
type stander func(tn *turn) error

// turn is one stay of one participant in the line.
type turn struct {
	id    string
	kind  kind
	claim claim           // its place in the line, as the test saw it
	ctx   context.Context // ends when it is to give up
	quit  context.CancelFunc
	held  chan uint64   // the token under which it acts, once
	leave chan struct{} // closed: a holder leaves
	dead  chan struct{} // closed: it ends without a word
	done  chan struct{} // closed when stander has returned, with err
	err   error

	leaveOnce, deadOnce sync.Once
}

// errDied says that a participant ended as it was told to: without a word.
var errDied = errors.New("died, as asked")

// errTaken says that a participant that does not wait found the line taken.
var errTaken = errors.New("taken")

// begin starts a turn of a participant.
func (w *world) begin(k kind, id string, stand stander) *turn {
	tn := &turn{id: id, kind: k, held: make(chan uint64, 1), leave: make(chan struct{}), dead: make(chan struct{}),
		done: make(chan struct{})}
	tn.ctx, tn.quit = context.WithCancel(context.Background())
	w.Cleanup(tn.quit)
	go func() {
		defer close(tn.done)
		w.trace.note("%s begins", id)
		tn.err = stand(tn)
		w.trace.note("%s ends: %v", id, tn.err)
	}()
	return tn
}

// nextID names a turn or participant.
func (w *world) nextID(k kind) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	return fmt.Sprintf("%s-%d", k.name, w.count)
}

func (tn *turn) tellLeave() { tn.leaveOnce.Do(func() { close(tn.leave) }) }
func (tn *turn) die()       { tn.deadOnce.Do(func() { close(tn.dead) }) }

// holds acts for a participant of this process until the turn is over. ErrDied: it must not release
// anything.
func (w *world) holds(tn *turn, token uint64, valid func() bool) error {
	leave := make(chan struct{})
	over := make(chan struct{})
	defer close(over)
	go func() {
		defer close(leave)
		select {
		case <-tn.leave:
		case <-tn.dead:
		case <-over:
		}
	}()
	if err := w.acts.act(tn.id, token, leave, valid,
		func() { w.trace.note("%s holds under %d (%d)", tn.id, token, token>>16); tn.held <- token }); err != nil {
		return err
	}
	select {
	case <-tn.dead:
		return errDied
	default:
		return nil
	}
}

// gaveUp returns nil if the turn was told to give up, and otherwise err.
func (tn *turn) gaveUp(err error) error {
	select {
	case <-tn.dead:
		return errDied
	default:
	}
	if tn.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func always() bool { return true }
