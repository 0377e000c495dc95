//go:build unix

// Package faults has the faults that a torture injects into one candidate of an election: one table
// for `primacy doctor --torture` and for test/torture. A fault reaches only the candidate's own
// processes, its links to the store and its claim; faults of servers belong to test/torture.
package faults

import (
	"context"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/proxy"
)

// Candidate is what a fault is injected into. A method that returns a bool returns false when there
// was nothing to do it to: the process has ended, or no claim is in the line.
type Candidate interface {
	TTL() time.Duration
	Links() []*proxy.Proxy // one for each server of the store
	Kill(syscall.Signal) bool
	Freeze(pastTTL bool) bool
	Thaw()
	AskToResign(context.Context) bool
	RemoveClaim(context.Context) bool // as an operator does, by hand
	EndLease(context.Context) bool    // the same
}

// Fault is one kind of fault. It begins, lasts for Min to Max of the lease's ttl, and ends.
type Fault struct {
	Name     string
	Min, Max float64

	Links    bool // needs a candidate with links
	Servers  bool // needs links to several servers
	Operator bool // needs a store in which an operator may remove claims
	Leader   bool // is for the leader only

	begin func(context.Context, Candidate) bool
	end   func(Candidate) // nil: there is nothing to undo
}

// Begin injects the fault. False: there was nothing to do it to. End must follow in either case.
func (f Fault) Begin(ctx context.Context, c Candidate) bool { return f.begin(ctx, c) }

// End undoes what Begin did.
func (f Fault) End(c Candidate) {
	if f.end != nil {
		f.end(c)
	}
}

// All returns every fault.
func All() []Fault {
	return []Fault{
		{Name: "SIGKILL", Max: 0.7, begin: kill(syscall.SIGKILL)},
		{Name: "SIGTERM", Max: 0.3, begin: kill(syscall.SIGTERM)},
		{Name: "frozen past the ttl", Min: 1.1, Max: 1.8, begin: freeze(true), end: Candidate.Thaw},
		{Name: "frozen for a moment", Min: 0.1, Max: 0.6, begin: freeze(false), end: Candidate.Thaw},
		{Name: "silent link", Min: 1.1, Max: 1.8, Links: true, begin: hold(proxy.Up, proxy.Down), end: heal},
		{Name: "requests held", Min: 0.3, Max: 1.5, Links: true, begin: hold(proxy.Up), end: heal},
		{Name: "replies held", Min: 0.3, Max: 1.5, Links: true, begin: hold(proxy.Down), end: heal},
		{Name: "frozen in silence", Min: 1.1, Max: 1.8, Links: true, begin: freezeInSilence, end: thawInSilence},
		{Name: "slow link", Min: 0.5, Max: 1.5, Links: true, begin: slow, end: heal},
		{Name: "connections cut", Min: 0.1, Max: 0.8, Links: true, begin: links((*proxy.Proxy).Cut), end: heal},
		{Name: "one server silent", Min: 0.5, Max: 1.5, Links: true, Servers: true, begin: silenceOne, end: heal},
		{Name: "asked to resign", Max: 0.1, Leader: true,
			begin: func(ctx context.Context, c Candidate) bool { return c.AskToResign(ctx) }},
		{Name: "claim removed by hand", Max: 0.1, Operator: true,
			begin: func(ctx context.Context, c Candidate) bool { return c.RemoveClaim(ctx) }},
		{Name: "lease ended by hand", Max: 0.1, Operator: true,
			begin: func(ctx context.Context, c Candidate) bool { return c.EndLease(ctx) }},
	}
}

func kill(sig syscall.Signal) func(context.Context, Candidate) bool {
	return func(_ context.Context, c Candidate) bool { return c.Kill(sig) }
}

func freeze(pastTTL bool) func(context.Context, Candidate) bool {
	return func(_ context.Context, c Candidate) bool { return c.Freeze(pastTTL) }
}

func links(do func(*proxy.Proxy)) func(context.Context, Candidate) bool {
	return func(_ context.Context, c Candidate) bool {
		for _, l := range c.Links() {
			do(l)
		}
		return true
	}
}

func hold(dirs ...proxy.Dir) func(context.Context, Candidate) bool {
	return links(func(l *proxy.Proxy) { l.Hold(dirs...) })
}

func slow(ctx context.Context, c Candidate) bool {
	return links(func(l *proxy.Proxy) { l.Delay(c.TTL() / 60) })(ctx, c)
}

func silenceOne(_ context.Context, c Candidate) bool {
	c.Links()[0].Hold()
	return true
}

func heal(c Candidate) {
	for _, l := range c.Links() {
		l.Heal()
	}
}

func freezeInSilence(ctx context.Context, c Candidate) bool { return hold()(ctx, c) && c.Freeze(true) }

// thawInSilence thaws the candidate while nothing can reach it: its own clock alone must stop it.
func thawInSilence(c Candidate) {
	c.Thaw()
	time.Sleep(100 * time.Millisecond)
	heal(c)
}

// Plan is an endless sequence of faults, or of any other things, in an order that follows from rng:
// each one comes once before any comes again.
type Plan[T any] struct {
	rng  *rand.Rand
	all  []T
	left []T
}

// NewPlan returns a plan of all.
func NewPlan[T any](rng *rand.Rand, all []T) *Plan[T] { return &Plan[T]{rng: rng, all: all} }

// Next returns the next one.
func (p *Plan[T]) Next() (next T) {
	if len(p.left) == 0 {
		p.left = slices.Clone(p.all)
		p.rng.Shuffle(len(p.left), func(i, k int) { p.left[i], p.left[k] = p.left[k], p.left[i] })
	}
	next, p.left = p.left[0], p.left[1:]
	return next
}

// Lasts returns a duration for f with leases of that ttl.
func (f Fault) Lasts(rng *rand.Rand, ttl time.Duration) time.Duration {
	return time.Duration((f.Min + (f.Max-f.Min)*rng.Float64()) * float64(ttl))
}
