package shards

import (
	"context"
	"log/slog"
	"time"
)

// logLines is how many lines of the log may wait; further ones are lost.
const logLines = 1024

// log queues a line. It never blocks: a handler of the log that does (its pipe is full) must not
// hold up the end of a shard.
func (g *Group) log(level slog.Level, msg string, args ...any) {
	r := slog.NewRecord(time.Now(), level, msg, 0)
	r.Add("group", g.name)
	r.Add(args...)
	select {
	case g.lines <- r:
	default:
	}
}

// writeLog writes what is queued until ctx ends, and then what is left.
func (g *Group) writeLog(ctx context.Context) {
	write := func(r slog.Record) {
		if h := g.o.Logger.Handler(); h.Enabled(context.Background(), r.Level) {
			_ = h.Handle(context.Background(), r)
		}
	}
	for {
		select {
		case r := <-g.lines:
			write(r)
			continue
		default:
		}
		select {
		case r := <-g.lines:
			write(r)
		case <-ctx.Done():
			if len(g.lines) == 0 {
				return
			}
		}
	}
}

// flush waits until the log is written, for 100 ms at most.
func (g *Group) flush(written <-chan struct{}) {
	select {
	case <-written:
	case <-time.After(100 * time.Millisecond):
	}
}
