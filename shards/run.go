package shards

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// errDone ends what Run has started, once all is given up.
var errDone = errors.New("the group's Run returns")

// run is Run. In this order: the member stands in the group's line; it takes and gives shards; ctx
// ends; its shards go to others; what is left is given up; its place in the group's line is given
// up last, so that the group knows of this member for as long as it owns anything.
func (g *Group) run(ctx context.Context, handler func(context.Context, *Shard) error) error {
	if err := g.admitted(ctx); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	base := context.WithoutCancel(ctx)
	life, fail := context.WithCancelCause(base)
	defer fail(errDone)
	shards, give := context.WithCancelCause(base)
	defer give(ErrLeft)
	first, err := g.begin(shards, handler)
	if err != nil {
		return err
	}
	defer g.end()
	logging, endLog := context.WithCancel(base)
	written := make(chan struct{})
	go func() {
		defer close(written)
		g.writeLog(logging)
	}()
	defer g.flush(written)
	defer endLog()
	var member sync.WaitGroup
	member.Go(func() {
		c := g.s.Candidate(g.name, &primacy.CampaignOptions{Value: first})
		if err := c.Run(life, g.assign); err != nil && life.Err() == nil {
			fail(err)
		}
	})
	member.Go(func() {
		for st, err := range g.s.Election(g.name).Observe(life) {
			if err == nil {
				err = g.follow(st)
			}
			if errors.Is(err, ErrShards) || errors.Is(err, primacy.ErrRefused) {
				fail(err)
				return
			}
		}
	})
	member.Go(func() { g.announce(life) })
	member.Go(func() { g.watchHealth(life) })
	select {
	case <-ctx.Done():
		g.leave(life)
	case <-life.Done():
	}
	g.stopStanding() // from here on nothing is added to working
	over := context.Cause(life)
	if over != nil {
		give(over)
	}
	give(ErrLeft)
	g.working.Wait()
	fail(errDone)
	member.Wait()
	return over
}

// admitted returns why this member cannot run the group, before it has changed anything.
func (g *Group) admitted(ctx context.Context) error {
	st, err := g.s.Election(g.name).State(ctx)
	if err != nil || st.Leader == nil {
		return err
	}
	r, err := decodeRecord(st.Leader.Value)
	switch {
	case err != nil:
		return fmt.Errorf("shards %s: %w: it is no group of shards: %s, who has it, announces %w; "+
			"use a name of its own for the group", g.name, primacy.ErrInvalid, st.Leader.ID, err)
	case r.Shards != g.n:
		return g.otherNumber(*st.Leader, r)
	}
	return nil
}

// inRun has the Groups that run. Two of one name on a session would share one announcement: the
// record of the one that leaves would count for the other, which then gets no shard.
var inRun sync.Map // runs → *Group

type runs struct {
	session *primacy.Session
	group   string
}

// begin makes the state of one Run. It returns the first record to announce.
func (g *Group) begin(shards context.Context, handler func(context.Context, *Shard) error) ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running {
		return nil, fmt.Errorf("shards %s: %w: this Group runs already; make another one", g.name, primacy.ErrInvalid)
	}
	if other, taken := inRun.LoadOrStore(runs{g.s, g.name}, g); taken && other != g {
		return nil, fmt.Errorf("shards %s: %w: another Group of this name runs on the session; end it first, "+
			"and wait until its Run has returned", g.name, primacy.ErrInvalid)
	}
	g.running, g.leaving, g.started = true, false, time.Now()
	g.shards, g.handler = shards, handler
	g.plan, g.mine, g.newest, g.stranger, g.moved = announcement{}, nil, 0, 0, nil
	clear(g.setBack)
	clear(g.movedAt)
	g.record.Draining, g.record.Avoid = false, nil
	g.healthy = g.o.Healthy == nil // of this Run nobody has asked yet
	g.record.Ready = g.ready && g.healthy
	// What a session announces under a name outlives a Run whose last claim the store has not
	// released yet: a record that says that this member leaves. So the own one is said once.
	g.tellLocked()
	return g.record.encode(), nil
}

// stopStanding has this member take no more shards.
func (g *Group) stopStanding() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaving = true
	g.standLocked()
}

func (g *Group) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = false
	inRun.Delete(runs{g.s, g.name})
}

// setAssigning says whether the assigner of this member announces the record. Afterwards announce
// has to: the store may show a record that is old by now.
func (g *Group) setAssigning(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.assigning = on
	g.tellLocked()
}

// announce brings each change of this member's record to the store. While this member is the
// assigner it does not: Restate erases what the term has proclaimed, and that is the plan.
func (g *Group) announce(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-g.changed:
		case <-ctx.Done():
			return
		}
		g.mu.Lock()
		value, assigning := g.record.encode(), g.assigning
		g.mu.Unlock()
		if assigning {
			continue
		}
		limit, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := g.s.Election(g.name).Restate(limit, value)
		cancel()
		g.restated.Add(1) // the assigner may have begun meanwhile: its plan is erased, and it has to know
		select {
		case g.recordChanged <- struct{}{}:
		default:
		}
		if errors.Is(err, primacy.ErrNotInLine) { // the candidate has not begun yet, or is between two claims
			g.mu.Lock()
			g.tellLocked()
			g.mu.Unlock()
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// leave gives this member's shards to others, and returns when they have them, or nobody is there
// to take them, or the time is over.
func (g *Group) leave(life context.Context) {
	if g.o.RestartGrace > 0 {
		g.leaveForRestart(life)
		return
	}
	g.mu.Lock()
	g.leaving, g.record.Draining = true, true
	g.tellLocked()
	g.standLocked()
	idle := make(chan struct{})
	if g.idle = idle; len(g.seats) == 0 {
		close(idle)
		g.idle = nil
	}
	g.mu.Unlock()
	if g.o.LeaveTimeout < 0 {
		return
	}
	limit, cancel := context.WithTimeout(life, g.o.LeaveTimeout)
	defer cancel()
	for {
		if st, err := g.s.Election(g.name).State(limit); err == nil && !g.othersIn(st) {
			return
		}
		select {
		case <-idle:
			return
		case <-limit.Done():
			return
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// othersIn says whether another member stands in the group's line that could take shards.
func (g *follower) othersIn(st primacy.State) bool {
	entries := st.Waiting
	if st.Leader != nil {
		entries = append([]primacy.Entry{*st.Leader}, entries...)
	}
	for _, e := range entries {
		if r, err := decodeRecord(e.Value); err == nil && r.Shards == g.n && !r.Draining && r.Instance != g.instance {
			return true
		}
	}
	return false
}

// leaveForRestart leaves a record, by which this member's shards wait for it. The record comes
// before the first shard is given up: the assigner would give it to another at once.
func (g *Group) leaveForRestart(ctx context.Context) {
	g.mu.Lock()
	g.leaving = true
	g.standLocked()
	var owned []int
	for i, at := range g.seats {
		if at.term != nil {
			owned = append(owned, i)
		}
	}
	a, seen := g.absence(time.Now(), g.o.RestartGrace, g.record.Weight, owned)
	g.mu.Unlock()
	if !seen {
		return
	}
	value, err := json.Marshal(a)
	if err == nil {
		limit, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, _, err = g.s.Store().(driver.Journal).Append(limit, journalName(g.name),
			driver.Record{Key: a.key(), Value: value}, absences)
	}
	if err != nil {
		g.log(slog.LevelWarn, "shards will not wait for this member", "err", err)
	}
}

// absence returns the record by which these shards wait for this member; ok says that the group has
// seen it.
func (g *follower) absence(at time.Time, grace time.Duration, weight int, owned []int) (a absence, ok bool) {
	a = absence{ID: g.id, At: at, Grace: grace, Weight: weight, Shards: packShards(owned), after: g.last}
	for _, t := range g.mine {
		a.token = max(a.token, t)
	}
	return a, a.token != 0
}

// What Options.Healthy is judged by.
const (
	healthEvery = 2 * time.Second
	healthFalls = 3 // failures in a row
	healthRises = 5 // successes in a row; the first one at the start
)

var errLate = fmt.Errorf("no answer within %v", healthEvery)

// watchHealth asks Options.Healthy again and again. One that hangs fails each time that it would be
// asked, and is not asked again before it has returned.
func (g *Group) watchHealth(ctx context.Context) {
	if g.o.Healthy == nil {
		return
	}
	bad, good, ever := 0, 0, false
	var late chan error // of a call that has not returned in time, and is over once it has
	for ctx.Err() == nil {
		limit, cancel := context.WithTimeout(ctx, healthEvery)
		answer := make(chan error, 1)
		if late == nil {
			go func() { answer <- g.o.Healthy(limit) }()
		}
		var err error
		select {
		case err = <-answer:
		case <-late:
			late, err = nil, errLate
		case <-limit.Done():
			if err = errLate; late == nil {
				late = answer
			}
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			good, bad = good+1, 0
			if good == healthRises || !ever {
				ever = true
				g.setHealthy(true)
			}
		} else if good, bad = 0, bad+1; bad == healthFalls {
			g.log(slog.LevelWarn, "this member is not healthy: its shards go to others", "err", err)
			g.setHealthy(false)
		}
		select {
		case <-time.After(healthEvery):
		case <-ctx.Done():
			return
		}
		select {
		case <-late:
			late = nil
		default:
		}
	}
}
