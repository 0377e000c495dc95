package primacy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// Term is the time of one leader: from winning until the right to lead is over. It never comes
// back; winning again is another term with a larger token. It is safe for concurrent use.
type Term struct {
	c            *claim
	l            *lease // the claim's
	token        Token
	parent       context.Context            // whose values the term's context has
	rightEnded   atomic.Pointer[EndedError] // why the right is over: Check says no; nil while it is not
	contextEnded atomic.Pointer[EndedError] // why the context has ended; nil while it has not
	made         atomic.Pointer[contexts]   // nil until somebody asks: most terms of a lock end before that
	share        share                      // only of a lock's term

	// The claim's lock guards these.
	activeWork int32 // calls of work that run under this term
	overdue    bool  // the right ended while work ran, which has one more grace
	overran    bool  // it still ran after that grace
}

// contexts are the two contexts of a term.
type contexts struct {
	work        context.Context // ends when the work has to stop
	cancelWork  context.CancelCauseFunc
	right       context.Context // ends when the right is over
	cancelRight context.CancelFunc
}

func newTerm(c *claim, parent context.Context, token Token) *Term {
	return &Term{c: c, l: c.l, token: token, parent: parent}
}

// contexts returns the term's contexts, made when they are first asked for.
func (t *Term) contexts() *contexts {
	m := t.made.Load()
	if m == nil {
		m = &contexts{}
		m.work, m.cancelWork = context.WithCancelCause(holding(context.WithoutCancel(t.parent), t))
		m.right, m.cancelRight = context.WithCancel(context.Background())
		if !t.made.CompareAndSwap(nil, m) {
			m.cancelWork(nil)
			m.cancelRight()
			m = t.made.Load()
		}
	}
	t.catchUp(m) // the term may have ended before, or is ending on another goroutine
	return m
}

// catchUp cancels those contexts of m that have ended in t.
func (t *Term) catchUp(m *contexts) {
	if t.rightEnded.Load() != nil {
		m.cancelRight()
	}
	if e := t.contextEnded.Load(); e != nil {
		m.cancelWork(t.endedError(e))
	}
}

// Name returns the name led.
func (t *Term) Name() string { return t.c.name }

// Token returns the fencing token, 0 if the store has none (driver.TokenNone): a fence refuses 0. A
// lock's token is the store's token of the claim times 65,536, plus how many in this process held
// the lock under that claim before. Compare it with tokens of locks of that name only, not with
// those of an [Election].
func (t *Term) Token() Token { return t.token }

// ClaimToken returns the store's token of the claim. For an election that is the same as Token. For
// a lock, others of this process may have held it under the same claim before.
func (t *Term) ClaimToken() Token {
	if t.c.lock {
		return t.token >> turnBits
	}
	return t.token
}

// Shared says whether others may hold the name beside this term: it is a reader's, or that of a
// semaphore with several slots. A fence cannot take its token.
func (t *Term) Shared() bool { return t.c.slots != 0 && t.c.slots != 1 }

// Context returns a context with the values of the campaign's context. It ends when the work has to
// stop: when the term is resigned, deposed or asked to end, and one grace before the deadline when
// renewals fail. context.Cause tells why, as an [*EndedError]. The context is a hint that comes
// late after a pause of the process; what counts is [Term.Check].
func (t *Term) Context() context.Context { return t.contexts().work }

// Check returns nil if this process leads at this instant: the clock, read now, is before the
// deadline. Otherwise it returns why not, as an [*EndedError], and never nil again. It makes no
// call, takes no lock and allocates nothing while it says yes. Ask before each act: no check can
// recall a write that is already on its way, only a fence can (see [Term.Token]).
func (t *Term) Check() error {
	if e := t.rightEnded.Load(); e != nil {
		return t.endedError(e)
	}
	if t.l.s.clock() >= core.Time(t.l.deadline.Load()) {
		return t.expire()
	}
	return nil
}

// Deadline returns the instant after which this process must not act as leader: the reading of the
// boot clock before the last accepted renewal was sent, plus the TTL less the drift. It moves with
// each renewal, and is 0 once the term is over.
//
// It is no time.Time, unlike a context's deadline, but the time since this machine was booted
// (CLOCK_BOOTTIME on Linux): a wall clock may be set, and this one counts suspended time too.
// Programs of one machine may compare it; the time that is left is [Term.Remaining]. The term's
// context has no deadline of its own, since each renewal would move it.
func (t *Term) Deadline() time.Duration {
	if t.rightEnded.Load() != nil {
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

// Lease returns the ID under which the store knows the lease: for a guardian, which ends the lease
// once it has seen this process die (see [driver.Store]). It is the same for the whole term.
func (t *Term) Lease() string { return t.l.stored.ID() }

// TTL returns the time to live of the lease, as the store granted it.
func (t *Term) TTL() time.Duration { return t.l.timing.TTL }

// Since returns when the term was won, by this machine's wall clock. It is for people: nothing is
// decided by it. Of a lock it is when this process got it, which may be before the present holder
// got it.
func (t *Term) Since() time.Time {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return t.c.won
}

// Resign ends the term and gives the claim up, so that the next candidate leads at once. Calling it
// says that the work has stopped: nothing may act under the term any more. Check says no from here
// on. Resign returns nil once the store has confirmed the release, or if the term is over already.
// When ctx ends before that, the error is ErrUnreachable, and the release goes on in the background
// until the store confirms it or the lease runs out. If the term was asked to hand over to another
// candidate (see [Election.Ask]), Resign hands it over. If that candidate has left the line, the
// name is released.
func (t *Term) Resign(ctx context.Context) error {
	if t.share.q != nil { // the claim stays for the next in this process who wants the lock
		return t.share.q.giveBack(ctx, t)
	}
	t.c.giveUp() // this ends context and right, and starts the release in the background
	return t.c.waitFreed(ctx, "resign "+t.c.name)
}

// Unlock is [Term.Resign] for a defer: it needs no context, which may have ended by then. It waits
// for the store's answer for at most two attempts (Options.RenewAttempt). Without an answer the
// release goes on in the background, and the error is ErrUnreachable.
func (t *Term) Unlock() error { return t.unlock(context.Background()) }

func (t *Term) unlock(ctx context.Context) error {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*t.l.timing.Attempt)
	defer cancel()
	return t.Resign(limit)
}

// Explain says in words why the term is about to end, for its history and for [Session.Events];
// failed marks that its work has failed. Call it before [Term.Resign]; the last call counts. If
// somebody else asked for the end, the history has his words instead. If the store caused the end,
// the reason stays Expired or Deposed. A [Candidate] explains an error of its work by itself. For a
// lock Explain does nothing.
func (t *Term) Explain(text string, failed bool) {
	c := t.c
	if c.lock {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.rightOver {
		c.explanation, c.workFailed = text, failed
	}
}

// Outlived records in the history that the term's work was seen alive that long after the right had
// ended. Call it if the work is another process. Work that a [Candidate] runs needs no call: with
// OverrunWait it is recorded, with OverrunExit this process ends first.
func (t *Term) Outlived(by time.Duration) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.outlivedLocked(by)
}

// outlivedLocked has the session's historyWriter record the overrun, if the term has a history.
func (t *Term) outlivedLocked(by time.Duration) {
	if overran := t.c.record.recordOverrun; overran != nil {
		overran(t, by)
	}
}

// explain explains a term that ended because its work returned or panicked.
func (t *Term) explain(err error, returned bool) {
	switch {
	case !returned:
		t.Explain("the work panicked", true)
	case err != nil:
		t.Explain(err.Error(), true)
	}
}

// askToStop ends the term's context because the caller's own context ended, with the cause why. The
// right stays until Resign. If the term is ending already, because somebody asked for it, his
// request stays the cause.
func (t *Term) askToStop(why error) {
	if t.share.q != nil { // this term alone: others of this process may hold the lock under the claim
		t.endContext(&EndedError{Name: t.c.name, Token: t.token, Cause: why, lock: true})
		return
	}
	t.c.mu.Lock()
	if t.c.core.Phase() == core.Leading {
		t.c.callerCause = why
	}
	t.c.mu.Unlock()
	t.c.notify("", core.ClaimEvent{Kind: core.Ask, Cause: core.Resigned}, nil) // it ends the context
}

// endContext ends the context, for good.
func (t *Term) endContext(e *EndedError) {
	t.contextEnded.CompareAndSwap(nil, e)
	if m := t.made.Load(); m != nil {
		t.catchUp(m)
	}
}

// endRight makes Check say no, for good. First says that nothing did so before.
func (t *Term) endRight(e *EndedError) (first bool) {
	first = t.rightEnded.CompareAndSwap(nil, e)
	if m := t.made.Load(); m != nil {
		m.cancelRight()
	}
	return first
}

// contextError returns why the context has ended, nil if it has not.
func (t *Term) contextError() error {
	if e := t.contextEnded.Load(); e != nil {
		return t.endedError(e)
	}
	return nil
}

// givenBack stands for the usual end of a lock's term: its holder gave it back. One value stands
// for all, so that giving back allocates nothing; endedError fills in name and token when somebody
// asks.
var givenBack = &EndedError{Cause: ErrResigned, lock: true}

// endedError returns e, and for givenBack an error with the term's name and token.
func (t *Term) endedError(e *EndedError) *EndedError {
	if e == givenBack {
		return &EndedError{Name: t.c.name, Token: t.token, Cause: ErrResigned, lock: true}
	}
	return e
}

// expire is called when Check has seen that the deadline has passed. It ends the right of this term
// for good: a renewal that is answered at the same moment cannot make Check say yes again.
// LeaseEnding then ends the context. The lease's goroutine beat sees the deadline pass too, and
// ends the claim by LeaseOver.
func (t *Term) expire() error {
	cause := t.l.overCause()
	e := &EndedError{Name: t.c.name, Token: t.token, Cause: causeError(cause), lock: t.c.lock}
	if cause == core.Expired {
		e.Reason = t.l.stalls.inWords(core.Time(t.l.lastDeadline.Load()))
	}
	if t.endRight(e) {
		t.c.notify("", core.ClaimEvent{Kind: core.LeaseEnding, Cause: cause}, nil)
	}
	return t.endedError(t.rightEnded.Load())
}

// exitOverrun is the status of a process that ends itself because its work outlived its right:
// "leadership lost while it ran".
const exitOverrun = 122

func exitProcess(code int) {
	time.AfterFunc(100*time.Millisecond, func() { os.Exit(code) }) // stderr may block
	fmt.Fprintln(os.Stderr,
		"primacy: work is still running although leadership is over: this process ends itself (Options.Overrun)")
	os.Exit(code)
}

// watchOverrunLocked is called when the right of the term is over. If the right ended before the
// deadline (the claim was lost, the session was closed, a lock was given back), work that still
// runs may have had no warning. So it has one more grace to stop, but not beyond the deadline,
// since others may lead from then on. Work that runs after that has overrun.
func (t *Term) watchOverrunLocked() {
	if t.activeWork == 0 || t.overdue {
		return
	}
	t.overdue = true
	t.waitOverrun(min(t.l.s.clock()+t.l.timing.Grace, core.Time(t.l.lastDeadline.Load())))
}

// waitOverrun calls overrun at that time of the boot clock. It reads the clock once a second, since
// timers stand still in suspend.
func (t *Term) waitOverrun(until core.Time) {
	wait := until - t.l.s.clock()
	if wait <= 0 {
		go t.overrun()
		return
	}
	time.AfterFunc(min(wait, time.Second), func() { t.waitOverrun(until) })
}

// overrun reports work that still runs under this term, and ends the process if Options.Overrun
// says so. Work under other terms of the claim does not count.
func (t *Term) overrun() {
	c := t.c
	c.mu.Lock()
	activeWork, cause := t.activeWork, c.core.Cause()
	t.overran = activeWork > 0
	c.mu.Unlock()
	if activeWork == 0 {
		return
	}
	if cause == core.None {
		cause = core.Resigned // the work itself gave the lock back; the claim stands, and has no cause
	}
	s := c.l.s
	s.stats.overruns.Add(1)
	s.readers.publish(Event{Kind: WorkOverran, Name: c.name, Token: t.token, Lease: c.l.stored.ID(), Lock: c.lock})
	s.log.log(slog.LevelError, "work outlived its right", "election", c.name, "token", t.token, "cause", cause.String())
	if s.o.Overrun == OverrunExit {
		s.log.flush()
		s.exit(exitOverrun)
	}
}

// heldKey is the key of heldTerms in a context.
type heldKey struct{}

// heldTerms is the list of the terms whose work has the context: t, then those of outer.
type heldTerms struct {
	t     *Term
	outer *heldTerms
}

// holding returns a context for work under t. Its heldTerms are t and those of ctx.
func holding(ctx context.Context, t *Term) context.Context {
	outer, _ := ctx.Value(heldKey{}).(*heldTerms)
	return context.WithValue(ctx, heldKey{}, &heldTerms{t, outer})
}

// worksUnder says whether ctx is the context of t, or made from it.
func worksUnder(ctx context.Context, t *Term) bool {
	h, _ := ctx.Value(heldKey{}).(*heldTerms)
	for h != nil && h.t != t {
		h = h.outer
	}
	return h != nil
}

// share is one holder's part in a claim. A lock's queue shares a claim among several holders.
type share struct {
	q       lockQueue // made this term for one holder; nil: no other term shares the claim
	claimNo int       // the claim's number in the queue: a count, not its token
	given   bool      // the lock was given back; guarded by the queue's lock
}

// lockQueue is the queue, as far as a term needs it.
type lockQueue interface {
	giveBack(ctx context.Context, t *Term) error
}

// run runs work under the term, on this goroutine, and resigns the term when work has returned or
// panicked. Before it resigns it calls report: notBegun says why work was not begun, err is what
// work returned, and returned is false if work panicked. The end of ctx ends the term's context
// too.
func (t *Term) run(ctx context.Context, work func(context.Context, *Term) error,
	report func(notBegun, err error, returned bool),
) {
	defer context.AfterFunc(ctx, func() { t.askToStop(context.Cause(ctx)) })()
	notBegun, returned := t.beginWork(), false
	var err error
	defer func() {
		if notBegun == nil {
			t.endWork()
		}
		report(notBegun, err, returned)
		resignAll(ctx, []*Term{t})
	}()
	if notBegun == nil {
		err = work(t.Context(), t)
		returned = true
	}
}

// hold runs work in the term of a lock.
func (t *Term) hold(ctx context.Context, work func(context.Context, *Term) error) (err error) {
	t.run(ctx, work, func(notBegun, failed error, _ bool) {
		lost := notBegun
		if lost == nil {
			lost = t.Check()
		}
		if lost == nil && ctx.Err() == nil { // if ctx has ended, the term's context has too, and nothing is lost
			lost = t.contextError()
		}
		if err = failed; lost != nil {
			err = errors.Join(err, lost)
		}
	})
	return err
}

// resignAll resigns terms, all at the same time. A release that the store does not confirm within
// two attempts goes on in the background until the lease runs out.
func resignAll(ctx context.Context, held []*Term) {
	var all sync.WaitGroup
	for _, t := range held {
		all.Go(func() { _ = t.unlock(ctx) })
	}
	all.Wait()
}

// EndedError says that a term is over, or about to be, and why.
type EndedError struct {
	Name  string
	Token Token
	// Cause is ErrExpired, ErrDeposed, ErrResigned, ErrTransferred, ErrClosed, or the cause of the
	// caller's own context.
	Cause error
	By    string // who asked for the end, if somebody did
	// Reason is why he asked, in his words. Of ErrExpired it is what kept the lease from being
	// renewed, as far as this process knows.
	Reason string
	To     string // the ID of the session that he asked to lead next, if he named one
	lock   bool
}

// Error returns one line with everything known.
func (e *EndedError) Error() string {
	what := "leadership of"
	if e.lock {
		what = "the lock on"
	}
	s := fmt.Sprintf("%s %q", what, e.Name)
	if e.Token != 0 { // some stores have none
		s += fmt.Sprintf(" under token %d", e.Token)
	}
	s += fmt.Sprintf(" ended: %v", e.Cause)
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

// beginWork marks that work runs under the term, so that it is seen when it outlives its right. If
// the term is over already it marks nothing, and returns why.
func (t *Term) beginWork() error {
	if err := t.Check(); err != nil {
		return err
	}
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if e := t.rightEnded.Load(); e != nil {
		return t.endedError(e)
	}
	t.c.activeWork++
	t.activeWork++
	return nil
}

// endWork marks that the work has returned. It follows each beginWork that returned nil. A claim
// that was freed while work ran under it is kept by its lease until the last such call.
func (t *Term) endWork() {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	t.activeWork--
	if t.activeWork == 0 && t.overran {
		t.outlivedLocked(c.l.s.clock() - c.record.rightEnd)
	}
	if c.activeWork--; c.activeWork == 0 && c.freed {
		c.forgetLocked()
	}
}
