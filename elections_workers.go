package primacy

import (
	"context"
	"errors"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

const (
	maxCalls    = 4   // of the workers at a time
	maxTogether = 512 // claims in one call
)

// workers are the goroutines that enter, follow and release all claims of an Elections, and make
// the calls on the store for that. They end when there is nothing to do. A hand-over to a named
// successor and Term.Proclaim are not theirs: each has a goroutine of its own. Elections.mu guards
// this.
type workers struct {
	running int // how many there are
	limit   int // how many claims one call has: fewer while calls fail
	waiting [taskKinds]tasks
}

// attempt is one attempt to lead a name. Elections.mu guards it.
type attempt struct {
	es    *Elections
	name  string
	phase attemptPhase
	c     *entrant      // its claim, from the phase stands on
	began time.Duration // by uptime
}

// attemptPhase is how far an attempt has come:
//
//	phase        what it means                         what comes next
//	wantsSeat    another claim here has the seat       it is given the seat: wantsLease
//	wantsLease   it has the seat, but no lease         there is a lease: stands
//	stands       its claim enters the line, or waits   it wins: leads. The lease ends: wantsLease
//	leads        Terms has not yielded its term        Terms yields it: yielded
//	yielded      Terms has yielded its term            its claim is freed: attemptOver
//	leaves       its claim is being released           its claim is freed: attemptOver
//
// An attempt in one of the first four phases can be dropped: by Withdraw, if the store refuses it,
// or if its term ends. Then it goes to leaves if it has a claim, else to attemptOver.
//
// Elections.names has an attempt that is in one of the first four phases. It has a yielded one
// until the context of its term ends. It has none in leaves or attemptOver.
type attemptPhase uint8

const (
	wantsSeat attemptPhase = iota
	wantsLease
	stands
	leads
	leaves
	yielded // from here on Close does not wait: see pending
	attemptOver
)

// pending says whether Close waits for an attempt in this phase.
func (p attemptPhase) pending() bool { return p < yielded }

// entrant is a claim of an Elections, and its executor. The claim's lock guards seq, calling and
// ordered.
type entrant struct {
	claim
	attempt *attempt
	seq     uint32           // the number of its last task; earlier tasks do not count any more
	calling bool             // a call is under way
	ordered *core.ClaimOrder // given while the call is under way: it replaces what the answer leads to
}

// entrantOf returns the claim of a term that an Elections has won.
func entrantOf(t *Term) *entrant { return t.c.executor.(*entrant) }

// task is something to do for one claim.
type task struct {
	c   *entrant
	seq uint32
	do  taskKind
}

type tasks []task

// taskKind is what to do. The workers take the tasks in this order: first those without a call on
// the store, then releases, for which other processes wait, and at last those that enter a line.
type taskKind uint8

const (
	taskFollow taskKind = iota
	taskResign          // gives up a term that was never yielded: no work runs under it
	taskRelease
	taskEnter
	taskKinds
)

// followLocked posts the task of an order. If a call is under way it leaves the order in ordered,
// for goOnLocked. In this file and in elections.go the caller of an entrant's Locked method holds
// the claim's lock, and the caller of one of Elections holds Elections.mu.
func (c *entrant) followLocked(o core.ClaimOrder) {
	if c.calling {
		c.ordered = &o
		return
	}
	switch o.Do {
	case core.Await:
		c.postLocked(taskFollow, o.Tries)
	case core.Leave:
		c.postLocked(taskRelease, o.Tries)
	case core.Enter:
		c.postLocked(taskEnter, o.Tries)
	case core.HandOver:
		go c.release(o)
	} // Lead and Finish (the claim is Done) need no call: wonLocked and freedLocked have run already
}

func (c *entrant) releaseLocked(o core.ClaimOrder) {
	if o.Do == core.HandOver {
		go c.release(o)
		return
	}
	c.followLocked(o)
}

// goOnLocked goes on after a call. It follows ordered if an order came during the call, else o, to
// which the call's answer led.
func (c *entrant) goOnLocked(o core.ClaimOrder) {
	c.calling = false
	if c.ordered != nil {
		o, c.ordered = *c.ordered, nil
	}
	c.followLocked(o)
}

// postLocked replaces the claim's last task. After tries failed calls the task comes after a pause.
func (c *entrant) postLocked(do taskKind, tries int) {
	c.seq++
	j, es := task{c, c.seq, do}, c.attempt.es
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
	es.pool.waiting[j.do] = append(es.pool.waiting[j.do], j)
	if es.pool.running < maxCalls {
		es.pool.running++
		go es.work()
	}
}

// next takes tasks of one kind under one lease, at most limit.
func (w *workers) next() tasks {
	for kind, all := range w.waiting {
		n := 0
		for n < len(all) && n < w.limit && all[n].c.l == all[0].c.l {
			n++
		}
		if n == len(all) {
			w.waiting[kind] = nil
		} else {
			w.waiting[kind] = all[n:]
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
		case taskFollow:
			es.followAll(l, all)
		case taskResign:
			for _, j := range all {
				j.c.giveUp()
			}
		case taskRelease:
			es.releaseAll(l, all.begin(core.Leaving))
		case taskEnter:
			es.claimAll(l, all.begin(core.Entering))
		}
	}
}

// batchItem is one claim of a call on the store for many, and its place when the call began.
type batchItem struct {
	c *entrant
	p driver.Place
}

// begin returns the claims for which nothing else was ordered meanwhile, and marks that their call
// is under way. A place that is released carries the record of the term's end; for one that enters,
// leavingPlaceLocked has none to add.
func (all tasks) begin(phase core.ClaimPhase) []batchItem {
	calls := make([]batchItem, 0, len(all))
	for _, j := range all {
		j.c.mu.Lock()
		if j.seq == j.c.seq && j.c.core.Phase() == phase {
			j.c.calling = true
			calls = append(calls, batchItem{j.c, j.c.leavingPlaceLocked()})
		}
		j.c.mu.Unlock()
	}
	return calls
}

// claimAll enters claims in one call. If the answer is a final error, one of the claims is the
// reason, but the answer does not say which. So the call is repeated for each half of them, and in
// the end for that claim alone. A claim that has entered already keeps its place: the store finds
// it by its ID.
func (es *Elections) claimAll(l *lease, calls []batchItem) {
	if len(calls) == 0 {
		return
	}
	claims := make([]driver.Claim, len(calls))
	for i, k := range calls {
		claims[i] = driver.Claim{Name: k.p.Name, ID: k.p.ID, Value: es.spec.value}
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.timing.Attempt)
	places, err := l.stored.Claim(ctx, claims...)
	cancel()
	if half := len(calls) / 2; err != nil && isFinalForBatch(err) && half > 0 && l.ctx.Err() == nil {
		es.claimAll(l, calls[:half])
		es.claimAll(l, calls[half:])
		return
	}
	es.learn(len(calls), err)
	// A missing place becomes an empty one, which keepPlaceLocked refuses.
	places = append(places, make([]driver.Place, max(0, len(calls)-len(places)))...)
	for i, k := range calls {
		k.c.claimAnswered(k.p, places[i], err)
	}
}

// isFinalForBatch says whether err is final for one of the claims of a call, so that the call is
// repeated for each half.
func isFinalForBatch(err error) bool { return errors.Is(err, driver.ErrGone) || isRefusal(err) }

// learn sets how many claims the next call has: fewer after one whose outcome is unknown, since the
// store may be too slow for so many.
func (es *Elections) learn(n int, err error) {
	es.mu.Lock()
	defer es.mu.Unlock()
	switch {
	case err == nil:
		es.pool.limit = min(maxTogether, max(es.pool.limit, 2*n))
	case !isFinalForBatch(err) && n > 1:
		es.pool.limit = max(1, min(es.pool.limit, n/2))
	}
}

// claimAnswered takes the answer of a Claim. If something was ordered while the call was under way,
// goOnLocked follows that, and core does not hear of the answer: only the place is kept.
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
		l.stored.Follow(places...)
		l.s.sampleForDuplicates(l, places[0].Name) // is another process here under this ID?
	}
}

// releaseAll gives places up in one call. After a final error it repeats the call for each half, as
// claimAll does.
func (es *Elections) releaseAll(l *lease, calls []batchItem) {
	if len(calls) == 0 {
		return
	}
	e := core.ClaimEvent{Kind: core.LeaseOver} // a claim that is Leaving keeps its own cause
	if l.ctx.Err() == nil {
		places := make([]driver.Place, len(calls))
		for i, k := range calls {
			places[i] = k.p
		}
		ctx, cancel := context.WithTimeout(l.ctx, l.timing.Attempt)
		err := l.stored.Release(ctx, places...)
		cancel()
		half := len(calls) / 2
		switch {
		case err != nil && isFinalForBatch(err) && half > 0:
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
