package main

import (
	"context"
	"time"
)

// What leads resigns: how long until the next one leads.

const lease = 10 * time.Second // TTL of the rows in which no lease ends

// handoverGoal: the floor is the release and one push of a watch that stands. What a waiter's age
// costs beyond it, the peer pays too.
var handoverGoal = Goal{Floor: 1 / 1.1, FloorP99: 2}

func handoverBenches() []*Bench {
	young, old := 25*time.Millisecond, 250*time.Millisecond
	toYoung, toOld := handover(young, 40), handover(old, 16)
	return []*Bench{
		{Name: "hand-over, waiter has stood 25 ms", Run: toYoung, Floor: toYoung, Lines: []Line{{
			Row: 6, Key: "handover", What: "resign → next leads, waiter has stood 25 ms", Unit: Seconds,
			Chart: "hand-over to a young waiter", Goal: handoverGoal}}},
		{Name: "hand-over, waiter has stood 250 ms", Run: toOld, Floor: toOld, Lines: []Line{{
			Row: 7, Key: "handover", What: "resign → next leads, waiter has stood 250 ms", Unit: Seconds,
			Chart: "hand-over to an old waiter", Goal: handoverGoal}}},
	}
}

// handover has two processes hand one election to and fro.
func handover(stands time.Duration, rounds int) run {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) {
		rounds := rounds
		if c.Lease > 0 {
			rounds = min(rounds, 4) // each takes about a lease
		}
		pair, err := e.team(ctx, c, 2, 1, lease)
		if err != nil {
			return nil, err
		}
		defer pair.close()
		name := e.Name("handover")
		var g guard
		leader, err := pair.members[0].session.Campaign(ctx, name)
		if err == nil {
			err = g.enter(leader)
		}
		var took []float64
		for i := 0; i < rounds+4 && err == nil; i++ {
			var d time.Duration
			leader, d, err = handOn(ctx, pair.members[(i+1)%2].session, name, leader, &g, stands)
			if i >= 4 { // the first ones open connections and watches
				took = append(took, d.Seconds())
			}
		}
		return Sample{"handover": times(took)}, err
	}
}

// handOn has next stand for a while, then the leader resign, and returns how long it took from the
// one's call to the other's return.
func handOn(ctx context.Context, next Session, name string, leader Held, g *guard, stands time.Duration) (Held, time.Duration, error) {
	type win struct {
		h   Held
		at  time.Time
		err error
	}
	won := make(chan win, 1)
	go func() {
		h, err := next.Campaign(ctx, name)
		won <- win{h, time.Now(), err}
	}()
	if err := sleep(ctx, stands); err != nil {
		return nil, 0, err
	}
	g.leave()
	begin := time.Now()
	if err := leader.Release(ctx); err != nil {
		return nil, 0, err
	}
	w := <-won
	if w.err != nil {
		return nil, 0, w.err
	}
	return w.h, w.at.Sub(begin), g.enter(w.h)
}
