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
	if j.written == nil {
		j.written = make(chan struct{})
		go j.run(j.written)
	}
}

func (j *logQueue) run(written chan struct{}) {
	defer close(written)
	h := j.logger.Handler()
	for {
		j.mu.Lock()
		if len(j.lines) == 0 {
			j.written = nil
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

// flush waits until all lines are written, for 100 ms at most.
func (j *logQueue) flush() {
	j.mu.Lock()
	written := j.written
	j.mu.Unlock()
	if written == nil {
		return
	}
	select {
	case <-written:
	case <-time.After(100 * time.Millisecond):
	}
}
