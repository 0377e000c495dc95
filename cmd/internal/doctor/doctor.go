// Package doctor looks at a store and the way to it, measures what the promise of one leader rests
// on, and says in plain words what the store can promise and what it cannot. Torture proves or
// disproves the promise there, with real processes.
package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
)

// ownPrefix begins every name that the doctor uses, and every identity: nobody else's can collide
// with them.
const ownPrefix = "primacy-doctor"

// Check is one thing that was looked at.
type Check struct {
	Topic   string             `json:"topic"`
	Level   driver.Level       `json:"level"`
	Found   string             `json:"found"`
	Advice  string             `json:"advice,omitempty"`
	Figures map[string]float64 `json:"figures,omitempty"` // with the unit at the end of each name
}

// Report is all that was found.
type Report struct {
	Store  string   `json:"store"`
	Checks []Check  `json:"checks"`
	Can    []string `json:"can_promise"`
	Cannot []string `json:"cannot_promise"`
}

// Count returns how many checks have this level.
func (r *Report) Count(level driver.Level) (n int) {
	for _, c := range r.Checks {
		if c.Level == level {
			n++
		}
	}
	return n
}

// Options of [Examine].
type Options struct {
	Name   string        // an election whose line and permissions are looked at too; "": none
	TTL    time.Duration // of the leases that will be kept there
	Drift  float64       // the drift bound that will be kept
	Window time.Duration // for how long the store's clock is watched
	Tries  int           // round trips of each kind
	Tell   func(Check)   // gets each check as soon as it is known
}

// examination is one call of [Examine].
type examination struct {
	st   driver.Store
	o    Options
	run  string // this run's own identity
	name string // the name it stands for
	rep  *Report
}

// Examine looks at st and tells what it found; it takes a little longer than Options.Window.
// Nothing of it stays in the store, also when ctx ends early: when it was cancelled the report
// holds what was found so far, when its time is over that is a failed check.
func Examine(ctx context.Context, st driver.Store, o Options) *Report {
	run := ownPrefix + "-" + strings.ToLower(rand.Text()[:12])
	p := &examination{st: st, o: o, run: run, name: ownPrefix + "/" + run, rep: &Report{Store: st.Caps().Store}}
	p.look(ctx, machine(o.Drift)...)
	clock := make(chan Check, 1)
	go func() { clock <- p.clock(ctx) }()
	if ctx.Err() == nil {
		for _, f := range st.Examine(ctx, p.lookAt()) {
			p.look(ctx, Check{Topic: f.Topic, Level: f.Level, Found: f.Found, Advice: f.Advice})
		}
	}
	for _, do := range []func(context.Context) []Check{p.line, p.ttls, p.trips} {
		if ctx.Err() == nil {
			p.look(ctx, do(ctx)...)
		}
	}
	p.look(ctx, <-clock)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		p.tell(Check{Topic: "time", Level: driver.Failed, Found: "the store was too slow to look at everything",
			Advice: "see above what it did not answer"})
	}
	p.tell(p.left(ctx))
	p.rep.Can, p.rep.Cannot = Promises(st.Caps(), o.Drift)
	return p.rep
}

// look tells what was found, but for what an interruption made of it.
func (p *examination) look(ctx context.Context, checks ...Check) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	for _, c := range checks {
		p.tell(c)
	}
}

func (p *examination) tell(c Check) {
	p.rep.Checks = append(p.rep.Checks, c)
	if p.o.Tell != nil {
		p.o.Tell(c)
	}
}

// lookAt is the name whose permissions matter.
func (p *examination) lookAt() string {
	if p.o.Name != "" {
		return p.o.Name
	}
	return p.name
}

// cleanupContext returns a context for giving things back, also when ctx has ended.
func cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
}

// grant grants a lease, and returns what closes it. An interruption is not passed on at once: a
// lease whose answer is lost cannot be given back.
func (p *examination) grant(ctx context.Context, ttl time.Duration) (driver.Lease, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	gctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(2*time.Second, cancel) })()
	l, err := p.st.Grant(gctx, p.run, ttl)
	if err != nil {
		return nil, nil, err
	}
	return l, func() {
		ctx, cancel := cleanupContext(ctx)
		defer cancel()
		_ = l.Close(ctx) // if it fails the lease runs out by itself
	}, nil
}

// line looks at the election that was named.
func (p *examination) line(ctx context.Context) []Check {
	if p.o.Name == "" {
		return nil
	}
	c := Check{Topic: fmt.Sprintf("election %q", p.o.Name), Level: driver.Fine}
	ln, err := p.st.Line(ctx, p.o.Name)
	if err != nil {
		return []Check{failed(c, err)}
	}
	waiting, all := 0, ln.Waiters
	for _, s := range all {
		if !s.Held {
			waiting++
		}
	}
	c.Found = fmt.Sprintf("nobody leads, %d wait", waiting)
	if ln.Holder != nil {
		c.Found = fmt.Sprintf("%q leads under token %d, %d wait", ln.Holder.Owner, ln.Holder.Token, waiting)
		if held := 1 + len(all) - waiting; held > 1 {
			c.Found = fmt.Sprintf("%d hold it together, the first is %q under token %d, %d wait", held,
				ln.Holder.Owner, ln.Holder.Token, waiting)
		}
		all = append([]driver.Entry{*ln.Holder}, all...)
	}
	for _, s := range all {
		if s.Note != "" {
			c.Level, c.Found = driver.Warning, c.Found+fmt.Sprintf("; the claim with token %d: %s", s.Token, s.Note)
			c.Advice = "see who entered it; one without a lease blocks the queue until it is deleted by hand"
		}
	}
	return []Check{c}
}

func failed(c Check, err error) Check {
	c.Level, c.Found, c.Advice = driver.Failed, err.Error(), "see the checks above"
	return c
}

// ttls asks for leases of the least ttl, and of the one that will be used. It asks for none of
// the longest: a Redis that is restarted within two hours lets nobody new lead for as long as the
// longest lease that it has granted.
func (p *examination) ttls(ctx context.Context) []Check {
	c := Check{Topic: "ttl", Level: driver.Fine, Figures: map[string]float64{}}
	caps := p.st.Caps()
	var words []string
	for _, t := range []struct {
		what string
		ask  time.Duration
	}{{"asked", p.o.TTL}, {"floor", caps.MinTTL}} {
		if t.ask <= 0 {
			continue
		}
		l, done, err := p.grant(ctx, t.ask)
		if err != nil {
			return []Check{failed(c, fmt.Errorf("a lease of %v: %w", t.ask, err))}
		}
		done()
		got := l.TTL()
		words = append(words, fmt.Sprintf("%s %v, granted %v", t.what, t.ask, got))
		c.Figures[t.what+"_s"], c.Figures[t.what+"_granted_s"] = t.ask.Seconds(), got.Seconds()
		switch {
		case got < t.ask:
			c.Level, c.Advice = driver.Failed, "it grants less than was asked for: no lease can be trusted there"
		case got > t.ask && c.Level == driver.Fine && t.what == "asked":
			c.Level, c.Advice = driver.Warning,
				fmt.Sprintf("count with %v: after a crash nobody leads for that long", got)
		}
	}
	c.Found = strings.Join(words, "; ")
	return []Check{c}
}

// left looks whether anything of ours still stands.
func (p *examination) left(ctx context.Context) Check {
	c := Check{Topic: "left behind", Level: driver.Fine, Found: "nothing"}
	ctx, cancel := cleanupContext(ctx)
	defer cancel()
	found, err := remains(ctx, p.st, p.name, p.run)
	switch {
	case err != nil:
		c.Level, c.Found, c.Advice = driver.Warning, "not found out: "+err.Error(),
			"what there is goes with its lease, within a minute"
	case len(found) > 0:
		c.Level, c.Found, c.Advice = driver.Warning, strings.Join(found, ", "),
			"it goes with its lease, within a minute"
	}
	return c
}

// remains tells what still stands under name, or belongs to owners that begin with run.
func remains(ctx context.Context, st driver.Store, name, run string) (found []string, err error) {
	ln, err := st.Line(ctx, name)
	if err != nil {
		return nil, err
	}
	if ln.Holder != nil {
		found = append(found, fmt.Sprintf("%d claims on %q", 1+len(ln.Waiters), name))
	}
	if op, ok := st.(driver.Admin); ok {
		ids, err := op.Leases(ctx, run)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			found = append(found, "lease "+id)
		}
	}
	return found, nil
}

// now is the clock that everything here is measured by: the one that deadlines use.
func now() time.Duration { return boottime.Now() }
