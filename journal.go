package primacy

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// journal writes log lines on a goroutine of its own. A logger that blocks (its pipe is full) must hold up neither the end of a term
// nor the end of work that outlived it, and a handler may ask Term.Check, which no lock of ours may be waiting for.
type journal struct {
	handler slog.Handler
	lines   chan slog.Record
	stop    chan struct{}
	once    sync.Once
	done    chan struct{}
}

// journalSize is how many lines may wait. What is beyond that is lost: transitions, not renewals, so nobody waits long.
const journalSize = 256

func newJournal(l *slog.Logger) *journal {
	j := &journal{lines: make(chan slog.Record, journalSize), stop: make(chan struct{}), done: make(chan struct{})}
	if l == nil {
		close(j.done)
		return j
	}
	j.handler = l.Handler()
	go j.run()
	return j
}

func (j *journal) log(level slog.Level, msg string, args ...any) {
	if j.handler == nil || !j.handler.Enabled(context.Background(), level) {
		return
	}
	r := slog.NewRecord(time.Now(), level, msg, 0)
	r.Add(args...)
	select {
	case j.lines <- r:
	default:
	}
}

func (j *journal) run() {
	defer close(j.done)
	for {
		select {
		case r := <-j.lines:
			_ = j.handler.Handle(context.Background(), r)
			continue
		default:
		}
		select {
		case r := <-j.lines:
			_ = j.handler.Handle(context.Background(), r)
		case <-j.stop:
			return
		}
	}
}

// close writes what is waiting, for a moment at most, and ends the goroutine.
func (j *journal) close() {
	j.once.Do(func() { close(j.stop) })
	select {
	case <-j.done:
	case <-time.After(100 * time.Millisecond):
	}
}
