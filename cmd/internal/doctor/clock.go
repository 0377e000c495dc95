package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// poll is the pause between two questions while an edge is awaited; tiny is a step too small to
// wait for one.
const (
	poll = 3 * time.Millisecond
	tiny = time.Millisecond
)

// Rate says how fast the store's clock runs against ours: its seconds in one second of ours, which
// lie between Low and High.
type Rate struct {
	Low, High float64
	Over      time.Duration // watched for so long
}

// edge is an instant at which exactly left was left of the lease: between from and to on our clock.
type edge struct{ left, from, to time.Duration }

// errMoved says that the lease was renewed or moved while it was watched.
var errMoved = errors.New("the store changed its leader, or the lease was renewed, while its clock was watched")

// MeasureRate watches l run down for window, on the boot clock. Bounds are strict: an edge lies
// between two questions, wherever the time of a question went. The lease must live longer than
// window.
func MeasureRate(ctx context.Context, l driver.LeaseTimer, window time.Duration) (Rate, error) {
	return measureRate(ctx, l, window, now)
}

func measureRate(ctx context.Context, l driver.LeaseTimer, window time.Duration, clock func() time.Duration) (Rate,
	error) {
	var edges []edge
	var last edge // the last answer: when it was asked for, and when it came
	begun := clock()
	for first := true; clock()-begun < window; first = false {
		from := clock()
		left, step, err := l.Left(ctx)
		to := clock()
		if err != nil {
			return Rate{}, err
		}
		wait := poll
		switch {
		case step <= tiny:
			edges = append(edges, edge{left, from, to})
			wait = window / 8
		case first || left == last.left:
		case left > last.left:
			return Rate{}, errMoved
		case left == last.left-step:
			edges = append(edges, edge{last.left, last.from, to})
			if to-last.from < step/8 {
				wait = step - step/6 // the next one comes a step later, less what the rates may differ by
			} // else it was slept through: await the next one awake
		}
		last = edge{left, from, to}
		if err := sleep(ctx, wait); err != nil {
			return Rate{}, err
		}
	}
	return bounds(edges)
}

// bounds joins what each two edges say.
func bounds(edges []edge) (Rate, error) {
	r := Rate{Low: 0, High: 1e9}
	for i, a := range edges {
		for _, b := range edges[i+1:] {
			store := (a.left - b.left).Seconds()
			r.Low = max(r.Low, store/(b.to-a.from).Seconds())
			if least := (b.from - a.to).Seconds(); least > 0 {
				r.High = min(r.High, store/least)
			}
			r.Over = max(r.Over, b.from-a.to)
		}
	}
	if r.Over <= 0 || r.High == 1e9 {
		return r, errors.New("too few answers in the time given")
	}
	return r, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// clock compares the store's clock with ours.
func (p *examination) clock(ctx context.Context) Check {
	c := Check{Topic: "clock rate", Level: driver.Fine}
	l, done, err := p.grant(ctx, min(p.o.Window+10*time.Second, ceiling(p.st.Caps())))
	if err != nil {
		return failed(c, err)
	}
	defer done()
	d, ok := l.(driver.LeaseTimer)
	if !ok {
		c.Level, c.Found, c.Advice = driver.Warning, "this store does not tell how much is left of a lease",
			"compare the machines' clocks by other means"
		return c
	}
	r, err := MeasureRate(ctx, d, min(p.o.Window, l.TTL()-time.Second))
	if err != nil {
		c.Level, c.Found, c.Advice = driver.Warning, "not measured: "+err.Error(),
			"ask again, with a longer --clock-window"
		return c
	}
	return judgeRate(c, r, p.o.Drift)
}

// judgeRate holds the rate against the bound. Dangerous is only a store whose clock is fast: it
// ends leases before we know.
func judgeRate(c Check, r Rate, drift float64) Check {
	limit := 1 / (1 - drift)
	// where the steps are as fine as the calls are quick the two may cross
	mid, half := (r.Low+r.High)/2, math.Abs(r.High-r.Low)/2
	c.Figures = map[string]float64{"rate_low": r.Low, "rate_high": r.High, "rate_limit": limit,
		"window_s": r.Over.Seconds()}
	c.Found = fmt.Sprintf("the store's clock runs at %+.2f %% of ours, ±%.2f %%, watched for %v; the bound is %+.1f %%",
		100*(mid-1), 100*half, r.Over.Round(100*time.Millisecond), 100*(limit-1))
	switch {
	case r.Low > limit:
		c.Level, c.Advice = driver.Failed, "leases end before their deadline: two may lead. Mend the clocks of "+
			"the store's machines and of this one"
	case half > (limit-1)/4:
		c.Level, c.Advice = driver.Warning, "too coarse to say: use a longer --clock-window"
	case r.High-1 > (limit-1)/2:
		c.Level, c.Advice = driver.Warning, "more than half of the bound is used up: mend the clocks, or raise "+
			"the drift bound"
	case 1-r.Low > drift/2:
		c.Level, c.Advice = driver.Warning, "the store's clock is slow: nothing breaks, but leases last longer "+
			"than they say"
	}
	return c
}
