package primacy

import (
	"context"
	"log/slog"
)

// logger puts what the sessions of a machine log into the timeline.
func (j *judge) logger(who string) *slog.Logger { return slog.New(timeline{j, who}) }

type timeline struct {
	j   *judge
	who string
}

func (h timeline) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (h timeline) WithAttrs([]slog.Attr) slog.Handler           { return h }
func (h timeline) WithGroup(string) slog.Handler                { return h }

func (h timeline) Handle(_ context.Context, r slog.Record) error {
	h.j.mu.Lock()
	defer h.j.mu.Unlock()
	h.j.lines = append(h.j.lines, line{h.j.now(), h.who, func() string {
		text := "· " + r.Message
		r.Attrs(func(a slog.Attr) bool {
			if a.Key != "id" {
				text += " " + a.String()
			}
			return true
		})
		return text
	}, false})
	return nil
}
