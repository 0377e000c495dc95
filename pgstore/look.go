package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
)

// perLook is how many claims are asked for in one call.
const perLook = 500

// found is a row of look.
type found struct {
	kind    string
	token   int64
	remains int64
	seq     int64
	body    []byte
}

// lookAt has a claim looked at, or the lease itself.
func (l *lease) lookAt(st *stand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if st == nil {
		l.dueSelf = true
	} else if !st.gone {
		l.due[st] = true
	}
	l.wakeLooker()
}

// wakeLooker starts the one goroutine that looks, if there is something to look at and it does not run. The caller has the mutex.
func (l *lease) wakeLooker() {
	if l.looking || l.isOver || len(l.due) == 0 && !l.dueSelf || l.s.ctx.Err() != nil {
		return
	}
	l.looking = true
	go l.look()
}

// look asks the server about what is due until nothing is.
func (l *lease) look() {
	for {
		l.mu.Lock()
		if l.isOver || len(l.due) == 0 && !l.dueSelf || l.s.ctx.Err() != nil {
			l.looking = false
			l.mu.Unlock()
			return
		}
		var asked []*stand
		for st := range l.due {
			if len(asked) < perLook {
				asked = append(asked, st)
				delete(l.due, st)
			}
		}
		l.dueSelf = false
		tokens, wants := make([]int64, len(asked)), make([]bool, len(asked))
		for i, st := range asked {
			tokens[i], wants[i] = int64(st.place.Token), st.wants && st.place.Held
		}
		after := l.heard
		l.mu.Unlock()
		rows, err := l.ask(tokens, wants, after)
		if err != nil {
			l.lookAgain(asked)
			continue
		}
		l.mu.Lock()
		l.learn(asked, rows)
		if l.readers > 0 {
			l.pollSelf()
		}
		l.mu.Unlock()
	}
}

func (l *lease) ask(tokens []int64, wants []bool, after int64) (rows []found, err error) {
	ctx, cancel := context.WithTimeout(l.s.ctx, callLimit)
	defer cancel()
	err = l.s.do(ctx, "look", "SELECT * FROM {S}.look($1::text, $2::bigint[], $3::boolean[], $4::bigint)", []any{l.id, tokens, wants, after}, func(r pgx.Rows) error {
		var f found
		err := r.Scan(&f.kind, &f.token, &f.remains, &f.seq, &f.body)
		rows = append(rows, f)
		return err
	})
	return rows, err
}

// lookAgain waits a little and has all of it looked at again: nobody knows what became of it.
func (l *lease) lookAgain(asked []*stand) {
	wait := 50 * time.Millisecond
	select {
	case <-time.After(wait + jitter(wait)):
	case <-l.s.ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dueSelf = true
	for _, st := range asked {
		if !st.gone {
			l.due[st] = true
		}
	}
}

// learn takes in what the server said. The caller has the mutex.
func (l *lease) learn(asked []*stand, rows []found) {
	by := make(map[int64]*stand, len(asked))
	for _, st := range asked {
		by[int64(st.place.Token)] = st
	}
	later := false
	for _, f := range rows {
		st := by[f.token]
		switch {
		case f.kind == "end":
			l.mu.Unlock()
			l.end()
			l.mu.Lock()
			return
		case f.kind == "claims":
			l.differ(fmt.Sprint(f.token, " ", f.remains))
		case f.kind == "request" && later:
		case f.kind == "request":
			later = later || !l.request(f)
		case st == nil || st.gone:
		default:
			l.saw(st, f)
		}
	}
}

// saw takes in what the server said of one claim. The caller has the mutex.
func (l *lease) saw(st *stand, f found) {
	switch f.kind {
	case "gone":
		l.lost(st)
		return
	case "wanted":
		l.holds(st)
		l.wanted(st)
	case "held":
		l.holds(st)
	case "wait":
		st.until = time.Now().Add(time.Duration(f.remains) * time.Microsecond)
	}
	close(st.seen)
	st.seen = make(chan struct{})
	st.again++
	if f.remains > 0 || f.kind != "wait" {
		st.again = 0
	}
	if f.remains < 0 { // whether it is wanted was not found out
		time.AfterFunc(10*time.Millisecond, func() { l.lookAt(st) })
		return
	}
	l.attend(st)
}

// wanted tells, once, that another waits behind a claim that holds. The caller has the mutex.
func (l *lease) wanted(st *stand) {
	if st.wants && !st.leaving {
		st.wants = false
		l.tell(driver.News{Place: st.place, Wanted: true})
	}
}

// request tells a request, if its claim stands. False: the claim may be entering just now, and this and later ones are to be read again. The caller has
// the mutex.
func (l *lease) request(f found) bool {
	if f.seq <= l.heard {
		return true
	}
	var r driver.Request
	known := json.Unmarshal(f.body, &r) != nil // another program's
	for _, st := range l.stands {
		if int64(st.place.Token) == f.token && !known {
			known = true
			if !st.leaving {
				l.tell(driver.News{Place: st.place, Request: &r})
			}
		}
	}
	if !known && len(l.calls) > 0 {
		time.AfterFunc(20*time.Millisecond, func() { l.lookAt(nil) })
		return false
	}
	l.heard = f.seq
	return true
}

// jitter returns up to a quarter of d, so that many processes do not ask at the same time.
func jitter(d time.Duration) time.Duration { return rand.N(d/4 + 1) }
