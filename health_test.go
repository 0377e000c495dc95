package primacy

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	pauses "github.com/primacy-go/primacy/pause"
)

// ward is a line of candidates with a health each, told to be sick, well or hung.
type ward struct {
	*crowd
	r        *leaderLog
	patients map[string]*patient
	mu       sync.Mutex
	events   map[string][]Event // of each, but renewals
}

type patient struct {
	h    *Health
	sick atomic.Bool
	hung atomic.Bool
	runs atomic.Int32 // calls of the check that have not returned
	most atomic.Int32
}

func (p *patient) check(ctx context.Context) error {
	if n := p.runs.Add(1); n > p.most.Load() {
		p.most.Store(n)
	}
	defer p.runs.Add(-1)
	if p.hung.Load() {
		for p.hung.Load() { // deaf to its context
			time.Sleep(time.Second)
		}
		return ctx.Err()
	}
	if p.sick.Load() {
		return errors.New("disk full")
	}
	return nil
}

func newWard(t *testing.T, b *world) *ward {
	w := &ward{crowd: inLine(t, b, ""), r: &leaderLog{t: t}, patients: map[string]*patient{},
		events: map[string][]Event{}}
	t.Cleanup(func() {
		for _, p := range w.patients {
			p.hung.Store(false)
		}
		time.Sleep(2 * time.Second) // until they have returned
	})
	return w
}

// admitted adds a candidate that is well, and waits until it stands.
func (w *ward) admitted(id string, o CampaignOptions, ho HealthOptions) *patient {
	w.t.Helper()
	p := w.newcomer(id, o, ho)
	time.Sleep(100 * time.Millisecond)
	if !strings.Contains(w.line(), id) {
		w.t.Fatalf("%s does not stand; the line is %q", id, w.line())
	}
	return p
}

// newcomer adds a candidate.
func (w *ward) newcomer(id string, o CampaignOptions, ho HealthOptions) *patient {
	w.t.Helper()
	p := &patient{}
	w.patients[id] = p
	w.with = func(s *Session, o *CampaignOptions) {
		h, err := NewHealth(s, p.check, &ho)
		if err != nil {
			w.t.Fatal(err)
		}
		p.h, o.Health = h, h
		go func() {
			for ev := range s.Events(context.Background()) {
				if ev.Kind != Renewed {
					w.mu.Lock()
					w.events[id] = append(w.events[id], ev)
					w.mu.Unlock()
				}
			}
		}()
	}
	w.candidate(w.r, id, w.tap, o, 0)
	return p
}

func (w *ward) told(id string, k EventKind) (texts []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ev := range w.events[id] {
		if ev.Kind == k {
			texts = append(texts, ev.Text)
		}
	}
	return texts
}

func TestWhoIsUnhealthyDoesNotStand(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		w.admitted("a", CampaignOptions{}, HealthOptions{})
		f := w.newcomer("f", CampaignOptions{}, HealthOptions{})
		time.Sleep(time.Second)
		if w.line() != "af" {
			t.Fatalf("after one success the line is %q", w.line())
		}
		f.sick.Store(true)
		time.Sleep(4 * time.Second) // two failures
		if w.line() != "af" {
			t.Errorf("after two failures the line is %q", w.line())
		}
		time.Sleep(2500 * time.Millisecond)
		if w.line() != "a" {
			t.Errorf("after three failures the line is %q", w.line())
		}
		f.sick.Store(false)
		time.Sleep(7 * time.Second) // four successes
		if w.line() != "a" {
			t.Errorf("after four successes the line is %q", w.line())
		}
		time.Sleep(2 * time.Second)
		if w.line() != "af" {
			t.Errorf("after five successes the line is %q", w.line())
		}
		if got := w.told("f", HealthChanged); !slices.Equal(got[max(0, len(got)-2):], []string{"disk full", ""}) {
			t.Errorf("told of its health: %q", got)
		}
	})
}

func TestNobodyStandsBeforeItsFirstSuccess(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		p := &patient{}
		p.sick.Store(true)
		s := b.session("a", w.tap, Options{})
		h := must[*Health](t)(NewHealth(s, p.check, nil))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		o := &CampaignOptions{Health: h}
		if _, err := s.Election("n").Campaign(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("it campaigned: %v", err)
		}
		if st := h.State(); st.Healthy || st.Last == nil || st.Last.Error() != "disk full" {
			t.Errorf("state %+v", st)
		}
		p.sick.Store(false)
		began := time.Now()
		term := must[*Term](t)(s.Election("n").Campaign(t.Context(), &CampaignOptions{Health: h}))
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("elected %v after the first success", took)
		}
		_ = term.Resign(t.Context())
		other := b.session("z", w.tap, Options{}).Election("n")
		if _, err := other.Campaign(t.Context(), o); !errors.Is(err, ErrInvalid) {
			t.Errorf("the health of another session: %v", err)
		}
	})
}

// TestASickLeaderHandsOver: to who has waited longest, by a hand-over and not by a release, and not
// before the others had time to find themselves sick too. It does not come back before its hold is
// over, and it takes nothing back then.
func TestASickLeaderHandsOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		a := w.admitted("a", CampaignOptions{Priority: 3}, HealthOptions{})
		w.admitted("b", CampaignOptions{}, HealthOptions{})
		w.admitted("c", CampaignOptions{}, HealthOptions{})
		w.tap.held.Store(true)
		time.Sleep(10 * time.Second)
		a.sick.Store(true)
		w.after(w.r, 9*time.Second, "a")
		w.after(w.r, 3*time.Second, "ab")
		var e *EndedError
		if !errors.As(w.r.ended[0], &e) || e.By != "a" || e.To != "b" || !strings.Contains(e.Reason, "disk full") {
			t.Errorf("it ended by %+v", e)
		}
		a.sick.Store(false)
		time.Sleep(15 * time.Second)
		if st := a.h.State(); w.line() != "bc" || !st.Healthy || st.Held == 0 {
			t.Errorf("healthy, and held: the line is %q, %+v", w.line(), st)
		}
		time.Sleep(20 * time.Second)
		if w.line() != "bca" {
			t.Errorf("after the hold the line is %q", w.line())
		}
		w.after(w.r, 50*time.Minute, "ab") // its priority does not count
		w.after(w.r, 12*time.Minute, "aba")
	})
}

func TestASickLeaderAloneLeadsOnAndTellsIt(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		a := w.admitted("a", CampaignOptions{}, HealthOptions{})
		a.sick.Store(true)
		w.after(w.r, time.Minute, "a")
		if got := w.told("a", UnhealthyLeads); !slices.Equal(got, []string{"nobody else waits"}) {
			t.Errorf("told %q", got)
		}
		if w.line() != "a" {
			t.Errorf("the line is %q", w.line())
		}
		w.admitted("b", CampaignOptions{}, HealthOptions{}) // now somebody could
		w.after(w.r, 5*time.Second, "ab")
	})
}

// A leader that recovers while it asks the store who waits, or has the next one admitted, is not
// told to be unhealthy, and leads on.
func TestALeaderThatHasRecoveredLeadsOn(t *testing.T) {
	calls := map[string]func(*tapped, func()){"the line": (*tapped).onLine, "a record": (*tapped).onAppend}
	for what, slow := range calls {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) {
				w := newWard(t, b)
				often := HealthOptions{Interval: 100 * time.Millisecond, Timeout: 100 * time.Millisecond, Rise: 1}
				a := w.admitted("a", CampaignOptions{}, often)
				w.admitted("b", CampaignOptions{}, often)
				a.sick.Store(true)
				time.Sleep(350 * time.Millisecond) // it is unhealthy, and waits a little before it acts
				slow(w.tap, func() {
					a.sick.Store(false)
					time.Sleep(300 * time.Millisecond)
				})
				w.after(w.r, time.Minute, "a")
				if got := w.told("a", UnhealthyLeads); len(got) > 0 {
					t.Errorf("told of a healthy leader: %q", got)
				}
				if st := a.h.State(); !st.Healthy || st.GaveUp != 0 || st.Held != 0 {
					t.Errorf("its state is %+v", st)
				}
			})
		})
	}
}

func TestASickLeaderAloneGivesUpIfAsked(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		a := w.admitted("a", CampaignOptions{}, HealthOptions{GiveUp: true})
		a.sick.Store(true)
		time.Sleep(12 * time.Second)
		if w.line() != "" {
			t.Errorf("the line is %q", w.line())
		}
		a.sick.Store(false)
		w.after(w.r, 12*time.Second, "aa") // its hold keeps it out of no line that has no leader
	})
}

// TestWhereAllAreSickNobodyHandsOver: one check that fails everywhere at once, at another moment of
// each one's interval, moves nothing.
func TestWhereAllAreSickNobodyHandsOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			w.admitted(id, CampaignOptions{}, HealthOptions{})
			time.Sleep(250 * time.Millisecond)
		}
		for range 20 {
			for _, p := range w.patients {
				p.sick.Store(true)
			}
			time.Sleep(time.Minute)
			for _, p := range w.patients {
				p.sick.Store(false)
			}
			time.Sleep(61*time.Second + 300*time.Millisecond)
			if len(w.line()) != 5 {
				t.Fatalf("after all are well the line is %q", w.line())
			}
		}
		w.after(w.r, 0, "a")
	})
}

func TestAHungCheckIsAFailureAndNeverRunsTwice(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		a := w.admitted("a", CampaignOptions{}, HealthOptions{})
		w.admitted("b", CampaignOptions{}, HealthOptions{})
		a.hung.Store(true)
		w.after(w.r, 15*time.Second, "ab")
		time.Sleep(time.Minute)
		if n := a.most.Load(); n != 1 {
			t.Errorf("%d checks at a time", n)
		}
		if st := a.h.State(); st.Healthy || !errors.Is(st.Last, errHung) {
			t.Errorf("state %+v", st)
		}
		a.hung.Store(false)
		time.Sleep(time.Minute)
		if w.line() != "ba" {
			t.Errorf("after it hangs no more the line is %q", w.line())
		}
	})
}

// TestWhatAnotherAsksForIsNotForHealth: also where it asks in the name of the candidate's session,
// as a command does that has its ID.
func TestWhatAnotherAsksForIsNotForHealth(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		a := w.admitted("a", CampaignOptions{}, HealthOptions{})
		w.admitted("b", CampaignOptions{}, HealthOptions{})
		token := must[Token](t)(w.sessions["a"].Election("n").Ask(t.Context(), Request{By: "a"}))
		w.after(w.r, time.Minute, "ab")
		if got := a.h.State().GaveUp; got != 0 {
			t.Errorf("its term %v was resigned, and counts as given up for its health: %v", token, got)
		}
		token = w.sessions["b"].Terms()[0].Token()
		w.patients["b"].sick.Store(true)
		w.after(w.r, time.Minute, "aba")
		if got := w.patients["b"].h.State().GaveUp; got != token {
			t.Errorf("given up for its health: %v, want %v", got, token)
		}
	})
}

// TestALateCheckIsOneFailure: it fails when its time is over, and what it returns later counts
// neither as a success nor as another failure.
func TestALateCheckIsOneFailure(t *testing.T) {
	for _, tc := range []struct {
		name        string
		late        func(n int) bool // the n-th check returns after its timeout
		err         error
		fall, after int // unhealthy after so many checks; 0: never
	}{
		{"every check succeeds late", func(int) bool { return true }, nil, 3, 3},
		{"one fails late", func(n int) bool { return n == 2 }, errors.New("killed"), 2, 0},
	} {
		bubble(t, func(t *testing.T, b *world) {
			s, fell := b.session("a", b.store, Options{}), 0
			var checks atomic.Int32
			h, err := NewHealth(s, func(context.Context) error {
				if n := int(checks.Add(1)); n > 1 && tc.late(n) {
					time.Sleep(2*time.Second + 500*time.Millisecond)
					return tc.err
				}
				return nil
			}, &HealthOptions{Fall: tc.fall})
			if err != nil {
				t.Fatal(err)
			}
			for range 600 {
				time.Sleep(100 * time.Millisecond)
				if !h.State().Healthy && fell == 0 {
					fell = int(checks.Load()) - 1
				}
			}
			if tc.after > 0 != (fell > 0) || fell > tc.after {
				t.Errorf("%s: unhealthy after %d late checks, want %d", tc.name, fell, tc.after)
			}
		})
	}
}

// TestAFlappingCheckMovesLessAndLess: two minutes sick, two minutes well, for a day.
func TestAFlappingCheckMovesLessAndLess(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		a := w.admitted("a", CampaignOptions{}, HealthOptions{})
		c := w.admitted("b", CampaignOptions{}, HealthOptions{})
		for range 60 {
			a.sick.Store(true)
			time.Sleep(time.Minute)
			a.sick.Store(false)
			c.sick.Store(true)
			time.Sleep(time.Minute)
			c.sick.Store(false)
		}
		if n := len(w.r.leaders()); n > 24 {
			t.Errorf("%d terms in two hours", n)
		}
		w.after(w.r, time.Hour, w.r.leaders())
	})
}

// TestAPausedElectionIsNotHandedOver: a sick leader keeps it, and tells why, until the pause ends.
func TestAPausedElectionIsNotHandedOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		a := w.admitted("a", CampaignOptions{}, HealthOptions{GiveUp: true})
		w.admitted("b", CampaignOptions{}, HealthOptions{})
		must[pauses.Pause](t)(pauses.Set(t.Context(), b.store, pauses.Pause{Scope: "n", By: "ops", Reason: "drill",
			Until: time.Now().Add(time.Hour)}))
		a.sick.Store(true)
		w.after(w.r, 59*time.Minute, "a")
		if got := w.told("a", UnhealthyLeads); len(got) != 1 || !strings.Contains(got[0], "paused by ops") {
			t.Errorf("told %q", got)
		}
		w.after(w.r, time.Minute+3*time.Second, "ab")
	})
}

// TestHealthDoesNotReachTheDeadline: a check that hangs, and a store that does not answer, end the
// term when they would without a check.
func TestHealthDoesNotReachTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		w := newWard(t, b)
		a := w.admitted("a", CampaignOptions{}, HealthOptions{})
		term := w.sessions["a"].Terms()[0]
		a.hung.Store(true)
		b.store.Partition("a", true)
		began := time.Now()
		<-term.contexts().right.Done()
		if took := time.Since(began); took > 9*time.Second {
			t.Errorf("the right ended after %v", took)
		}
		b.store.Partition("a", false)
		a.hung.Store(false)
		time.Sleep(time.Minute)
	})
}

func TestHealthOptionsThatCannotWork(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		ok := func(context.Context) error { return nil }
		short := time.Millisecond
		for _, o := range []HealthOptions{{Interval: short}, {Timeout: short}, {Fall: -1}, {Rise: -1}} {
			if _, err := NewHealth(s, ok, &o); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		if _, err := NewHealth(s, nil, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("no check: %v", err)
		}
		synctest.Wait()
	})
}

func setPause(t *testing.T, b *world, scope string, noElections bool) {
	t.Helper()
	must[pauses.Pause](t)(pauses.Set(t.Context(), b.store, pauses.Pause{Scope: scope, By: "ops", Reason: "drill",
		Until: time.Now().Add(time.Hour), NoElections: noElections}))
}

func obeys() CampaignOptions { return CampaignOptions{ObeyPauses: true} }

// TestNobodyNewIsElectedInAPause: who would win gives the place back, and stands again when the
// pause is over. The present leader leads on.
func TestNobodyNewIsElectedInAPause(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		stop := c.candidate(r, "a", c.tap, obeys(), 0)
		c.candidate(r, "b", c.tap, obeys(), 0)
		c.candidate(r, "c", c.tap, obeys(), 0)
		paused := 0
		go func() {
			for ev := range c.sessions["b"].Events(context.Background()) {
				if ev.Kind == ElectionPaused && strings.Contains(ev.Text, "paused by ops") {
					paused++
				}
			}
		}()
		setPause(t, b, "", true)
		c.after(r, 10*time.Minute, "a")
		stop()
		c.after(r, 49*time.Minute, "a")
		if line := c.line(); line != "" || paused != 1 {
			t.Errorf("in the pause the line is %q; b was told %d times", line, paused)
		}
		time.Sleep(2 * time.Minute)
		if got := r.leaders(); got != "ab" && got != "ac" {
			t.Errorf("after the pause they led in the order %q", got)
		}
	})
}

// TestNobodyHearsOfATermThatDidNotBegin: who wins in a pause of elections, and gives back, is no
// leader for anybody: not in its own events, counts, log and history, nor for those who observe.
func TestNobodyHearsOfATermThatDidNotBegin(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		stop := c.candidate(r, "a", c.tap, obeys(), 0)
		var log strings.Builder
		s := b.session("b", c.tap, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		o := obeys()
		go func() { _, _ = s.Election("n").Campaign(ctx, &o) }()
		synctest.Wait()
		c.candidate(r, "c", c.tap, obeys(), 0)
		var own []EventKind
		go func() {
			for ev := range s.Events(ctx) {
				own = append(own, ev.Kind)
			}
		}()
		heard, raw, follower := "", "", ""
		name := func(e *Entry) string {
			if e == nil {
				return "-"
			}
			return e.ID
		}
		look := b.session("look", b.store, Options{}).Election("n")
		go func() {
			for st := range look.Observe(ctx, HeedPauses) {
				heard += name(st.Leader)
			}
		}()
		go func() {
			for st := range look.Observe(ctx) {
				raw += name(st.Leader)
			}
		}()
		d := b.session("d", b.store, Options{}).Candidate("n", &o)
		go func() { _ = d.Run(ctx, func(ctx context.Context, _ *Term) error { <-ctx.Done(); return nil }) }()
		go func() {
			for ev := range d.Events(ctx) {
				if l := name(ev.Leader); !strings.HasSuffix(follower, l) {
					follower += l
				}
			}
		}()
		synctest.Wait()
		// Whoever holds the name does so for a while: an observer may miss what is over at once.
		c.tap.beforeEach(func(string, string) error { time.Sleep(10 * time.Millisecond); return nil })
		setPause(t, b, "", true)
		time.Sleep(time.Minute)
		stop()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if heard != "a-" || follower != "-a-" && follower != "a-" || !strings.ContainsAny(raw, "bc") {
			t.Errorf("observers heard of %q, a candidate of %q; the store showed %q", heard, follower, raw)
		}
		leads := func(k EventKind) bool { return k == Elected || k == Stopping || k == Ended || k == WorkStopped }
		if slices.ContainsFunc(own, leads) || !slices.Contains(own, ElectionPaused) {
			t.Errorf("its own events: %v", own)
		}
		if n := s.Stats().Terms; n != 0 || len(s.Tallies()) != 0 || len(s.Terms()) != 0 {
			t.Errorf("%d terms are counted, tallies %v, terms %v", n, s.Tallies(), s.Terms())
		}
		if strings.Contains(log.String(), "msg=elected") || !strings.Contains(log.String(), "nobody new is elected") {
			t.Errorf("its log:\n%s", log.String())
		}
		if past := b.past("n", 10); len(past) != 1 || past[0].ID != "a" {
			t.Errorf("the history: %+v", past)
		}
	})
}

// TestWhoComesInAPauseStandsBehindALeader, so that an operator can name it; where nobody leads it
// waits outside, and no line ever shows it.
func TestWhoComesInAPauseStandsBehindALeader(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		stop := c.candidate(r, "a", c.tap, obeys(), 0)
		setPause(t, b, "n", true)
		c.candidate(r, "b", c.tap, obeys(), 0)
		if c.line() != "ab" {
			t.Fatalf("the line is %q", c.line())
		}
		ask := b.session("ops", c.tap, Options{}).Election("n")
		must[Token](t)(ask.Ask(c.soon(), Request{To: "b", By: "ops"}))
		c.after(r, time.Second, "ab")
		stop()
		must[Token](t)(ask.Ask(c.soon(), Request{By: "ops"}))
		c.after(r, time.Minute, "ab")
		c.line()
		seen := 0
		go func() {
			for st := range ask.Observe(t.Context(), WholeLine) {
				if st.Leader != nil {
					seen++
				}
			}
		}()
		c.candidate(r, "c", c.tap, obeys(), 0)
		time.Sleep(10 * time.Minute)
		if seen != 0 || r.leaders() != "ab" {
			t.Errorf("where nobody leads, somebody was seen in the line %d times", seen)
		}
		// One that does not obey leads: the others stand behind it again, and it can be handed
		// over.
		c.candidate(r, "x", c.tap, CampaignOptions{}, 0)
		time.Sleep(2 * time.Minute)
		if line := c.line(); len(line) != 3 || line[0] != 'x' {
			t.Errorf("behind a leader stand %q", line)
		}
		must[Token](t)(ask.Ask(c.soon(), Request{To: "c", By: "ops"}))
		c.after(r, time.Second, "abxc")
	})
}

// TestAnObserverInAPauseHearsOfWhoLeads: at once of whom an operator has named, soon of one that
// does not obey pauses, and of one that has led since before the pause.
func TestAnObserverInAPauseHearsOfWhoLeads(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, obeys(), 0)
		c.candidate(r, "b", c.tap, obeys(), 0)
		c.candidate(r, "x", c.tap, CampaignOptions{}, 0)
		setPause(t, b, "n", true)
		ops := b.session("ops", c.tap, Options{}).Election("n")
		var heard []string
		var at []time.Duration
		began := time.Now()
		go func() {
			for st := range ops.Observe(t.Context(), HeedPauses) {
				id := "-"
				if st.Leader != nil {
					id = st.Leader.ID
				}
				heard, at = append(heard, id), append(at, time.Since(began))
			}
		}()
		time.Sleep(10 * time.Second)
		must[Token](t)(ops.Ask(c.soon(), Request{To: "b", By: "ops"}))
		time.Sleep(10 * time.Second)
		must[Token](t)(ops.Ask(c.soon(), Request{By: "ops"}))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := strings.Join(heard, ""); got != "ab-x" || at[0] != settled || at[1] != 10*time.Second ||
			at[3]-at[2] != settled {
			t.Errorf("heard of %q at %v", got, at)
		}
	})
}

// TestATermIsNoTermBeforeItBegins: while whoever has won asks whether it may lead, the session has
// no term.
func TestATermIsNoTermBeforeItBegins(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		st := &secretive{Store: b.store, err: errors.New("no answer")}
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", st, obeys(), 0)
		time.Sleep(2 * time.Second)
		if n := len(c.sessions["a"].Terms()); n != 0 || c.line() != "a" {
			t.Errorf("%d terms; the line is %q", n, c.line())
		}
		st.says(nil)
		c.after(r, 2*time.Second, "a")
		if n := len(c.sessions["a"].Terms()); n != 1 {
			t.Errorf("it leads, and has %d terms", n)
		}
	})
}

// TestAResignThatBeganBeforeThePauseEnds: the leader is stopping when a pause of elections is set.
// Whoever is next leads.
func TestAResignThatBeganBeforeThePauseEnds(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, obeys(), 3*time.Second)
		c.candidate(r, "b", c.tap, obeys(), 0)
		c.candidate(r, "c", c.tap, obeys(), 0)
		ask := b.session("ops", c.tap, Options{}).Election("n")
		must[Token](t)(ask.Ask(c.soon(), Request{By: "ops"}))
		time.Sleep(time.Second)
		setPause(t, b, "n", true)
		c.after(r, 10*time.Minute, "ab")
	})
}

func TestAPauseThatIsResumedEndsSoon(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		setPause(t, b, "n", true)
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, obeys(), 0)
		c.after(r, time.Minute, "")
		must[pauses.Pause](t)(pauses.Resume(t.Context(), b.store, "n", "ops"))
		c.after(r, 5*time.Second, "a")
	})
}

func TestWhoIsNotToldToObeyIsElected(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		setPause(t, b, "n", true)
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, CampaignOptions{}, 0)
		c.after(r, time.Second, "a")
	})
}

// TestAnOperatorHandsOverInAPause: to the candidate that he names, and to nobody else.
func TestAnOperatorHandsOverInAPause(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, obeys(), 0)
		c.candidate(r, "b", c.tap, obeys(), 0)
		c.candidate(r, "c", c.tap, obeys(), 0)
		setPause(t, b, "n", true)
		ask := b.session("ops", c.tap, Options{}).Election("n")
		must[Token](t)(ask.Ask(c.soon(), Request{To: "c", By: "ops"}))
		c.after(r, time.Second, "ac")
		must[Token](t)(ask.Ask(c.soon(), Request{By: "ops"})) // resigns: nobody may follow
		c.after(r, 10*time.Minute, "ac")
		if c.line() != "" {
			t.Errorf("the line is %q", c.line())
		}
	})
}

// TestAHandOverThatBeganBeforeThePauseEnds: the work takes its time to stop, and meanwhile a pause
// is set. An automatic request lets nobody be elected in a pause.
func TestAHandOverThatBeganBeforeThePauseEnds(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, obeys(), 3*time.Second)
		c.candidate(r, "b", c.tap, obeys(), 0)
		c.candidate(r, "c", c.tap, obeys(), 0)
		ask := b.session("ops", c.tap, Options{}).Election("n")
		must[Token](t)(ask.Ask(c.soon(), Request{To: "b", By: "ops"}))
		time.Sleep(time.Second)
		setPause(t, b, "n", true)
		c.after(r, 10*time.Second, "ab")
		must[Token](t)(ask.Ask(c.soon(), Request{To: "c", By: "the assigner", Automatic: true}))
		c.after(r, 10*time.Minute, "ab")
	})
}

// TestAPriorityTakesNothingInAPause: also where nobody obeys pauses by an option.
func TestAPriorityTakesNothingInAPause(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c, r := inLine(t, b, ""), &leaderLog{t: t}
		c.candidate(r, "a", c.tap, CampaignOptions{}, 0)
		setPause(t, b, "n", false)
		c.candidate(r, "h", c.tap, CampaignOptions{Priority: 5}, 0)
		c.after(r, 59*time.Minute, "a")
		c.after(r, time.Minute+steadyHere+2*lateHere, "ah")
	})
}

// secretive is a store whose pauses cannot be read.
type secretive struct {
	*memstore.Store
	mu  sync.Mutex
	err error
}

// says has the store answer by err from now on; nil: as it should.
func (s *secretive) says(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *secretive) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if name == "pauses" && err != nil {
		return nil, err
	}
	return s.Store.Records(ctx, name, before, limit)
}

// TestWhereThePausesCannotBeReadNobodyIsElected: neither where the store refuses to show them, nor
// where it does not answer. Once they can be read somebody leads.
func TestWhereThePausesCannotBeReadNobodyIsElected(t *testing.T) {
	for _, cause := range []error{driver.ErrRefused, errors.New("no answer")} {
		bubble(t, func(t *testing.T, b *world) {
			st := &secretive{Store: b.store, err: cause}
			c, r := inLine(t, b, ""), &leaderLog{t: t}
			c.candidate(r, "a", st, obeys(), 0)
			c.after(r, 5*time.Minute, "")
			if c.line() != "" {
				t.Errorf("%v: %q holds the name", cause, c.line())
			}
			synctest.Wait()
			st.says(nil)
			c.after(r, time.Minute, "a")
			c.candidate(r, "h", st, CampaignOptions{Priority: 5}, 0)
			st.says(cause)
			c.after(r, 10*time.Minute, "a")
		})
	}
}

func TestACampaignThatWaitsForAPauseEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		setPause(t, b, "n", true)
		s := b.session("a", b.store, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		began := time.Now()
		_, err := s.Election("n").Campaign(ctx, &CampaignOptions{ObeyPauses: true})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 20*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// A campaign that waits outside the line, for the end of a pause or for its health, ends with the
// session.
func TestACampaignOutsideTheLineEndsWithTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		setPause(t, b, "n", true)
		for _, sick := range []bool{false, true} {
			s := b.session("a", b.store, Options{})
			o := obeys()
			if sick {
				o.Health = must[*Health](t)(NewHealth(s, func(context.Context) error { return errors.New("no") }, nil))
			}
			ended := make(chan error, 1)
			go func() {
				_, err := s.Election("n").Campaign(context.Background(), &o)
				ended <- err
			}()
			time.Sleep(20 * time.Second)
			_ = s.Close(context.Background())
			select {
			case err := <-ended:
				if !errors.Is(err, ErrClosed) {
					t.Errorf("sick %v: it ended by %v, want ErrClosed", sick, err)
				}
			case <-time.After(time.Minute):
				t.Fatalf("sick %v: the campaign goes on after its session was closed", sick)
			}
		}
	})
}
