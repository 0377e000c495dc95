package drivertest

import (
	"context"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// faulty is the store of [Faulty]. Caps does no I/O and needs no network.
type faulty struct {
	driver.Store
	net *network
}

// nothing is the result of a call that returns only an error.
type nothing struct{}

func (s *faulty) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := through(ctx, s.net, changes, func(ctx context.Context) (driver.Lease, error) {
		return s.Store.Grant(ctx, owner, ttl)
	})
	if err != nil {
		return nil, err
	}
	ports := leasePortsOf(l)
	return leaseWith(&faultyLease{Lease: l, net: s.net}, ports, faultyLeasePorts{ports, s.net}), nil
}

func (s *faulty) Line(ctx context.Context, name string) (driver.Line, error) {
	return through(ctx, s.net, changes, func(ctx context.Context) (driver.Line, error) { return s.Store.Line(ctx, name) })
}

func (s *faulty) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	return through(ctx, s.net, blocks, func(ctx context.Context) (driver.Line, error) { return s.Store.Next(ctx, name, after) })
}

// Close lets what is late come first: after it the store may be gone.
func (s *faulty) Close() error {
	s.Settle()
	return s.Store.Close()
}

// faultyPorts are the optional ports of a store.
type faultyPorts struct {
	storePorts
	net *network
}

func (s *faulty) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	return through(ctx, s.net, changes, func(ctx context.Context) ([]driver.Line, error) { return s.Store.Lines(ctx, prefix) })
}

func (s faultyPorts) Ask(ctx context.Context, name string, r driver.Request) error {
	return act(ctx, s.net, changes, func(ctx context.Context) error { return s.asker.Ask(ctx, name, r) })
}

func (s *faulty) Revoke(ctx context.Context, lease string) error {
	return act(ctx, s.net, idempotent, func(ctx context.Context) error { return s.Store.Revoke(ctx, lease) })
}

func (s faultyPorts) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	type answer struct {
		there driver.Record
		added bool
	}
	got, err := through(ctx, s.net, changes, func(ctx context.Context) (a answer, err error) {
		a.there, a.added, err = s.journal.Append(ctx, name, r, keep)
		return a, err
	})
	return got.there, got.added, err
}

func (s faultyPorts) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	return through(ctx, s.net, changes, func(ctx context.Context) ([]driver.Record, error) { return s.journal.Records(ctx, name, before, limit) })
}

func (s faultyPorts) Journals(ctx context.Context, prefix string) ([]string, error) {
	return through(ctx, s.net, changes, func(ctx context.Context) ([]string, error) { return s.journal.Journals(ctx, prefix) })
}

// faultyLease is a lease behind the network. ID, TTL and Follow need none.
type faultyLease struct {
	driver.Lease
	net *network

	mu   sync.Mutex
	kept []driver.News // told by the store, but their answer did not come through yet
}

// faultyLeasePorts are the optional ports of a lease.
type faultyLeasePorts struct {
	leasePorts
	net *network
}

func (l faultyLeasePorts) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	return act(ctx, l.net, changes, func(ctx context.Context) error { return l.transferer.Transfer(ctx, p, successor) })
}

func (l faultyLeasePorts) Exchange(ctx context.Context, p driver.Place, c driver.Claim) (driver.Place, error) {
	return through(ctx, l.net, changes, func(ctx context.Context) (driver.Place, error) { return l.exchanger.Exchange(ctx, p, c) })
}

// act is through for a call that returns only an error.
func act(ctx context.Context, n *network, k kind, do func(ctx context.Context) error) error {
	_, err := through(ctx, n, k, func(ctx context.Context) (nothing, error) { return nothing{}, do(ctx) })
	return err
}

func (l *faultyLease) Renew(ctx context.Context) error {
	return act(ctx, l.net, idempotent, l.Lease.Renew)
}

func (l *faultyLease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	return through(ctx, l.net, changes, func(ctx context.Context) ([]driver.Place, error) { return l.Lease.Claim(ctx, claims...) })
}

func (l *faultyLease) Update(ctx context.Context, p driver.Place, value []byte) error {
	return act(ctx, l.net, changes, func(ctx context.Context) error { return l.Lease.Update(ctx, p, value) })
}

func (l *faultyLease) Release(ctx context.Context, places ...driver.Place) error {
	return act(ctx, l.net, idempotent, func(ctx context.Context) error { return l.Lease.Release(ctx, places...) })
}

// News keeps what the store told until it came through, for the store tells it once and a driver is
// local to its caller.
func (l *faultyLease) News(ctx context.Context) ([]driver.News, error) {
	_, err := through(ctx, l.net, blocks, func(ctx context.Context) (nothing, error) {
		l.mu.Lock()
		waits := len(l.kept) == 0
		l.mu.Unlock()
		if !waits {
			return nothing{}, nil
		}
		news, err := l.Lease.News(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.kept = append(l.kept, news...)
		return nothing{}, err
	})
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.kept
	l.kept = nil
	return news, nil
}

func (l *faultyLease) Close(ctx context.Context) error {
	return act(ctx, l.net, idempotent, l.Lease.Close)
}
