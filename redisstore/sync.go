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
			ghosts, err := l.compare(ctx, l.s.calls)
			if err == nil && len(ghosts) > 0 {
				err = l.Release(ctx, ghosts...)
			}
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

// reconcile is compare for a verb that has to know before it can go on. What was given up and stands nevertheless is released beside it: that must
// hold up no renewal, and has to be tried until it is done.
func (l *lease) reconcile(ctx context.Context, via *link) error {
	ghosts, err := l.compare(ctx, via)
	if err == nil && len(ghosts) > 0 {
		l.learn()
	}
	return err
}

// compare asks what the server has of the lease and makes what the owner knows agree with it. It returns places that are to be released.
func (l *lease) compare(ctx context.Context, via *link) (ghosts []driver.Place, err error) {
	select {
	case l.sync <- struct{}{}:
		defer func() { <-l.sync }()
	case <-ctx.Done():
		return nil, ctx.Err()
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
		return nil, err
	}
	switch got.str(0) {
	case "OK":
		return l.judge(stood, got)
	case "LOST":
		l.lost()
		return nil, driver.ErrGone
	}
	return nil, l.s.odd("sync", got)
}

// judge compares. It returns the places that stand though their owner gave them up: their release was lost. stood is what the owner knew when it
// asked: while the history is the same, what entered, came to hold or was given up since then is newer than the answer. Nothing is newer than another
// history (guard.go): there a place that its owner believes to hold must hold under its token, or the lease is over, before its deadline can be
// moved any more.
func (l *lease) judge(stood map[string]known, got reply) (ghosts []driver.Place, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return nil, driver.ErrGone
	}
	moved := got.str(1) != l.epoch
	stands, tokens := map[string]bool{}, map[uint64]bool{}
	for i := range got.list(3) {
		row := reply(got.list(3)).list(i)
		id, token, held := row.str(2), uint64(row.num(3)), row.num(4) == 1
		c := l.claims[id]
		tokens[token] = true
		was, asked := stood[id]
		switch {
		case c == nil && (moved || !asked), c != nil && c.entered && moved && c.token != token:
			ghosts = append(ghosts, driver.Place{Name: row.str(0), Seat: row.str(1), ID: id, Token: token})
		case c != nil && c.entered && c.token == token && (held || moved && !c.held || !moved && asked && !was.held):
			stands[id] = true
			l.seen(c, held, row.ms(5))
		}
	}
	if moved && l.bereft(stands) {
		l.end()
		return nil, driver.ErrGone
	}
	for id, c := range l.claims {
		_, asked := stood[id]
		if c.entered && c.busy == 0 && !stands[id] && (moved || asked) && !l.owns(c) {
			place := c.place()
			l.forget(c)
			l.tell(driver.News{Place: place, Gone: true})
		}
	}
	l.epoch, l.changes = got.str(1), got.str(2)
	l.requests(got.list(4), tokens)
	return ghosts, nil
}

// bereft says whether the owner believes to hold a place that does not stand so.
func (l *lease) bereft(stands map[string]bool) bool {
	for id, c := range l.claims {
		if c.entered && c.held && !stands[id] && !l.owns(c) {
			return true
		}
	}
	return false
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

// requests tells requests that were not told yet, of claims that hold still. They come in pairs of "<token> <number> <JSON>" and number. One for a claim
// whose Claim is not answered yet is left for then. tokens are those of all claims that stand.
func (l *lease) requests(all reply, tokens map[uint64]bool) {
	for i := 0; i+1 < len(all); i += 2 {
		words := strings.SplitN(all.str(i), " ", 3)
		if len(words) < 3 {
			continue
		}
		number := reply{words[1]}.num(0)
		if number <= l.asked {
			continue
		}
		var r driver.Request
		if json.Unmarshal([]byte(words[2]), &r) == nil {
			c := l.tokens[r.Token]
			if c == nil && tokens[r.Token] {
				l.changes = "" // so that the next answer of the server has it asked again
				return
			}
			if c != nil && c.entered {
				l.tell(driver.News{Place: c.place(), Request: &r})
			}
		}
		l.asked = number
	}
}
