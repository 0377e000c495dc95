package cron

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// simProc is one process: an engine, its lease and its claims. What is dead reaches nothing any
// more, but its command runs until its guardian ends it.
type simProc struct {
	w      *simWorld
	id     string
	engine *Engine
	dead   chan struct{}

	mu       sync.Mutex
	skew     time.Duration
	gate     chan struct{} // closed while it is not paused
	healed   chan struct{} // closed while the network is there
	lease    driver.Lease
	deadline time.Time
	holds    map[string]*simHold
}

func (w *simWorld) spawn(n int, skew time.Duration) *simProc {
	p := &simProc{w: w, id: fmt.Sprintf("p%d", n), dead: make(chan struct{}), skew: skew, gate: closed(),
		healed: closed(), holds: map[string]*simHold{}}
	p.engine = New(Options{Journal: simJournal{p}, Claims: p, Runner: p.run, ID: p.id, Log: func(Event) {},
		Now: p.now, Rand: w.float,
		Spread: 100 * time.Millisecond, Look: 5 * time.Second, Attempt: 2 * time.Second, Max: w.room, Pauses: w.pauses})
	go p.keep()
	p.engine.Set(w.jobs)
	return p
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (p *simProc) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Add(p.skew)
}

func (p *simProc) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.dead:
	default:
		close(p.dead)
	}
}

// pause stands the whole process still; its guardians are not.
func (p *simProc) pause(d time.Duration) {
	c := make(chan struct{})
	p.mu.Lock()
	p.gate = c
	p.mu.Unlock()
	go func() { time.Sleep(d); close(c) }()
}

func (p *simProc) cut(d time.Duration) {
	c := make(chan struct{})
	p.mu.Lock()
	p.healed = c
	p.mu.Unlock()
	go func() { time.Sleep(d); close(c) }()
}

func (p *simProc) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skew = 0
}

// pass stands still while the process is paused. False: it is dead.
func (p *simProc) pass() bool {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	select {
	case <-gate:
	case <-p.dead:
	}
	select {
	case <-p.dead:
		return false
	default:
		return true
	}
}

var errNet = errors.New("no answer")

// net is one call over the network: late, lost on the way there or on the way back, or at once.
func (p *simProc) net(ctx context.Context, call func() error) error {
	if !p.pass() {
		return errNet
	}
	select {
	case <-time.After(p.w.lag()):
	case <-ctx.Done(): // it is on its way, and arrives though nobody waits for it any more
		p.w.counted("straggler", 1)
		late := p.w.lag()
		go func() { time.Sleep(late); _ = call() }()
		return ctx.Err()
	}
	p.mu.Lock()
	healed := p.healed
	p.mu.Unlock()
	select {
	case <-healed:
	case <-ctx.Done():
		return ctx.Err()
	case <-p.dead:
		return errNet
	}
	f := p.w.float()
	if f < 0.02 {
		p.w.counted("unknown", 1)
		return errNet
	}
	if f > 0.995 { // on its way for so long that its sender has given it up: it arrives all the same
		p.w.counted("straggler", 1)
		late := p.w.span(time.Second, 20*time.Second)
		go func() { time.Sleep(late); _ = call() }()
		return errNet
	}
	err := call()
	select {
	case <-time.After(p.w.lag()):
	case <-ctx.Done():
		p.w.counted("unknown", 1)
		return ctx.Err()
	}
	if f > 0.97 {
		p.w.counted("unknown", 1)
		return errNet
	}
	if !p.pass() {
		return errNet
	}
	return err
}

// keep renews the lease, as a session does: the right is counted from before the call.
func (p *simProc) keep() {
	for p.pass() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		p.mu.Lock()
		l := p.lease
		p.mu.Unlock()
		asked := time.Now()
		err := p.net(ctx, func() error {
			if l != nil && time.Since(asked) < time.Second {
				return l.Renew(context.Background())
			}
			return nil
		})
		cancel()
		p.mu.Lock()
		switch over := p.lease == nil || !asked.Before(p.deadline); {
		case p.lease != nil && (over || errors.Is(err, driver.ErrGone)):
			p.lease, p.deadline = nil, time.Time{}
		case p.lease != nil && err == nil && time.Until(p.deadline) > simGrace:
			p.deadline = asked.Add(simRight)
		}
		p.mu.Unlock()
		if l == nil {
			p.grant()
		}
		time.Sleep(time.Second)
	}
}

func (p *simProc) grant() {
	asked := time.Now()
	var l driver.Lease
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := p.net(ctx, func() (err error) {
		l, err = p.w.store.Grant(context.Background(), p.id, simTTL)
		return err
	})
	if err != nil || time.Since(asked) > 2*time.Second {
		return
	}
	p.mu.Lock()
	p.lease, p.deadline, p.holds = l, asked.Add(simRight), map[string]*simHold{}
	p.mu.Unlock()
	go p.hear(l)
}

// hear takes in what others ask of the holder.
func (p *simProc) hear(l driver.Lease) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		news, err := l.News(ctx)
		cancel()
		if errors.Is(err, driver.ErrGone) || !p.pass() {
			return
		}
		for _, n := range news {
			p.mu.Lock()
			if h := p.holds[n.Place.Name]; h != nil && n.Request != nil && h.place.Token == n.Request.Token {
				h.ask()
			}
			p.mu.Unlock()
		}
	}
}
