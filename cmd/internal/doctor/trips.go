package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// tripsLimit bounds the round trips of one kind: a slow store is measured by fewer.
const tripsLimit = 1500 * time.Millisecond

// trips measures how long the store takes for what a session does.
func (p *examination) trips(ctx context.Context) []Check {
	l, done, err := p.grant(ctx, min(max(p.o.TTL, 10*time.Second), ceiling(p.st.Caps())))
	if err != nil {
		return []Check{failed(Check{Topic: "round trips"}, err)}
	}
	defer done()
	held, err := claim(ctx, l, p.name)
	if err != nil {
		return []Check{failed(Check{Topic: "round trips"}, err)}
	}
	other := p.name + "-2"
	n := 0
	out := []Check{
		p.trip(ctx, "read", func(ctx context.Context) error { _, err := p.st.Line(ctx, p.name); return err }),
		p.trip(ctx, "write", func(ctx context.Context) error { n++; return l.Update(ctx, held, fmt.Append(nil, n)) }),
		p.trip(ctx, "renewal", l.Renew),
		p.trip(ctx, "claim and release", func(ctx context.Context) error {
			place, err := claim(ctx, l, other)
			if err != nil {
				return err
			}
			return l.Release(ctx, place)
		}),
		p.pushed(ctx, l, held),
	}
	return out
}

func ceiling(c driver.Caps) time.Duration {
	if c.MaxTTL <= 0 {
		return time.Hour
	}
	return c.MaxTTL
}

func claim(ctx context.Context, l driver.Lease, name string) (driver.Place, error) {
	places, err := l.Claim(ctx, driver.Claim{Name: name, ID: rand.Text(), Value: []byte(ownPrefix)})
	if err != nil {
		return driver.Place{}, err
	}
	return places[0], nil
}

// trip measures one kind of round trip. One renewal may take a tenth of the ttl, and with the
// defaults two may fail: that is what it is judged by.
func (p *examination) trip(ctx context.Context, what string, do func(context.Context) error) Check {
	c := Check{Topic: what, Level: driver.Fine}
	limit := p.o.TTL / 10
	took, err := measure(ctx, p.o.Tries, p.patience(), do)
	if err != nil {
		return failed(c, err)
	}
	p50, p99 := quantile(took, 0.50), quantile(took, 0.99)
	c.Found = fmt.Sprintf("p50 %v, p99 %v (%d times)", short(p50), short(p99), len(took))
	c.Figures = map[string]float64{"p50_ms": ms(p50), "p99_ms": ms(p99), "n": float64(len(took))}
	switch {
	case p50 > limit:
		c.Level, c.Advice = driver.Failed, fmt.Sprintf("with a ttl of %v a call may take %v: raise --ttl to %v "+
			"at least, or come nearer", p.o.TTL, limit, (20*p50).Round(time.Second))
	case p99 > limit/2:
		c.Level, c.Advice = driver.Warning, fmt.Sprintf("with a ttl of %v a call may take %v: a longer --ttl "+
			"loses fewer terms", p.o.TTL, limit)
	}
	return c
}

// patience is for the round trips of one kind. What takes long is measured, and judged by the ttl:
// cut short, a call that a session has time for would count as one that failed.
func (p *examination) patience() time.Duration { return tripsLimit + max(tripsLimit, p.o.TTL/10) }

// measure does n times, or as often as the time allows, and returns how long each took, shortest
// first.
func measure(ctx context.Context, n int, patience time.Duration, do func(context.Context) error) (
	took []time.Duration, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for begun := now(); len(took) < n && (len(took) == 0 || now()-begun < tripsLimit); {
		t0 := now()
		if err := do(ctx); err != nil {
			return nil, err
		}
		took = append(took, now()-t0)
	}
	slices.Sort(took)
	return took, nil
}

// pushed measures how long after a change an observer hears of it.
func (p *examination) pushed(ctx context.Context, l driver.Lease, held driver.Place) Check {
	c := Check{Topic: "news of a change", Level: driver.Fine}
	ctx, cancel := context.WithTimeout(ctx, p.patience())
	defer cancel()
	ln, err := p.st.Line(ctx, p.name)
	if err != nil {
		return failed(c, err)
	}
	heard := make(chan error, 1)
	var at time.Duration
	go func() {
		_, err := p.st.Next(ctx, p.name, ln.Revision)
		at = now()
		heard <- err
	}()
	time.Sleep(50 * time.Millisecond) // until the watch stands
	t0 := now()
	if err := l.Update(ctx, held, []byte("news")); err != nil {
		return failed(c, err)
	}
	if err := <-heard; err != nil {
		return failed(c, err)
	}
	c.Found = fmt.Sprintf("after %v", short(at-t0))
	c.Figures = map[string]float64{"ms": ms(at - t0)}
	return c
}

// quantile returns the q-quantile of durations in order: with few of them p99 is the longest.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func ms(d time.Duration) float64 { return float64(d.Round(time.Microsecond)) / 1e6 }

// short rounds for people.
func short(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d > 100*time.Millisecond:
		return d.Round(time.Millisecond)
	case d > time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}
