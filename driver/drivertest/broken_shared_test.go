package drivertest_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

var sharedBreaks = []broken{
	{name: "has one claim for each name", clause: "a lease has a claim for each seat of a name",
		lease: func(l driver.Lease) driver.Lease { return claiming(l, func(c *driver.Claim) { c.Seat = "" }) }},
	{name: "replaces the claims of other seats", clause: "a claim under a new ID replaces that of its seat only",
		lease: func(l driver.Lease) driver.Lease { return claiming(l, func(c *driver.Claim) { c.Seat = "" }) }},
	{name: "releases another seat", clause: "a seat is released by its claim ID",
		lease: func(l driver.Lease) driver.Lease { return releasing(l, func(p *driver.Place) { p.Seat = "" }) }},
	{name: "forgets seats in its news", clause: "a seat that was removed by hand is told with its seat and slots",
		lease: func(l driver.Lease) driver.Lease { return newsWithoutSeat{l} }},
	{name: "lets readers in one by one", clause: "readers hold together",
		lease: func(l driver.Lease) driver.Lease { return claiming(l, func(c *driver.Claim) { c.Slots = 0 }) }},
	{name: "lets writers in beside readers", clause: "a writer waits for every reader before it",
		lease: func(l driver.Lease) driver.Lease {
			return claiming(l, func(c *driver.Claim) { c.Slots = driver.Unlimited })
		}},
	{name: "lets readers in beside a writer", clause: "readers behind a writer wait for it and then hold together",
		lease: func(l driver.Lease) driver.Lease { return overtakes{saying(l)} }},
	{name: "lets readers overtake", clause: "readers behind a writer that gives up hold at once",
		lease: func(l driver.Lease) driver.Lease { return overtakes{saying(l)} }},
	{name: "wakes one reader only", clause: "readers behind a writer wait for it and then hold together",
		lease: func(l driver.Lease) driver.Lease {
			return claiming(l, func(c *driver.Claim) { c.Slots = min(-c.Slots, 1) })
		}},
	{name: "says the first holds only", clause: "a line tells who of it holds and with how many slots",
		store: func(s *memstore.Store) driver.Store { return firstOnly{s} }},
	{name: "mixes numbers of slots", clause: "a shared claim with another number of slots is refused and leaves nothing",
		lease: func(l driver.Lease) driver.Lease { return mixes{l} }},
	{name: "mixes numbers that enter at once", clause: "of two numbers of slots that enter at once one is refused",
		lease: func(l driver.Lease) driver.Lease { return mixes{l} }},
	{name: "leaves a refused claim in the line", clause: "a shared claim with another number of slots is refused and leaves nothing",
		lease: func(l driver.Lease) driver.Lease { return refusedStays{l} }},
	{name: "leaves readers that failed in the line", clause: "a try of a reader holds beside readers, and behind a writer leaves nothing",
		lease: func(l driver.Lease) driver.Lease { return triesStay{l} }},
	{name: "misses who else holds", clause: "the next line is told when another shared claim comes to hold",
		store: func(s *memstore.Store) driver.Store { return firstOnly{s} }},
	{name: "counts no slots", clause: "a semaphore lets in as many as it has slots",
		lease: func(l driver.Lease) driver.Lease { return claiming(l, unlimited) }},
	{name: "wakes all who wait for a slot", clause: "a slot that is given up wakes the first waiter and not the others",
		lease: func(l driver.Lease) driver.Lease { return wakesAll{saying(l)} }},
	{name: "has one slot", clause: "a slot that is given up wakes the first waiter and not the others",
		lease: func(l driver.Lease) driver.Lease {
			return claiming(l, func(c *driver.Claim) { c.Slots = min(c.Slots, 1) })
		}},
	{name: "gives slots in order", clause: "slots come free in any order",
		lease: func(l driver.Lease) driver.Lease { return claiming(l, func(c *driver.Claim) { c.Slots = 0 }) }},
	{name: "keeps the slot for who gave up", clause: "a waiter for a slot that gives up is passed over",
		lease: func(l driver.Lease) driver.Lease { return waitersStay{l} }},
	{name: "fills a semaphore beside a writer", clause: "behind an exclusive claim a semaphore fills up when it goes",
		lease: func(l driver.Lease) driver.Lease { return overtakes{saying(l)} }},
	{name: "lets a writer in beside a slot", clause: "an exclusive claim waits until every slot before it is free",
		lease: func(l driver.Lease) driver.Lease { return claiming(l, func(c *driver.Claim) { c.Slots = 3 }) }},
	{name: "leaves tries for a slot in the line", clause: "a try for a slot holds at once or leaves nothing in the line",
		lease: func(l driver.Lease) driver.Lease { return triesStay{l} }},
	{name: "lets all tries have a slot", clause: "of many tries for slots at once as many hold as there are",
		lease: func(l driver.Lease) driver.Lease { return claiming(l, unlimited) }},
	{name: "keeps slots of dead holders", clause: "a slot comes free when its holder's lease ends",
		store: func(s *memstore.Store) driver.Store { return neverEnds{s} }},
	{name: "counts no slots in a crowd", clause: "never more hold than there are slots, and nobody beside a writer",
		lease: func(l driver.Lease) driver.Lease { return overtakes{saying(l)} }},
	{name: "hands over to whoever is next", clause: "a transfer makes the named claim lead out of turn",
		lease: func(l driver.Lease) driver.Lease { return &hands{l, releasesOnly} }},
	{name: "hands over to nobody", clause: "a transfer to the next in line passes over nobody",
		lease: func(l driver.Lease) driver.Lease { return &hands{l, doesNothing} }},
	{name: "does not tell who was passed over", clause: "those passed over in a transfer hear of it and can stand again",
		lease: func(l driver.Lease) driver.Lease { return &hands{&noNews{l, isGone}, handsOver(l)} }},
	{name: "tells who handed over", clause: "a transfer is no news to who made it",
		lease: tellsTransfer},
	{name: "gives up without a successor", clause: "a transfer to a claim that does not wait behind leaves the holder alone",
		lease: func(l driver.Lease) driver.Lease { return &hands{l, givesUp(l)} }},
	{name: "gives up for a shared claim", clause: "a transfer to a shared claim leaves the holder alone",
		lease: func(l driver.Lease) driver.Lease { return &hands{l, givesUp(l)} }},
	{name: "hands over twice", clause: "a transfer of a place that is gone is told so",
		lease: func(l driver.Lease) driver.Lease { return &hands{l, ignoresGone(l)} }},
	{name: "lets waiters hand over", clause: "a transfer of a place that does not hold the name alone is refused",
		lease: func(l driver.Lease) driver.Lease { return &hands{l, releasesOnly} }},
	{name: "leaves shared claims before the successor", clause: "shared claims between holder and successor go as well",
		lease: func(l driver.Lease) driver.Lease { return &hands{l, releasesOnly} }},
	{name: "lets others lead in between", clause: "observers see nobody lead between holder and successor",
		lease: func(l driver.Lease) driver.Lease { return &hands{l, releasesOnly} }},
	{name: "takes silence for no successor", clause: "a transfer whose answer was cut off can be repeated",
		lease: func(l driver.Lease) driver.Lease { return &hands{l, silenceIsNoHeir(l)} }},
}

func unlimited(c *driver.Claim) {
	if c.Slots > 0 {
		c.Slots = driver.Unlimited
	}
}

// claimsAs enters other claims than it was asked for, and does not say so. A pointer, so that it
// can be compared.
type claimsAs struct {
	driver.Lease
	change func(*driver.Claim)
	mu     sync.Mutex
	asked  map[string]driver.Claim // by ID
}

func claiming(l driver.Lease, change func(*driver.Claim)) *claimsAs {
	return &claimsAs{Lease: l, change: change, asked: map[string]driver.Claim{}}
}

func (l *claimsAs) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	other := append([]driver.Claim(nil), claims...)
	l.mu.Lock()
	for i := range other {
		l.asked[other[i].ID] = other[i]
		l.change(&other[i])
	}
	l.mu.Unlock()
	places, err := l.Lease.Claim(ctx, other...)
	for i := range places {
		places[i].Seat, places[i].Slots = claims[i].Seat, claims[i].Slots
	}
	return places, err
}

func (l *claimsAs) as(p driver.Place) driver.Place {
	c := driver.Claim{Seat: p.Seat, Slots: p.Slots}
	l.change(&c)
	p.Seat, p.Slots = c.Seat, c.Slots
	return p
}

func (l *claimsAs) Follow(places ...driver.Place) {
	for _, p := range places {
		l.Lease.Follow(l.as(p))
	}
}

func (l *claimsAs) News(ctx context.Context) ([]driver.News, error) {
	news, err := l.Lease.News(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range news {
		c := l.asked[news[i].Place.ID]
		news[i].Place.Seat, news[i].Place.Slots = c.Seat, c.Slots
	}
	return news, err
}

func (l *claimsAs) Update(ctx context.Context, p driver.Place, value []byte) error {
	return l.Lease.Update(ctx, l.as(p), value)
}

func (l *claimsAs) Release(ctx context.Context, places ...driver.Place) error {
	for _, p := range places {
		if err := l.Lease.Release(ctx, l.as(p)); err != nil {
			return err
		}
	}
	return nil
}

type releasesAs struct {
	driver.Lease
	change func(*driver.Place)
}

func releasing(l driver.Lease, change func(*driver.Place)) *releasesAs { return &releasesAs{l, change} }

func (l *releasesAs) Release(ctx context.Context, places ...driver.Place) error {
	other := append([]driver.Place(nil), places...)
	for i := range other {
		l.change(&other[i])
	}
	return l.Lease.Release(ctx, other...)
}

type newsWithoutSeat struct{ driver.Lease }

func (l newsWithoutSeat) News(ctx context.Context) ([]driver.News, error) {
	news, err := l.Lease.News(ctx)
	for i := range news {
		news[i].Place.Seat, news[i].Place.Slots = "", 0
	}
	return news, err
}

// overtakes has every shared claim hold at once.
type overtakes struct{ says }

func (l overtakes) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	for i := range places {
		places[i].Held = places[i].Held || places[i].Slots != 0
	}
	return places, err
}

func (l overtakes) Follow(places ...driver.Place) {
	for _, p := range places {
		if p.Slots != 0 {
			l.held(p)
		} else {
			l.Lease.Follow(p)
		}
	}
}

type firstOnly struct{ *memstore.Store }

func (s firstOnly) Line(ctx context.Context, name string) (driver.Line, error) {
	ln, err := s.Store.Line(ctx, name)
	return s.show(ln), err
}

func (s firstOnly) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	ln, err := s.Store.Next(ctx, name, after)
	return s.show(ln), err
}

func (firstOnly) show(ln driver.Line) driver.Line {
	for i := range ln.Waiters {
		ln.Waiters[i].Held = false
	}
	return ln
}

// mixes finds the number that the others have and takes it.
type mixes struct{ driver.Lease }

func (l mixes) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	for _, n := range []int{driver.Unlimited, 1, 2, 3, 12} {
		if !errors.Is(err, driver.ErrRefused) {
			break
		}
		claims[0].Slots, claims[0].ID = n, claims[0].ID+"+"
		places, err = l.Lease.Claim(ctx, claims...)
	}
	return places, err
}

type refusedStays struct{ driver.Lease }

func (l refusedStays) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places, err := l.Lease.Claim(ctx, claims...)
	if errors.Is(err, driver.ErrRefused) {
		_, _ = l.Lease.Claim(ctx, driver.Claim{Name: claims[0].Name, ID: claims[0].ID + "+"})
	}
	return places, err
}

// waitersStay does not release what waits.
type waitersStay struct{ driver.Lease }

func (l waitersStay) Release(ctx context.Context, places ...driver.Place) error {
	if !places[0].Held {
		return nil
	}
	return l.Lease.Release(ctx, places...)
}

type neverEnds struct{ *memstore.Store }

func (s neverEnds) Grant(ctx context.Context, owner string, _ time.Duration) (driver.Lease, error) {
	return s.Store.Grant(ctx, owner, time.Hour)
}

// hands has a Transfer of its own.
type hands struct {
	driver.Lease
	how func(ctx context.Context, l driver.Lease, p driver.Place, successor uint64) error
}

func (l *hands) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	return l.how(ctx, l.Lease, p, successor)
}

func releasesOnly(ctx context.Context, l driver.Lease, p driver.Place, _ uint64) error {
	return l.Release(ctx, p)
}

func doesNothing(context.Context, driver.Lease, driver.Place, uint64) error { return nil }

type handing = func(context.Context, driver.Lease, driver.Place, uint64) error

func handsOver(l driver.Lease) handing {
	return func(ctx context.Context, _ driver.Lease, p driver.Place, successor uint64) error {
		return l.(driver.Transferer).Transfer(ctx, p, successor)
	}
}

func givesUp(l driver.Lease) handing {
	return func(ctx context.Context, _ driver.Lease, p driver.Place, successor uint64) error {
		err := handsOver(l)(ctx, l, p, successor)
		if errors.Is(err, driver.ErrNoSuccessor) {
			_ = l.Release(ctx, p)
		}
		return err
	}
}

func ignoresGone(l driver.Lease) handing {
	return func(ctx context.Context, _ driver.Lease, p driver.Place, successor uint64) error {
		if err := handsOver(l)(ctx, l, p, successor); !errors.Is(err, driver.ErrGone) {
			return err
		}
		return nil
	}
}

func silenceIsNoHeir(l driver.Lease) handing {
	return func(ctx context.Context, _ driver.Lease, p driver.Place, successor uint64) error {
		if err := handsOver(l)(ctx, l, p, successor); err != nil {
			return driver.ErrNoSuccessor
		}
		return nil
	}
}

func tellsTransfer(l driver.Lease) driver.Lease {
	told := tellsOwn{saying(l)}
	return &hands{told, func(ctx context.Context, _ driver.Lease, p driver.Place, successor uint64) error {
		told.told <- driver.News{Place: p, Gone: true}
		return handsOver(l)(ctx, l, p, successor)
	}}
}
