package shards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/primacy-go/primacy"
)

// seat is a shard that this member stands for or owns.
type seat struct {
	shard  int
	cancel context.CancelCauseFunc // gives up
	term   *primacy.Term           // while it owns the shard
}

// setBack says that this member does not stand for a shard for a while.
type setBack struct {
	until time.Duration
	times int  // how often in a row
	avoid bool // others should take it meanwhile
}

const (
	setBackFirst = time.Second // doubles each time
	setBackMost  = time.Minute
	avoidMost    = 100 // shards that a record names
)

// errUnwanted ends the wait for a shard that the plan does not name any more.
var errUnwanted = errors.New("the plan names another member for this shard")

// follow takes the group's line, and does what follows. The error ends Run.
func (g *Group) follow(st primacy.State) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	ok, err := g.heard(st)
	for _, i := range g.moved {
		g.movedAt[i] = g.now()
	}
	g.moved = nil
	if ok {
		g.standLocked()
	}
	return err
}

// follower is what a member knows from its group's line. It is pure.
type follower struct {
	name     string // of the group
	n        int
	id       string // of the session
	instance string // tells this Group from others under the same session ID
	log      func(level slog.Level, msg string, args ...any)

	plan     announcement    // the newest that was followed
	mine     []primacy.Token // of this member's claims in the group's line
	newest   primacy.Token   // the greatest of them there was
	last     primacy.Token   // the greatest of anybody's claims in it now
	stranger primacy.Token   // who led and was no member, as last told
	moved    []int           // shards that have moved by plans that were followed; follow takes them out
}

// heard takes the group's line: who this member is in it, and the plan; ok says that it is the line
// of a group. The error ends Run.
func (g *follower) heard(st primacy.State) (ok bool, err error) {
	if st.Leader == nil {
		return false, nil
	}
	r, err := decodeRecord(st.Leader.Value)
	if err != nil {
		if st.Leader.Token != g.stranger { // Run has looked at that before it began
			g.stranger = st.Leader.Token
			g.log(slog.LevelWarn, "the leader of the group's election is no member: nobody assigns shards",
				"leader", st.Leader.ID, "token", st.Leader.Token, "err", err)
		}
		return false, nil
	}
	g.mine, g.last = g.mine[:0], 0
	for _, e := range append([]primacy.Entry{*st.Leader}, st.Waiting...) {
		g.last = max(g.last, e.Token)
		if e.ID != g.id {
			continue
		}
		if own, err := decodeRecord(e.Value); err == nil && own.Instance == g.instance {
			g.mine = append(g.mine, e.Token)
		}
	}
	if r.Shards != g.n && !slices.Contains(g.mine, st.Leader.Token) {
		return false, g.otherNumber(*st.Leader, r)
	}
	if len(g.mine) > 0 {
		// Tokens of one line grow. If they do not, the line has begun anew (a backup was restored,
		// a Lease object deleted): all plans from now on have smaller epochs than the last before.
		own := slices.Max(g.mine)
		if own < g.newest && st.Leader.Token < g.plan.epoch {
			g.log(slog.LevelWarn, "tokens of the group's election went back: plans count from there",
				"last epoch", g.plan.epoch, "epoch", st.Leader.Token, "own token", own)
			g.plan, g.newest = announcement{}, own
		}
		g.newest = max(g.newest, own)
	}
	// A plan of another epoch is what that member announced when it led before.
	if a, err := decodeAnnouncement(r.Plan, g.n); err == nil && a.epoch == st.Leader.Token && a.newer(g.plan) {
		g.moved = append(g.moved, g.plan.doneBefore(a)...)
		g.plan = a
	}
	return true, nil
}

func (g *follower) otherNumber(leader primacy.Entry, r record) error {
	return fmt.Errorf("shards %s: %w: it has %d, as %s runs it, and this member was made for %d; "+
		"to change the number, stop all members first", g.name, ErrShards, r.Shards, leader.ID, g.n)
}

// standLocked stands for the shards that the plan names for this member, and gives up waiting for
// the others. A shard that this member owns stays: only a request to hand over ends that.
func (g *Group) standLocked() {
	wants := map[int]bool{}
	if !g.leaving {
		wants = g.plan.wants(g.mine)
	}
	for i, at := range g.seats {
		if at.term == nil && !wants[i] {
			at.cancel(errUnwanted)
		}
	}
	for i := range g.n {
		if wants[i] && g.seats[i] == nil && g.setBack[i].until <= g.now() {
			g.sitLocked(i)
		}
	}
}

// sitLocked stands for a shard, on a goroutine of its own.
func (g *Group) sitLocked(shard int) {
	ctx, cancel := context.WithCancelCause(g.shards)
	at := &seat{shard: shard, cancel: cancel}
	g.seats[shard] = at
	g.working.Go(func() {
		defer cancel(nil)
		began := g.now()
		left, why := g.own(ctx, at)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.seats, shard)
		if len(g.seats) == 0 && g.idle != nil {
			close(g.idle)
			g.idle = nil
		}
		if ctx.Err() == nil {
			g.setBackLocked(shard, left, g.now()-began)
		}
		g.standLocked() // the plan may name it for this shard again
		if at.term != nil {
			g.log(slog.LevelInfo, "shard given up", "shard", shard, "token", at.term.Token(), "why", why)
		}
	})
}

// own warms up, stands for the shard and owns it for one term. Left says that this member itself
// gave it up: the handler returned, or something failed. Why is for the log.
func (g *Group) own(ctx context.Context, at *seat) (left bool, why error) {
	if g.o.Warm != nil {
		if err := returned(func() error { return g.o.Warm(ctx, at.shard) }); err != nil {
			g.log(slog.LevelWarn, "not ready for a shard", "shard", at.shard, "err", err)
			return true, err
		}
	}
	c := g.s.Candidate(shardName(g.name, at.shard), &primacy.CampaignOptions{Value: g.o.Value})
	err := c.RunOnce(ctx, func(ctx context.Context, term *primacy.Term) error {
		if !g.took(at, term) {
			return nil
		}
		err := returned(func() error { return g.handler(ctx, &Shard{g.name, at.shard, term}) })
		if left = ctx.Err() == nil; left {
			g.log(slog.LevelWarn, "the handler of a shard has returned: the shard goes to another member",
				"shard", at.shard, "token", term.Token(), "err", err)
		}
		return err
	})
	var lost *primacy.EndedError
	if err != nil && !errors.As(err, &lost) && ctx.Err() == nil { // it was never won, or the handler failed
		left = true
	}
	return left, err
}

var errExited = errors.New("it has ended its goroutine (runtime.Goexit)")

// returned calls f on a goroutine of its own. So one that ends its goroutine, as t.FailNow does in
// a test, counts as one that has failed: otherwise its shard would stay with this member for ever,
// and nobody would work on it.
func returned(f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = errExited
		err = f()
	}()
	<-done
	return err
}

// took notes that this member owns the shard. It returns false if it leaves: then it must not begin
// anything.
func (g *Group) took(at *seat, term *primacy.Term) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leaving {
		return false
	}
	at.term = term
	g.log(slog.LevelInfo, "shard taken", "shard", at.shard, "token", term.Token())
	return true
}

// setBackLocked has this member not stand for a shard for a while, after it has lost it or given it
// up: a shard whose handler fails at once must not be won and lost without end. With left it tells
// the others too, so that the shard goes to one of them.
func (g *Group) setBackLocked(shard int, left bool, held time.Duration) {
	b := g.setBack[shard]
	if !left || held >= setBackMost {
		b.times = 0
	}
	wait := min(setBackFirst<<min(b.times, 10), setBackMost)
	b = setBack{until: g.now() + wait, times: b.times + 1, avoid: left}
	g.setBack[shard] = b
	g.setAvoidLocked()
	g.working.Go(func() {
		select {
		case <-time.After(wait):
		case <-g.shards.Done():
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.setAvoidLocked()
		g.standLocked()
	})
}

// setAvoidLocked sets which shards the record says to avoid.
func (g *Group) setAvoidLocked() {
	var avoid []int
	for i := range g.n {
		if b := g.setBack[i]; b.avoid && b.until > g.now() && len(avoid) < avoidMost {
			avoid = append(avoid, i)
		}
	}
	if !slices.Equal(avoid, g.record.Avoid) {
		g.record.Avoid = avoid
		g.tellLocked()
	}
}

// tellLocked has the new record announced.
func (g *Group) tellLocked() {
	for _, c := range []chan struct{}{g.changed, g.recordChanged} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
