package doctor

import (
	"context"
	"math"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/proxy"
)

// fault is one thing that is done to one candidate for a while.
type fault struct {
	kind     string
	min, max float64                                             // how long it lasts, in parts of the ttl
	links    bool                                                // it needs links of our own
	operator bool                                                // it needs a store that an operator may change
	many     bool                                                // it needs several servers
	leads    bool                                                // it is for the leader
	begin    func(ctx context.Context, a *arena, p *player) bool // false: there was nothing to do it to
	end      func(a *arena, p *player)
}

// faults are all that there are. They do something to our own candidates, links and claims only.
var faults = []fault{
	{kind: "SIGKILL", max: 0.7, begin: kill(syscall.SIGKILL), end: (*arena).revive},
	{kind: "SIGTERM", max: 0.3, begin: kill(syscall.SIGTERM), end: (*arena).revive},
	{kind: "frozen past the ttl", min: 1.1, max: 1.8, begin: freeze, end: thaw},
	{kind: "frozen for a moment", min: 0.1, max: 0.6, begin: freeze, end: thaw},
	{kind: "silent link", min: 1.1, max: 1.8, links: true, begin: links(silence), end: heal},
	{kind: "requests held", min: 0.3, max: 1.5, links: true, begin: links(func(l *proxy.Proxy) { l.Hold(proxy.Up) }), end: heal},
	{kind: "replies held", min: 0.3, max: 1.5, links: true, begin: links(func(l *proxy.Proxy) { l.Hold(proxy.Down) }), end: heal},
	{kind: "frozen in silence", min: 1.1, max: 1.8, links: true,
		begin: func(ctx context.Context, a *arena, p *player) bool {
			return links(silence)(ctx, a, p) && freeze(ctx, a, p)
		},
		end: func(a *arena, p *player) {
			thaw(a, p) // first: it wakes up while nothing can tell it
			_ = sleep(a.ctx, 100*time.Millisecond)
			heal(a, p)
		}},
	{kind: "slow link", min: 0.5, max: 1.5, links: true, begin: slow, end: heal},
	{kind: "connections cut", min: 0.1, max: 0.8, links: true, begin: links((*proxy.Proxy).Cut), end: heal},
	{kind: "one server silent", min: 0.5, max: 1.5, links: true, many: true, begin: func(_ context.Context, _ *arena, p *player) bool {
		p.links[0].Hold()
		return true
	}, end: heal},
	{kind: "asked to resign", max: 0.1, leads: true, begin: askToResign, end: nothing},
	{kind: "claim removed by hand", max: 0.1, operator: true, begin: removeClaim, end: nothing},
	{kind: "lease ended by hand", max: 0.1, operator: true, begin: endLease, end: nothing},
}

func kill(sig syscall.Signal) func(context.Context, *arena, *player) bool {
	return func(_ context.Context, _ *arena, p *player) bool {
		p.signal(sig)
		return p.awaitExit(5 * time.Second)
	}
}

func freeze(_ context.Context, _ *arena, p *player) bool {
	return !p.ended() && p.signal(syscall.SIGSTOP)
}
func thaw(_ *arena, p *player) { p.signal(syscall.SIGCONT) }
func nothing(*arena, *player)  {}
func silence(l *proxy.Proxy)   { l.Hold() }

func slow(ctx context.Context, a *arena, p *player) bool {
	return links(func(l *proxy.Proxy) { l.Delay(a.o.TTL / 60) })(ctx, a, p)
}

func links(do func(*proxy.Proxy)) func(context.Context, *arena, *player) bool {
	return func(_ context.Context, _ *arena, p *player) bool {
		for _, l := range p.links {
			do(l)
		}
		return true
	}
}

func heal(_ *arena, p *player) {
	for _, l := range p.links {
		l.Heal()
	}
}

// standing finds the player's claim in the line.
func standing(ctx context.Context, a *arena, p *player) (s driver.Entry, held, ok bool) {
	ln, err := a.o.Store.Line(ctx, a.name)
	if err != nil {
		return s, false, false
	}
	if ln.Holder != nil && ln.Holder.Owner == p.id {
		return *ln.Holder, true, true
	}
	for _, w := range ln.Waiters {
		if w.Owner == p.id {
			return w, false, true
		}
	}
	return s, false, false
}

func askToResign(ctx context.Context, a *arena, p *player) bool {
	asker, ok := a.o.Store.(driver.Asker)
	s, held, found := standing(ctx, a, p)
	return ok && found && held && asker.Ask(ctx, a.name, driver.Request{Token: s.Token, By: a.run, Reason: "torture"}) == nil
}

func removeClaim(ctx context.Context, a *arena, p *player) bool {
	s, _, ok := standing(ctx, a, p)
	if !ok {
		return false
	}
	r := removal{token: s.Token, who: p.id, from: now()}
	err := a.o.Store.(driver.Admin).RemoveClaim(ctx, a.name, s.Token)
	r.to = until(err)
	a.judge.removed(r)
	return true
}

func endLease(ctx context.Context, a *arena, p *player) bool {
	s, _, ok := standing(ctx, a, p)
	if !ok || s.Lease == "" {
		return false
	}
	r := removal{who: p.id, from: now()} // it may have won meanwhile, so all its terms are excused
	err := a.o.Store.(driver.Admin).EndLease(ctx, s.Lease)
	r.to = until(err)
	a.judge.removed(r)
	return true
}

// until says when a removal was over: one whose answer was lost may come at any time.
func until(err error) time.Duration {
	if err != nil {
		return math.MaxInt64
	}
	return now()
}

// deck deals faults in a seeded order, each kind as often as any other.
type deck struct {
	rng  *rand.Rand
	all  []fault
	left []fault
}

// newDeck takes the faults that are possible here, and says which are not.
func newDeck(seed uint64, links, operator, many bool) (d *deck, without []string) {
	d = &deck{rng: rand.New(rand.NewPCG(seed, 0))}
	for _, f := range faults {
		if f.links && !links || f.operator && !operator || f.many && !many {
			without = append(without, f.kind)
		} else {
			d.all = append(d.all, f)
		}
	}
	return d, without
}

func (d *deck) deal() (f fault, parts float64) {
	if len(d.left) == 0 {
		d.left = append(d.left, d.all...)
		d.rng.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	f, d.left = d.left[0], d.left[1:]
	return f, f.min + (f.max-f.min)*d.rng.Float64()
}
