package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// Wait implements [driver.Lease]. An exclusive claim is told of by the events of its line (see
// await), a shared one looks when something happened that it may wait for (see verdict).
func (l *lease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	what := verb("wait for", p.Name)
	p, err := l.seats.known(p)
	if err != nil {
		return p, err
	}
	a := l.newWaiter(p, make(chan struct{}, 1))
	a.enlist()
	l.newsbox.cover(a.at, 1)
	kept := false
	defer func() {
		if kept {
			return
		}
		a.leave()
		l.newsbox.cover(a.at, -1)
		l.newsbox.watchSoon(a.at, uint64(a.token)) // a claim that holds now is watched by itself
	}()
	var watches livenessSubs
	defer func() { watches.stop() }()
	var last []string // whose sessions are watched
	for rounds, looks := 0, 0; ; {
		f, unsure, next := a.ask()
		wake, pause := a.changed, etcdwire.PollAfter(rounds)
		switch {
		case f == holds:
			if kept = l.newsbox.keepHeld(a); !kept && l.hasEnded(a) {
				return p, placeGone("wait for", p.Name)
			}
			p.Held = true
			return p, nil
		case f == ended:
			l.newsbox.add(a.at)
			return p, placeGone("wait for", p.Name)
		case unsure && looks < 3:
			far, err := l.recheck(ctx, what, p, a)
			var st standing
			if !far && err == nil {
				st, err = l.inspect(ctx, what, p)
			}
			switch {
			case far:
				looks, rounds = looks+1, 0
				continue
			case errors.Is(err, driver.ErrRefused):
				return p, err
			case err != nil:
				pause = etcdwire.Again
			case !st.stands, st.held && l.hasEnded(a): // by hand, between the read and its answer
				return p, placeGone("wait for", p.Name)
			case st.held:
				l.show(p, st)
				p.Held = true
				return p, nil
			default:
				a.learn(st)
				looks, rounds = looks+1, 0
				continue
			}
		case unsure: // the line changes faster than we can look
			wake, pause = nil, etcdwire.Again/10
		}
		if !slices.Equal(next, last) {
			last, watches = next, l.s.liveness.watchAll(watches, next, a.doubt)
		}
		looks = 0
		quiet, err := l.pause(ctx, wake, pause)
		switch {
		case err != nil:
			return p, fmt.Errorf("etcd: %s: %w", what, err)
		case unsure:
			rounds = 0
		case quiet:
			if _, ok, _ := l.still(ctx, what, p, a.right()); ok {
				rounds++
			} else {
				a.doubt()
			}
		}
	}
}

// recheck clears a's doubt if a is still far from its turn, and reports whether it did. With an
// error nothing is known.
func (l *lease) recheck(ctx context.Context, what string, p driver.Place, a *waiter) (bool, error) {
	far := a.farthest()
	if far.rev == 0 {
		return false, nil
	}
	rev, ok, err := l.still(ctx, what, p, far)
	return ok && a.confirm(rev), err
}

// hasEnded reports whether the claim that a Wait is for has ended by now, and has News say so.
func (l *lease) hasEnded(a *waiter) bool {
	gone := a.hasEnded()
	if gone {
		l.newsbox.add(a.at)
	}
	return gone
}
