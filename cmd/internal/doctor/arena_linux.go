package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/internal/proxy"
)

// arena is one torture.
type arena struct {
	o       Torture
	run     string // this run's own identity, which those of all candidates begin with
	name    string // of the election
	judge   *judge
	players []*player
	proxies []*proxy.Proxy
	do      func(func())
	ctx     context.Context // of the torture
	began   time.Duration

	mu   sync.Mutex
	done map[string]int // faults by kind
	last string         // the newest fault, in words
	fell string         // why candidates ended that nobody killed
	fall int            // how many did
	wg   sync.WaitGroup // faults under way
}

// Run tortures until Options.Duration is over or ctx ends, and returns what was found. An error says that it could not begin.
func (o Torture) Run(ctx context.Context) (*Verdict, error) {
	run := ownPrefix + "-" + strings.ToLower(rand.Text()[:12])
	a := &arena{o: o, run: run, name: ownPrefix + "/" + run, done: map[string]int{}, ctx: ctx}
	a.judge = newJudge(a.name)
	var stop func()
	a.do, stop = onethread.Start()
	defer stop()
	conf, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	_, operator := o.Store.(driver.Admin)
	if !operator {
		conf.why = strings.TrimPrefix(conf.why+"; the store knows no way to remove a claim by hand", "; ")
	}
	deck, without := newDeck(o.Seed, conf.links > 0, operator, conf.links > 1)
	v := &Verdict{Store: o.Store.Caps().Store, Name: a.name, Candidates: o.Candidates, TTL: o.TTL, Seed: o.Seed, Without: without, Why: conf.why}
	a.began = now()
	err = a.start()
	if err == nil {
		watch, end := context.WithCancel(ctx)
		var watching sync.WaitGroup
		watching.Go(func() { a.watch(watch) })
		err = a.torment(ctx, deck)
		end()
		watching.Wait()
	}
	v.length = now() - a.began
	v.Seconds = v.length.Round(time.Millisecond).Seconds()
	v.Recovered = err == nil && a.recovers(ctx)
	v.Left, v.leftErr = a.clean(ctx)
	v.Faults, v.Fell = a.done, a.fell // nothing runs any more
	v.judge(a.judge.tally(), ctx.Err() != nil)
	if err != nil && ctx.Err() == nil {
		return v, err
	}
	return v, nil
}

// start starts all candidates.
func (a *arena) start() error {
	for _, p := range a.players {
		if err := p.up(a.o.Command, a.do, a.hear); err != nil {
			return err
		}
	}
	return nil
}

// hear takes a candidate's line.
func (a *arena) hear(who, line string) {
	var x int64
	var token uint64
	if _, err := fmt.Sscanf(line, "w %d %d", &x, &token); err == nil {
		a.judge.wrote(who, time.Duration(x), token)
	} else if _, err := fmt.Sscanf(line, "p %d %d", &x, &token); err == nil {
		a.judge.proclaimed(token, int(x))
	}
}

// watch reads the register in the store, and starts candidates again that ended by themselves, as a supervisor would.
func (a *arena) watch(ctx context.Context) {
	var told time.Duration
	for sleep(ctx, 100*time.Millisecond) == nil {
		want := a.judge.newestAck()
		rctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		if ln, err := a.o.Store.Line(rctx, a.name); err == nil {
			a.judge.shows(want, ln)
		}
		cancel()
		a.reviveIdle()
		// To count takes longer the more there is: a torture of a day is counted every quarter of an hour.
		if at := now(); a.o.Progress != nil && at-told > max(400*time.Millisecond, (at-a.began)/100) {
			told = at
			a.o.Progress(a.state())
		}
	}
}

// torment deals faults until the time is over.
func (a *arena) torment(ctx context.Context, d *deck) error {
	defer a.wg.Wait()
	over := a.began + a.o.Duration
	if err := a.firstLeader(ctx); err != nil {
		return err
	}
	for now() < over && ctx.Err() == nil {
		// Half of the time a leader is there again: faults that hit nobody prove nothing.
		a.awaitLeader(ctx, a.o.TTL)
		if sleep(ctx, time.Duration(float64(a.o.TTL)*(0.1+0.3*d.rng.Float64()))) != nil || now() >= over {
			break
		}
		f, parts := d.deal()
		aim, which := d.rng.Float64() < 0.75 || f.leads, d.rng.IntN(len(a.players))
		p := a.free(ctx, aim, which)
		if p == nil {
			break
		}
		a.inflict(ctx, f, p, time.Duration(parts*float64(a.o.TTL)), over)
	}
	return nil
}

// state is what is known so far.
func (a *arena) state() State {
	t := a.judge.tally()
	a.mu.Lock()
	defer a.mu.Unlock()
	s := State{At: now() - a.began, Terms: t.Terms, Overlaps: t.Overlaps, Last: a.last}
	for _, n := range a.done {
		s.Faults += n
	}
	return s
}

// firstLeader waits for the first act. Candidates that all end at once cannot stand here at all.
func (a *arena) firstLeader(ctx context.Context) error {
	for end := now() + 2*a.o.TTL + 10*time.Second; now() < end; {
		if who, _, _ := a.judge.leader(); who != "" {
			return nil
		}
		a.mu.Lock()
		fell, fall := a.fell, a.fall
		a.mu.Unlock()
		if fall >= len(a.players) {
			return fmt.Errorf("the candidates cannot stand: %s", strings.TrimPrefix(fell, "primacy: "))
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return nil
		}
	}
	return nil
}

// awaitLeader waits until somebody acts, for limit at most.
func (a *arena) awaitLeader(ctx context.Context, limit time.Duration) bool {
	for end := now() + limit; ; {
		if _, _, at := a.judge.leader(); at > 0 && now()-at < 100*time.Millisecond {
			return true
		}
		if now() >= end || sleep(ctx, 10*time.Millisecond) != nil {
			return false
		}
	}
}

// free returns a candidate that nothing is being done to: the leader if aim, else the given one or one after it. At least one is always left alone, so
// that somebody can lead. It returns nil when ctx ends.
func (a *arena) free(ctx context.Context, aim bool, which int) *player {
	for {
		a.mu.Lock()
		busy := 0
		for _, p := range a.players {
			if p.busy {
				busy++
			}
		}
		if busy < max(1, min(len(a.players)-1, len(a.players)/2)) {
			leader, _, _ := a.judge.leader()
			i := slices.IndexFunc(a.players, func(p *player) bool { return aim && p.id == leader && !p.busy })
			for ; i < 0; which++ {
				if p := a.players[which%len(a.players)]; !p.busy {
					i = which % len(a.players)
				}
			}
			a.players[i].busy = true
			a.mu.Unlock()
			return a.players[i]
		}
		a.mu.Unlock()
		if sleep(ctx, 20*time.Millisecond) != nil {
			return nil
		}
	}
}

// inflict does a fault to p in the background, and ends it by the time the torture ends.
func (a *arena) inflict(ctx context.Context, f fault, p *player, lasts, over time.Duration) {
	leader, _, _ := a.judge.leader()
	part := "waits"
	if leader == p.id {
		part = "leads"
	}
	text := fmt.Sprintf("%s %s: %s", shortID(p.id), part, f.kind)
	if lasts > time.Duration(0.3*float64(a.o.TTL)) {
		text += fmt.Sprintf(" for %.1fs", lasts.Seconds())
	}
	a.wg.Go(func() {
		bctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		if f.begin(bctx, a, p) {
			a.count(f.kind, text)
		}
		cancel()
		_ = sleep(ctx, min(lasts, max(0, over-now())))
		f.end(a, p)
		a.revive(p)
		a.mu.Lock()
		p.busy = false
		a.mu.Unlock()
	})
}

func (a *arena) count(kind, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done[kind]++
	a.last = text
	if a.o.Tell != nil {
		a.o.Tell(now()-a.began, text)
	}
}

// revive starts the process again if it has ended, by our hand or by its own (as a process does whose work outlived its right).
func (a *arena) revive(p *player) {
	if !p.ended() || a.ctx.Err() != nil {
		return
	}
	if w := p.words(); w != "" && !p.overran() {
		a.mu.Lock()
		a.fell = w
		a.fall++
		a.mu.Unlock()
	}
	_ = p.up(a.o.Command, a.do, a.hear)
}

// reviveIdle starts those again that ended though nothing is being done to them.
func (a *arena) reviveIdle() {
	for _, p := range a.players {
		a.mu.Lock()
		idle := !p.busy && p.ended()
		p.busy = p.busy || idle // keeps faults away meanwhile
		a.mu.Unlock()
		if idle {
			a.revive(p)
			a.mu.Lock()
			p.busy = false
			a.mu.Unlock()
		}
	}
}

// recovers reports whether somebody leads once all faults are over.
func (a *arena) recovers(ctx context.Context) bool {
	for _, p := range a.players {
		a.revive(p)
	}
	return a.awaitLeader(ctx, a.o.TTL+10*time.Second)
}

// clean ends the candidates and gives back what they had.
func (a *arena) clean(ctx context.Context) ([]string, error) {
	for _, l := range a.proxies {
		l.Heal()
	}
	var wg sync.WaitGroup
	for _, p := range a.players {
		wg.Go(p.down)
	}
	wg.Wait()
	for _, l := range a.proxies {
		l.Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	op, ok := a.o.Store.(driver.Admin)
	if ok {
		ids, err := op.Leases(ctx, a.run)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if err := op.EndLease(ctx, id); err != nil {
				return nil, err
			}
		}
	}
	return remains(ctx, a.o.Store, a.name, a.run)
}

var errNoNetwork = errors.New("the store is reached without a network")

// connected says how candidates reach the store.
type connected struct {
	links int    // servers that are reached through links of our own
	why   string // why there are none
}

// connect makes the candidates, each with a link of its own to each server.
func (a *arena) connect(ctx context.Context) (c connected, err error) {
	u, conf, err := a.reach(ctx)
	switch {
	case errors.Is(err, errNoNetwork), errors.Is(err, errNames), errors.Is(err, errElsewhere):
		c.why = err.Error()
	case err != nil:
		return c, err
	case len(u.hosts) == 1:
		c.links, c.why = 1, "there is one server"
	default:
		c.links = len(u.hosts)
	}
	for i := range a.o.Candidates {
		p := &player{id: fmt.Sprintf("%s-c%d", a.run, i+1), conf: conf}
		for h := range c.links {
			l, err := a.link(u.addr(h))
			if err != nil {
				return c, err
			}
			p.links = append(p.links, l)
		}
		if c.links > 0 {
			p.conf.Store = through(u, p.links).String()
		}
		p.conf.ID = p.id
		a.players = append(a.players, p)
	}
	return c, nil
}

func (a *arena) link(addr string) (*proxy.Proxy, error) {
	l, err := proxy.Listen(addr)
	if err == nil {
		a.proxies = append(a.proxies, l)
	}
	return l, err
}

// shortID is a candidate's name for people.
func shortID(id string) string {
	if i := strings.LastIndex(id, "-c"); i >= 0 {
		return id[i+1:]
	}
	return id
}
