package agent

import (
	"context"
	"time"

	"github.com/primacy-go/primacy"
)

// lookEvery is how often a campaign looks whether the member is still to stand.
const lookEvery = 20 * time.Millisecond

// stand campaigns, one campaign after another, while the member is to stand.
func (a *Agent) stand(ctx context.Context) {
	for ctx.Err() == nil {
		if !a.standing.Load() {
			pause(ctx, lookEvery)
			continue
		}
		campaign, cancel := context.WithCancel(ctx)
		go func() {
			for a.standing.Load() && campaign.Err() == nil {
				pause(campaign, lookEvery)
			}
			cancel()
		}()
		term, err := a.election.Campaign(campaign, &primacy.CampaignOptions{Value: a.claim.json.Load().([]byte)})
		withdrawn := campaign.Err() != nil
		cancel()
		switch {
		case err == nil:
			a.lead(ctx, term)
		case !withdrawn:
			a.cfg.Log.Warn("campaign", "err", err)
			pause(ctx, a.cfg.TTL/10)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// lead tells the loop of a term and of its end, and returns when the loop has given it up.
func (a *Agent) lead(ctx context.Context, term *primacy.Term) {
	a.send(ctx, func() {
		won(a, term)
		a.read(ctx)
	})
	go a.extend(ctx, term)
	select {
	case <-term.Context().Done():
	case <-ctx.Done():
		return
	}
	a.send(ctx, func() {}) // the loop looks
	select {
	case <-a.givenUp:
	case <-ctx.Done():
	}
}

// won takes in a new term. What was read of the record before says nothing of it.
func won(a *Agent, term *primacy.Term) {
	a.term, a.asked = term, nil
	a.seen.ReadFor, a.readsWon = 0, a.reads.Load()
}

// extend moves the server's deadline with the term's. A server that is not bound is not touched.
func (a *Agent) extend(ctx context.Context, term *primacy.Term) {
	deadline := term.Deadline()
	for deadline != 0 {
		if p := a.runner.process(); p != nil {
			p.Extend(deadline)
		}
		next, err := term.NextDeadline(ctx, deadline)
		if err != nil {
			return
		}
		deadline = next
	}
	a.send(ctx, func() {}) // the term is over: the loop looks
}
