package shards

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

const (
	lookGap     = 25 * time.Millisecond // the least time from one look at the lines to the next
	askAgain    = 2 * time.Second       // a request that the owner may not have got is repeated
	pausedLimit = time.Second           // Options.Paused may take so long
	asksMost    = 16                    // requests to owners under way at a time

	patienceLeast = time.Second // see assigner.lines

	// On some stores (registers, Kubernetes) a look at a group costs several calls for each shard.
	// At rest looking takes at most 1/restCost of the time, and while something is under way half.
	restCost = 20
	restMost = time.Minute
)

// assigner carries out what a decider decides, for one term.
type assigner struct {
	g    *Group
	term *primacy.Term
	d    *decider

	publisher
	paused   bool // what Options.Paused has said, at pausedAt
	pausedAt time.Duration
	answers  chan pauseAnswer // while Options.Paused is being asked; else nil

	gone []absence // what the last good read of the journal has said

	patience time.Duration // how long the next read of the shards' lines may take
	sent     chan move     // requests that went out to owners

	asked   map[int]askedOwner
	slots   chan struct{}
	asks    sync.WaitGroup
	pausing chan struct{} // of calls of Options.Paused for one shard each, that have not returned
}

// pauseAnswer is what Options.Paused has said.
type pauseAnswer struct {
	paused bool
	err    error
}

// askedOwner is whom the assigner has asked last for a shard.
type askedOwner struct {
	owner primacy.Token
	at    time.Duration
}

// now is the time since Run, of Go's clock: a pause of the machine only makes moves later.
func (g *Group) now() time.Duration { return time.Since(g.started) }

// assign is the work of the group's leader, until ctx ends.
func (g *Group) assign(ctx context.Context, term *primacy.Term) error {
	d := newDecider(g.n, g.o, term.Token())
	d.rest = g.resting()
	a := &assigner{g: g, term: term, d: d, pausedAt: -time.Hour,
		asked: map[int]askedOwner{}, slots: make(chan struct{}, asksMost), pausing: make(chan struct{}, asksMost),
		patience: patienceLeast, sent: make(chan move, asksMost)}
	heard := make(chan struct{}, 1)
	var listening sync.WaitGroup
	listening.Go(func() { a.listen(ctx, heard) })
	defer listening.Wait()
	defer a.asks.Wait()
	g.setAssigning(true)
	defer g.setAssigning(false)
	g.log(slog.LevelInfo, "this member assigns shards", "epoch", term.Token())
	for ctx.Err() == nil {
		gap, wake := a.look(ctx)
		select {
		case <-time.After(gap):
		case <-ctx.Done():
		}
		timer := time.NewTimer(max(0, wake-gap))
		select {
		case answer := <-a.answers:
			a.heardPaused(answer)
		case <-heard:
		case <-g.recordChanged:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

// resting returns until when shards are not moved for balance, by what this member has seen of an
// earlier assigner.
func (g *Group) resting() map[int]time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest := map[int]time.Duration{}
	for i, at := range g.movedAt {
		if until := at + g.o.Cooldown; until > g.now() {
			rest[i] = until
		}
	}
	return rest
}

// listen says when a member has come, left or changed its record. What this member announces
// itself is no news: each plan would have the assigner look again at once.
func (a *assigner) listen(ctx context.Context, heard chan<- struct{}) {
	var last []byte
	for st, err := range a.g.s.Election(a.g.name).Observe(ctx, primacy.WholeLine) {
		if err != nil {
			continue
		}
		var now []byte
		for _, e := range st.Waiting {
			now = fmt.Appendf(now, "%d %s\n", e.Token, e.Value)
		}
		if last != nil && bytes.Equal(now, last) {
			continue
		}
		last = append([]byte{}, now...)
		select {
		case heard <- struct{}{}:
		default:
		}
	}
}

// waits returns for how long not to look again whatever is heard, and when to look in any case,
// after a look that took cost. Wake is what the decider says.
func waits(cost, wake time.Duration) (gap, next time.Duration) {
	gap = max(lookGap, cost)
	if wake >= idleEvery {
		return gap, max(wake, min(restCost*cost, restMost))
	}
	return gap, max(wake, gap)
}

// look reads the lines, and carries out what follows. It returns for how long not to look again,
// and when to look in any case.
func (a *assigner) look(ctx context.Context) (gap, next time.Duration) {
	limit, cancel := context.WithTimeout(ctx, a.term.TTL())
	defer cancel()
	began := a.g.now()
	v, err := a.read(limit)
	if err != nil {
		if ctx.Err() == nil {
			a.g.log(slog.LevelWarn, "shards cannot be assigned now", "err", err)
		}
		return lookGap, time.Second
	}
	now := a.g.now()
	known := a.g.o.Paused == nil || began-a.pausedAt < time.Second // however long the look took
	for len(a.sent) > 0 {
		a.d.sent(<-a.sent)
	}
	out := a.d.step(now, v, a.paused, known)
	a.tell(out.changes)
	again, err := a.announce(limit, out.plan)
	if err != nil && ctx.Err() == nil {
		a.g.log(slog.LevelWarn, "the plan cannot be announced now", "err", err)
	}
	for _, m := range out.asks {
		a.ask(ctx, v, m)
	}
	if out.blocked { // after the plan is announced: what is not to wait for the answer does not
		a.askPaused(ctx)
	}
	if gap, next = waits(now-began, out.wake-now); again {
		next = gap
	}
	return gap, next
}

// read makes a view of the present lines.
func (a *assigner) read(ctx context.Context) (view, error) {
	g := a.g
	lines, err := a.lines(ctx) // before the group's line: see observe
	if err != nil {
		return view{}, err
	}
	line, err := g.s.Election(g.name).State(ctx)
	if err != nil {
		return view{}, err
	}
	gone, err := readAbsences(ctx, g.s.Store(), g.name, time.Now())
	if err != nil { // one failed read must not give away what waits for members that are being restarted
		g.log(slog.LevelWarn, "whether members are being restarted is known only from an earlier look", "err", err)
		gone = a.gone
	}
	a.gone = slices.Clone(gone)
	gone = a.d.present(g.now(), gone) // bounds by this process's clock what the last good read has said
	v := observe(g.name, g.n, line, lines, gone)
	for _, b := range v.returned(gone) {
		a.noteReturn(ctx, b)
	}
	return v, nil
}

// lines reads the lines of the shards. Where a store takes long for all of them each try that was
// too short is followed by one with twice the time, up to a TTL. At first it has a second only: a
// server that died without a word must not hold up a look for longer.
func (a *assigner) lines(ctx context.Context) ([]primacy.State, error) {
	limit, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	began := a.g.now()
	all, err := a.g.s.Store().Lines(limit, a.g.name+"/")
	if err != nil {
		err = fmt.Errorf("list the shards, within %v of a ttl of %v: %w", a.patience, a.term.TTL(), err)
		a.patience = min(2*a.patience, max(a.term.TTL(), patienceLeast))
		return nil, err
	}
	a.patience = min(max(patienceLeast, 3*(a.g.now()-began)), max(a.term.TTL(), patienceLeast))
	states := make([]primacy.State, len(all))
	for i, l := range all {
		states[i].Name = l.Name
		if l.Holder != nil {
			leader := entryOf(*l.Holder)
			states[i].Leader = &leader
		}
		for _, w := range l.Waiters {
			states[i].Waiting = append(states[i].Waiting, entryOf(w))
		}
	}
	return states, nil
}

// entryOf returns what observe reads of an entry.
func entryOf(e driver.Entry) primacy.Entry {
	return primacy.Entry{ID: e.Owner, Lease: e.Lease, Token: primacy.Token(e.Token), Value: e.Value}
}

// noteReturn writes down that a member is back from its restart. If that fails the next look tries
// again.
func (a *assigner) noteReturn(ctx context.Context, b absence) {
	value, err := json.Marshal(b)
	if j, ok := a.g.s.Store().(driver.Journal); ok && err == nil {
		_, _, err = j.Append(ctx, journalName(a.g.name), driver.Record{Key: b.key(), Value: value}, absences)
	}
	if err != nil && ctx.Err() == nil {
		a.g.log(slog.LevelWarn, "it cannot be noted that a member is back", "member", b.ID, "err", err)
	}
}

// askPaused asks Options.Paused in the background: until it answers no move begins that a pause
// forbids, and all else goes on. One that never returns is not asked again.
func (a *assigner) askPaused(ctx context.Context) {
	if a.answers != nil {
		return
	}
	answers := make(chan pauseAnswer, 1)
	a.answers = answers
	go func() { // nobody waits for it: the function may not return
		limit, cancel := context.WithTimeout(ctx, pausedLimit)
		defer cancel()
		paused, err := a.g.o.Paused(limit, a.g.name)
		answers <- pauseAnswer{paused, err}
	}()
}

// heardPaused notes the answer. An error counts as paused: moves can wait.
func (a *assigner) heardPaused(answer pauseAnswer) {
	a.answers, a.pausedAt = nil, a.g.now()
	if a.paused = answer.paused || answer.err != nil; answer.err != nil {
		a.g.log(slog.LevelWarn, "whether moves are paused is not known, so none is begun", "err", answer.err)
	}
}

// shardPaused says whether the moves of one shard are paused, or whether that is not known. Calls
// of Options.Paused that do not return are left behind, no more than asksMost.
func (a *assigner) shardPaused(ctx context.Context, shard int) bool {
	if a.g.o.Paused == nil {
		return false
	}
	select {
	case a.pausing <- struct{}{}:
	default:
		return true
	}
	limit, cancel := context.WithTimeout(ctx, pausedLimit)
	answers := make(chan bool, 1)
	go func() {
		defer cancel()
		paused, err := a.g.o.Paused(limit, shardName(a.g.name, shard))
		<-a.pausing
		answers <- paused || err != nil
	}()
	select {
	case paused := <-answers:
		return paused
	case <-limit.Done():
		return true
	}
}

// announce announces the plan beside this member's own record, if either has changed. With again
// the record has, so the next look will show another group: that this member leaves, say.
func (a *assigner) announce(ctx context.Context, p announcement) (again bool, err error) {
	a.g.mu.Lock()
	r := a.g.record
	a.g.mu.Unlock()
	value, untold := a.next(p, r, a.g.restated.Load()) // before Proclaim: a Restate meanwhile hides the plan again
	if value == nil {
		return false, nil
	}
	a.d.untold(untold)
	if err := a.term.Proclaim(ctx, value); err != nil {
		return false, err
	}
	return a.said(), nil
}

// publisher makes of plans what the assigner announces. It is pure.
type publisher struct {
	seq  uint64
	last publication // that the store has
	then publication // that said confirms
}

// publication is what was announced.
type publication struct {
	plan, record []byte // the plan without its number
	restated     uint64 // Group.restated as of then
}

// next returns what to announce, nil if it is what the store has, and the takes that it has no room
// for.
func (b *publisher) next(p announcement, r record, restated uint64) (value []byte, untold []take) {
	record := r.encode()
	plan := p.encodeAll() // the number is 0 here
	b.then = publication{plan, record, restated}
	if bytes.Equal(record, b.last.record) && bytes.Equal(plan, b.last.plan) && restated == b.last.restated {
		return nil, nil
	}
	b.seq++
	p.seq = b.seq
	room := (primacy.MaxValue - len(record) - len(`,"plan":""`)) / 4 * 3 // it is written in base64
	var told int
	r.Plan, told = p.encode(room)
	return r.encode(), p.takes[told:]
}

// said is told that the store has what next has returned. It returns whether the record is another.
func (b *publisher) said() (again bool) {
	again = !bytes.Equal(b.last.record, b.then.record)
	b.last = b.then
	return again
}

// ask asks the owner of a shard to hand over to the member that stands behind it, in the
// background. The store delivers that only to the term with that token.
func (a *assigner) ask(ctx context.Context, v view, m move) {
	now := a.g.now()
	if last := a.asked[m.shard]; last.owner == m.owner && now-last.at < askAgain {
		return
	}
	select {
	case a.slots <- struct{}{}:
	default:
		return // the next look asks
	}
	a.asked[m.shard] = askedOwner{m.owner, now}
	to := v.members[v.at(m.to)].id
	a.asks.Go(func() {
		defer func() { <-a.slots }()
		limit, cancel := context.WithTimeout(ctx, askAgain)
		defer cancel()
		if m.reason != Drain && a.shardPaused(limit, m.shard) {
			return // a later look asks again
		}
		select {
		case a.sent <- m:
		default: // a later request is told
		}
		_, err := a.g.s.Election(shardName(a.g.name, m.shard)).Ask(limit,
			primacy.Request{To: to, Token: m.owner, Reason: "shards: " + string(m.reason), Automatic: true})
		if err != nil && ctx.Err() == nil && !errors.Is(err, driver.ErrGone) { // gone: it has moved already
			a.g.log(slog.LevelWarn, "an owner was not asked to hand over", "shard", m.shard, "to", to,
				"err", err)
		}
	})
}

// tell logs what became of moves.
func (a *assigner) tell(changes []change) {
	for _, c := range changes {
		args := []any{"shard", c.shard, "reason", c.reason, "token", c.owner,
			"from", c.from, "to", c.id}
		if c.why != "" {
			args = append(args, "why", c.why)
		}
		a.g.log(slog.LevelInfo, "move "+c.what, args...)
	}
}
