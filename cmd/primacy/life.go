package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
)

// What flags that are a choice can say.
const (
	recampaign = "recampaign"
	restart    = "restart"
	stopNow    = "stop-now"
	asLeader   = "leader"
)

// life is what is done around the command for those who look after it.
type life struct {
	notify        string // when READY=1 is told
	onUnreachable string
	onLost        string
	onExit        string
	eventsTo      string
	statusAt      string

	standbyLine, onElected, onDeposed, onLeaderChange string // shell lines

	hookTimeout time.Duration
}

// lifeFlags are those of run and lock.
func (r *runner) lifeFlags(f *pflag.FlagSet) {
	f.StringVar(&r.notify, "notify", "candidate", "when systemd is told READY=1: candidate (in line) or leader")
	f.StringVar(&r.onUnreachable, "on-unreachable", "stop-at-deadline", "when the store does not answer: stop-at-deadline, or stop-now (at the first renewal that fails)")
	f.StringVar(&r.eventsTo, "events", "", "write what happens as NDJSON to a FILE, or fd:N")
	f.StringVar(&r.statusAt, "status", "", "answer /leader /livez /readyz /metrics over HTTP at HOST:PORT or unix:PATH")
}

// runFlags are run's alone.
func (r *runner) runFlags(f *pflag.FlagSet) {
	f.StringVar(&r.onLost, "on-lost", "exit", "when leadership is lost: exit (122), or recampaign (get in line again)")
	f.StringVar(&r.onExit, "on-exit", "resign", "when COMMAND ends: resign and exit with its status, or restart it in the same term")
	f.StringVar(&r.standbyLine, "standby", "", "a shell line to run while somebody else leads")
	f.StringVar(&r.onElected, "on-elected", "", "a shell line to run before COMMAND")
	f.StringVar(&r.onDeposed, "on-deposed", "", "a shell line to run when a term has ended")
	f.StringVar(&r.onLeaderChange, "on-leader-change", "", "a shell line to run whenever somebody else leads, or nobody")
	f.DurationVar(&r.hookTimeout, "hook-timeout", 10*time.Second, "how long each of the three may take")
}

// checkLife refuses what makes no sense. A lock has none of run's flags.
func (r *runner) checkLife() error {
	if !r.lock && r.hookTimeout <= 0 {
		return fmt.Errorf("--hook-timeout %v: use a positive duration, such as 10s", r.hookTimeout)
	}
	for _, c := range []struct {
		flag, value string
		choice      []string
	}{
		{"notify", r.notify, []string{"candidate", asLeader}},
		{"on-unreachable", r.onUnreachable, []string{"stop-at-deadline", stopNow}},
		{"on-lost", r.onLost, []string{"exit", recampaign}},
		{"on-exit", r.onExit, []string{"resign", restart}},
	} {
		if !slices.Contains(c.choice, c.value) && (c.value != "" || !r.lock) {
			return fmt.Errorf("--%s %q: use %s or %s", c.flag, clean(c.value), c.choice[0], c.choice[1])
		}
	}
	return nil
}

// beginLife opens what is told to, before anything is stood for, and returns what closes it with how it ended.
func (r *runner) beginLife() (end func(error), err error) {
	if r.eventsTo != "" {
		if r.log, err = openEvents(r.eventsTo); err != nil {
			return nil, err
		}
	}
	r.manager = newManager(r)
	return func(err error) {
		code := 0
		m := moment{Event: "finished", Status: &code}
		if err != nil {
			code = codeOf(err)
			var e *exitError
			if !errors.As(err, &e) || e.err != nil {
				m.Err = oneLine(err)
			}
		}
		r.tell(m)
		r.log.close()
	}, nil
}

// moment is one line of --events: what happened, and what is known of it. 64-bit numbers are strings.
type moment struct {
	Time      time.Time      `json:"time"`
	Event     string         `json:"event"`
	Election  string         `json:"election"`
	ID        string         `json:"id,omitempty"`
	Token     primacy.Token  `json:"token,omitzero"`
	Leader    string         `json:"leader,omitempty"`
	Reason    primacy.Reason `json:"reason,omitempty"`
	By        string         `json:"by,omitempty"`   // who asked for it
	Text      string         `json:"text,omitempty"` // why, in his words
	Err       string         `json:"err,omitempty"`
	Hook      string         `json:"hook,omitempty"`
	PID       int            `json:"pid,omitempty"`
	Status    *int           `json:"status,omitempty"`
	WaitMS    int64          `json:"wait_ms,omitempty"`
	TookMS    int64          `json:"took_ms,omitempty"`
	Remaining int64          `json:"remaining_ms,omitempty"`
	Dropped   uint64         `json:"dropped,omitempty"` // lines before this one that nobody took in time
}

// tell says what happened to whoever listens: --events, and the service manager.
func (r *runner) tell(m moment) {
	m.Time, m.Election = time.Now().UTC(), r.name
	if r.session != nil {
		m.ID = r.session.ID()
	}
	r.log.write(m)
	r.manager.heard(m)
}

// reasonOf returns why a term ended, given how its work ended; own says that the command ended by itself.
func reasonOf(err error, own bool) primacy.Reason {
	var sig signalled
	var e *exitError
	switch r := primacy.ReasonOf(err); {
	case r != "":
		return r
	case errors.Is(err, supervise.ErrTooLate):
		return primacy.Expired
	case errors.As(err, &sig):
		return shown.Stopped
	case errors.As(err, &e) && e.code == exitLost:
		return shown.Unreachable
	case own:
		return shown.Exited
	}
	return primacy.Failed
}
