package drivertest_test

import (
	"context"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// portBreaks break the optional ports: what follows places, exchanges them, and revokes leases.
var portBreaks = []broken{
	{name: "tells all who follow", clause: "a place that is followed is told when it is held, and nobody else",
		lease: func(l driver.Lease) driver.Lease { return hasty{saying(l)} }},
	{name: "follows only what comes", clause: "a place that is followed too late is told so as well",
		lease: func(l driver.Lease) driver.Lease { return onlyComing{l} }},
	{name: "says held of what was removed", clause: "a followed place that is removed is told gone and not held",
		lease: func(l driver.Lease) driver.Lease { return heldForGone{l} }},
	{name: "says gone of what was released", clause: "a followed place that is released is told nothing",
		lease: func(l driver.Lease) driver.Lease {
			return tellsReleased{tellsOwn{saying(l)}}
		}},
	{name: "tells one of many", clause: "all followed places are told when one lease before them ends",
		lease: func(l driver.Lease) driver.Lease { return followsFirst{l} }},
	{name: "stays when exchanged", clause: "an exchange gives the place up and stands behind all who wait",
		lease: func(l driver.Lease) driver.Lease { return &exchanges{l, claimsOnly} }},
	{name: "does not stand again", clause: "an exchange while nobody waits holds under a larger token",
		lease: func(l driver.Lease) driver.Lease { return &exchanges{l, releasesFirst} }},
	{name: "exchanges under another ID", clause: "an exchange can be repeated as a release and a claim",
		lease: func(l driver.Lease) driver.Lease { return &exchanges{l, otherID} }},
	{name: "exchanges what was given up", clause: "an exchange under an ID that was given up does not enter",
		lease: func(l driver.Lease) driver.Lease { return &exchanges{l, otherID} }},
	{name: "takes silence for the end of a claim", clause: "an exchange whose answer was cut off leaves nothing behind",
		lease: func(l driver.Lease) driver.Lease { return &exchanges{l, silenceEnds} }},
	{name: "exchanges everything", clause: "an exchange that cannot be is refused and changes nothing",
		lease: func(l driver.Lease) driver.Lease { return &exchanges{l, releasesFirst} }},
	{name: "revokes nothing", clause: "revoking a lease ends it with every claim",
		store: func(s *memstore.Store) driver.Store { return revokesNothing{s} }},
}

type hasty struct{ says }

func (l hasty) Follow(places ...driver.Place) { l.held(places...) }

// onlyComing tells nothing of a place that holds by the time it is to be followed.
type onlyComing struct{ driver.Lease }

func (l onlyComing) Follow(places ...driver.Place) {
	for _, p := range places {
		again, err := l.Lease.Claim(context.Background(), driver.Claim{Name: p.Name, Seat: p.Seat, Slots: p.Slots, ID: p.ID})
		if err == nil && again[0].Held && !p.Held {
			continue
		}
		l.Lease.Follow(p)
	}
}

type heldForGone struct{ driver.Lease }

func (l heldForGone) News(ctx context.Context) ([]driver.News, error) {
	news, err := l.Lease.News(ctx)
	for i := range news {
		if news[i].Gone {
			news[i].Gone, news[i].Held, news[i].Place.Held = false, true, true
		}
	}
	return news, err
}

type tellsReleased struct{ tellsOwn }

func (l tellsReleased) Follow(...driver.Place) {}

type followsFirst struct{ driver.Lease }

func (l followsFirst) Follow(places ...driver.Place) { l.Lease.Follow(places[0]) }

// exchanges has an Exchange of its own.
type exchanges struct {
	driver.Lease
	how func(ctx context.Context, l driver.Lease, p driver.Place, c driver.Claim) (driver.Place, error)
}

func (l *exchanges) Exchange(ctx context.Context, p driver.Place, c driver.Claim) (driver.Place, error) {
	return l.how(ctx, l.Lease, p, c)
}

func claimsOnly(ctx context.Context, l driver.Lease, _ driver.Place, c driver.Claim) (driver.Place, error) {
	places, err := l.Claim(ctx, c)
	if err != nil {
		return driver.Place{}, err
	}
	return places[0], nil
}

func releasesFirst(ctx context.Context, l driver.Lease, p driver.Place, c driver.Claim) (driver.Place, error) {
	return driver.Place{Name: c.Name, Seat: c.Seat, ID: c.ID, Token: p.Token + 1}, l.Release(ctx, p)
}

func otherID(ctx context.Context, l driver.Lease, p driver.Place, c driver.Claim) (driver.Place, error) {
	other := c
	other.ID += "+"
	got, err := l.(driver.Exchanger).Exchange(ctx, p, other)
	got.ID = c.ID
	return got, err
}

func silenceEnds(ctx context.Context, l driver.Lease, p driver.Place, c driver.Claim) (driver.Place, error) {
	got, err := l.(driver.Exchanger).Exchange(ctx, p, c)
	if err != nil {
		err = driver.ErrGone
	}
	return got, err
}

type revokesNothing struct{ *memstore.Store }

func (s revokesNothing) Revoke(context.Context, string) error { return nil }
