package agent

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// proveEvery is the time between two questions whether each walsender has loaded the SSN.
const proveEvery = 10 * time.Millisecond

// proof is a value of synchronous_standby_names (SSN) that is yet to be proven.
type proof struct {
	id     uint64 // of its order
	sync   server.Sync
	former []string // the names that it replaced

	// What prove has reached; both are true from the beginning where no standbys are named.
	seen  bool // each walsender has loaded the form that shows it
	plain bool // the form that prefers nobody is in force
}

var errOther = errors.New("another SSN was ordered")

// syncServer is what ssn needs of a [server.Server].
type syncServer interface {
	Mark(ctx context.Context) (int, error)
	SetSync(ctx context.Context, y server.Sync) error
	Proven(ctx context.Context, y server.Sync, former ...string) error
	Position(ctx context.Context) (server.Standing, error)
}

// ssn sets the SSN of a server, and proves that each walsender has loaded it.
type ssn struct {
	server  syncServer
	mu      sync.Mutex            // held while the SSN is set
	toProve atomic.Pointer[proof] // nil: nothing is to be proven
}

// set sets the SSN. marked says that it takes a form in which each walsender shows that it has
// loaded it.
func (s *ssn) set(ctx context.Context, p *proof, marked bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget() // nobody sets the former one any more
	if marked {
		mark, err := s.server.Mark(ctx)
		if err != nil {
			return err
		}
		p.sync.Mark = mark
	}
	if err := s.server.SetSync(ctx, p.sync); err != nil {
		return err
	}
	p.seen, p.plain = !marked, !marked
	s.toProve.Store(p)
	return nil
}

// forget ends the proof that is under way.
func (s *ssn) forget() { s.toProve.Store(nil) }

// done ends the proof of p, and says whether it was still to be proven.
func (s *ssn) done(p *proof) bool { return s.toProve.CompareAndSwap(p, nil) }

// prove calls proven once each walsender has loaded the SSN, with the LSN of the primary as read
// after that: what is acknowledged under another SSN lies before it. Each SSN has one goroutine for
// that, so that what was seen once is not asked again: it cannot be seen any more.
func (s *ssn) prove(ctx context.Context, p *proof, proven func(core.LSN)) {
	for ; ctx.Err() == nil && s.toProve.Load() == p; pause(ctx, proveEvery) {
		if at, ok := s.try(ctx, p); ok {
			proven(at)
			return
		}
	}
}

// try is one try. Once each walsender has shown that it has loaded the SSN, any k of its standbys
// will do: the form that shows it prefers those that it names first. That is set once: each reload
// wakes all processes of a server that is just being promoted.
func (s *ssn) try(ctx context.Context, p *proof) (at core.LSN, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if !p.seen && s.server.Proven(ctx, p.sync, p.former...) != nil {
		return 0, false
	}
	p.seen = true
	if !p.plain && s.anyWillDo(ctx, p) != nil {
		return 0, false
	}
	p.plain = true
	end, err := s.server.Position(ctx)
	return end.LSN, err == nil && end.Primary
}

// anyWillDo sets the form of an SSN that prefers nobody, unless another SSN was ordered meanwhile.
func (s *ssn) anyWillDo(ctx context.Context, p *proof) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.toProve.Load() != p {
		return errOther
	}
	y := p.sync
	y.Mark = 0
	return s.server.SetSync(ctx, y)
}
