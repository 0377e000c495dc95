package metrics

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/primacy-go/primacy"
)

// looks are what the lines had when they were last read.
type looks struct {
	mu   sync.Mutex
	seen map[string]look
}

type look struct {
	candidates int
	at         time.Time
	ended      map[primacy.Reason]uint64 // as the history has it; nil: not known
	paused     time.Duration             // for how long already; 0: it is not, or nobody knows
}

// look reads the lines, one after the other, until ctx ends.
func (c *Collector) look(ctx context.Context, s *primacy.Session) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		c.lookAtAll(ctx, s)
		timer.Reset(c.o.LookEvery)
	}
}

// lookAtAll reads each line once, and its history. Where the store does not answer for a line, the
// others wait for the next round; where it does not for a history, the other histories do.
func (c *Collector) lookAtAll(ctx context.Context, s *primacy.Session) {
	histories, pauses := true, true
	for _, name := range c.lines() {
		limit, cancel := context.WithTimeout(ctx, c.o.LookEvery)
		st, err := s.Election(name).State(limit)
		var past primacy.Tally
		var paused time.Duration
		if err == nil && pauses {
			p, unread := s.Election(name).Paused(limit)
			if unread == nil && p != nil {
				paused = max(time.Since(p.Since), time.Second)
			}
			pauses = unread == nil // as with histories: who gets no answer does not ask for each
		}
		if err == nil && histories {
			var unread error
			if past, unread = s.Election(name).Tally(limit); unread != nil {
				past.Ended = nil // what was read of it is not all
				// Where it gives no answer, asking for each would make the lines too old to be shown.
				histories = errors.Is(unread, primacy.ErrInvalid) || errors.Is(unread, primacy.ErrRefused)
			}
		}
		cancel()
		switch {
		case err == nil:
			c.looks.saw(st, past.Ended, paused)
		case !errors.Is(err, primacy.ErrRefused): // refused: this one only
			return
		}
	}
	c.looks.forget(time.Now().Add(-3 * c.o.LookEvery))
}

// lines are the names to look at.
func (c *Collector) lines() []string {
	names := map[string]bool{}
	for _, name := range c.o.Observe {
		names[name] = true
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	for m := range c.t.sessions {
		for _, name := range m.s.Names() {
			if c.t.own(name) != nil {
				names[name] = true
			}
		}
	}
	return slices.Collect(maps.Keys(names))
}

func (l *looks) saw(st primacy.State, ended map[primacy.Reason]uint64, paused time.Duration) {
	n := len(st.Waiting)
	if st.Leader != nil {
		n++
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[st.Name] = look{n, st.AsOf, ended, paused}
}

// forget drops what nobody has looked at since then.
func (l *looks) forget(before time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, seen := range l.seen {
		if seen.at.Before(before) {
			delete(l.seen, name)
		}
	}
}

// addCandidates adds what was seen and is not old.
func (c *Collector) addCandidates(out []prometheus.Metric) []prometheus.Metric {
	c.looks.mu.Lock()
	defer c.looks.mu.Unlock()
	for name, seen := range c.looks.seen {
		if time.Since(seen.at) <= 3*c.o.LookEvery {
			out = append(out, candidates.number(float64(seen.candidates), name))
			if seen.paused > 0 {
				out = append(out, electionPaused.number(seen.paused.Seconds(), name))
			}
			if seen.ended == nil {
				continue
			}
			for _, r := range primacy.Reasons() {
				// Each from zero on: one that appears with its first count would show no increase.
				if r != primacy.Leads {
					out = append(out, historyTerms.number(float64(seen.ended[r]), name, string(r)))
				}
			}
		}
	}
	return out
}
