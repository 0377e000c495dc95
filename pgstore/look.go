package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// perLook is how many claims are asked for in one call.
const perLook = 500

// found is a row of the function look.
type found struct {
	kind    string
	token   int64
	remains int64
	seq     int64
	body    []byte
}

// lookNow has the lease itself looked at: its requests, and whether claims were removed.
func (l *lease) lookNow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dueSelf = true
	l.wakeLookerLocked()
}

// lookAtWaiting has everything of the lease looked at that somebody waits for.
func (l *lease) lookAtWaiting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.claims {
		if o.followed {
			o.generation = l.s.listener.generation()
			l.due[o] = true
		}
	}
	l.dueSelf = l.dueSelf || l.readers > 0
	l.wakeLookerLocked()
}

// lookLaterLocked has the lease itself looked at after a while, as long as somebody reads its news.
// The caller holds mu.
func (l *lease) lookLaterLocked() {
	after := min(l.s.listener.poll(), l.ttl)
	if l.timer == nil {
		l.timer = time.AfterFunc(after, l.lookNow)
	} else {
		l.timer.Reset(after)
	}
}

// nothingDueLocked says whether look has nothing to do. The caller holds mu.
func (l *lease) nothingDueLocked() bool {
	return l.isOver || len(l.due) == 0 && !l.dueSelf || l.s.ctx.Err() != nil
}

// wakeLookerLocked starts the one goroutine that looks, if there is something to look at and it
// does not run. The caller holds mu.
func (l *lease) wakeLookerLocked() {
	if !l.looking && !l.nothingDueLocked() {
		l.looking = true
		go l.look()
	}
}

// look asks the server about what is due until nothing is.
func (l *lease) look() {
	for {
		l.mu.Lock()
		if l.nothingDueLocked() {
			l.looking = false
			l.mu.Unlock()
			return
		}
		var asked []*ownClaim
		for o := range l.due {
			if len(asked) < perLook {
				asked = append(asked, o)
				delete(l.due, o)
			}
		}
		l.dueSelf = false
		tokens := make([]int64, len(asked))
		for i, o := range asked {
			tokens[i] = int64(o.place.Token)
		}
		after := l.request
		l.mu.Unlock()
		rows, err := l.ask(tokens, after)
		if err != nil {
			l.lookAgain(asked)
			continue
		}
		l.mu.Lock()
		l.learnLocked(asked, rows)
		if l.readers > 0 {
			l.lookLaterLocked()
		}
		l.mu.Unlock()
	}
}

func (l *lease) ask(tokens []int64, after int64) (rows []found, err error) {
	ctx, cancel := context.WithTimeout(l.s.ctx, callLimit)
	defer cancel()
	err = l.s.do(ctx, "look", "SELECT * FROM {S}.look($1::text, $2::bigint[], $3::boolean[], $4::bigint)",
		[]any{l.id, tokens, make([]bool, len(tokens)), after}, func(r pgx.Rows) error {
			var f found
			err := r.Scan(&f.kind, &f.token, &f.remains, &f.seq, &f.body)
			rows = append(rows, f)
			return err
		})
	return rows, err
}

// lookAgain waits a little after a call that failed, and makes all of it due again.
func (l *lease) lookAgain(asked []*ownClaim) {
	wait := 50 * time.Millisecond
	_ = storeutil.Sleep(l.s.ctx, wait+jitter(wait))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dueSelf = true
	for _, o := range asked {
		if !o.gone {
			l.due[o] = true
		}
	}
}

// learnLocked takes in what the server answered. The caller holds mu.
func (l *lease) learnLocked(asked []*ownClaim, rows []found) {
	by := make(map[int64]*ownClaim, len(asked))
	for _, o := range asked {
		by[int64(o.place.Token)] = o
	}
	later := false // a request is to be read again, and so are those after it
	for _, f := range rows {
		switch f.kind {
		case "end":
			l.endLocked()
			return
		case "claims":
			l.compareLocked(fmt.Sprint(f.token, " ", f.remains))
		case "request":
			later = later || !l.requestedLocked(f)
		default:
			if o := by[f.token]; o != nil && !o.gone {
				o.learnLocked(f)
			}
		}
	}
}

// learnLocked takes in what the server answered about the claim. The caller holds the lease's mu.
func (o *ownClaim) learnLocked(f found) {
	switch f.kind {
	case "gone":
		o.lostLocked()
		return
	case "held":
		o.holdsLocked()
	case "wait":
		o.until = time.Now().Add(time.Duration(f.remains) * time.Microsecond)
	}
	o.fruitless++
	if f.remains > 0 || f.kind != "wait" {
		o.fruitless = 0
	}
	o.lookLaterLocked()
}

// requestedLocked makes a request news if its claim stands. It returns false if the claim may be
// entering just now: then this request and later ones are to be read again. The caller holds mu.
func (l *lease) requestedLocked(f found) bool {
	if f.seq <= l.request {
		return true
	}
	var r driver.Request
	known := json.Unmarshal(f.body, &r) != nil // another program's
	for _, o := range l.claims {
		if int64(o.place.Token) == f.token && !known {
			known = true
			if !o.leaving {
				l.addNewsLocked(driver.News{Place: o.place, Request: &r})
			}
		}
	}
	if !known && len(l.ids.calls) > 0 {
		time.AfterFunc(20*time.Millisecond, l.lookNow)
		return false
	}
	l.request = f.seq
	return true
}

// jitter returns up to a quarter of d, so that many processes do not ask at the same time.
func jitter(d time.Duration) time.Duration { return rand.N(d/4 + 1) }
