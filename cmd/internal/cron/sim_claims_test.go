package cron

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// simHold is a claim that a simulated process holds.
type simHold struct {
	p      *simProc
	l      driver.Lease
	place  driver.Place
	asked  sync.Once
	ending chan struct{}
	gone   bool
}

func (h *simHold) ask() { h.asked.Do(func() { close(h.ending) }) }

// right returns until when it may be acted on; zero: it is over.
func (h *simHold) right() time.Time {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if h.gone || h.p.lease != h.l {
		return time.Time{}
	}
	return h.p.deadline
}

func (h *simHold) Check() error {
	if !h.p.pass() || !time.Now().Before(h.right()) {
		return errors.New("it is over")
	}
	return nil
}

func (h *simHold) Ending() <-chan struct{} { return h.ending }
func (h *simHold) Cause() error            { return errors.New("asked, or the lease ran out") }
func (h *simHold) Token() string           { return fmt.Sprint(h.place.Token) }

func (h *simHold) Release(ctx context.Context) error {
	h.p.mu.Lock()
	h.gone = true
	if h.p.holds[h.place.Name] == h {
		delete(h.p.holds, h.place.Name)
	}
	h.p.mu.Unlock()
	for range 5 {
		if h.p.net(ctx, func() error { return h.l.Release(context.Background(), h.place) }) == nil {
			return nil
		}
	}
	return errNet
}

func (p *simProc) Try(ctx context.Context, name string) (Hold, error) {
	if p.w.onTry != nil {
		p.w.onTry()
	}
	p.mu.Lock()
	l, busy := p.lease, p.holds[name]
	h := &simHold{p: p, l: l, ending: make(chan struct{})}
	if busy == nil && l != nil {
		p.holds[name] = h // nobody else of this process meanwhile
	}
	p.mu.Unlock()
	switch {
	case l == nil:
		return nil, errNet
	case busy != nil:
		return nil, ErrHeld
	}
	claim := driver.Claim{Name: name, ID: runName(), Try: true}
	var places []driver.Place
	err := p.net(ctx, func() (err error) {
		places, err = l.Claim(context.Background(), claim)
		return err
	})
	if err == nil {
		h.place = places[0]
		return h, nil
	}
	forget := func() {
		p.mu.Lock()
		if p.holds[name] == h {
			delete(p.holds, name)
		}
		p.mu.Unlock()
	}
	if errors.Is(err, driver.ErrTaken) {
		forget()
		return nil, ErrHeld
	}
	go func() { // it may stand: it is given up before another of this process may stand
		for p.pass() && p.net(context.Background(), func() error {
			return l.Release(context.Background(), driver.Place{Name: name, ID: claim.ID})
		}) != nil {
			time.Sleep(100 * time.Millisecond)
			p.mu.Lock()
			over := p.lease != l
			p.mu.Unlock()
			if over {
				break
			}
		}
		forget()
	}()
	return nil, errNet
}

func (p *simProc) Standing(ctx context.Context, name string) (bool, error) {
	standing := false
	err := p.net(ctx, func() error {
		line, err := p.w.store.Line(context.Background(), name)
		standing = line.Holder != nil
		return err
	})
	if err != nil {
		return false, err
	}
	return standing, nil
}

func (p *simProc) Ask(ctx context.Context, name, why string) error {
	return p.net(ctx, func() error {
		line, err := p.w.store.Line(context.Background(), name)
		if err != nil || line.Holder == nil {
			return err
		}
		return p.w.store.Ask(context.Background(), name,
			driver.Request{Token: line.Holder.Token, Reason: why, By: p.id})
	})
}

// run is a command under its guardian, which goes by the deadline it was told last and by the death
// of its supervisor.
func (p *simProc) run(stop <-chan struct{}, hold Hold, r Run) Ended {
	h := hold.(*simHold)
	deadline := h.right()
	if !time.Now().Before(deadline) {
		return Ended{Verdict: Lost, Code: -1}
	}
	p.w.start(r)
	length := p.w.span(100*time.Millisecond, 6*time.Second)
	if p.w.float() < 0.1 {
		length = p.w.span(10*time.Second, 30*time.Second)
	}
	e := Ended{}
	if p.w.script != nil {
		length, e.Verdict = p.w.script(r)
	}
	if g := p.guard(stop, h, deadline, length); e.Verdict == "" || g.Verdict != OK && g.Verdict != Failed {
		e = g
	}
	p.w.end(r)
	if !p.pass() {
		return Ended{Verdict: Lost, Code: -1}
	}
	return e
}

// guard looks every so often.
func (p *simProc) guard(stop <-chan struct{}, h *simHold, deadline time.Time, length time.Duration) Ended {
	began := time.Now()
	var told time.Time
	verdict := OK
	tell := func(v string) {
		if told.IsZero() {
			told, verdict = time.Now(), v
		}
	}
	for {
		time.Sleep(30 * time.Millisecond)
		paused := false
		p.mu.Lock()
		select {
		case <-p.gate:
		default:
			paused = true
		}
		p.mu.Unlock()
		if !paused && told.IsZero() {
			if d := h.right(); d.After(deadline) {
				deadline = d
			}
		}
		now := time.Now()
		select {
		case <-p.dead:
			tell(Lost)
		default:
		}
		if !paused {
			select {
			case <-stop:
				tell(Stopped)
			case <-h.ending:
				tell(Replaced)
			default:
			}
		}
		if now.After(deadline.Add(-simGrace)) {
			tell(Lost)
		}
		switch {
		case p.w.guarded && !now.Before(deadline.Add(-40*time.Millisecond)):
			return Ended{Verdict: Lost, Code: 137}
		case !told.IsZero() && (p.w.guarded || verdict != Lost) && now.Sub(told) > 300*time.Millisecond:
			return Ended{Verdict: verdict, Code: 143}
		case now.Sub(began) >= length:
			if p.w.float() < 0.1 {
				return Ended{Verdict: Failed, Code: 1}
			}
			return Ended{Verdict: OK}
		}
	}
}

// start notes that a command begins.
func (w *simWorld) start(r Run) {
	w.mu.Lock()
	if w.live[r.Job.Name] == nil {
		w.live[r.Job.Name], w.ran[r.Job.Name] = map[ID]int{}, map[ID]int{}
	}
	live := w.live[r.Job.Name]
	others := len(live)
	live[r.ID]++
	w.ran[r.Job.Name][r.ID]++
	n := w.ran[r.Job.Name][r.ID]
	w.mu.Unlock()
	if n > 1 {
		w.fails("%s %v begins for the %d. time", r.Job.Name, r.ID, n)
	}
	if r.Job.Overlap != Allow && others > 0 {
		w.fails("%s %v begins beside %v", r.Job.Name, r.ID, live)
	}
}

func (w *simWorld) end(r Run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.live[r.Job.Name], r.ID)
}

// simJournal is the store's journal as one process reaches it.
type simJournal struct{ p *simProc }

func (j simJournal) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	var there driver.Record
	var added bool
	err := j.p.net(ctx, func() (err error) {
		there, added, err = j.p.w.append(name, r, keep)
		if added {
			j.p.w.appended(name, r)
		}
		return err
	})
	if err == nil && j.p.w.deaf != nil {
		err = j.p.w.deaf(ctx, r)
	}
	if err != nil {
		return driver.Record{}, false, err // it may arrive later
	}
	return there, added, nil
}

// append removes records now and then, as stores do: one that is older than what was removed may
// stay for a while.
func (w *simWorld) append(name string, r driver.Record, keep int) (driver.Record, bool, error) {
	slack := keep + 8 + keep/8
	if all, _ := w.store.Records(context.Background(), name, "", slack+1); len(all) < slack {
		keep = slack
	}
	return w.store.Append(context.Background(), name, r, keep)
}

// appended checks that who is declared lost does not run.
func (w *simWorld) appended(name string, d driver.Record) {
	r, ok := ParseRecord(d)
	if !ok {
		w.fails("a record of %s: %q %q", name, d.Key, d.Value)
		return
	}
	job := strings.TrimPrefix(name, Prefix)
	w.mu.Lock()
	live := w.live[job][ID{r.Key.At, r.Key.Attempt}]
	w.mu.Unlock()
	if r.Key.Kind == kindEnd && live > 0 {
		w.fails("%s %v: its end is told as %s while it runs", job, r.Key, r.Verdict)
	}
}

func (j simJournal) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	var all []driver.Record
	err := j.p.net(ctx, func() (err error) {
		all, err = j.p.w.store.Records(context.Background(), name, before, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func (j simJournal) Journals(ctx context.Context, prefix string) ([]string, error) {
	return j.p.w.store.Journals(ctx, prefix)
}
