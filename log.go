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
	logger  *slog.Logger
	mu      sync.Mutex
	lines   []slog.Record
	written chan struct{} // closed when all lines are written; nil while no goroutine runs
}

// logQueueSize is how many lines may wait; further lines are lost. Higher levels have more room, so
// that ten thousand elections won do not push out that a lease is ending.
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

// log leaves a line to be written. It does not call the handler, whose Enabled and Handle may block
// or ask Term.Check.
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
