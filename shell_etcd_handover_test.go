package primacy

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// handOverLimit is how long a hand-over takes at most where nothing is amiss. Polls beside the watches, which are for watches that have died,
// take 4 s at least.
const handOverLimit = 500 * time.Millisecond

// TestAHandOverOnEtcdWaitsForNoPoll: where nothing goes wrong, the next in line leads at once after a resignation, and when a claim is deleted by hand
// its holder hears of it at once too.
func TestAHandOverOnEtcdWaitsForNoPoll(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(strconv.Itoa(int(seed+1)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, seed+1, true)
				r.handOvers(16)
				r.end()
				r.report()
			})
		})
	}
}

// leading is a term and whose it is.
type leading struct {
	m    *node
	term *Term
}

func (r *rig) handOvers(n int) {
	won := make(chan leading, len(r.nodes))
	ctx, cancel := context.WithCancel(context.Background())
	campaign := func(m *node) {
		term, err := m.sess.Election("x").Campaign(ctx, nil)
		if err == nil {
			won <- leading{m, term}
		} else if ctx.Err() == nil {
			r.failf("n%d: Campaign: %v", m.i, err)
		}
	}
	for _, m := range r.nodes {
		go campaign(m)
		time.Sleep(time.Second)
	}
	now := <-won
	for i := range n {
		time.Sleep(within(r.rnd, 3*time.Second))
		begun := r.now()
		if i%4 == 3 {
			r.deleteClaim(now.term)
			<-now.term.Context().Done()
			r.fast("its claim was deleted: n%d heard of it", now.m, begun)
		}
		if err := now.term.Resign(context.Background()); err != nil && i%4 != 3 {
			r.failf("n%d: Resign: %v", now.m.i, err)
		}
		next := <-won
		r.fast("the line moved up: n%d led", next.m, begun)
		go campaign(now.m)
		now = next
	}
	cancel()
	_ = now.term.Resign(context.Background())
	time.Sleep(time.Second)
}

// deleteClaim deletes the claim of a term by hand.
func (r *rig) deleteClaim(term *Term) {
	for _, kv := range r.c.Keys("primacy/" + term.Name() + "/") {
		if kv.CreateRevision != int64(term.Token()) {
			continue
		}
		done := r.byHand(kv, tookClaim)
		if err := r.c.Delete(context.Background(), string(kv.Key), kv.CreateRevision); err != nil {
			r.failf("by hand: delete %s: %v", kv.Key, err)
		}
		done()
	}
}

func (r *rig) fast(what string, m *node, begun time.Duration) {
	if took := r.now() - begun; took > handOverLimit {
		r.failf(what+" after %v, want %v at most", m.i, took, handOverLimit)
	}
}
