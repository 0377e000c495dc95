package redisstore

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// syncer makes what the owner knows of its lease agree with what the server has. The lease's mutex
// guards what changes.
type syncer struct {
	l       *lease
	turn    chan struct{} // held by the one who asks
	running bool          // a goroutine asks that nobody waits for
	again   bool          // and is to ask once more
}

// laterLocked asks in the background. The caller holds the lease's mu.
func (y *syncer) laterLocked() {
	if y.l.gone {
		return
	}
	y.again = true
	if !y.running {
		y.running = true
		y.l.s.spawn(y.run)
	}
}

// run asks, and releases what must not stand, until there is no reason to ask.
func (y *syncer) run() {
	l := y.l
	for y.next() {
		ctx, cancel := context.WithTimeout(l.s.ctx, callLimit)
		forgotten, err := y.ask(ctx, l.s.calls)
		if err == nil && len(forgotten) > 0 {
			err = l.Release(ctx, forgotten...)
		}
		cancel()
		if err != nil && l.s.ctx.Err() == nil {
			l.mu.Lock()
			y.again = y.again || !l.gone
			l.mu.Unlock()
			_ = storeutil.Sleep(l.s.ctx, 200*time.Millisecond)
		}
	}
}

// next says whether there is a reason to ask. If not, run has ended.
func (y *syncer) next() bool {
	y.l.mu.Lock()
	defer y.l.mu.Unlock()
	y.running = y.again && !y.l.gone && y.l.s.ctx.Err() == nil
	y.again = false
	return y.running
}

// now asks for a verb that has to know before it can go on. Places that must not stand are released
// in the background: that must hold up no renewal, and is tried until it is done.
func (y *syncer) now(ctx context.Context, via *link) error {
	forgotten, err := y.ask(ctx, via)
	if err == nil && len(forgotten) > 0 {
		y.l.mu.Lock()
		defer y.l.mu.Unlock()
		y.laterLocked()
	}
	return err
}

// ask asks what the server has of the lease, and notes it. It returns the places that stand though
// their owner gave them up.
func (y *syncer) ask(ctx context.Context, via *link) (forgotten []driver.Place, err error) {
	l := y.l
	select {
	case y.turn <- struct{}{}:
		defer func() { <-y.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.mu.Lock()
	before := l.knownLocked()
	epoch, settled, request := l.epoch, l.numbers.settled(), l.request
	l.mu.Unlock()
	got, err := l.s.run(ctx, via, syncScript, false, l.id, epoch, settled, request)
	if err != nil {
		return nil, err
	}
	switch got.str(0) {
	case "OK":
		return y.note(before, got)
	case "LOST":
		l.end()
		return nil, driver.ErrGone
	}
	return nil, l.s.unexpected("sync", got)
}

// known is what the owner knows of one claim at one time.
type known struct {
	entered bool // a Claim has found it in the line
	settled bool // and no call of Claim is under way for it
	held    bool
	ending  bool // the owner itself is about to remove it
	token   uint64
}

// knownLocked returns what the owner knows now, by claim ID. It looks at each claim no more than
// twice, for renewals need mu too. The caller holds mu.
func (l *lease) knownLocked() map[string]known {
	entering := map[storeutil.Seat]int{} // how many claims on a seat have a call of Claim under way
	for _, c := range l.claims {
		if c.entering > 0 {
			entering[storeutil.Seat{Name: c.name, Seat: c.seat}]++
		}
	}
	all := make(map[string]known, len(l.claims))
	for id, c := range l.claims {
		others := entering[storeutil.Seat{Name: c.name, Seat: c.seat}]
		if c.entering > 0 {
			others--
		}
		all[id] = known{
			entered: c.entered, settled: c.entered && c.entering == 0, held: c.held, token: c.token,
			ending: l.releasing[id] > 0 || others > 0, // by giving it up, or by another Claim on its seat
		}
	}
	return all
}

// standing is a claim that the server has.
type standing struct {
	name, seat, id string
	token          uint64
	held           bool
	again          time.Duration // in how long it is worth to look again
	refused        error         // why the server could not say whether it holds
}

// change is what the owner has to learn of one claim.
type change struct {
	standing
	what changeKind
}

type changeKind int

const (
	stands    changeKind = iota // it stands as the server says
	forgotten                   // it stands though its owner gave it up, for the release was lost
	removed                     // others have removed it
)

// diff compares what the owner knew when it asked (before) and knows now with what the server has.
// While the history is the same, what entered, came to hold or was given up in between is newer
// than the answer. Nothing is newer than another history (moved, see guard.go): there a claim that
// its owner believes to hold must hold under its token, or the lease is over (over), before its
// deadline can be moved any more.
func diff(before, now map[string]known, moved bool, server []standing) (changes []change, over bool) {
	stand := map[string]bool{}
	for _, s := range server {
		was, is := before[s.id], now[s.id]
		_, own := now[s.id]
		switch {
		case !own && (moved || !was.settled), is.entered && moved && is.token != s.token:
			changes = append(changes, change{s, forgotten})
		case is.entered && is.token == s.token && (s.held || moved && !is.held || !moved && (s.refused != nil || was.settled && !was.held)):
			stand[s.id] = true
			changes = append(changes, change{s, stands})
		}
	}
	for id, is := range now {
		if stand[id] || is.ending || !is.entered {
			continue
		}
		over = over || moved && is.held
		if is.settled && (moved || before[id].settled) {
			changes = append(changes, change{standing{id: id}, removed})
		}
	}
	return changes, over
}

// note takes the server's answer in. It returns the places that are to be released.
func (y *syncer) note(before map[string]known, got reply) (release []driver.Place, err error) {
	l := y.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return nil, driver.ErrGone
	}
	var server []standing
	tokens := map[uint64]bool{}
	for i := range got.list(3) {
		row := got.list(3).list(i)
		s := standing{name: row.str(0), seat: row.str(1), id: row.str(2), token: uint64(row.num(3))}
		if s.held, s.again = row.num(4) == 1, row.ms(5); row.num(4) < 0 {
			s.refused = l.s.wrap(l.s.ctx, syncScript.name, refusal(row.str(5)))
		}
		server = append(server, s)
		tokens[s.token] = true
	}
	changes, over := diff(before, l.knownLocked(), got.str(1) != l.epoch, server)
	if over {
		l.endLocked()
		return nil, driver.ErrGone
	}
	for _, ch := range changes {
		switch c := l.claims[ch.id]; ch.what {
		case stands:
			if ch.refused != nil {
				c.unreadableLocked(ch.refused)
			} else {
				c.seenLocked(ch.held, ch.again)
			}
		case forgotten:
			release = append(release, driver.Place{Name: ch.name, Seat: ch.seat, ID: ch.id, Token: ch.token})
		case removed:
			place := c.place()
			c.forgetLocked()
			l.addNewsLocked(driver.News{Place: place, Gone: true})
		}
	}
	l.epoch, l.changes = got.str(1), got.str(2)
	l.requestedLocked(got.list(4), tokens)
	return release, nil
}

// requestedLocked makes requests news that were not news yet, of claims that stand. They come in
// pairs of "<token> <number> <JSON>" and number. A request for a claim whose Claim is not answered
// yet is left for then. tokens are those of all claims that stand. The caller holds mu.
func (l *lease) requestedLocked(all reply, tokens map[uint64]bool) {
	for i := 0; i+1 < len(all); i += 2 {
		words := strings.SplitN(all.str(i), " ", 3)
		if len(words) < 3 {
			continue
		}
		number := reply{words[1]}.num(0)
		if number <= l.request {
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
				l.addNewsLocked(driver.News{Place: c.place(), Request: &r})
			}
		}
		l.request = number
	}
}
