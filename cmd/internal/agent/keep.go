package agent

import (
	"context"
	"net/http"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/internal/boottime"
)

// keeper holds a term for a client until it is over, and tells the client of it where there is a
// stream.
type keeper struct {
	a      *Agent
	h      *holding
	s      *stream         // nil: a lock that is renewed by requests
	gone   <-chan struct{} // the connection has ended; nil: there is none
	conn   *conn           // whose other end is the client; nil: it may be a proxy's
	frozen bool
}

// keep returns when the term is resigned.
func (k *keeper) keep() {
	defer k.a.held.remove(k.h) // also when finish panics
	defer k.finish()           // also when something here panics
	moved, stop := k.deadlines()
	defer stop()
	over, stopping := k.h.term.Context().Done(), k.a.stopped
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for !k.done() {
		timer.Reset(k.wake())
		select {
		case <-k.h.freed:
			return
		case <-k.gone:
			k.disconnected()
		case <-over:
			over = nil
			k.freeze(shown.EndingOf(context.Cause(k.h.term.Context())))
		case <-stopping:
			stopping = nil
			k.freeze(shown.Ending{Reason: shown.Shutdown})
		case <-moved:
			k.renewed()
		case <-beat.C:
			k.renewed()
		case <-timer.C:
			if at := k.h.silence(); !k.frozen && at != 0 && boottime.Now() >= at {
				k.freeze(shown.Ending{Reason: shown.NotRenewed})
			}
		}
	}
}

// done says whether the client cannot act any more, or has not to be asked.
func (k *keeper) done() bool {
	if !k.frozen {
		return false
	}
	_, told := k.h.why()
	return boottime.Now() >= told || k.h.term.Check() != nil
}

// wake returns when to look at the clock again.
func (k *keeper) wake() time.Duration {
	at := k.h.silence()
	if k.frozen {
		_, at = k.h.why()
	}
	if at == 0 {
		return time.Hour
	}
	return max(0, at-boottime.Now()) + time.Millisecond
}

// deadlines returns a channel that has something in it when the deadline has moved.
func (k *keeper) deadlines() (<-chan struct{}, func()) {
	if k.s == nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	moved := make(chan struct{}, 1)
	go func() {
		for d := k.h.term.Deadline(); ; {
			var err error
			if d, err = k.h.term.NextDeadline(ctx, d); err != nil || d == 0 {
				return
			}
			select {
			case moved <- struct{}{}:
			default:
			}
		}
	}()
	return moved, cancel
}

// line returns an event of the term.
func (k *keeper) line(event string) line {
	l := line{Event: event, Name: k.h.name, ID: k.h.id, Token: k.h.term.Token()}
	if k.frozen {
		why, _ := k.h.why()
		l.Reason, l.By, l.Text = why.Reason, why.By, why.Text
	}
	if event != "ended" {
		until, _ := k.h.lease() // 0 once the right is over
		l.Lease = health.LeaseOf(until)
	}
	return l
}

func (k *keeper) renewed() {
	if !k.frozen {
		k.tell(k.line("renewed"))
	}
}

// freeze gives the client no more time, and says so.
func (k *keeper) freeze(why shown.Ending) {
	if k.frozen {
		return
	}
	k.h.freeze(why)
	k.frozen = true
	k.tell(k.line("stopping"))
}

// tell sends a line, and looks at the connection where that fails.
func (k *keeper) tell(l line) {
	if k.s == nil || k.s.err != nil || k.s.send(l.Event, l) || k.gone == nil {
		return
	}
	select { // what ended it is known in a moment, if it was the peer
	case <-k.gone:
	case <-time.After(100 * time.Millisecond):
	}
	k.disconnected()
}

// disconnected hears that the connection has ended. The client that closed it has stopped; where it
// may be anybody else's doing, the right to act has to run out.
func (k *keeper) disconnected() {
	k.gone = nil
	if k.s.err == nil {
		k.s.err = http.ErrAbortHandler
	}
	if k.conn != nil && k.conn.closed() {
		k.h.giveUp(shown.Ending{Reason: shown.Disconnected})
		return
	}
	k.h.freeze(shown.Ending{Reason: shown.Lost})
	k.frozen = true
}

// finish resigns, and tells how it ended.
func (k *keeper) finish() {
	k.h.giveUp(shown.Ending{Reason: primacy.Unknown})
	k.frozen = true
	why, _ := k.h.why()
	switch r := why.Reason; r { // else the term tells by itself why it ended
	case shown.Disconnected, shown.Lost, shown.NotRenewed, shown.Shutdown:
		k.h.term.Explain(shown.Told(r), r == shown.Lost || r == shown.NotRenewed)
	}
	_ = k.h.resign()
	k.a.held.remove(k.h) // before "ended" is told: whoever has read it gets 410 for the token, not 200
	k.a.log("released", "election", k.h.name, "id", k.h.id, "token", k.h.term.Token(), "reason", why.Reason)
	if k.s != nil {
		k.tell(k.line("ended"))
	}
}
