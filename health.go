package primacy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
	pauses "github.com/primacy-go/primacy/pause"
)

// HealthOptions say how a [Health] checks. The zero value works.
type HealthOptions struct {
	// Interval is the time from the begin of one check to that of the next. Default 2 s, at least
	// 100 ms. Give all candidates of an election the same: a leader waits for Interval + Timeout so
	// that the others can find out whether they are unhealthy too.
	Interval time.Duration
	// Timeout of one check, which is told by its context. A check that has not returned by then has
	// failed. Default 2 s, at least 50 ms.
	Timeout time.Duration
	// Fall is how many failures in a row make the candidate unhealthy. Default 3.
	Fall int
	// Rise is how many successes in a row make it healthy again. Default 5. At first, one does.
	Rise int
	// GiveUp says what an unhealthy leader does if nobody waits to take over: resign. By default it
	// leads on.
	GiveUp bool
}

// Health keeps a candidate out of the line while a check of its process fails, and has it hand over
// what it leads. Set CampaignOptions.Health to it. It is safe for concurrent use, and one Health
// can serve all elections of a session.
//
// A candidate is unhealthy until the check has succeeded once, after Fall failures in a row, and
// then until Rise successes in a row. While it is unhealthy it does not stand: it enters no line,
// and leaves those in which it waits. So whoever waits is healthy.
//
// A leader that has been unhealthy for Interval + Timeout hands over to the candidate that has
// waited longest. If nobody waits it leads on, or with GiveUp resigns. If the same check fails
// everywhere, all others have left the line by then, so nobody hands over. While the election is
// paused (package pause) nobody hands over either.
//
// Whoever has handed over is on hold for 30 s: it enters no line that has a leader. Each further
// time the hold is twice as long, up to 10 minutes. Once it has handed over nothing for an hour,
// the next hold is 30 s again. During that hour its Priority does not count.
//
// Health never lengthens a term. A check that hangs holds up nothing but the next check.
type Health struct {
	s     *Session
	check func(context.Context) error
	o     HealthOptions

	mu      sync.Mutex
	core    core.Health
	last    error         // of the last check that failed
	since   time.Time     // when health changed, or was told at the start, by the wall clock
	gave    Token         // the last term that was handed over, or given up, because it was unhealthy
	changed chan struct{} // closed, and replaced, when something of the above that others wait for changes
}

// HealthState is what a [Health] knows.
type HealthState struct {
	Healthy bool
	Since   time.Time     // when that changed, by the wall clock: for people
	Held    time.Duration // how much longer it stays out of lines that have a leader, since it has handed over
	Last    error         // of the last check that failed; nil while it is healthy
	GaveUp  Token         // the last term that was to end because the candidate was unhealthy; 0: none
}

// NewHealth returns a Health that calls check, one call at a time, from now on until the session is
// closed. Check returns nil if this process could do the work, or could go on with it; it has to
// return when its context ends. An option that cannot work is an ErrInvalid.
func NewHealth(s *Session, check func(context.Context) error, o *HealthOptions) (*Health, error) {
	h := &Health{s: s, check: check, changed: make(chan struct{}), since: time.Now().Round(0), last: errNoCheck}
	if o != nil {
		h.o = *o
	}
	h.o.Interval = cmp.Or(h.o.Interval, 2*time.Second)
	h.o.Timeout = cmp.Or(h.o.Timeout, 2*time.Second)
	switch {
	case check == nil:
		return nil, invalid("health: there is no check")
	case h.o.Interval < 100*time.Millisecond || h.o.Timeout < 50*time.Millisecond:
		return nil, invalid("health: interval %v, timeout %v: use at least 100ms, 50ms", h.o.Interval, h.o.Timeout)
	case h.o.Fall < 0 || h.o.Rise < 0:
		return nil, invalid("health: fall %d and rise %d must not be negative", h.o.Fall, h.o.Rise)
	}
	h.core.Rules = core.HealthRules{Fall: h.o.Fall, Rise: h.o.Rise}.Fill(h.o.Interval + h.o.Timeout)
	go h.run()
	return h, nil
}

var (
	errNoCheck   = errors.New("no check has ended yet")
	errUnhealthy = errors.New("this candidate is unhealthy")
	errHung      = errors.New("the check has not returned in time")
)

// State returns what is known now.
func (h *Health) State() HealthState {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.s.clock()
	st := HealthState{Healthy: h.core.Healthy(), Since: h.since}
	if until := h.core.HeldUntil(now); until > 0 {
		st.Held = until - now
	}
	if !st.Healthy {
		st.Last = h.last
	}
	st.GaveUp = h.gave
	return st
}

// run makes one check after the other until the session is closed.
func (h *Health) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	running := false // a call of check has not returned. No other is begun until it has
	hung := false    // that call has exceeded Timeout, and was counted as a failure for it
	result := make(chan error, 1)
	for {
		began := time.Now()
		timeout := time.NewTimer(h.o.Timeout)
		if !running {
			running, hung = true, false
			go func() {
				limit, cancel := context.WithTimeout(ctx, h.o.Timeout)
				defer cancel()
				result <- h.check(limit)
			}()
		}
		select {
		case err := <-result:
			running = false
			if hung { // it counted as a failure when it was late. What it says now does not count
				timeout.Stop()
				continue
			}
			if err == nil && time.Since(began) >= h.o.Timeout { // it ignores its context
				err = errHung
			}
			h.checked(err)
		case <-timeout.C:
			hung = true
			h.checked(fmt.Errorf("%w: %v", errHung, h.o.Timeout))
		case <-h.s.shut:
		}
		timeout.Stop()
		next := time.NewTimer(max(h.o.Interval-time.Since(began), 0))
		select {
		case <-next.C:
		case <-h.s.shut:
			next.Stop()
			return
		}
	}
}

// checked takes the outcome of a check.
func (h *Health) checked(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.last = err
	}
	if !h.core.Checked(h.s.clock(), err == nil) {
		return
	}
	h.since = time.Now().Round(0)
	ev := Event{Kind: HealthChanged}
	if err != nil {
		ev.Cause, ev.Text = err, err.Error()
	}
	h.s.readers.publish(ev)
	h.s.log.log(slog.LevelInfo, "health changed", "healthy", err == nil, "err", err)
	h.tellLocked()
}

// tellLocked wakes who waits for a change.
func (h *Health) tellLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// look returns what the core says, and a channel that is closed when that may have changed.
func look[T any](h *Health, ask func(c *core.Health, now core.Time) T) (T, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return ask(&h.core, h.s.clock()), h.changed
}

// healthy says whether the candidate is healthy. H may be nil: then it is.
func (h *Health) healthy() (bool, <-chan struct{}) {
	if h == nil {
		return true, nil
	}
	return look(h, func(c *core.Health, _ core.Time) bool { return c.Healthy() })
}

// presses says whether the candidate's priority counts. H may be nil: then it does.
func (h *Health) presses() bool {
	if h == nil {
		return true
	}
	yes, _ := look(h, func(c *core.Health, now core.Time) bool { return c.Presses(now) })
	return yes
}

// awaitStand returns nil once the candidate may enter the line of name, or ctx's cause. H may be
// nil. While only the hold keeps it out, the line is read once in an interval: nobody is kept out
// of a line that has no leader.
func (h *Health) awaitStand(ctx context.Context, name string) error {
	if h == nil {
		return nil
	}
	type answer struct{ ifLed, ifFree bool }
	for ctx.Err() == nil {
		may, changed := look(h, func(c *core.Health, now core.Time) answer {
			return answer{c.MayStand(now, true), c.MayStand(now, false)}
		})
		if may.ifLed {
			return nil
		}
		again := &time.Timer{} // its channel is nil
		if may.ifFree {
			if line, err := lineOf(ctx, h.s, name); err == nil && line.Holder == nil {
				return nil
			}
			again = time.NewTimer(h.o.Interval/2 + rand.N(h.o.Interval))
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
		}
		if again.C != nil {
			again.Stop()
		}
	}
	return context.Cause(ctx)
}

// whileHealthy returns ctx, with an end for errUnhealthy when the candidate becomes unhealthy. H
// may be nil.
func (h *Health) whileHealthy(ctx context.Context) (context.Context, context.CancelFunc) {
	if h == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for ctx.Err() == nil {
			healthy, changed := h.healthy()
			if !healthy {
				cancel(errUnhealthy)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// lineOf asks the store once.
func lineOf(ctx context.Context, s *Session, name string) (driver.Line, error) {
	limit, cancel := context.WithTimeout(ctx, s.callLimit)
	defer cancel()
	return s.store.Line(limit, name)
}

// guard watches the health of a leader until the term's context has ended. Once it has been
// unhealthy for long enough (core.HealthRules.Settle), the term is handed over to who waits. If
// nobody waits it goes on, or with HealthOptions.GiveUp is resigned.
func (h *Health) guard(t *Term) {
	ctx := t.Context()
	told := "" // why it leads on
	for ctx.Err() == nil {
		var at core.Time
		yes, changed := look(h, func(c *core.Health, now core.Time) bool {
			yes, when := c.HandsOver(now)
			at = when
			return yes
		})
		var again <-chan time.Time
		switch {
		case yes:
			kept, done := h.giveUp(ctx, t)
			if done {
				return
			}
			if kept != "" && kept != told {
				told = kept
				h.keeps(t, kept)
			}
			again = time.After(h.o.Interval)
		case at > 0:
			again = time.After(max(at-h.s.clock(), 0))
		default:
			told = ""
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// keeps tells that an unhealthy leader leads on.
func (h *Health) keeps(t *Term, why string) {
	h.s.readers.publish(Event{Kind: UnhealthyLeads, Name: t.c.name, Token: t.token, Lease: t.Lease(), Text: why})
	h.s.log.log(slog.LevelWarn, "unhealthy but leads on", "election", t.c.name, "token", t.token, "why", why)
}

// giveUp hands the term over, or resigns it: then done. Kept says why an unhealthy leader leads on;
// it is empty if the candidate is healthy again, or the term is about to end anyway.
func (h *Health) giveUp(ctx context.Context, t *Term) (kept string, done bool) {
	line, err := lineOf(ctx, h.s, t.c.name)
	if err != nil {
		return "who waits is not known: " + err.Error(), false
	}
	if line.Holder == nil || line.Holder.Token != uint64(t.token) || line.Holder.Lease != t.Lease() {
		return "", false
	}
	next := h.waits(line)
	switch healthy, _ := h.healthy(); {
	case healthy:
		return "", false
	case next == nil && !h.o.GiveUp:
		return "nobody else waits", false
	}
	switch p, err := h.mayChange(ctx, t.c.name, next); {
	case err != nil:
		return "whether the election is paused is not known: " + err.Error(), false
	case p != nil:
		return p.String(), false
	}
	h.mu.Lock()
	if h.core.Healthy() { // since the store was asked: what it has admitted ends by its time
		h.mu.Unlock()
		return "", false
	}
	why := fmt.Sprintf("unhealthy since %s: %v", h.since.UTC().Format(time.TimeOnly), h.last)
	h.core.Left(h.s.clock())
	h.gave = t.token
	h.mu.Unlock()
	r := driver.Request{Token: uint64(t.token), By: h.s.o.ID, Reason: cut(why)}
	e := core.ClaimEvent{Kind: core.Ask, Cause: core.Resigned}
	if _, handsOver := t.l.stored.(driver.Transferer); handsOver && named(next) {
		r.To, e.Cause, e.Successor = next.Owner, core.Transferred, next.Token
	}
	t.c.notify("", e, &r) // as if somebody else had asked for it: the work is told to stop
	return "", true
}

// mayChange returns the pause in which name is not given up, nil if there is none. Then it lets
// next be elected, also in a pause that is set meanwhile: the work takes its time to stop.
func (h *Health) mayChange(ctx context.Context, name string, next *driver.Entry) (*pauses.Pause, error) {
	ctx, cancel := context.WithTimeout(ctx, h.s.callLimit)
	defer cancel()
	if !named(next) {
		return pauses.Of(ctx, h.s.store, name)
	}
	return pauses.AdmitUnlessPaused(ctx, h.s.store, name, next.Owner, next.Token, h.s.o.ID)
}

// named says whether a claim can be named as the next one to lead.
func named(e *driver.Entry) bool { return e != nil && e.Owner != "" && e.Token != 0 }

// waits returns who has waited longest to lead in place of this process, nil if nobody does.
func (h *Health) waits(line driver.Line) *driver.Entry {
	for _, w := range line.Waiters {
		if w.Owner != h.s.o.ID && w.Lease != line.Holder.Lease && w.Slots == 0 {
			return &w
		}
	}
	return nil
}

// gate is what stands between a candidate and its term, beside the line: its health, and a pause in
// which nobody new is elected. Neither decides who leads. A gate only keeps this candidate out. Of
// a term that a gate does not let begin nobody hears: no event, no log line, no count, no record.
type gate struct {
	s      *Session
	name   string
	health *Health // nil: none
	pauses bool    // nobody is elected while a pause forbids it

	told     bool // that nobody new is elected
	gaveBack bool // it has won in that pause already
}

// campaign campaigns until a term is won that may begin. It returns as Session.campaign does.
func (g *gate) campaign(ctx context.Context, spec claimSpec) (*Term, error) {
	spec.gated = g.health != nil || g.pauses
	for {
		if err := g.await(ctx); err != nil {
			return nil, err
		}
		t, err := g.once(ctx, spec)
		switch {
		case err == nil:
			if g.health != nil {
				go g.health.guard(t)
			}
			return t, nil
		case !errors.Is(err, errUnhealthy) && !errors.Is(err, errGivenBack):
			return nil, err
		}
	}
}

// await returns nil once this candidate may stand. It ends with ctx, and with the session.
func (g *gate) await(ctx context.Context) error {
	if !g.pauses && g.health == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-g.s.shut:
			cancel(ErrClosed)
		case <-ctx.Done():
		}
	}()
	err := g.health.awaitStand(ctx, g.name)
	if err == nil {
		err = g.awaitElections(ctx)
	}
	if err != nil {
		return ctxEnded(ctx, "campaign for "+g.name, nil)
	}
	return nil
}

// errGivenBack says that a term was given back, or lost, before it began.
var errGivenBack = errors.New("given back")

// once campaigns once. ErrUnhealthy says that the candidate has left the line for its health.
func (g *gate) once(ctx context.Context, spec claimSpec) (*Term, error) {
	// The end of standing reaches the claim only while it waits: a term's context has the values of
	// this one, and not its end.
	standing, leave := g.health.whileHealthy(ctx)
	defer leave()
	t, err := g.s.campaign(standing, seat{name: g.name}, spec)
	if err != nil {
		return nil, err
	}
	begins := false
	defer func() {
		if !begins { // also if the store's client panics, and the application recovers
			_ = t.Unlock() // the release goes on in the background
		}
	}()
	if healthy, _ := g.health.healthy(); !healthy { // it was won in the moment in which it became unhealthy
		return nil, errUnhealthy
	}
	if g.pauses {
		p, err := g.forbidden(ctx, t)
		switch {
		case ctx.Err() != nil && (p != nil || err != nil):
			return nil, ctxEnded(ctx, "campaign for "+g.name, nil)
		case t.Context().Err() != nil: // somebody asks for its end, or it is lost: of a pause that says nothing
			return nil, errGivenBack
		case p != nil || err != nil:
			g.tell(p, err)
			g.gaveBack = true
			return nil, errGivenBack
		}
	}
	if begins = t.Check() == nil && g.begin(t); !begins {
		return nil, errGivenBack
	}
	return t, nil
}

// begin tells the observers of the term that it begins, and says whether it does: not if its end
// has begun. Then nobody hears of it.
func (g *gate) begin(t *Term) bool {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.untold:
	case c.core.Phase() != core.Leading:
		return false
	default:
		c.untold = false
		tellBegunLocked(c)
	}
	return true
}

// forbidden returns the pause that forbids the term that was won, nil if there is none. It asks
// until the store answers, until the term or ctx ends, and no longer than a TTL: others may get an
// answer. An error says that nobody knows.
func (g *gate) forbidden(ctx context.Context, t *Term) (p *pauses.Pause, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.TTL())
	defer cancel()
	defer context.AfterFunc(t.Context(), cancel)()
	err = g.s.retry(ctx, "read the pauses", func(ctx context.Context) (err error) {
		p, err = pauses.Elect(ctx, g.s.store, g.name, g.s.o.ID, uint64(t.token))
		return err
	})
	return p, err
}

// tell tells once that nobody new is elected, or that nobody knows.
func (g *gate) tell(p *pauses.Pause, err error) {
	if g.told {
		return
	}
	g.told = true
	why := fmt.Sprintf("what is paused is not known: %v", err)
	if p != nil {
		why = p.String()
	}
	g.s.readers.publish(Event{Kind: ElectionPaused, Name: g.name, Text: why})
	g.s.log.log(slog.LevelWarn, "not leading: nobody new is elected", "election", g.name, "why", why)
}

// While nobody new is elected the pauses are read about every pauseLook, and the line each fifth
// time. All campaigns of a session share a reading that is no older than pausesFor.
const (
	pauseLook = 3 * time.Second
	lineLook  = 5
	pausesFor = time.Second
)

// awaitElections returns nil once this candidate may stand, or ctx's cause. While nobody new is
// elected it stands only behind a leader, since an operator may name it. Where nobody leads it
// would win, to give the place back: whoever looks at the line would see a leader that never leads.
// One that has given back already stands only behind a leader that it has seen twice: the others
// give back one after the other, too.
func (g *gate) awaitElections(ctx context.Context) error {
	if !g.pauses {
		return nil
	}
	var leader uint64
	if g.gaveBack {
		g.rest(ctx) // a reading from before the pause would have it win again, and again
	}
	for looks := 0; ; looks++ {
		at := time.Now()
		if looks > 0 || g.gaveBack {
			at = at.Add(-pausesFor)
		}
		r, err := g.s.pauses.Since(ctx, at)
		p := r.Forbids(g.name, "", 0)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && p == nil:
			if g.told {
				g.s.readers.publish(Event{Kind: ElectionResumed, Name: g.name})
			}
			g.told, g.gaveBack = false, false
			return nil
		case err != nil && !isRefusal(err) && !g.told: // once it has won it asks for longer
			return nil
		}
		if looks%lineLook == 0 {
			before := leader
			if leader = g.leader(ctx); leader != 0 && (leader == before || !g.gaveBack && !g.told) {
				return nil
			}
		}
		g.tell(p, err)
		g.rest(ctx)
	}
}

// rest waits until the pauses are read again, or ctx ends.
func (g *gate) rest(ctx context.Context) {
	t := time.NewTimer(pauseLook/2 + rand.N(pauseLook))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// leader returns the token of whoever leads, as the store shows it; 0 if nobody does, or if the
// store does not say.
func (g *gate) leader(ctx context.Context) uint64 {
	line, err := lineOf(ctx, g.s, g.name)
	if err != nil || line.Holder == nil {
		return 0
	}
	return line.Holder.Token
}
