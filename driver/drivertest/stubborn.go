package drivertest

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// stubborn returns a store that repeats each call whose outcome is unknown until the answer is
// final, as the library above a driver does. So the clauses, which expect answers, can run over
// [Faulty].
func stubborn(s driver.Store) driver.Store {
	ports := storePortsOf(s)
	return storeWith(stubbornStore{s}, ports, stubbornPorts{ports})
}

// until repeats do until its answer is final or ctx ends.
func until[T any](ctx context.Context, do func() (T, error)) (T, error) {
	for {
		got, err := do()
		if err == nil || driver.IsFinal(err) || ctx.Err() != nil {
			return got, err
		}
		pause(ctx)
	}
}

// untilDone is until for a call that returns only an error.
func untilDone(ctx context.Context, do func() error) error {
	_, err := until(ctx, func() (nothing, error) { return nothing{}, do() })
	return err
}

type stubbornStore struct{ driver.Store }

func (s stubbornStore) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := until(ctx, func() (driver.Lease, error) { return s.Store.Grant(ctx, owner, ttl) })
	if err != nil {
		return nil, err
	}
	ports := leasePortsOf(l)
	return leaseWith(stubbornLease{l}, ports, stubbornLeasePorts{ports, stubbornLease{l}}), nil
}

func (s stubbornStore) Line(ctx context.Context, name string) (driver.Line, error) {
	return until(ctx, func() (driver.Line, error) { return s.Store.Line(ctx, name) })
}

func (s stubbornStore) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	return until(ctx, func() (driver.Line, error) { return s.Store.Next(ctx, name, after) })
}

type stubbornPorts struct{ storePorts }

func (s stubbornStore) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	return until(ctx, func() ([]driver.Line, error) { return s.Store.Lines(ctx, prefix) })
}

func (s stubbornPorts) Ask(ctx context.Context, name string, r driver.Request) error {
	return untilDone(ctx, func() error { return s.asker.Ask(ctx, name, r) })
}

func (s stubbornStore) Revoke(ctx context.Context, lease string) error {
	return untilDone(ctx, func() error { return s.Store.Revoke(ctx, lease) })
}

// Append may be told false after an unknown answer: then that call has done it, if what is there is
// what it brought.
func (s stubbornPorts) Append(ctx context.Context, name string, r driver.Record, keep int) (there driver.Record, added bool, err error) {
	unsure := false
	err = untilDone(ctx, func() (err error) {
		there, added, err = s.journal.Append(ctx, name, r, keep)
		unsure = unsure || err != nil
		return err
	})
	return there, added || err == nil && unsure && bytes.Equal(there.Value, r.Value), err
}

func (s stubbornPorts) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	return until(ctx, func() ([]driver.Record, error) { return s.journal.Records(ctx, name, before, limit) })
}

func (s stubbornPorts) Journals(ctx context.Context, prefix string) ([]string, error) {
	return until(ctx, func() ([]string, error) { return s.journal.Journals(ctx, prefix) })
}

type stubbornLease struct{ driver.Lease }

func (l stubbornLease) Renew(ctx context.Context) error {
	return untilDone(ctx, func() error { return l.Lease.Renew(ctx) })
}

// Claim repeats under the same IDs. A try that is told taken after an unknown answer is released by
// ID: the try that got lost may still be under way, and would hold the name for nobody.
func (l stubbornLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	unsure := false
	places, err := until(ctx, func() ([]driver.Place, error) {
		places, err := l.Lease.Claim(ctx, claims...)
		unsure = unsure || err != nil && !driver.IsFinal(err)
		return places, err
	})
	if errors.Is(err, driver.ErrTaken) && unsure {
		var tried []driver.Place
		for _, c := range claims {
			tried = append(tried, driver.Place{Name: c.Name, ID: c.ID})
		}
		if failed := l.Release(ctx, tried...); failed != nil {
			return nil, failed
		}
	}
	return places, err
}

func (l stubbornLease) Update(ctx context.Context, p driver.Place, value []byte) error {
	return untilDone(ctx, func() error { return l.Lease.Update(ctx, p, value) })
}

func (l stubbornLease) Release(ctx context.Context, places ...driver.Place) error {
	return untilDone(ctx, func() error { return l.Lease.Release(ctx, places...) })
}

func (l stubbornLease) News(ctx context.Context) ([]driver.News, error) {
	return until(ctx, func() ([]driver.News, error) { return l.Lease.News(ctx) })
}

// stubbornLeasePorts are the optional ports of a lease.
type stubbornLeasePorts struct {
	leasePorts
	lease stubbornLease
}

// Transfer may be told gone after an unknown answer: then that call has done it.
func (l stubbornLeasePorts) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	return untilDone(ctx, func() error { return l.transferer.Transfer(ctx, p, successor) })
}

// Exchange is repeated as its two halves.
func (l stubbornLeasePorts) Exchange(ctx context.Context, p driver.Place, c driver.Claim) (driver.Place, error) {
	place, err := l.exchanger.Exchange(ctx, p, c)
	if err == nil || driver.IsFinal(err) {
		return place, err
	}
	if err := l.lease.Release(ctx, p); err != nil {
		return driver.Place{}, err
	}
	places, err := l.lease.Claim(ctx, c)
	if err != nil {
		return driver.Place{}, err
	}
	return places[0], nil
}

func (l stubbornLease) Close(ctx context.Context) error {
	return untilDone(ctx, func() error { return l.Lease.Close(ctx) })
}
