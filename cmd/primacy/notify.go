package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/sdnotify"
)

// manager tells the service manager how we do. A nil one, or one without a socket, tells nobody.
type manager struct {
	r     *runner
	n     *sdnotify.Notifier
	every time.Duration // between two watchdog pings; 0: nobody waits for them

	mu     sync.Mutex
	ready  bool
	leader string // who leads, as far as known
	leads  string // the words for our own term; "" if there is none
}

// newManager returns the manager of the environment. One that cannot be reached must not keep a
// leader from leading: it is told of, no more.
func newManager(r *runner) *manager {
	n, err := sdnotify.New()
	if err != nil {
		r.say("warning: %v", err)
	}
	if n == nil {
		return nil
	}
	m := &manager{r: r, n: n}
	if m.every, err = sdnotify.WatchdogEvery(); err != nil {
		r.say("warning: %v", err)
	}
	return m
}

// notified tells the service manager what of an event concerns it.
func (m *manager) notified(e event) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var lines []string
	switch e.Event {
	case "candidate":
		m.leads = ""
		lines = append(m.readyFor("candidate"), m.waits())
	case "backoff":
		d := time.Duration(*e.WaitMS) * time.Millisecond
		lines = []string{sdnotify.ExtendTimeout(d + time.Minute), sdnotify.Status(fmt.Sprintf(
			"the command failed soon after its start; stands again in %v", d.Round(time.Second)))}
	case "elected":
		m.leads = fmt.Sprintf("%s of %s, token %s, since %s", m.r.role, e.Election, e.Token,
			time.Now().Format(time.RFC3339))
		lines = append(m.readyFor(asLeader), sdnotify.Status(m.leads))
	case "leader":
		if m.leader = e.Leader; m.leads == "" {
			lines = []string{m.waits()}
		}
	case "stopping":
		lines = []string{sdnotify.Status(fmt.Sprintf("stopping the command: %s", e.Reason))}
	case "released":
		m.leads = ""
		lines = []string{sdnotify.Status("gave up " + e.Election)}
	case "finished":
		lines = []string{sdnotify.Stopping, sdnotify.Status(fmt.Sprintf("ended with status %d", *e.Status))}
	default:
		return
	}
	_ = m.n.Tell(lines...)
}

func (m *manager) waits() string {
	if m.leader == "" {
		return sdnotify.Status("waits for " + m.r.name)
	}
	return sdnotify.Status(fmt.Sprintf("waits for %s, which %s leads", m.r.name, m.leader))
}

// readyFor returns READY=1 the first time that it is true.
func (m *manager) readyFor(state string) []string {
	if m.ready || m.r.notify != state && state != asLeader {
		return nil
	}
	m.ready = true
	return []string{sdnotify.Ready}
}

// stopping says that the end has begun and may take so long. Only for what has a limit of its own:
// a command that does not stop is the service manager's to end.
func (m *manager) stopping(limit time.Duration) {
	if m != nil {
		_ = m.n.Tell(sdnotify.Stopping, sdnotify.ExtendTimeout(limit+time.Second))
	}
}

// watch sends watchdog pings until ctx ends, as long as alive says that there is nothing wrong. A
// process that is frozen, or stuck, gives none, and the service manager ends it.
func (m *manager) watch(ctx context.Context, alive func() error) {
	if m == nil || m.every == 0 {
		return
	}
	tick := time.NewTicker(m.every / 3)
	defer tick.Stop()
	for said := false; ; {
		if err := alive(); err == nil {
			_ = m.n.Tell(sdnotify.Watchdog)
			said = false
		} else if !said {
			_ = m.n.Tell(sdnotify.Status("no watchdog ping: " + err.Error()))
			said = true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
