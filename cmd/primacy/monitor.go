package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/agent"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/telemetry"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/metrics"
)

// monitor follows the election and the session beside the terms: who leads, which renewals fail,
// whether something is stuck. It feeds the on-leader-change hook, --events, --status and the
// service manager.
type monitor struct {
	r         *runner
	renewals  *renewals
	overSince atomic.Int64 // when the present term was first seen to be over, by the wall clock; 0: it is not
}

// start begins to follow. It returns what ends it.
func (m *monitor) start(ctx context.Context) (end func(), err error) {
	r := m.r
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	m.renewals = newRenewals()
	pulse := health.NewPulse(ctx, max(r.ttl, time.Second), func() { r.session.Terms() })
	alive := func() error { return errors.Join(pulse.Alive(), m.renewals.stuck(r.ttl), m.overdue()) }
	closeStatus, err := m.serveStatus(alive)
	if err != nil {
		cancel()
		return nil, err
	}
	wg.Go(func() { m.followSession(ctx) })
	wg.Go(func() { r.manager.watch(ctx, alive) })
	if r.onLeaderChange != "" || r.log != nil || r.manager != nil {
		wg.Go(func() { m.followLeader(ctx) })
	}
	return func() {
		cancel()
		r.idle(wg.Wait) // a hook has a second to end
		closeStatus()
	}, nil
}

// followLeader tells of each change of the leader. While a hook runs, changes that a later one
// replaces are skipped.
func (m *monitor) followLeader(ctx context.Context) {
	var last primacy.Token
	first := true
	for st, err := range m.r.session.Election(m.r.name).Observe(ctx, primacy.HeedPauses) {
		var leader string
		var token primacy.Token
		if st.Leader != nil {
			leader, token = who(st.Leader), st.Leader.Token
		}
		if err != nil || !first && token == last {
			continue
		}
		if m.r.leaving.Load() { // what comes now is our own release
			return
		}
		first, last = false, token
		m.r.report(event{Event: "leader", Leader: leader, Token: token})
		m.r.hooks.leaderChanged(ctx, leader, token)
	}
}

// stopPatience is how long after a term's deadline what ran in it may still be there before this
// process counts as stuck.
const stopPatience = 2 * time.Second

// overdue says that a term's time is long over and it has not ended: what runs in it cannot be
// stopped, or we are stuck.
func (m *monitor) overdue() error {
	t := m.r.current.Load()
	if t == nil || t.Check() == nil {
		m.overSince.Store(0)
		return nil
	}
	now := time.Now().UnixNano()
	if since := m.overSince.Load(); since == 0 {
		m.overSince.Store(now)
	} else if d := time.Duration(now - since); d > stopPatience {
		return fmt.Errorf("the term of %s ended %v ago, and what ran in it has not", m.r.name, d.Round(time.Second))
	}
	return nil
}

// renewals is what is known of the session's renewals. Whether somebody leads is never asked of it.
type renewals struct {
	last   atomic.Int64  // when the last renewal was answered, or given up, on the boot clock
	leased atomic.Bool   // there is a lease to renew
	missed chan struct{} // holds one token once a renewal failed
}

func newRenewals() *renewals {
	h := &renewals{missed: make(chan struct{}, 1)}
	h.leased.Store(true)
	h.last.Store(int64(boottime.Now()))
	return h
}

// notified takes an event of the session.
func (h *renewals) notified(ev primacy.Event) {
	switch ev.Kind {
	case primacy.LeaseGranted:
		h.leased.Store(true)
	case primacy.LeaseLost:
		h.leased.Store(false)
	case primacy.Renewed:
	case primacy.RenewalMissed:
		select {
		case h.missed <- struct{}{}:
		default:
		}
	default:
		return
	}
	h.last.Store(int64(boottime.Now()))
}

// forget makes misses of before no concern of what begins now.
func (h *renewals) forget() {
	select {
	case <-h.missed:
	default:
	}
}

// stuck says that nobody renews a lease that is there; a store may grant a longer ttl than was
// asked for. A store that does not answer is no fault of this process: then there is a miss, and
// later no lease.
func (h *renewals) stuck(ttl time.Duration) error {
	if silent := boottime.Now() - time.Duration(h.last.Load()); h.leased.Load() && silent > 2*ttl+2*time.Second {
		return fmt.Errorf("no renewal was tried for %v", silent.Round(time.Millisecond))
	}
	return nil
}

// followSession follows the renewals, and tells of those that failed, and of other processes that
// have our ID: whoever reads who leads, transfers or drains cannot tell the two apart.
func (m *monitor) followSession(ctx context.Context) {
	for ev := range m.r.session.Events(ctx) {
		m.renewals.notified(ev)
		m.r.healthCheck.notified(ctx, ev)
		if ev.Kind == primacy.DuplicateID {
			m.r.say("warning: the ID %s is in the queue of %s already, of another process (%s): "+
				"give each its own --id, or leave it out", clean(m.r.session.ID()), m.r.called(), standsAs(ev))
			m.r.report(event{Event: ev.Kind.String(), Lease: ev.Lease})
		}
		if t := m.r.current.Load(); t != nil && ev.Kind == primacy.RenewalMissed {
			e := event{Event: "renew_late", Token: t.Token(), TookMS: ev.Took.Milliseconds(),
				Remaining: t.Remaining().Milliseconds()}
			if ev.Cause != nil {
				e.Err = oneLine(ev.Cause)
			}
			m.r.report(e)
		}
	}
}

// standsAs says where to find another process that has our ID.
func standsAs(ev primacy.Event) string {
	if ev.Text == "" {
		return "lease " + ev.Lease
	}
	return fmt.Sprintf("lease %s, value %s", ev.Lease, clean(ev.Text))
}

// unreachable returns a channel that a failed renewal is received from, if the command is to stop
// for it; else nothing ever is.
func (m *monitor) unreachable() <-chan struct{} {
	if m.r.onUnreachable != stopNow {
		return nil
	}
	m.renewals.forget()
	return m.renewals.missed
}

// figures says what /metrics shows of a session: who stands in its lines too, read at each scrape
// interval that is usual.
func figures(clientGo bool) metrics.Options {
	return metrics.Options{ClientGo: clientGo, Version: version, LookEvery: 15 * time.Second}
}

// serveStatus answers at --status, and returns what ends it.
func (m *monitor) serveStatus(alive func() error) (end func(), err error) {
	if m.r.statusAt == "" {
		return func() {}, nil
	}
	l, err := listenStatus(m.r.statusAt)
	if err != nil {
		return nil, fmt.Errorf("--status %s: %w", clean(m.r.statusAt), err)
	}
	shows := figures(false)
	if !m.r.lock {
		shows.Observe = []string{m.r.name} // also while this process does not stand for it
	}
	figures, err := telemetry.New(m.r.session, telemetry.Options{Options: shows})
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	o := health.Options{Name: m.r.name, Alive: alive, Ready: m.ready, Metrics: figures.Handler(),
		Leads: func(name string, token primacy.Token) (health.Lead, bool) {
			t := m.r.current.Load()
			if t == nil || name != m.r.name || token != 0 && token != t.Token() {
				return health.Lead{}, false
			}
			return health.Of(m.r.session.ID(), t)
		}}
	unserve := answerStatus(l, o.Handler())
	return func() { unserve(); figures.Close() }, nil
}

// statusConns is how many connections --status takes at once. Probes and scrapers need a few. The
// process needs the other descriptors for its store.
const statusConns = 200

// answerStatus answers at --status until end.
func answerStatus(l net.Listener, h http.Handler) (end func()) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14,
		ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.Serve(agent.Limit(l, statusConns)) }()
	return func() { _ = s.Close() }
}

// ready says that the store has answered, which it had before this was served, and that we are not
// on our way out. Whether we lead is no part of it.
func (m *monitor) ready() error {
	if m.r.ending.Load() || m.r.leaving.Load() {
		return errors.New("this process is stopping")
	}
	return nil
}

// listenStatus listens at HOST:PORT or unix:PATH. A socket that a killed process left behind is
// replaced.
func listenStatus(at string) (net.Listener, error) {
	path, ok := strings.CutPrefix(at, "unix:")
	if path == "" { // the system would make up a name
		return nil, errors.New("give HOST:PORT, or unix:PATH")
	}
	if !ok {
		if _, _, err := net.SplitHostPort(at); err != nil {
			return nil, errors.New("give HOST:PORT, or unix:PATH")
		}
		return net.Listen("tcp", at)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		d := net.Dialer{Timeout: time.Second}
		switch c, err := d.DialContext(context.Background(), "unix", path); {
		case err == nil:
			c.Close()
			return nil, errors.New("another process answers there")
		// nobody listens. Any other error is no proof of that: a process that is frozen has a full
		// queue
		case errors.Is(err, syscall.ECONNREFUSED):
			_ = os.Remove(path)
		}
	}
	return net.Listen("unix", path)
}
