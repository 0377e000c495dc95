package primacy

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logQueue writes log lines on a goroutine of its own. A logger that blocks (its pipe is full) must
// hold up neither the end of a term nor the end of work that outlived it, and a handler may ask
// Term.Check, which no lock of ours may be waiting for.
type logQueue struct {
	logger *slog.Logger
	mu     sync.Mutex
	lines  []slog.Record
	busy   chan struct{} // closed when all lines are written; nil while no goroutine runs
}

// logQueueSize is how many lines may wait. What is beyond that is lost: transitions, not renewals,
// so nobody waits long. There is more room for what matters more: ten thousand elections won must
// not push out that a lease is ending.
const logQueueSize = 256

func room(level slog.Level) int {
	switch {
	case level >= slog.LevelWarn:
		return 2 * logQueueSize
	case level >= slog.LevelInfo:
		return logQueueSize
	}
	return logQueueSize / 2
}

func newLogQueue(l *slog.Logger) *logQueue { return &logQueue{logger: l} }

// log leaves a line to be written. It runs nothing of the user's: the handler's Enabled may block,
// or ask Term.Check, as well as its Handle.
func (j *logQueue) log(level slog.Level, msg string, args ...any) {
	if j.logger == nil {
		return
	}
	r := slog.NewRecord(time.Now(), level, msg, 0)
	r.Add(args...)
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.lines) < room(level) {
		j.lines = append(j.lines, r)
	}
	if j.busy == nil {
		j.busy = make(chan struct{})
		go j.run(j.busy)
	}
}

func (j *logQueue) run(busy chan struct{}) {
	defer close(busy)
	h := j.logger.Handler()
	for {
		j.mu.Lock()
		if len(j.lines) == 0 {
			j.busy = nil
			j.mu.Unlock()
			return
		}
		r := j.lines[0]
		j.lines = j.lines[1:]
		j.mu.Unlock()
		if h.Enabled(context.Background(), r.Level) {
			_ = h.Handle(context.Background(), r)
		}
	}
}

// flush waits until what is waiting was written, for a moment at most.
func (j *logQueue) flush() {
	j.mu.Lock()
	busy := j.busy
	j.mu.Unlock()
	if busy == nil {
		return
	}
	select {
	case <-busy:
	case <-time.After(100 * time.Millisecond):
	}
}
