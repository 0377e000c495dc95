package primacy

import (
	"context"
	"errors"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

const (
	maxCalls    = 4   // on the store at a time
	maxTogether = 512 // claims in one call
)

// workers are the goroutines that make the calls for all claims of an Elections. They end when
// there is nothing to do. Elections.mu guards it.
type workers struct {
	running int // how many there are
	limit   int // how many claims one call has: fewer while calls fail
	follow  tasks
	leave   tasks
	enter   tasks
}

// entrant is a claim of an Elections, and its executor. The claim's lock guards seq, calling and
// ordered; Elections.mu guards yielded and dropped.
type entrant struct {
	claim
	es      *Elections
	seq     uint32           // the number of its last task; earlier tasks do not count any more
	calling bool             // a call is under way
	ordered *core.ClaimOrder // what to do after that call, whatever its answer
	yielded bool             // Terms has yielded its term
	dropped bool             // Terms never will
}

// of returns the claim of a term that an Elections has won.
func of(t *Term) *entrant { return t.c.executor.(*entrant) }

// task is one order for one claim.
type task struct {
	c   *entrant
	seq uint32
	do  core.Action
}

type tasks []task

// carryLocked makes the call of an order, after the call that is under way. The caller holds the
// claim's lock, as for all methods of an entrant that end in Locked.
func (c *entrant) carryLocked(o core.ClaimOrder) {
	switch {
	case c.calling:
		c.ordered = &o
	case o.Do == core.Enter, o.Do == core.Await, o.Do == core.Leave:
		c.es.postLocked(c, o.Do, o.Tries)
	case o.Do == core.HandOver:
		go c.release(o)
	}
}

func (c *entrant) releaseLocked(o core.ClaimOrder) {
	if o.Do == core.HandOver {
		go c.release(o)
		return
	}
	c.carryLocked(o)
}

// goOnLocked goes on after a call: with the order that came meanwhile, else with o, to which the
// call's answer led.
func (c *entrant) goOnLocked(o core.ClaimOrder) {
	c.calling = false
	if c.ordered != nil {
		o, c.ordered = *c.ordered, nil
	}
	c.carryLocked(o)
}

// postLocked makes a task of an order, in place of the claim's last one, after the pause that this
// many tries need. The caller holds the claim's lock.
func (es *Elections) postLocked(c *entrant, do core.Action, tries int) {
	c.seq++
	j := task{c, c.seq, do}
	if tries > 0 {
		time.AfterFunc(jittered(tries), func() { es.post(j) })
		return
	}
	es.post(j)
}

// post leaves a task to the workers.
func (es *Elections) post(j task) {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.pool.add(j)
	if es.pool.running < maxCalls {
		es.pool.running++
		go es.work()
	}
}

func (w *workers) add(j task) {
	switch j.do {
	case core.Enter:
		w.enter = append(w.enter, j)
	case core.Await:
		w.follow = append(w.follow, j)
	default:
		w.leave = append(w.leave, j)
	}
}

// next takes tasks of one kind under one lease. Following comes first, since it makes no call; then
// leaving, so that others lead soon.
func (w *workers) next() tasks {
	for _, from := range []*tasks{&w.follow, &w.leave, &w.enter} {
		all := *from
		n := 0
		for n < len(all) && n < w.limit && all[n].c.l == all[0].c.l && all[n].do == all[0].do {
			n++
		}
		if n == len(all) {
			*from = nil
		} else {
			*from = all[n:]
		}
		if n > 0 {
			return all[:n]
		}
	}
	return nil
}

func (es *Elections) work() {
	for {
		es.mu.Lock()
		all := es.pool.next()
		if all == nil {
			es.pool.running--
			es.mu.Unlock()
			return
		}
		es.mu.Unlock()
		l := all[0].c.l
		switch all[0].do {
		case core.Enter:
			es.claimAll(l, all.begin(core.Entering))
		case core.Await:
			es.followAll(l, all)
		case core.Leave:
			es.releaseAll(l, all.begin(core.Leaving))
		default:
			for _, j := range all {
				j.c.giveUp()
			}
		}
	}
}

// call is one claim of a call on the store, and the claim's place when that began.
type call struct {
	c *entrant
	p driver.Place
}

// begin returns the tasks that still count.
func (all tasks) begin(phase core.ClaimPhase) []call {
	calls := make([]call, 0, len(all))
	for _, j := range all {
		j.c.mu.Lock()
		if j.seq == j.c.seq && j.c.core.Phase() == phase {
			j.c.calling = true
			calls = append(calls, call{j.c, j.c.leavingPlaceLocked()})
		}
		j.c.mu.Unlock()
	}
	return calls
}

// claimAll enters claims in one call. A final error of the store is about one of them, but does not
// say about which. So each half is asked by itself, until one claim is left with the error. A claim
// that entered already is found by its ID.
func (es *Elections) claimAll(l *lease, calls []call) {
	if len(calls) == 0 {
		return
	}
	claims := make([]driver.Claim, len(calls))
	for i, k := range calls {
		claims[i] = driver.Claim{Name: k.p.Name, ID: k.p.ID, Value: es.spec.value}
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.timing.Attempt)
	places, err := l.dl.Claim(ctx, claims...)
	cancel()
	if half := len(calls) / 2; err != nil && isAnswer(err) && half > 0 && l.ctx.Err() == nil {
		es.claimAll(l, calls[:half])
		es.claimAll(l, calls[half:])
		return
	}
	es.learn(len(calls), err)
	places = append(places, make([]driver.Place, max(0, len(calls)-len(places)))...) // the rest is no place
	for i, k := range calls {
		k.c.claimAnswered(k.p, places[i], err)
	}
}

// isAnswer says whether the store has given a final answer.
func isAnswer(err error) bool { return errors.Is(err, driver.ErrGone) || isRefusal(err) }

// learn sets how many claims the next call has: fewer after one whose outcome is unknown, since the
// store may be too slow for so many.
func (es *Elections) learn(n int, err error) {
	es.mu.Lock()
	defer es.mu.Unlock()
	switch {
	case err == nil:
		es.pool.limit = min(maxTogether, max(es.pool.limit, 2*n))
	case !isAnswer(err) && n > 1:
		es.pool.limit = max(1, min(es.pool.limit, n/2))
	}
}

// claimAnswered takes the answer of a Claim. It does not count if an event ordered something else
// meanwhile.
func (c *entrant) claimAnswered(asked, got driver.Place, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.keepPlaceLocked(asked, got, err)
	o := core.ClaimOrder{}
	if c.ordered == nil {
		o = c.answeredLocked(got, err)
	}
	c.goOnLocked(o)
}

// followAll has the lease's news tell when places are held.
func (es *Elections) followAll(l *lease, all tasks) {
	var places []driver.Place
	for _, j := range all {
		j.c.mu.Lock()
		if j.seq == j.c.seq && j.c.core.Phase() == core.Waiting {
			places = append(places, j.c.place)
		}
		j.c.mu.Unlock()
	}
	if len(places) > 0 {
		l.dl.Follow(places...)
	}
}

// releaseAll gives places up in one call. It finds which one a final error is about as claimAll
// does.
func (es *Elections) releaseAll(l *lease, calls []call) {
	if len(calls) == 0 {
		return
	}
	e := core.ClaimEvent{Kind: core.LeaseOver}
	if l.ctx.Err() == nil {
		places := make([]driver.Place, len(calls))
		for i, k := range calls {
			places[i] = k.p
		}
		ctx, cancel := context.WithTimeout(l.ctx, l.timing.Attempt)
		err := l.dl.Release(ctx, places...)
		cancel()
		half := len(calls) / 2
		switch {
		case err != nil && isAnswer(err) && half > 0:
			es.releaseAll(l, calls[:half])
			es.releaseAll(l, calls[half:])
			return
		case err == nil || errors.Is(err, driver.ErrGone):
			e.Kind = core.Left
		default:
			e.Kind = core.Failed
		}
		es.learn(len(calls), err)
	}
	for _, k := range calls {
		k.c.releaseAnswered(e)
	}
}

// releaseAnswered takes the answer of a Release.
func (c *entrant) releaseAnswered(e core.ClaimEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.goOnLocked(c.stepLocked(e))
}
