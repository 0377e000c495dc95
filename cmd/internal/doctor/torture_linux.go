package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/faults"
	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/internal/proxy"
)

// run is one torture. Three kinds of goroutines work on it: injectFaults (the caller of Run),
// watch, and one for each fault under way.
type run struct {
	o          Torture
	prefix     string // of this run's name and of all its candidates' identities
	name       string // of the election
	judge      *judge
	candidates []*process
	proxies    []*proxy.Proxy
	do         func(func()) // runs a function on the thread that starts all candidates
	ctx        context.Context
	began      time.Duration
	faults     sync.WaitGroup // one for each fault under way

	mu     sync.Mutex     // guards what follows, and process.busy
	done   map[string]int // faults by kind
	last   string         // the newest fault, in words
	fell   string         // why the last candidate ended that ended without a fault
	fallen int            // how many ended so
}

// Run tortures until Options.Duration is over or ctx ends, and returns what was found. An error
// says that it could not begin.
func (o Torture) Run(ctx context.Context) (*Verdict, error) {
	prefix := ownPrefix + "-" + strings.ToLower(rand.Text()[:12])
	r := &run{o: o, prefix: prefix, name: ownPrefix + "/" + prefix, done: map[string]int{}, ctx: ctx}
	r.judge = newJudge(r.name, o.TTL)
	var stop func()
	r.do, stop = onethread.Start()
	defer stop()
	conf, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	_, operator := o.Store.(driver.Admin)
	if !operator {
		conf.why = strings.TrimPrefix(conf.why+"; the store knows no way to remove a claim by hand", "; ")
	}
	possible, without := possibleFaults(conf.links > 0, operator, conf.links > 1)
	v := &Verdict{Store: o.Store.Caps().Store, Name: r.name, Candidates: o.Candidates,
		TTL: o.TTL, Seed: o.Seed, Without: without, Why: conf.why}
	r.began = now()
	err = r.start()
	if err == nil {
		watch, end := context.WithCancel(ctx)
		var watching sync.WaitGroup
		watching.Go(func() { r.watch(watch) })
		err = r.injectFaults(ctx, possible)
		end()
		watching.Wait()
	}
	v.length = now() - r.began
	v.Seconds = v.length.Round(time.Millisecond).Seconds()
	v.Recovered = err == nil && r.recovers(ctx)
	v.Left, v.leftErr = r.clean(ctx)
	v.Faults, v.Fell = r.done, r.fell // nothing runs any more
	v.judge(r.judge.tally(), ctx.Err() != nil)
	if err != nil && ctx.Err() == nil {
		return v, err
	}
	return v, nil
}

// start starts all candidates.
func (r *run) start() error {
	for _, p := range r.candidates {
		if err := p.start(r.o.Command, r.do, r.handleLine); err != nil {
			return err
		}
	}
	return nil
}

// handleLine takes in a line that a candidate has written. Each candidate's reader calls it.
func (r *run) handleLine(who, line string) {
	var x int64
	var token uint64
	if _, err := fmt.Sscanf(line, "w %d %d", &x, &token); err == nil {
		r.judge.wrote(who, time.Duration(x), token)
	} else if _, err := fmt.Sscanf(line, "p %d %d", &x, &token); err == nil {
		r.judge.proclaimed(token, int(x))
	}
}

// watch reads the register in the store, and starts candidates again that ended by themselves, as a
// service manager would. It is a goroutine, until ctx ends.
func (r *run) watch(ctx context.Context) {
	var reported time.Duration
	for sleep(ctx, 100*time.Millisecond) == nil {
		want := r.judge.newestAck()
		rctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		if ln, err := r.o.Store.Line(rctx, r.name); err == nil {
			r.judge.shows(want, ln)
		}
		cancel()
		r.restartIdle()
		// To count takes longer the more there is: a torture of a day is counted every quarter of
		// an hour.
		if at := now(); r.o.Progress != nil && at-reported > max(400*time.Millisecond, (at-r.began)/100) {
			reported = at
			r.o.Progress(r.state())
		}
	}
}

// injectFaults injects faults until the time is over.
func (r *run) injectFaults(ctx context.Context, possible []faults.Fault) error {
	defer r.faults.Wait()
	rng := mathrand.New(mathrand.NewPCG(r.o.Seed, 0))
	plan := faults.NewPlan(rng, possible)
	over := r.began + r.o.Duration
	if err := r.firstLeader(ctx); err != nil {
		return err
	}
	for now() < over && ctx.Err() == nil {
		// Half of the time a leader is there again: faults that hit nobody prove nothing.
		r.awaitLeader(ctx, r.o.TTL)
		if sleep(ctx, time.Duration(float64(r.o.TTL)*(0.1+0.3*rng.Float64()))) != nil || now() >= over {
			break
		}
		f := plan.Next()
		lasts := f.Lasts(rng, r.o.TTL)
		aim, which := rng.Float64() < 0.75 || f.Leader, rng.IntN(len(r.candidates))
		p := r.free(ctx, aim, which)
		if p == nil {
			break
		}
		r.inject(ctx, f, p, lasts, over)
	}
	return nil
}

// state is what is known so far.
func (r *run) state() State {
	t := r.judge.tally()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := State{At: now() - r.began, Terms: t.Terms, Overlaps: t.Overlaps, Last: r.last}
	for _, n := range r.done {
		s.Faults += n
	}
	return s
}

// firstLeader waits for the first act. Candidates that all end at once cannot stand here at all.
func (r *run) firstLeader(ctx context.Context) error {
	for end := now() + 2*r.o.TTL + 10*time.Second; now() < end; {
		if who, _ := r.judge.leader(); who != "" {
			return nil
		}
		r.mu.Lock()
		fell, fallen := r.fell, r.fallen
		r.mu.Unlock()
		if fallen >= len(r.candidates) {
			return fmt.Errorf("the candidates cannot campaign: %s", strings.TrimPrefix(fell, "primacy: "))
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return nil
		}
	}
	return nil
}

// awaitLeader waits until somebody acts, for limit at most.
func (r *run) awaitLeader(ctx context.Context, limit time.Duration) bool {
	for end := now() + limit; ; {
		if _, at := r.judge.leader(); at > 0 && now()-at < 100*time.Millisecond {
			return true
		}
		if now() >= end || sleep(ctx, 10*time.Millisecond) != nil {
			return false
		}
	}
}

// free waits for a candidate without a fault and marks it as busy: the leader if aim, else the
// given one or one after it. At least one is always left without a fault, so that somebody can
// lead. It returns nil when ctx ends.
func (r *run) free(ctx context.Context, aim bool, which int) *process {
	for {
		r.mu.Lock()
		busy := 0
		for _, p := range r.candidates {
			if p.busy {
				busy++
			}
		}
		if busy < max(1, min(len(r.candidates)-1, len(r.candidates)/2)) {
			leader, _ := r.judge.leader()
			i := slices.IndexFunc(r.candidates, func(p *process) bool { return aim && p.id == leader && !p.busy })
			for ; i < 0; which++ {
				if p := r.candidates[which%len(r.candidates)]; !p.busy {
					i = which % len(r.candidates)
				}
			}
			r.candidates[i].busy = true
			r.mu.Unlock()
			return r.candidates[i]
		}
		r.mu.Unlock()
		if sleep(ctx, 20*time.Millisecond) != nil {
			return nil
		}
	}
}

// inject injects a fault into p in the background, and ends it by the time the torture ends.
func (r *run) inject(ctx context.Context, f faults.Fault, p *process, lasts, over time.Duration) {
	leader, _ := r.judge.leader()
	part := "waits"
	if leader == p.id {
		part = "leads"
	}
	text := fmt.Sprintf("%s %s: %s", shortID(p.id), part, f.Name)
	if lasts > time.Duration(0.3*float64(r.o.TTL)) {
		text += fmt.Sprintf(" for %.1fs", lasts.Seconds())
	}
	r.faults.Go(func() {
		bctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		if f.Begin(bctx, p) {
			r.count(f.Name, text)
		}
		cancel()
		_ = sleep(ctx, min(lasts, max(0, over-now())))
		f.End(p)
		r.restart(p)
		r.mu.Lock()
		p.busy = false
		r.mu.Unlock()
	})
}

func (r *run) count(kind, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[kind]++
	r.last = text
	if r.o.Tell != nil {
		r.o.Tell(now()-r.began, text)
	}
}

// restart starts the process again if it has ended: by a fault, or by itself as a process does
// whose work outlived its right.
func (r *run) restart(p *process) {
	if !p.ended() || r.ctx.Err() != nil {
		return
	}
	if w := p.said(); w != "" && !p.overran() {
		r.mu.Lock()
		r.fell = w
		r.fallen++
		r.mu.Unlock()
	}
	_ = p.start(r.o.Command, r.do, r.handleLine)
}

// restartIdle starts the candidates again that ended without a fault.
func (r *run) restartIdle() {
	for _, p := range r.candidates {
		r.mu.Lock()
		idle := !p.busy && p.ended()
		p.busy = p.busy || idle // keeps faults away meanwhile
		r.mu.Unlock()
		if idle {
			r.restart(p)
			r.mu.Lock()
			p.busy = false
			r.mu.Unlock()
		}
	}
}

// recovers reports whether somebody leads once all faults are over.
func (r *run) recovers(ctx context.Context) bool {
	for _, p := range r.candidates {
		r.restart(p)
	}
	return r.awaitLeader(ctx, r.o.TTL+10*time.Second)
}

// clean ends the candidates and gives back what they had.
func (r *run) clean(ctx context.Context) ([]string, error) {
	for _, l := range r.proxies {
		l.Heal()
	}
	var wg sync.WaitGroup
	for _, p := range r.candidates {
		wg.Go(p.stop)
	}
	wg.Wait()
	for _, l := range r.proxies {
		l.Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	op, ok := r.o.Store.(driver.Admin)
	if ok {
		ids, err := op.Leases(ctx, r.prefix)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if err := r.o.Store.Revoke(ctx, id); err != nil {
				return nil, err
			}
		}
	}
	return remains(ctx, r.o.Store, r.name, r.prefix)
}

var errNoNetwork = errors.New("the store is reached without a network")

// connected says how candidates reach the store.
type connected struct {
	links int    // servers that are reached through links of our own
	why   string // why there are none
}

// connect makes the candidates, each with a link of its own to each server.
func (r *run) connect(ctx context.Context) (c connected, err error) {
	u, conf, err := r.reach(ctx)
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
	for i := range r.o.Candidates {
		p := &process{run: r, id: fmt.Sprintf("%s-c%d", r.prefix, i+1), conf: conf}
		for h := range c.links {
			l, err := r.link(u.addr(h))
			if err != nil {
				return c, err
			}
			p.links = append(p.links, l)
		}
		if c.links > 0 {
			p.conf.Store = through(u, p.links).String()
		}
		p.conf.ID = p.id
		r.candidates = append(r.candidates, p)
	}
	return c, nil
}

func (r *run) link(addr string) (*proxy.Proxy, error) {
	l, err := proxy.Listen(addr)
	if err == nil {
		r.proxies = append(r.proxies, l)
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

// possibleFaults returns the faults that are possible here, and the names of the others.
func possibleFaults(links, operator, servers bool) (possible []faults.Fault, without []string) {
	for _, f := range faults.All() {
		if f.Links && !links || f.Operator && !operator || f.Servers && !servers {
			without = append(without, f.Name)
		} else {
			possible = append(possible, f)
		}
	}
	return possible, without
}
