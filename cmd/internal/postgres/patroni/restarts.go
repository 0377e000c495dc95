package patroni

import (
	"context"
	"log/slog"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// restart is what POST /restart asks for.
type restart struct {
	at      time.Time     // zero: now
	role    string        // empty: any
	version int           // a server of a smaller one only; 0: any
	pending bool          // only where one is pending
	limit   time.Duration // 0: verbLimit
	words   map[string]any
	started time.Time // of the postmaster when the restart was scheduled
}

// theirWords is an error in Patroni's words.
type theirWords string

func (w theirWords) Error() string { return string(w) }

// parseRestart reads the body of a request. Where it is wrong it returns Patroni's code for that.
func parseRestart(body map[string]any) (r restart, code int, err error) {
	const wrong, late = 400, 422
	r.words = map[string]any{}
	for key, value := range body {
		r.words[key] = value
		text := said(body, key)
		switch key {
		case "schedule":
			if r.at, err = parseTime(text); err != nil {
				return r, late, theirWords("Unable to parse scheduled timestamp: " + oneLine(err))
			}
			if !r.at.After(time.Now()) {
				return r, late, theirWords("Cannot schedule restart in the past")
			}
			r.words[key] = r.at.Format("2006-01-02T15:04:05.999999-07:00")
		case "role":
			if r.role = text; text == "master" {
				r.role = rolePrimary
			}
			if r.role != "" && r.role != rolePrimary && r.role != roleReplica {
				return r, wrong, theirWords("PostgreSQL role should be either primary or replica")
			}
		case "restart_pending":
			r.pending = value != nil && value != false // Patroni's own tests say "True"
		case "postgres_version":
			if r.version, err = versionOf(text); err != nil {
				return r, wrong, err
			}
		case "timeout":
			if value == nil {
				continue
			}
			n, ok := seconds(text)
			if !ok || n <= 0 {
				return r, wrong, theirWords("Timeout should be a positive number of seconds")
			}
			r.limit = time.Duration(min(n, verbLimit.Seconds()) * float64(time.Second))
		default:
			return r, wrong, theirWords("Unknown filter for the scheduled restart: " + key)
		}
	}
	return r, 0, nil
}

var times = regexp.MustCompile(`^\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|min|h|d)?\s*$`)

// seconds reads a time as Patroni does: 90, 90s, 1.5min.
func seconds(text string) (float64, bool) {
	m := times.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	unit := map[string]float64{"": 1, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}[m[2]]
	return n * unit, err == nil
}

// fits says whether the member is as the request says.
func (r restart) fits(v view) bool {
	switch {
	case r.role != "" && r.role != v.role:
		return false
	case r.pending && !v.pendingRestart():
		return false
	}
	return r.version == 0 || v.details != nil && v.details.Version < r.version
}

// do restarts the server.
func (r restart) do(ctx context.Context, verbs Verbs) error {
	limit := r.limit
	if limit == 0 {
		limit = verbLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return verbs.Restart(ctx)
}

const unfit = "restart conditions are not satisfied"

// obey says what is to be done about a scheduled restart now: nothing yet, the restart, or else why
// it is dropped. A server that was started anew since has what the restart was for.
func (r restart) obey(v view, now time.Time) (act bool, drop string) {
	known := v.running() && v.details != nil
	switch {
	case known && !r.started.IsZero() && !v.details.Started.Equal(r.started):
		return false, "the server was restarted at " + stamp(v.details.Started) + " already"
	case r.at.After(now) || v.paused():
		return false, ""
	case now.Sub(r.at) > stale:
		return false, "the cluster was paused, or the member was not well, when it was due"
	case !known || !v.locked():
		return false, ""
	case !r.fits(v):
		return false, unfit
	}
	return true, ""
}

// Restarts keeps the restart of this member's server that is scheduled: one, until its agent ends,
// as Patroni does.
type Restarts struct {
	Member Member
	Verbs  Verbs
	Log    *slog.Logger

	mu      sync.Mutex
	next    *restart
	changed chan struct{} // closed when next has changed; nil: nobody waits
}

// schedule keeps r, unless another one is kept. It shows which postmaster r is for.
func (s *Restarts) schedule(r restart) bool {
	v := look(s.Member)
	if v.details != nil {
		r.started = v.details.Started
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		return false
	}
	s.setLocked(&r)
	return true
}

// drop removes what is scheduled, if it is r or r is nil, and says whether there was anything.
func (s *Restarts) drop(r *restart) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil || r != nil && s.next != r {
		return false
	}
	s.setLocked(nil)
	return true
}

func (s *Restarts) setLocked(r *restart) {
	if s.next = r; s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// kept returns what is scheduled, or nil, and what is closed when that changes. A nil Restarts
// keeps nothing.
func (s *Restarts) kept() (*restart, <-chan struct{}) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.next, s.changed
}

// shown is what is scheduled, as Patroni shows it in the member's key; nil: nothing is.
func (s *Restarts) shown() map[string]any {
	r, _ := s.kept()
	if r == nil {
		return nil
	}
	all := map[string]any{"postmaster_start_time": nil}
	for key, value := range r.words {
		all[key] = value
	}
	if !r.started.IsZero() {
		all["postmaster_start_time"] = stamp(r.started)
	}
	return all
}

// Run carries out what is scheduled, until ctx ends. What is due is dropped before it is done: it
// is done at most once.
func (s *Restarts) Run(ctx context.Context) {
	for ctx.Err() == nil {
		r, changed := s.kept()
		if r == nil {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		s.once(ctx, r)
		wait := max(look(s.Member).LoopWait, time.Second/10)
		if until := time.Until(r.at); until > 0 {
			wait = min(wait, until)
		}
		pause(ctx, changed, wait)
	}
}

func (s *Restarts) once(ctx context.Context, r *restart) {
	act, why := r.obey(look(s.Member), time.Now())
	if !act && why == "" || !s.drop(r) {
		return
	}
	if !act {
		s.Log.Warn("a scheduled restart was dropped", "schedule", r.words["schedule"], "why", why)
		return
	}
	s.Log.Info("a restart was scheduled for now", "schedule", r.words["schedule"])
	if err := r.do(ctx, s.Verbs); err != nil {
		s.Log.Warn("a scheduled restart was not done", "schedule", r.words["schedule"], "why", oneLine(err))
	}
}
