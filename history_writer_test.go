package primacy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/core"
)

func TestATermThatIsOverAtOnceLeavesItsEndAlone(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := &appends{Store: b.store}
		s := b.session("a", on, Options{})
		term := b.lead(s, "x")
		if sumsUp(term.Token()) {
			t.Fatalf("the token %d is one whose end is appended; take another", term.Token())
		}
		synctest.Wait()
		_ = term.Resign(context.Background())
		time.Sleep(aSecond)
		sameTerms(t, b.past("x", 0), "a resigned")
		if n := on.n.Load(); n != 0 {
			t.Errorf("%d records were appended, want none: the release has it", n)
		}
		b.lead(s, "x")
		time.Sleep(aSecond)
		if n := on.n.Load(); n != 1 {
			t.Errorf("%d records were appended for one that leads, want 1", n)
		}
	})
}

// appends counts calls of Append, and can make them fail.
type appends struct {
	driver.Store
	n   atomic.Int64
	err atomic.Pointer[error]
}

func (s *appends) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	s.n.Add(1)
	if err := s.err.Load(); err != nil {
		return driver.Record{}, false, *err
	}
	return s.Store.(driver.Journal).Append(ctx, name, r, keep)
}

func (s *appends) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	return s.Store.(driver.Journal).Records(ctx, name, before, limit)
}

func (s *appends) Journals(ctx context.Context, prefix string) ([]string, error) {
	return s.Store.(driver.Journal).Journals(ctx, prefix)
}

func TestARecordHoldsUpNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		on := &appends{Store: b.store}
		down := errors.New("no answer")
		on.err.Store(&down)
		s := b.session("a", on, Options{})
		begin := time.Now()
		for i := range 50 {
			term := b.lead(s, fmt.Sprint("x", i))
			if i%2 == 0 {
				if err := term.Resign(ctx); err != nil {
					t.Fatal(err)
				}
			} else {
				b.remove(term)
			}
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("wins and releases took %v while no record could be written", d)
		}
		time.Sleep(time.Minute)
		on.err.Store(nil)
		time.Sleep(time.Minute)
		if n := on.n.Load(); n > 200 {
			t.Errorf("%d tries in a minute: that is a storm", n)
		}
		for i := range 50 {
			want := "a resigned"
			if i%2 == 1 {
				want = "a deposed" // told late, and told
			}
			sameTerms(t, b.past(fmt.Sprint("x", i), 0), want)
		}
		on.err.Store(&down)
		b.remove(b.lead(s, "y"))
		time.Sleep(aSecond)
		begin = time.Now()
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 200*time.Millisecond {
			t.Errorf("Close took %v while the store takes no record", d)
		}
	})
}

func TestCloseWaitsForRecordsAMomentOnly(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := &slowAppends{appends{Store: b.store}}
		s := b.session("a", on, Options{})
		b.remove(b.lead(s, "x"))
		b.remove(b.lead(s, "y"))
		synctest.Wait()
		begin := time.Now()
		_ = s.Close(context.Background())
		if d := time.Since(begin); d != 800*time.Millisecond {
			t.Errorf("Close took %v, want what two records need", d)
		}
		sameTerms(t, b.past("x", 0), "a deposed")
		sameTerms(t, b.past("y", 0), "a deposed")
	})
}

// slowAppends takes its time.
type slowAppends struct{ appends }

func (s *slowAppends) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	time.Sleep(400 * time.Millisecond)
	return s.appends.Append(ctx, name, r, keep)
}

func TestManyWinsAreNoStormOfRecords(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := &together{appends: appends{Store: b.store}}
		s := b.session("a", on, Options{})
		es := s.Elections(nil)
		names := manyNames(2000)
		_ = es.Stand(names...)
		terms, _, _ := collect(t, es, len(names))
		_ = es.Resign(context.Background(), terms[:1000]...)
		time.Sleep(time.Minute)
		if most := on.most.Load(); most != 1 {
			t.Errorf("%d records at a time, want 1", most)
		}
		written := int64(0)
		for _, term := range terms[:1000] {
			if sumsUp(term.Token()) {
				written++
			}
			sameTerms(t, b.past(term.Name(), 0), "a resigned")
		}
		if n := on.n.Load(); n != 1000+written {
			t.Errorf("%d records were appended, want the 1000 that lead and %d of the others", n, written)
		}
		sameTerms(t, b.past(terms[1500].Name(), 0), "a leading")
	})
}

// together counts how many records are appended at a time.
type together struct {
	appends
	now, most atomic.Int64
}

func (s *together) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	s.most.Store(max(s.most.Load(), s.now.Add(1)))
	defer s.now.Add(-1)
	time.Sleep(time.Millisecond)
	return s.appends.Append(ctx, name, r, keep)
}

// gathering is a store whose calls of Append take 10 ms each, and travel together if they are made
// at once.
type gathering struct {
	appends

	mu        sync.Mutex
	now, most int            // calls under way
	of        map[string]int // the same, by journal
	twice     string         // a journal of which two were under way
	ended     time.Time      // when none was under way
	busy      time.Duration  // how long the last ones took
	begun     time.Time
	tooSoon   bool // calls began sooner than the writer should have rested
}

func (s *gathering) Caps() driver.Caps {
	c := s.Store.Caps()
	c.Gathers = true
	return c
}

func (s *gathering) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	s.mu.Lock()
	if s.now == 0 {
		s.begun = time.Now()
		s.tooSoon = s.tooSoon || s.begun.Sub(s.ended) < restTimes*s.busy
	}
	if s.now++; s.now > 1 {
		s.busy = 10 * time.Millisecond
	}
	if s.of[name]++; s.of[name] > 1 {
		s.twice = name
	}
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	s.mu.Lock()
	s.of[name]--
	if s.now--; s.now == 0 {
		s.ended = time.Now()
	}
	s.mu.Unlock()
	return s.appends.Append(ctx, name, r, keep)
}

func gatheringOn(b *world) *gathering {
	return &gathering{appends: appends{Store: b.store}, of: map[string]int{}}
}

// The store is not busy with records alone, whoever has won how many elections.
func TestRecordsGoInGroups(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := gatheringOn(b)
		es := b.session("a", on, Options{}).Elections(nil)
		names := manyNames(2000)
		_ = es.Stand(names...)
		terms, _, _ := collect(t, es, len(names))
		time.Sleep(time.Minute)
		synctest.Wait() // what the calls have noted is read here
		on.mu.Lock()
		defer on.mu.Unlock()
		if n := on.n.Load(); n != int64(len(names)) || on.most <= maxGroup/2 || on.most > maxGroup {
			t.Errorf("%d records were appended, %d at a time, want %d, %d at a time", n, on.most, len(names), maxGroup)
		}
		if on.tooSoon {
			t.Errorf("groups followed each other without a rest")
		}
		sameTerms(t, b.past(terms[1500].Name(), 0), "a leading")
	})
}

// The records of a group wait for a store that is down, and do not ask it all at once.
func TestAStoreThatIsDownIsAskedForOneRecord(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := gatheringOn(b)
		s := b.session("a", on, Options{})
		b.lead(s, "trusted")
		time.Sleep(aSecond)
		down := errors.New("no answer")
		on.err.Store(&down)
		es := s.Elections(nil)
		names := manyNames(100)
		_ = es.Stand(names...)
		terms, _, _ := collect(t, es, len(names))
		before := on.n.Load()
		time.Sleep(time.Minute)
		if n := on.n.Load() - before; n < 110 || n > 250 {
			t.Errorf("%d tries in a minute, want 100 and then about 80", n)
		}
		on.err.Store(nil)
		time.Sleep(time.Minute)
		for _, term := range terms {
			sameTerms(t, b.past(term.Name(), 0), "a leading")
		}
	})
}

// What sums up the terms of a name finds the records of those before it.
func TestRecordsOfOneNameGoOneAfterTheOther(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := gatheringOn(b)
		s := b.session("a", on, Options{})
		down := errors.New("no answer")
		on.err.Store(&down)
		for range 3 {
			for _, name := range []string{"x", "y"} {
				b.remove(b.lead(s, name))
			}
		}
		time.Sleep(time.Minute)
		on.err.Store(nil)
		time.Sleep(time.Minute)
		synctest.Wait() // what the calls have noted is read here
		on.mu.Lock()
		defer on.mu.Unlock()
		if on.twice != "" || on.most < 2 {
			t.Errorf("records at a time: %d; of one journal: %q", on.most, on.twice)
		}
		for _, name := range []string{"x", "y"} {
			sameTerms(t, b.past(name, 0), "a deposed", "a deposed", "a deposed")
		}
	})
}

// A store that takes no records is asked for one, not for all that are due.
func TestRefusedRecordsAreNotAskedForInGroups(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := gatheringOn(b)
		refused := fmt.Errorf("no rights: %w", driver.ErrRefused)
		on.err.Store(&refused)
		es := b.session("a", on, Options{}).Elections(nil)
		names := manyNames(100)
		_ = es.Stand(names...)
		collect(t, es, len(names))
		time.Sleep(refusedPause / 2)
		if n := on.n.Load(); n != 1 {
			t.Errorf("%d records were appended, want 1", n)
		}
	})
}

// Close waits for groups too, and they do not rest then.
func TestCloseWritesGroupsWithoutARest(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := gatheringOn(b)
		s := b.session("a", on, Options{})
		trusted := b.lead(s, "trusted")
		time.Sleep(aSecond)
		_ = trusted.Resign(context.Background())
		for range 4 {
			for _, name := range []string{"x", "y"} {
				b.remove(b.lead(s, name))
			}
		}
		synctest.Wait()
		begin := time.Now()
		_ = s.Close(context.Background())
		if d := time.Since(begin); d > 80*time.Millisecond {
			t.Errorf("Close took %v, want what four groups need", d)
		}
		sameTerms(t, b.past("x", 0), "a deposed", "a deposed", "a deposed", "a deposed")
	})
}

// isWithin says whether at is in the bounds, both included.
func isWithin(at, from, to time.Time) bool { return !at.Before(from) && !at.After(to) }

// The store is down for a minute. The leader's process never comes back; the next one, which was
// cut off too, tells what it knows.
func TestTheNextLeaderTellsOfAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		dead := drivertest.Faulty(b.store, drivertest.Faults{})
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		b.lead(b.session("dead", dead, Options{}), "x")
		next := b.session("next", net, Options{})
		go b.lead(next, "x")
		time.Sleep(10*time.Minute + 20*time.Second)
		down := time.Now()
		dead.Hang(true) // for ever
		net.Hang(true)
		time.Sleep(65 * time.Second)
		net.Hang(false)
		up := time.Now()
		time.Sleep(30 * time.Second)

		all := b.past("x", 0)
		sameTerms(t, all, "next leading", "dead unknown")
		r, led := all[1], all[0]
		if !r.To.IsZero() || !isWithin(r.ToAfter, down.Add(-aliveEvery), down) || !r.ToBefore.Equal(led.From) {
			t.Errorf("it ended between %v and %v, want from a minute before %v to %v", r.ToAfter, r.ToBefore,
				down, led.From)
		}
		if !isWithin(r.DownFrom, down.Add(-time.Second), down.Add(5*time.Second)) || // next renews each four seconds
			!isWithin(r.DownTo, up.Add(-time.Millisecond), up.Add(3*time.Second)) {
			t.Errorf("down from %v to %v, want %v to %v", r.DownFrom, r.DownTo, down, up)
		}
		if led.Gap != nil || led.GapMost == nil || *led.GapMost != led.From.Sub(r.ToAfter) {
			t.Errorf("the gap is %v, at most %v; want at most %v", led.Gap, led.GapMost, led.From.Sub(r.ToAfter))
		}
	})
}

// A leader that came through the outage tells its own end, and the next one how long it lasted.
func TestALeaderTellsOfAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("a", net, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var causes []string
		go s.Run(ctx, "x", func(ctx context.Context, _ *Term) error {
			<-ctx.Done()
			causes = append(causes, context.Cause(ctx).Error())
			return ctx.Err()
		})
		time.Sleep(time.Minute)
		down := time.Now()
		net.Hang(true)
		time.Sleep(65 * time.Second)
		net.Hang(false)
		up := time.Now()
		time.Sleep(30 * time.Second)
		all := b.past("x", 0)
		sameTerms(t, all, "a leading", "a expired")
		if r := all[1]; !isWithin(r.DownFrom, down.Add(-time.Second), down.Add(3*time.Second)) ||
			!isWithin(r.DownTo, up.Add(-time.Millisecond), up.Add(3*time.Second)) || r.Paused != 0 {
			t.Errorf("down from %v to %v, want %v to %v: %+v", r.DownFrom, r.DownTo, down, up, r)
		}
		if gap := all[0].Gap; gap == nil || *gap < 55*time.Second || *gap > 70*time.Second {
			t.Errorf("the gap is %v", gap)
		}
		want := `leadership of "x" under token 3 ended: ` +
			`the lease was not renewed in time (the store confirmed no renewal for 8s)`
		if !slices.Equal(causes, []string{want}) {
			t.Errorf("the work was told %q, want %q", causes, want)
		}
	})
}

// Nobody tells of an outage what is not one: a leader that dies while the store answers everybody
// else.
func TestADeathIsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		dead := drivertest.Faulty(b.store, drivertest.Faults{})
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		next := b.session("next", net, Options{})
		b.lead(next, "other")
		b.lead(b.session("dead", dead, Options{}), "x")
		time.Sleep(time.Minute)
		net.Hang(true) // the next leader was cut off before it stood for x
		time.Sleep(20 * time.Second)
		net.Hang(false)
		time.Sleep(5 * time.Second)
		_ = b.lead(next, "other").Resign(context.Background())
		go b.lead(next, "x")
		time.Sleep(10 * time.Second) // no sign of life since the outage tells that it led on after that
		died := time.Now()
		dead.Hang(true)
		time.Sleep(time.Minute)
		all := b.past("x", 0)
		sameTerms(t, all, "next leading", "dead unknown")
		r := all[1]
		if !r.DownFrom.IsZero() || !r.DownTo.IsZero() || !isWithin(r.ToAfter, died.Add(-aliveEvery), died) {
			t.Errorf("%+v", r)
		}
	})
}

// While nobody has followed a dead leader, its last sign of life is what is known.
func TestASignOfLifeIsReadWhereNobodyLeads(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		b.lead(b.session("dead", net, Options{}), "x")
		time.Sleep(10*time.Minute + 30*time.Second)
		died := time.Now()
		net.Hang(true)
		time.Sleep(time.Minute)
		all := b.past("x", 0)
		sameTerms(t, all, "dead unknown")
		if r := all[0]; !isWithin(r.ToAfter, died.Add(-aliveEvery), died) || !r.ToBefore.IsZero() {
			t.Errorf("it led until %v at least, want up to a minute before %v; %+v", r.ToAfter, died, r)
		}
		names, err := b.store.Journals(context.Background(), alivePrefix)
		if err != nil || len(names) != 1 {
			t.Errorf("%q, %v", names, err)
		}
		if all, _ := b.store.Records(context.Background(), names[0], "", 100); len(all) > 20 {
			t.Errorf("%d signs of life are kept", len(all))
		}
	})
}

// A term that is over leaves no sign of life.
func TestNoSignOfLifeOfWhatIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on := &appends{Store: b.store}
		term := b.lead(b.session("a", on, Options{}), "x")
		time.Sleep(10 * time.Minute)
		_ = term.Resign(context.Background())
		n := on.n.Load()
		time.Sleep(10 * time.Minute)
		if more := on.n.Load(); n != 10 || more != n {
			t.Errorf("%d records in ten minutes of a term, want 10; %d after it", n, more-n)
		}
	})
}

// Terms that are over do not count among those that leave signs of life.
func TestShortTermsKeepNobodyFromSignsOfLife(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		s := b.session("a", b.store, Options{})
		var terms []*Term
		for i := range maxAlive {
			terms = append(terms, b.lead(s, fmt.Sprint("x", i)))
		}
		time.Sleep(aSecond)
		for _, term := range terms {
			_ = term.Resign(ctx)
		}
		b.lead(s, "y")
		time.Sleep(2 * aliveEvery)
		names, err := b.store.Journals(ctx, alivePrefix)
		if err != nil || len(names) != 1 || names[0] != alivePrefix+"y" {
			t.Errorf("signs of life of %q, %v, want of y", names, err)
		}
	})
}

// reads is a store on which reading a journal fails or hangs once, and that counts what is read.
type reads struct {
	appends
	prefix     string // of those that fail
	fail, hang bool
	calls      int
}

func (s *reads) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	s.calls++
	fail, hang := s.fail, s.hang
	if !strings.HasPrefix(name, s.prefix) {
		return s.appends.Records(ctx, name, before, limit)
	}
	s.fail, s.hang = false, false
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if fail {
		return nil, errors.New("connection reset")
	}
	return s.appends.Records(ctx, name, before, limit)
}

func TestAReadOfASignOfLifeIsRepeated(t *testing.T) {
	for what, hang := range map[string]bool{"fails": false, "hangs": true} {
		bubble(t, func(t *testing.T, b *world) {
			net := drivertest.Faulty(b.store, drivertest.Faults{})
			b.lead(b.session("dead", net, Options{}), "x")
			time.Sleep(10 * time.Minute)
			net.Hang(true)
			time.Sleep(time.Minute)
			on := &reads{appends: appends{Store: b.store}, prefix: alivePrefix, fail: !hang, hang: hang}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			all, err := b.session("r", on, Options{}).Election("x").History(ctx, 0)
			if err != nil || len(all) != 1 || !all[0].ToAfter.After(all[0].From) {
				t.Errorf("a call %s: %+v, %v", what, all, err)
			}
		})
	}
}

// A journal without counts is read in few calls.
func TestCountingManyTermsTakesFewCalls(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		const terms = 1000
		for i := range terms {
			journal, r := RecordDeath("x", Token(i+1), "a", time.Now(), "")
			if _, _, err := b.store.Append(ctx, journal, r, math.MaxInt32); err != nil {
				t.Fatal(err)
			}
		}
		on := &reads{appends: appends{Store: b.store}}
		got, err := b.session("r", on, Options{}).Election("x").Tally(ctx)
		if err != nil || got.Ended[Died] != terms || on.calls > 5 {
			t.Errorf("%+v in %d calls, %v", got, on.calls, err)
		}
	})
}

func TestAFrozenLeaderTellsThatItWas(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		stop, goOn := b.frozenClock()
		term := b.lead(b.session("a", net, Options{}), "x")
		for _, pause := range []time.Duration{5 * time.Second, time.Minute} { // the first ends no term
			time.Sleep(10 * time.Second)
			stop()
			net.Hang(true) // it hears nothing
			time.Sleep(pause)
			net.Hang(false)
			goOn()
		}
		time.Sleep(10 * time.Second)
		if r := b.past("x", 0)[0]; r.Reason != Expired || r.Paused > time.Minute || r.Paused < 55*time.Second {
			t.Errorf("%+v, want one that was frozen for a minute", r)
		}
		for what, err := range map[string]error{"Check": term.Check(), "the context": context.Cause(term.Context())} {
			var e *EndedError
			var paused time.Duration
			if errors.As(err, &e) {
				text, _ := strings.CutPrefix(e.Reason, "this process did not run for ")
				paused, _ = time.ParseDuration(text)
			}
			if paused < 55*time.Second || paused > time.Minute {
				t.Errorf("%s says %v, want that the process did not run for a minute", what, err)
			}
		}
	})
}

// The answer to a renewal was on its way while the process was frozen. It is the first that the
// process hears, and comes too late.
func TestALateAnswerDoesNotHideThatTheLeaderWasFrozen(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		stop, goOn := b.frozenClock()
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		var freeze atomic.Bool // at the next renewal
		late := &renewing{Store: net, renew: func(ctx context.Context, l driver.Lease) error {
			err := l.Renew(ctx)
			if freeze.CompareAndSwap(true, false) {
				stop()
				net.Hang(true)                      // it hears nothing
				time.Sleep(6500 * time.Millisecond) // to between the end of the contexts and the deadline
				goOn()
				time.AfterFunc(5*time.Second, func() { net.Hang(false) })
			}
			return err
		}}
		on := struct {
			*renewing
			driver.Journal
		}{late, &appends{Store: net}}
		b.lead(b.session("a", on, Options{}), "x")
		time.Sleep(10 * time.Second)
		freeze.Store(true)
		time.Sleep(2 * time.Minute)
		if r := b.past("x", 0)[0]; r.Reason != Expired || r.Paused > 6500*time.Millisecond || r.Paused < 5*time.Second {
			t.Errorf("%+v, want one that was frozen for 6.5s", r)
		}
	})
}

// One or two renewals fail, and the process is frozen before it has tried again, or while it does.
// The store was there all the time, as far as anybody knows.
func TestAFreezeAfterARenewalThatFailedIsNoOutage(t *testing.T) {
	for what, c := range map[string]struct {
		fail     int32
		inFlight bool
	}{"after one": {1, false}, "after two": {2, false}, "in the second": {2, true}} {
		bubble(t, func(t *testing.T, b *world) {
			stop, goOn := b.frozenClock()
			net := drivertest.Faulty(b.store, drivertest.Faults{})
			freeze := func() {
				stop()
				net.Hang(true) // it hears nothing
				time.Sleep(9 * time.Second)
				net.Hang(false)
				goOn()
			}
			var fail atomic.Int32 // how many more renewals fail
			on := struct {
				*renewing
				driver.Journal
			}{&renewing{Store: net, renew: func(ctx context.Context, l driver.Lease) error {
				switch n := fail.Load(); {
				case n == 0:
					return l.Renew(ctx)
				case n == 1 && c.inFlight:
					fail.Store(0)
					freeze()
					return ctx.Err()
				case n == 1:
					time.AfterFunc(time.Millisecond, freeze)
				}
				fail.Add(-1)
				return errors.New("connection reset")
			}}, &appends{Store: net}}
			b.lead(b.session("a", on, Options{}), "x")
			time.Sleep(10 * time.Second)
			fail.Store(c.fail)
			time.Sleep(2 * time.Minute)
			if r := b.past("x", 0)[0]; r.Reason != Expired || r.Paused < 8*time.Second || !r.DownFrom.IsZero() {
				t.Errorf("%s: %+v, want one that was frozen, and no outage", what, r)
			}
		})
	}
}

// A call that the process slept through is no outage of the store.
func TestAnOutageIsWhatSeveralCallsSaw(t *testing.T) {
	timing := core.Timing{}.Fill(10 * time.Second)
	lost := errors.New("no answer")
	var s outages
	s.answered(time.Hour, timing.TTL, timing.Attempt, timing.Attempt, lost)
	s.answered(time.Hour+time.Second, timing.TTL, timing.Attempt, 0, nil)
	if _, _, ok := s.lastOver(0); ok || s.since != 0 {
		t.Error("one call that failed is an outage")
	}
	for i := range 60 {
		s.answered(2*time.Hour+core.Time(i)*time.Second, timing.TTL, timing.Attempt, timing.Attempt, lost)
	}
	until := 2*time.Hour + timing.TTL
	if got := s.endedTerm(until-timing.Grace, until, timing.TTL); got != 2*time.Hour-timing.Attempt {
		t.Errorf("it began at %v", got)
	}
	s.answered(2*time.Hour+time.Minute, timing.TTL, timing.Attempt, 0, driver.ErrGone) // an answer
	from, to, ok := s.lastOver(time.Hour)
	if !ok || from != 2*time.Hour-timing.Attempt || to != 2*time.Hour+time.Minute || s.since != 0 {
		t.Errorf("from %v to %v, %v", from, to, ok)
	}
	if _, _, ok := s.lastOver(3 * time.Hour); ok {
		t.Error("it is told of what came later")
	}
}

// The renewals of a term that was won just before the outage begin late. Two that fail at once, and
// are accepted when they are tried again, are no outage, however short the ttl.
func TestAnOutageIsAsLongAsTheCallsShow(t *testing.T) {
	const ms = time.Millisecond
	down := errors.New("no answer")
	for _, c := range []struct {
		what      string
		ttl, took time.Duration
		failed    []time.Duration // calls, by when they fail
		told      bool            // of the term that ends at 0.9 ttls
	}{
		{"begins 0.4 ttls late", 10 * time.Second, time.Second, []time.Duration{5001, 6026, 7076}, true},
		{"two resets", time.Second, ms, []time.Duration{201, 226}, false},
		{"two calls that hang", 10 * time.Second, time.Second, []time.Duration{3000, 4025}, false},
	} {
		var s outages
		for _, at := range c.failed {
			s.answered(time.Hour+at*ms, c.ttl, c.ttl/10, c.took, down)
		}
		if got := s.endedTerm(time.Hour+c.ttl*8/10, time.Hour+c.ttl*9/10, c.ttl) != 0; got != c.told {
			t.Errorf("%s: told of the term: %v", c.what, got)
		}
		s.answered(time.Hour+(c.failed[len(c.failed)-1]+75)*ms, c.ttl, c.ttl/10, ms, nil)
		if from, to, ok := s.lastOver(time.Hour); ok {
			t.Errorf("%s: an outage of %v is told to have ended the term of a leader that died", c.what, to-from)
		}
	}
}

// The store is back before the work has stopped, so before the term's record is written.
func TestAnOutageThatEndsWhileTheWorkStopsIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("a", net, Options{})
		down := time.Now()
		_ = s.Candidate("x", nil).RunOnce(t.Context(), func(ctx context.Context, _ *Term) error {
			down = time.Now()
			net.Hang(true)
			<-ctx.Done()
			time.AfterFunc(400*time.Millisecond, func() { net.Hang(false) })
			go func() { _, _ = s.Election("y").Campaign(t.Context(), nil) }() // which gets another lease
			time.Sleep(900 * time.Millisecond)
			return nil
		})
		time.Sleep(time.Minute)
		if r := b.past("x", 0)[0]; r.Reason != Expired || !isWithin(r.DownFrom, down, down.Add(3*time.Second)) {
			t.Errorf("%+v, want one that an outage from %v on has ended", r, down)
		}
	})
}

// A session makes no calls while it has no lease: that is no outage. One that lasted before is told
// until its last failed call.
func TestTimeWithoutCallsIsNoOutage(t *testing.T) {
	timing := core.Timing{}.Fill(10 * time.Second)
	lost := errors.New("no answer")
	for _, c := range []struct {
		what   string
		failed int // calls, one a second
		then   error
		told   bool
	}{
		{"one failed", 1, nil, false},
		{"one failed, and one an hour later", 1, lost, false},
		{"many failed", 60, nil, true},
		{"many failed, and one an hour later", 60, lost, true},
	} {
		var s outages
		for i := range c.failed {
			s.answered(time.Hour+core.Time(i)*time.Second, timing.TTL, timing.Attempt, timing.Attempt, lost)
		}
		later := 2 * time.Hour
		s.answered(later, timing.TTL, timing.Attempt, timing.Attempt, c.then)
		if c.then != nil {
			if s.since != later-timing.Attempt {
				t.Errorf("%s: it began at %v", c.what, s.since)
			}
			s.answered(later+time.Second, timing.TTL, timing.Attempt, 0, nil)
		}
		from, to, ok := s.lastOver(0)
		if ok != c.told || ok && (from != time.Hour-timing.Attempt || to != time.Hour+59*time.Second) {
			t.Errorf("%s: from %v to %v, %v", c.what, from, to, ok)
		}
	}
}

// A grant may wait longer for its answer than a renewal, since it may have to connect first.
func TestAnOutageBeginsWhenTheGrantWithoutAnswerWasSent(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("a", net, Options{TTL: time.Second})
		sent := s.clock()
		net.Hang(true)
		ready := make(chan error, 1)
		go func() { ready <- s.Ready(t.Context()) }()
		time.Sleep(4100 * time.Millisecond) // two grants have given up
		net.Hang(false)
		wantNil(t, "Ready", <-ready)
		from, to, ok := s.outages.lastOver(0)
		if !ok || from != sent || to < sent+4*time.Second || to > sent+5*time.Second {
			t.Errorf("an outage from %v to %v (%v), want one from %v for four seconds", from, to, ok, sent)
		}
	})
}

func TestARenewalThatTheLeasesEndCancelledIsNoOutage(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var hang, hung atomic.Bool
		w := &renewing{Store: b.store, renew: func(ctx context.Context, l driver.Lease) error {
			if !hang.Load() {
				return l.Renew(ctx)
			}
			hung.Store(true)
			<-ctx.Done()
			return ctx.Err()
		}}
		s := b.session("a", w, Options{})
		term := b.lead(s, "x")
		hang.Store(true)
		for !hung.Load() {
			time.Sleep(time.Millisecond)
		}
		_ = term.Resign(context.Background())
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s.outages.since != 0 {
			t.Error("the end of the lease counts as a call without an answer")
		}
	})
}

func TestWorkThatOutlivedItsRightIsInTheHistory(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("a", net, Options{Overrun: OverrunWait})
		_ = s.Candidate("x", nil).RunOnce(ctx, func(context.Context, *Term) error {
			time.Sleep(time.Second)
			net.Hang(true)
			time.Sleep(30 * time.Second) // and hears nothing of its context
			net.Hang(false)
			return nil
		})
		_ = s.Candidate("x", nil).RunOnce(ctx, func(context.Context, *Term) error {
			time.Sleep(time.Minute)
			return nil
		})
		own := b.lead(s, "x") // whose work runs in another process
		_ = own.Resign(ctx)
		own.Outlived(21970 * time.Millisecond)
		time.Sleep(time.Second)
		all := b.past("x", 0)
		sameTerms(t, all, "a resigned", "a resigned", "a expired")
		if all[0].Outlived != 21970*time.Millisecond || all[1].Outlived != 0 ||
			all[2].Outlived < 20*time.Second || all[2].Outlived > 23*time.Second {
			t.Errorf("outlived by %v, %v and %v", all[0].Outlived, all[1].Outlived, all[2].Outlived)
		}
		if all[0].From.IsZero() || all[0].To.IsZero() {
			t.Errorf("%+v", all[0])
		}
	})
}

// What Close could not write is there for another process to append, and tells the end as it was.
func TestWhatCloseCouldNotWriteIsUnrecorded(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("a", net, Options{})
		expires, leaving := b.lead(s, "x"), b.lead(s, "y")
		time.Sleep(time.Minute)
		net.Hang(true)
		limit, cancel := context.WithTimeout(ctx, time.Second)
		leaving.Explain("done", false)
		_ = leaving.Resign(limit)
		cancel()
		early := map[string]bool{}
		for journal := range s.Unrecorded() {
			early[journal] = true
		}
		if len(early) != 1 || !early["terms/y"] {
			t.Errorf("what is not confirmed: %v", early)
		}
		<-expires.Context().Done()
		ended := time.Now()
		_ = expires.Resign(ctx)
		_ = s.Close(ctx)
		n := 0
		for journal, r := range s.Unrecorded() {
			n++
			if _, added, err := b.store.Append(ctx, journal, r, math.MaxInt32); err != nil || !added {
				t.Errorf("%v, %v", added, err)
			}
		}
		x, y := b.past("x", 0), b.past("y", 0)
		sameTerms(t, append(x, y...), "a expired", "a resigned")
		if n != 2 || !x[0].To.Equal(ended.Truncate(time.Millisecond)) || x[0].DownFrom.IsZero() || y[0].Text != "done" {
			t.Errorf("%d records: %+v, %+v; x ended at %v", n, x[0], y[0], ended)
		}
	})
}

// A claim that ends while the records are read does not hide its own.
func TestWhatEndsWhileUnrecordedIsReadIsThere(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		on := &appends{Store: net}
		s := b.session("a", on, Options{})
		removed, leaving := b.lead(s, "x"), b.lead(s, "y")
		time.Sleep(aSecond)
		down := errors.New("no answer")
		on.err.Store(&down)
		b.remove(removed)
		time.Sleep(aSecond)
		net.Hang(true)
		limit, cancel := context.WithTimeout(ctx, aSecond)
		defer cancel()
		_ = leaving.Resign(limit)
		_ = s.Close(limit)
		all := map[string]bool{}
		for journal := range s.Unrecorded() {
			all[journal] = true
			time.Sleep(30 * time.Second) // the lease runs out
		}
		if !all["terms/x"] || !all["terms/y"] {
			t.Errorf("records of %v, want of x and y", all)
		}
	})
}

// A store that takes no records is told of once, not for each sign of life.
func TestRefusedSignsOfLifeAreNotTold(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		on, lines := &appends{Store: b.store}, atomic.Int64{}
		refused := fmt.Errorf("no rights: %w", driver.ErrRefused)
		on.err.Store(&refused)
		s := b.session("a", on, Options{Logger: slog.New(gated{enabled: func() {}, lines: func(m string) {
			if m == "the store takes no history" {
				lines.Add(1)
			}
		}})})
		b.lead(s, "x")
		time.Sleep(10 * time.Minute)
		if n := lines.Load(); n != 1 {
			t.Errorf("%d warnings in ten minutes, want 1", n)
		}
	})
}

func TestATallyOutlivesItsRecords(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		s := b.session("a", b.store, Options{History: 10})
		const short, long = 700, 20
		for i := range short + long {
			term := b.lead(s, "x")
			term.Explain("status 1", i%2 == 0)
			if i >= short {
				time.Sleep(aSecond)
			}
			_ = term.Resign(ctx)
			time.Sleep(10 * time.Millisecond) // what is appended is read before the next
		}
		b.lead(s, "x")
		time.Sleep(aSecond)
		got, err := b.session("reader", b.store, Options{}).Election("x").Tally(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n := got.Ended; got.Elected != short+long+1 || n[Failed] != 360 || n[Resigned] != 360 || n[Unknown] != 0 {
			t.Errorf("%+v, want 721 won, 360 failed and 360 resigned", got)
		}
	})
}

// The terms of an Elections are counted on too, when the records of the first ones are gone.
func TestATallyOfManyElectionsOutlivesItsRecords(t *testing.T) {
	for what, lasts := range map[string]time.Duration{"long": aSecond, "short": time.Millisecond} {
		bubble(t, func(t *testing.T, b *world) {
			ctx := context.Background()
			es := b.session("a", b.store, Options{History: 10}).Elections(nil)
			reader, last := b.session("r", b.store, Options{}).Election("x"), uint64(0)
			const terms = 300
			for range terms {
				if err := es.Stand("x"); err != nil {
					t.Fatal(err)
				}
				won, _, _ := collect(t, es, 1)
				time.Sleep(lasts)
				if err := es.Resign(ctx, won...); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond) // what is appended is read before the next
				got, err := reader.Tally(ctx)
				if err != nil || got.Ended[Resigned] < last {
					t.Fatalf("%s: %+v after %d, %v", what, got, last, err)
				}
				last = got.Ended[Resigned]
			}
			if last != terms {
				t.Errorf("%s: %d terms, want %d", what, last, terms)
			}
		})
	}
}

func TestATallyOfNothingAndOfWhatNobodySaid(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		reader := b.session("r", b.store, Options{})
		if got, err := reader.Election("x").Tally(ctx); err != nil || got.Elected != 0 || len(got.Ended) != 0 {
			t.Errorf("%+v, %v", got, err)
		}
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		b.lead(b.session("dead", net, Options{}), "x")
		time.Sleep(aSecond)
		if got, _ := reader.Election("x").Tally(ctx); got.Elected != 1 || len(got.Ended) != 0 {
			t.Errorf("%+v: it leads", got)
		}
		net.Hang(true)
		b.lead(reader, "x")
		time.Sleep(aSecond)
		if got, _ := reader.Election("x").Tally(ctx); got.Elected != 2 || got.Ended[Unknown] != 1 {
			t.Errorf("%+v: nobody said why the first has ended", got)
		}
		if _, err := b.session("p", plainStore{b.store}, Options{}).Election("x").Tally(ctx); err == nil {
			t.Error("a store without records counts terms")
		}
	})
}

// Signs of life that are not ours, or of other terms, tell nothing.
func TestSignsOfLifeOfAnybodyAreRead(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		now := time.Now()
		for i, c := range []struct {
			key  string
			want bool
		}{
			{aliveKey(7, now), true}, {aliveKey(6, now), false}, {aliveKey(8, now), false}, {recordKey(7), false},
			{recordKey(7) + ".x", false},
		} {
			name := fmt.Sprint("alive/n", i)
			if _, _, err := b.store.Append(ctx, name, driver.Record{Key: c.key}, 1); err != nil {
				t.Fatal(err)
			}
			at, err := readAlive(ctx, b.store, fmt.Sprint("n", i), 7)
			if err != nil || at.IsZero() == c.want {
				t.Errorf("%s: %v, %v", c.key, at, err)
			}
		}
	})
}

// What others may read: no field changes its name or its form.
func TestTheShapeOfARecord(t *testing.T) {
	at := time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC)
	r := record{ID: "a", From: at, To: at.Add(time.Minute), Reason: Expired, Paused: 29400, DownFrom: at,
		Outlived: 21970, Before: &recordBefore{Token: 7, Led: at, DownFrom: at, DownTo: at},
		Past: reasonCounts{Failed: 43}}
	d := r.encode(recordKey(12) + endSuffix)
	const want = `{"v":1,"id":"a","from":"2026-11-22T02:00:00Z","to":"2026-11-22T02:01:00Z","why":"expired",` +
		`"paused_ms":"29400","down_from":"2026-11-22T02:00:00Z","outlived_ms":"21970",` +
		`"before":{"token":"7","led":"2026-11-22T02:00:00Z","down_from":"2026-11-22T02:00:00Z",` +
		`"down_to":"2026-11-22T02:00:00Z"},"past":{"failed":"43"}}`
	if string(d.Value) != want || d.Key != "00000000000000000012+end" {
		t.Errorf("%s %s\nwant %s", d.Key, d.Value, want)
	}
	if _, got, kind, ok := readRecord(d); !ok || kind != ofEnd || got.Outlived != 21970 || got.Before.Token != 7 ||
		got.Past[Failed] != 43 {
		t.Errorf("read as %+v, %v", got, ok)
	}
	if key := aliveKey(12, at); key != "00000000000000000012.00000001795312800000" {
		t.Error(key)
	}
}
