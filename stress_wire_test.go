package primacy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// wire is a process's client of the store: the gate of the process, the valves of its machine, answers that take their time, and
// behind them the faults of package drivertest.
type wire struct {
	driver.Store
	p *process
}

type wireLease struct {
	driver.Lease
	p        *process
	renewing atomic.Int32
}

// errDead ends the loops of a process that crashed once the test lets them go.
var errDead = fmt.Errorf("%w: the process is dead", driver.ErrRefused)

// over brings one call to the store and its answer back. A request that was on its way when its caller gave it up may still arrive.
func over[T any](ctx context.Context, p *process, call func(context.Context) (T, error)) (T, error) {
	if err := p.leave(ctx); err != nil {
		if !errors.Is(err, errDead) && p.m.coin() {
			p.m.stragglers.Go(func() {
				_ = p.m.out.pass(context.Background())
				p.m.late.Add(1)
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				_, _ = call(ctx)
			})
		}
		var none T
		return none, err
	}
	return answered(ctx, p, call)
}

// waitFor is over for a call that waits at the store: given up, it is over.
func waitFor[T any](ctx context.Context, p *process, call func(context.Context) (T, error)) (T, error) {
	if err := p.leave(ctx); err != nil {
		var none T
		return none, err
	}
	return answered(ctx, p, call)
}

// leave waits until a request can leave the process and its machine.
func (p *process) leave(ctx context.Context) error {
	_ = p.gate.pass(context.Background()) // a process that is stopped does not hear its contexts either
	if p.dead.Load() {
		return errDead
	}
	p.m.calls.Add(1)
	return p.m.out.pass(ctx)
}

func answered[T any](ctx context.Context, p *process, call func(context.Context) (T, error)) (T, error) {
	var none T
	got, err := call(ctx)
	if lost := p.comeBack(ctx); lost != nil {
		got, err = none, lost
	}
	_ = p.gate.pass(context.Background())
	if p.dead.Load() {
		return none, errDead
	}
	return got, err
}

func (p *process) comeBack(ctx context.Context) error {
	if err := p.m.back.pass(ctx); err != nil {
		return err
	}
	if d := p.m.delay(); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

type none struct{}

func overDo(ctx context.Context, p *process, call func(context.Context) error) error {
	_, err := over(ctx, p, func(ctx context.Context) (none, error) { return none{}, call(ctx) })
	return err
}

func (w *wire) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := over(ctx, w.p, func(ctx context.Context) (driver.Lease, error) { return w.Store.Grant(ctx, owner, ttl) })
	if err != nil {
		return nil, err
	}
	return &wireLease{Lease: l, p: w.p}, nil
}

func (w *wire) Line(ctx context.Context, name string) (driver.Line, error) {
	return over(ctx, w.p, func(ctx context.Context) (driver.Line, error) { return w.Store.Line(ctx, name) })
}

func (w *wire) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	return waitFor(ctx, w.p, func(ctx context.Context) (driver.Line, error) { return w.Store.Next(ctx, name, after) })
}

func (w *wire) Ask(ctx context.Context, name string, r driver.Request) error {
	return overDo(ctx, w.p, func(ctx context.Context) error { return w.Store.(driver.Asker).Ask(ctx, name, r) })
}

func (l *wireLease) Renew(ctx context.Context) error {
	if l.renewing.Add(1) > 1 {
		l.p.judge.failf("%s sends a renewal while the client has not come back from the one before", l.p.m.id)
	}
	defer l.renewing.Add(-1)
	return overDo(ctx, l.p, l.Lease.Renew)
}

func (l *wireLease) Claim(ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
	return over(ctx, l.p, func(ctx context.Context) ([]driver.Place, error) { return l.Lease.Claim(ctx, c...) })
}

func (l *wireLease) Update(ctx context.Context, p driver.Place, value []byte) error {
	return overDo(ctx, l.p, func(ctx context.Context) error { return l.Lease.Update(ctx, p, value) })
}

func (l *wireLease) Release(ctx context.Context, p ...driver.Place) error {
	return overDo(ctx, l.p, func(ctx context.Context) error { return l.Lease.Release(ctx, p...) })
}

func (l *wireLease) Exchange(ctx context.Context, p driver.Place, c driver.Claim) (driver.Place, error) {
	return over(ctx, l.p, func(ctx context.Context) (driver.Place, error) { return l.Lease.(driver.Exchanger).Exchange(ctx, p, c) })
}

// News is not lost on its way back: its context ends with the lease only.
func (l *wireLease) Transfer(ctx context.Context, p driver.Place, heir uint64) error {
	return overDo(ctx, l.p, func(ctx context.Context) error { return l.Lease.(driver.Transferer).Transfer(ctx, p, heir) })
}

func (l *wireLease) News(ctx context.Context) ([]driver.News, error) {
	return waitFor(ctx, l.p, func(ctx context.Context) ([]driver.News, error) { return l.Lease.News(ctx) })
}

func (l *wireLease) Close(ctx context.Context) error { return overDo(ctx, l.p, l.Lease.Close) }
