package primacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// Term is the time of one leader: from winning until the right to lead is over. It never comes
// back; winning again is another term with a larger token. It is safe for concurrent use.
type Term struct {
	c       *claim
	l       *lease
	token   Token
	values  context.Context            // of the campaign
	ended   atomic.Pointer[EndedError] // why the right is over
	stopped atomic.Pointer[EndedError] // why the context has ended, or would have
	made    atomic.Pointer[contexts]   // nil until somebody asks: most holds of a lock are over before that
	working int32                      // how much work of a candidate or a lock's Do runs; guarded by the claim's lock, as the next
	overdue bool                       // the right ended while the work ran
	share   share                      // of a lock that this process holds under a claim it hands on; zero: the claim is this term's alone
}

// contexts are those of a term.
type contexts struct {
	work  context.Context // ends when the work has to stop
	stop  context.CancelCauseFunc
	right context.Context // ends when the right is over
	end   context.CancelFunc
}

func newTerm(c *claim, values context.Context, token Token) *Term {
	return &Term{c: c, l: c.l, token: token, values: values}
}

// contexts returns the term's contexts, made when they are first asked for.
func (t *Term) contexts() *contexts {
	m := t.made.Load()
	if m == nil {
		m = &contexts{}
		m.work, m.stop = context.WithCancelCause(holding(context.WithoutCancel(t.values), t))
		m.right, m.end = context.WithCancel(context.Background())
		if !t.made.CompareAndSwap(nil, m) {
			m.stop(nil)
			m.end()
			m = t.made.Load()
		}
	}
	t.catchUp(m) // what ended before they were there, or is ending on another goroutine, has ended for who asks now
	return m
}

// catchUp ends those of the contexts whose time has come.
func (t *Term) catchUp(m *contexts) {
	if t.ended.Load() != nil {
		m.end()
	}
	if e := t.stopped.Load(); e != nil {
		m.stop(t.endedError(e))
	}
}

// Name returns the name led.
func (t *Term) Name() string { return t.c.name }

// Token returns the fencing token, 0 where the store has none (driver.TokenNone): a fence refuses
// that one.
func (t *Term) Token() Token { return t.token }

// ClaimToken returns the number under which the store knows the claim: for an election the token
// itself, for a lock that of the claim behind it, which others of this process may have held the
// lock under before.
func (t *Term) ClaimToken() Token {
	if t.c.lock {
		return t.token >> turnBits
	}
	return t.token
}

// Context returns a context with the values of the campaign's. It ends when the work has to stop:
// when the term is resigned, deposed or asked to end, and a grace before the deadline when renewals
// fail. context.Cause tells why, as an [*EndedError]. It is a hint that may come late (after a
// pause of the process); what counts is [Term.Check].
func (t *Term) Context() context.Context { return t.contexts().work }

// Check returns nil if this process leads at this instant: the clock, read now, is before the
// deadline. Otherwise it returns why not, as an [*EndedError], and never nil again. It makes no
// call, takes no lock and allocates nothing while it says yes. Ask before each act: no check can
// recall a write that is already on its way, only a fence can (see [Term.Token]).
func (t *Term) Check() error {
	if e := t.ended.Load(); e != nil {
		return t.endedError(e)
	}
	if t.l.s.clock() >= core.Time(t.l.deadline.Load()) {
		return t.expire()
	}
	return nil
}

// Deadline returns the instant after which this process must not act as leader, on the boot clock
// (CLOCK_BOOTTIME on Linux): the reading before the last accepted renewal was sent, plus the TTL
// less the drift. It moves with each renewal, and is 0 once the term is over.
func (t *Term) Deadline() time.Duration {
	if t.ended.Load() != nil {
		return 0
	}
	return time.Duration(t.l.deadline.Load())
}

// Remaining returns the time left until the deadline, 0 if it has passed.
func (t *Term) Remaining() time.Duration { return max(0, t.Deadline()-t.l.s.clock()) }

// NextDeadline blocks until the deadline differs from after, and returns it: 0 once the term is
// over. It returns ctx's cause when ctx ends first.
func (t *Term) NextDeadline(ctx context.Context, after time.Duration) (time.Duration, error) {
	right := t.contexts().right
	for {
		t.l.mu.Lock()
		moved := t.l.moved
		t.l.mu.Unlock()
		if d := t.Deadline(); d != after {
			return d, nil
		}
		select {
		case <-moved:
		case <-right.Done():
			return 0, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// Lease returns the ID under which the store knows the lease, for who is to end it once this
// process is seen dead (see [driver.Store]). It is the same for the whole term.
func (t *Term) Lease() string { return t.l.dl.ID() }

// TTL returns the time to live of the lease, as the store granted it.
func (t *Term) TTL() time.Duration { return t.l.timing.TTL }

// Since returns when the term was won, by this machine's wall clock. It is for people: nothing is
// decided by it. Of a lock it is when this process got it, which may be before its present holder
// did.
func (t *Term) Since() time.Time {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.c.won
}

// Proclaim replaces the value that observers see. It repeats the call until the store answers or
// ctx ends (ErrUnreachable: the value may or may not have changed). Once the term is over it
// returns why.
func (t *Term) Proclaim(ctx context.Context, value []byte) error {
	if err := checkValue(value); err != nil {
		return err
	}
	if err := t.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.contexts().right, cancel)()
	err := t.l.s.retry(ctx, "proclaim "+t.c.name, func(ctx context.Context) error {
		answer := make(chan error, 1)
		go func() { answer <- t.l.dl.Update(ctx, t.c.place, value) }()
		select { // a store client that ignores its context must not keep the work from stopping
		case err := <-answer:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err == nil {
		t.c.mu.Lock()
		t.c.said = bytes.Clone(value)
		t.c.mu.Unlock()
	}
	if errors.Is(err, driver.ErrGone) {
		t.c.notify(t.c.place.ID, core.ClaimEvent{Kind: core.Lost}, nil)
	}
	if over := t.Check(); err != nil && over != nil {
		return over
	}
	return err
}

// Resign ends the term and gives the claim up, so that the next candidate leads at once. Calling it
// says that the work has stopped: nothing may act under the term any more. Check says no from here
// on. It returns nil once the store has confirmed, or if the term is over already. When ctx ends
// before that the release goes on in the background until the store confirms it or the lease runs
// out, and the error is ErrUnreachable. A term that was asked to hand over to another candidate
// (see [Election.Ask]) does so; if that one stands no more, it is released.
func (t *Term) Resign(ctx context.Context) error {
	if t.share.q != nil {
		return t.share.q.giveBack(ctx, t)
	}
	t.c.giveUp()
	return t.c.released(ctx)
}

// Explain says in words why the term is about to end, for its history and for [Session.Events];
// failed marks that its work has failed. Call it before [Term.Resign]. The last words count; what
// others asked for, or the store did, keeps its own reason. A candidate explains what its work
// returned by itself. Of locks nothing is kept.
func (t *Term) Explain(text string, failed bool) {
	c := t.c
	if c.lock {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.rightOver {
		c.words, c.failed = text, failed
	}
}

// explain says what became of the work, if it has ended the term itself.
func (t *Term) explain(err error, returned bool) {
	switch {
	case !returned:
		t.Explain("the work panicked", true)
	case err != nil:
		t.Explain(err.Error(), true)
	}
}

// stop ends the term's context for the owner's own reason. The right stays until Resign.
func (t *Term) stop(why error) {
	if t.share.q != nil { // others may hold under the same claim
		t.stopWork(&EndedError{Name: t.c.name, Token: t.token, Cause: why, lock: true})
		return
	}
	t.c.mu.Lock()
	if t.c.core.Phase() == core.Leading {
		t.c.why = why
	}
	t.c.mu.Unlock()
	t.c.notify("", core.ClaimEvent{Kind: core.Ask, Cause: core.Resigned}, nil)
}

// stopWork ends the context, for good.
func (t *Term) stopWork(e *EndedError) {
	t.stopped.CompareAndSwap(nil, e)
	if m := t.made.Load(); m != nil {
		t.catchUp(m)
	}
}

// endRight makes Check say no, for good.
func (t *Term) endRight(e *EndedError) {
	t.ended.CompareAndSwap(nil, e)
	if m := t.made.Load(); m != nil {
		m.end()
	}
}

// stopping returns why the context has ended, nil if it has not.
func (t *Term) stopping() error {
	if e := t.stopped.Load(); e != nil {
		return t.endedError(e)
	}
	return nil
}

// givenBack stands for the end of a lock that was given back and has no story: made out only for
// who asks.
var givenBack = &EndedError{Cause: ErrResigned, lock: true}

// endedError returns e, filled in with name and token if it is the shared givenBack.
func (t *Term) endedError(e *EndedError) *EndedError {
	if e == givenBack {
		return &EndedError{Name: t.c.name, Token: t.token, Cause: ErrResigned, lock: true}
	}
	return e
}

// expire latches what the clock said, so that a renewal processed at the same moment cannot make
// Check say yes again, and tells the claim, which then ends the context and gives the place up.
func (t *Term) expire() error {
	e := &EndedError{Name: t.c.name, Token: t.token, Cause: ErrExpired, lock: t.c.lock}
	if cause := t.l.cause(); cause != core.None {
		e.Cause = causeError(cause)
	}
	if t.ended.CompareAndSwap(nil, e) {
		t.endRight(e)
		t.c.notify("", core.ClaimEvent{Kind: core.LeaseEnding, Cause: core.Expired}, nil)
	}
	return t.endedError(t.ended.Load())
}

// exitOverrun is the status of a process that ends itself because its work outlived its right:
// "leadership lost while it ran".
const exitOverrun = 122

func exitProcess(code int) {
	time.AfterFunc(100*time.Millisecond, func() { os.Exit(code) }) // a stderr that takes nothing must not keep it alive
	fmt.Fprintln(os.Stderr, "primacy: work is still running although leadership is over: this process ends itself (Options.Overrun)")
	os.Exit(code)
}

// watchOverrunLocked acts on work that is still running though the right of its term is over. Where
// the right ended without warning the work gets the grace to stop, but never more than the time for
// which the store keeps others out. The claim's lock is held.
func (t *Term) watchOverrunLocked() {
	if t.working == 0 || t.overdue {
		return
	}
	t.overdue = true
	t.waitOverrun(min(t.l.s.clock()+t.l.timing.Grace, core.Time(t.l.trusted.Load())))
}

// waitOverrun looks at the clock once a second at least: timers stand still in suspend.
func (t *Term) waitOverrun(until core.Time) {
	left := until - t.l.s.clock()
	if left <= 0 {
		go t.overrun()
		return
	}
	time.AfterFunc(min(left, time.Second), func() { t.waitOverrun(until) })
}

func (t *Term) overrun() {
	c := t.c
	c.mu.Lock()
	working, cause := t.working, c.core.Cause()
	c.mu.Unlock()
	if working == 0 {
		return
	}
	if cause == core.None {
		cause = core.Resigned // the claim stands: the work has given its own term back
	}
	s := c.l.s
	s.stats.overruns.Add(1)
	s.readers.event(Event{Kind: WorkOverran, Name: c.name, Token: t.token, Lease: c.l.dl.ID(), Lock: c.lock})
	s.log.log(slog.LevelError, "work outlived its right", "election", c.name, "token", t.token, "cause", cause.String())
	if s.o.Overrun == OverrunExit {
		s.log.flush()
		s.exit(exitOverrun)
	}
}

// heldKey finds, in a term's context, what its holder holds.
type heldKey struct{}

// holds is one term that a context was made for. Outer are the terms that the context around it was
// made for.
type holds struct {
	t     *Term
	outer *holds
}

// holding returns a context that knows of t.
func holding(ctx context.Context, t *Term) context.Context {
	outer, _ := ctx.Value(heldKey{}).(*holds)
	return context.WithValue(ctx, heldKey{}, &holds{t, outer})
}

// heldError says which term is in the way.
type heldError struct {
	name  string
	token Token
	err   error
}

func (e *heldError) Error() string {
	return "primacy: lock " + e.name + ": " + e.err.Error() + ", under token " + e.token.String()
}

func (e *heldError) Unwrap() error { return e.err }

// share is what a lock's term knows of the claim that it holds under, beside others.
type share struct {
	q interface {
		giveBack(ctx context.Context, t *Term) error
	} // the lock's queue
	tenure int
	given  bool // back; guarded by the queue's lock
}

// run runs work under the term, on this goroutine, and gives the term back when work has returned
// or panicked: it has stopped then, so the next one may lead. Between the two settle is called,
// with why work was not begun, or nil, and with false if it panicked. The term's context ends for
// ctx's end too.
func (t *Term) run(ctx context.Context, work func(context.Context, *Term) error,
	settle func(refused, err error, returned bool),
) {
	defer context.AfterFunc(ctx, func() { t.stop(context.Cause(ctx)) })()
	refused, returned := t.beginWork(), false
	var err error
	defer func() {
		if refused == nil {
			t.endWork()
		}
		settle(refused, err, returned)
		_ = resignAll(ctx, []*Term{t}) // unconfirmed: it goes on in the background until the lease runs out
	}()
	if refused == nil {
		err = work(t.Context(), t)
		returned = true
	}
}

// hold runs work in the term of a lock.
func (t *Term) hold(ctx context.Context, work func(context.Context, *Term) error) (err error) {
	t.run(ctx, work, func(refused, failed error, _ bool) {
		lost := refused
		if lost == nil {
			lost = t.Check()
		}
		if lost == nil && ctx.Err() == nil { // else its context ended by the caller's
			lost = t.stopping()
		}
		if err = failed; lost != nil {
			err = errors.Join(err, lost)
		}
	})
	return err
}

// resignAll gives locks back, all at once. What is not confirmed in time goes on in the background.
func resignAll(ctx context.Context, held []*Term) error {
	errs := make([]error, len(held))
	var all sync.WaitGroup
	for i, t := range held {
		all.Go(func() {
			limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*t.l.timing.Attempt)
			defer cancel()
			errs[i] = t.Resign(limit)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// EndedError says that a term is over, or about to be, and why.
type EndedError struct {
	Name   string
	Token  Token
	Cause  error  // ErrExpired, ErrDeposed, ErrResigned, ErrTransferred, ErrClosed, or the cause of the caller's own context
	By     string // who asked for it, if somebody did
	Reason string // why he did, in his words
	lock   bool
}

// Error returns one line with everything known.
func (e *EndedError) Error() string {
	what := "leadership of"
	if e.lock {
		what = "the lock on"
	}
	s := fmt.Sprintf("%s %q under token %d ended: %v", what, e.Name, e.Token, e.Cause)
	if e.By != "" {
		s += fmt.Sprintf(", asked by %s", e.By)
	}
	if e.Reason != "" {
		s += fmt.Sprintf(" (%s)", e.Reason)
	}
	return s
}

// Unwrap returns the cause.
func (e *EndedError) Unwrap() error { return e.Cause }

// beginWork marks that work runs under the term, so that it is seen when it outlives its right. It
// returns why not if the term is over already.
func (t *Term) beginWork() error {
	if err := t.Check(); err != nil {
		return err
	}
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if e := t.ended.Load(); e != nil {
		return t.endedError(e)
	}
	t.c.working++
	t.working++
	return nil
}

// endWork marks that work which beginWork let begin has returned.
func (t *Term) endWork() {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	t.working--
	if c.working--; c.working == 0 && c.freed {
		c.settleLocked()
	}
}
