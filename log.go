package primacy

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logQueue writes log lines on a goroutine of its own, which holds no lock. So a handler that
// blocks (its pipe is full) holds up no end of a term, and a handler may call Term.Check, which
// takes locks of its own when the term has expired.
type logQueue struct {
	logger  *slog.Logger
	mu      sync.Mutex
	lines   []slog.Record
	written chan struct{} // closed when all lines are written; nil while no goroutine runs
}

// logQueueSize is how many lines of level Info may wait; further ones are lost.
const logQueueSize = 256

// room is how many lines may wait before one of that level is lost. Higher levels have more room:
// ten thousand elections won at once must not cost the line that a lease is ending.
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

// log queues a line. It never calls the handler: Enabled may block too.
func (q *logQueue) log(level slog.Level, msg string, args ...any) {
	if q.logger == nil {
		return
	}
	r := slog.NewRecord(time.Now(), level, msg, 0)
	r.Add(args...)
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) < room(level) {
		q.lines = append(q.lines, r)
	}
	if q.written == nil {
		q.written = make(chan struct{})
		go q.run(q.written)
	}
}

func (q *logQueue) run(written chan struct{}) {
	defer close(written)
	h := q.logger.Handler()
	for {
		q.mu.Lock()
		if len(q.lines) == 0 {
			q.written = nil
			q.mu.Unlock()
			return
		}
		r := q.lines[0]
		q.lines = q.lines[1:]
		q.mu.Unlock()
		if h.Enabled(context.Background(), r.Level) {
			_ = h.Handle(context.Background(), r)
		}
	}
}

// flush waits until all lines are written, for 100 ms at most.
func (q *logQueue) flush() {
	q.mu.Lock()
	written := q.written
	q.mu.Unlock()
	if written == nil {
		return
	}
	select {
	case <-written:
	case <-time.After(100 * time.Millisecond):
	}
}
