package redisstore

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// learn asks, in the background, what others have done to the lease.
func (l *lease) learn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.later()
}

// later is learn for who has the mutex.
func (l *lease) later() {
	if l.gone {
		return
	}
	l.resync = true
	if l.syncing {
		return
	}
	l.syncing = true
	l.s.spawn(func() {
		for l.more() {
			ctx, cancel := context.WithTimeout(l.s.ctx, callLimit)
			err := l.reconcile(ctx, l.s.calls)
			cancel()
			if err != nil && l.s.ctx.Err() == nil {
				l.mu.Lock()
				l.resync = l.resync || !l.gone
				l.mu.Unlock()
				rest(l.s.ctx, 200*time.Millisecond)
			}
		}
	})
}

// more says whether there is something to learn, and that nobody learns any more where there is not.
func (l *lease) more() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.syncing = l.resync && !l.gone && l.s.ctx.Err() == nil
	l.resync = false
	return l.syncing
}

// rest waits for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// known is what the owner knew of a claim when it asked.
type known struct {
	token uint64
	held  bool
}

// reconcile asks what the server has of the lease and makes it agree with what the owner knows. Only what stood when it asked is judged; what
// entered or came to hold meanwhile is newer than the answer.
func (l *lease) reconcile(ctx context.Context, via *link) error {
	select {
	case l.sync <- struct{}{}:
		defer func() { <-l.sync }()
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	stood := map[string]known{}
	for _, c := range l.claims {
		if c.entered && c.busy == 0 {
			stood[c.id] = known{c.token, c.held}
		}
	}
	epoch, settled, asked := l.epoch, l.numbers.settled(), l.asked
	l.mu.Unlock()
	got, err := l.s.run(ctx, via, syncScript, false, l.id, epoch, settled, asked)
	if err != nil {
		return err
	}
	switch got.str(0) {
	case "OK":
	case "LOST":
		l.lost()
		return driver.ErrGone
	default:
		return l.s.odd("sync", got)
	}
	ghosts, err := l.judge(stood, got)
	if err != nil || len(ghosts) == 0 {
		return err
	}
	return l.Release(ctx, ghosts...)
}

// judge compares. It returns the places that stand though their owner gave them up: their release was lost. A place that its owner believes to
// hold must still hold, under its token; else the lease is over, before its deadline can be moved any more (guard.go).
func (l *lease) judge(stood map[string]known, got reply) (ghosts []driver.Place, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return nil, driver.ErrGone
	}
	for i := range got.list(3) {
		row := reply(got.list(3)).list(i)
		id, token, held := row.str(2), uint64(row.num(3)), row.num(4) == 1
		c := l.claims[id]
		if was, ok := stood[id]; ok && was.token == token && (held || !was.held) {
			delete(stood, id)
			if c != nil && c.entered {
				l.seen(c, held, row.ms(5))
			}
		} else if !ok && c == nil {
			ghosts = append(ghosts, driver.Place{Name: row.str(0), Seat: row.str(1), ID: id, Token: token})
		}
	}
	for id, was := range stood {
		if c := l.claims[id]; c != nil && c.token == was.token && was.held && got.str(1) != l.epoch && !l.owns(c) {
			l.end()
			return nil, driver.ErrGone
		}
	}
	for id, was := range stood {
		if c := l.claims[id]; c != nil && c.token == was.token && !l.owns(c) {
			place := c.place()
			l.forget(c)
			l.tell(driver.News{Place: place, Gone: true})
		}
	}
	l.epoch, l.changes = got.str(1), got.str(2)
	l.requests(got.list(4))
	return ghosts, nil
}

// owns says whether the owner itself is about to remove the claim: by giving it up, or by another Claim on its seat. Then it is no news.
func (l *lease) owns(c *claim) bool {
	if c.leaving > 0 {
		return true
	}
	for _, o := range l.claims {
		if o != c && o.busy > 0 && o.name == c.name && o.seat == c.seat {
			return true
		}
	}
	return false
}

// requests tells requests that were not told yet, of claims that hold still. They come in pairs of "<token> <number> <JSON>" and number.
func (l *lease) requests(all reply) {
	for i := 0; i+1 < len(all); i += 2 {
		words := strings.SplitN(all.str(i), " ", 3)
		if len(words) < 3 {
			continue
		}
		number := reply{words[1]}.num(0)
		if number <= l.asked {
			continue
		}
		l.asked = number
		var r driver.Request
		if json.Unmarshal([]byte(words[2]), &r) != nil {
			continue
		}
		for _, c := range l.claims {
			if c.entered && c.token == r.Token {
				l.tell(driver.News{Place: c.place(), Request: &r})
			}
		}
	}
}
