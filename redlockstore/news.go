package redlockstore

import (
	"context"
	"fmt"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
)

// News returns what happened to places of the lease that their owner did not do, or blocks until there is something. Where nobody renews so often, it
// looks at the servers every few seconds whether the held ones stand.
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	every := min(max(2*time.Second, l.ttl/4), 4*time.Second, l.ttl/2)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l.mu.Lock()
		over := l.overLocked(boottime.Now())
		news, told, refused := l.news, l.told, l.refused
		if l.news = nil; len(news) == 0 {
			l.refused = nil
		}
		l.mu.Unlock()
		if over {
			return nil, fmt.Errorf("news: %w", driver.ErrGone)
		}
		if len(news) > 0 {
			return news, nil
		}
		if refused != nil {
			return nil, fmt.Errorf("news: %w", refused)
		}
		timer := time.NewTimer(min(every, max(0, l.left())+time.Millisecond))
		select {
		case <-timer.C:
			l.look(ctx, every)
		case <-told:
		case <-l.done:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// look finds out whether the held claims stand, unless that is known to have been so within the last while.
func (l *lease) look(ctx context.Context, within time.Duration) {
	l.mu.Lock()
	var held []*claim
	var keys []string
	for _, c := range l.claims {
		if c.held && boottime.Now()-l.checked >= within {
			held, keys = append(held, c), append(keys, l.s.key(c.Name))
		}
	}
	l.mu.Unlock()
	if len(held) == 0 {
		return
	}
	n := newCount(l.s, len(held))
	answers := l.s.fan(func(v *server) ([]any, error) { return v.call(look, l.limit, keys) })
	for range l.s.servers {
		select {
		case a := <-answers:
			n.add(l.states(a, held), 0)
		case <-ctx.Done():
			return
		}
	}
	if lost, short := l.judge(held, n); len(lost) == 0 && !short {
		l.mu.Lock()
		l.checked = boottime.Now()
		l.mu.Unlock()
	}
}

// states turns what was read into the states of claims.
func (l *lease) states(a answer, held []*claim) answer {
	if a.err != nil {
		return a
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := answer{at: a.at}
	for i, c := range held {
		is := "other"
		text, _ := a.got[2*i].(string)
		if text == "" {
			is = "none"
		} else if own, _, _, ok := parse(text[1:]); ok && text[0] == '=' && own == c.cur.own {
			is = "own"
		}
		out.got = append(out.got, is)
	}
	return out
}
