package registerstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/registerstore"
)

// candidate is who stands for names under one lease.
type candidate struct {
	tr   *trial
	l    driver.Lease
	who  string
	rate float64 // of its clock

	mu       sync.Mutex
	deadline time.Time // on true time
	lost     bool
}

// accepted counts the right to lead from before the call: 0.9 of the ttl on the candidate's own
// clock.
func (p *candidate) accepted(asked time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := asked.Add(time.Duration(0.9 * float64(p.l.TTL()) / p.rate)); !p.lost && time.Now().Before(d) && d.After(p.deadline) {
		p.deadline = d
	}
	p.lost = p.lost || !time.Now().Before(p.deadline)
}

// right returns until when it may lead, as far as it knows now.
func (p *candidate) right() (until time.Time, lives bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = p.lost || !time.Now().Before(p.deadline)
	return p.deadline, !p.lost
}

// renew renews the lease until it ends. Only then it is a lease that nobody renews any more.
func (p *candidate) renew(ctx context.Context) {
	for ctx.Err() == nil {
		sleep(ctx, 400*time.Millisecond)
		asked := time.Now()
		rctx, cancel := context.WithTimeout(ctx, 600*time.Millisecond)
		err := p.l.Renew(rctx)
		cancel()
		switch {
		case err == nil:
			p.accepted(asked)
		case errors.Is(err, driver.ErrGone):
			if until, lives := p.right(); lives {
				p.tr.mu.Lock()
				p.tr.early = fmt.Errorf("the lease of %s is gone though it may lead for %v more", p.who, time.Until(until))
				p.tr.mu.Unlock()
			}
			return
		}
		if _, lives := p.right(); !lives {
			return
		}
	}
}

// stand stands for a name again and again.
func (p *candidate) stand(ctx context.Context, name string) {
	for n := 0; ctx.Err() == nil; n++ {
		c := driver.Claim{Name: name, ID: fmt.Sprintf("%s.%s.%d", p.l.ID(), name, n), Try: p.tr.draw(5) == 0}
		var places []driver.Place
		err := p.insist(ctx, func(ctx context.Context) (err error) {
			places, err = p.l.Claim(ctx, c)
			return err
		})
		if errors.Is(err, driver.ErrTaken) {
			sleep(ctx, 300*time.Millisecond)
			continue
		}
		var held driver.Place
		if err == nil {
			err = p.insist(ctx, func(ctx context.Context) (err error) {
				held, err = drivertest.Await(ctx, p.l, places[0])
				return err
			})
		}
		if err == nil {
			p.lead(ctx, held)
		}
		if errors.Is(err, driver.ErrGone) {
			p.tr.count("gone")
			sleep(ctx, 100*time.Millisecond)
		}
	}
}

// insist repeats a call whose outcome is unknown.
func (p *candidate) insist(ctx context.Context, call func(context.Context) error) error {
	for {
		cctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := call(cctx)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrTaken) || errors.Is(err, driver.ErrNoSuccessor) || errors.Is(err, driver.ErrRefused) {
			return err
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

// lead leads for a while, or until the right ends, and gives the name up.
func (p *candidate) lead(ctx context.Context, held driver.Place) {
	from := time.Now()
	if _, lives := p.right(); !lives {
		return
	}
	want := from.Add(time.Duration(p.tr.draw(3000)) * time.Millisecond)
	to := from
	for {
		until, lives := p.right()
		to = until
		if lives && !until.Before(want) {
			to = want
		}
		if time.Now().After(to) || !lives {
			break
		}
		sleep(context.Background(), time.Until(to)+1) // crashed or not: its right lasts
		if to.Equal(want) {
			break
		}
	}
	p.tr.mu.Lock()
	p.tr.terms = append(p.tr.terms, drivertest.Interval{Name: held.Name, Who: p.who + " " + p.l.ID(), Token: held.Token, From: from.Sub(p.tr.begun), To: to.Sub(p.tr.begun)})
	p.tr.mu.Unlock()
	if _, lives := p.right(); !lives || ctx.Err() != nil {
		p.tr.count("terms that were lost")
		return
	}
	p.giveUp(ctx, held)
}

func (p *candidate) giveUp(ctx context.Context, held driver.Place) {
	if p.tr.draw(3) == 0 {
		heir, err := p.heir(ctx, held)
		if err == nil && heir != 0 {
			err = p.insist(ctx, func(ctx context.Context) error { return p.l.(driver.Transferer).Transfer(ctx, held, heir) })
			if err == nil {
				p.tr.count("transfers")
				return
			}
		}
	}
	if p.insist(ctx, func(ctx context.Context) error { return p.l.Release(ctx, held) }) == nil {
		p.tr.count("releases")
	}
}

// heir returns the token of the last who waits.
func (p *candidate) heir(ctx context.Context, held driver.Place) (uint64, error) {
	cctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := registerstore.FromRegister(p.tr.reg, registerstore.Options{})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	ln, err := s.Line(cctx, held.Name)
	if err != nil || len(ln.Waiters) == 0 {
		return 0, err
	}
	return ln.Waiters[len(ln.Waiters)-1].Token, nil
}
