package handover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
	"github.com/primacy-go/primacy/memstore"
	pauses "github.com/primacy-go/primacy/pause"
)

// desk is a store with an operator.
type desk struct {
	*testing.T
	store *memstore.Store
	ops   *primacy.Session
	m     *Mover
}

func newDesk(t *testing.T, wait time.Duration) *desk {
	d := &desk{T: t, store: memstore.New(memstore.Options{})}
	d.ops = d.session("operator")
	m, err := NewMover(d.ops, d.store, "why", wait, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	d.m = m
	return d
}

func (d *desk) session(id string) *primacy.Session {
	d.Helper()
	s, err := primacy.NewSession(d.store, &primacy.Options{ID: id})
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { // what nobody resigns
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = s.Close(ctx)
	})
	return s
}

// stands has a session stand for a name, obey pauses, and resign some time after it was asked.
func (d *desk) stands(s *primacy.Session, name string, stops time.Duration) {
	go func() {
		c := s.Candidate(name, &primacy.CampaignOptions{ObeyPauses: true})
		_ = c.Run(d.Context(), func(ctx context.Context, _ *primacy.Term) error {
			<-ctx.Done()
			if d.Context().Err() == nil {
				time.Sleep(stops)
			}
			return nil
		})
	}()
	synctest.Wait()
}

func (d *desk) state(name string) primacy.State {
	d.Helper()
	st, err := d.ops.Election(name).State(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	return st
}

func (d *desk) leader(name string) string {
	d.Helper()
	if l := d.state(name).Leader; l != nil {
		return l.ID
	}
	return ""
}

// pause pauses the elections of a scope.
func (d *desk) pause(scope string) {
	d.Helper()
	p := pauses.Pause{Scope: scope, By: "ann", Reason: "drill", NoElections: true}
	if _, err := pauses.Set(d.Context(), d.store, p); err != nil {
		d.Fatal(err)
	}
}

// One leader takes its time, and more elections are handed over meanwhile than the journal of the
// pauses has room for.
func TestADrainOfManyInAPauseLeavesNoneWithoutALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 5*time.Minute)
		from, to := d.session("old"), d.session("new")
		names := []string{"a-slow"}
		for i := range 110 {
			names = append(names, fmt.Sprintf("n/%03d", i))
		}
		for _, name := range names {
			stops := 100 * time.Millisecond
			if name == "a-slow" {
				stops = 8 * time.Second
			}
			d.stands(from, name, stops)
			d.stands(to, name, 0)
		}
		d.pause("")
		states, err := d.ops.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		d.m.Drain(t.Context(), Only("old"), states, func(did Move) {
			if did.Result != Moved || did.Now.Leader == nil || did.Now.Leader.ID != "new" {
				t.Errorf("%+v", did)
			}
		})
		time.Sleep(time.Minute)
		for _, name := range names {
			if l := d.leader(name); l != "new" {
				t.Errorf("%s is led by %q", name, l)
			}
		}
	})
}

// An admission ends after fifteen minutes, by the clock of the candidate, and a leader may take
// longer to stop: so there is always time left.
func TestALeaderThatStopsAfterTheAdmissionIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, time.Hour)
		d.stands(d.session("a"), "n", 20*time.Minute)
		d.stands(d.session("b"), "n", 0)
		d.pause("n")
		watch, end := context.WithCancel(t.Context())
		defer end()
		go func() {
			for storeutil.Sleep(watch, 59*time.Second) == nil && d.leader("n") == "a" {
				now, err := pauses.Read(t.Context(), d.store)
				all := now.Admissions("n")
				if err != nil || len(all) != 1 || time.Until(all[0].Until) < keepAhead-keepEvery {
					t.Errorf("admitted are %v, %v", all, err)
				}
			}
		}()
		if did := d.m.One(t.Context(), d.state("n"), "b"); did.Err != nil || did.Now.Leader == nil ||
			did.Now.Leader.ID != "b" {
			t.Errorf("%+v", did)
		}
	})
}

// The process that was named is restarted while the leader stops, and waits again behind another
// one, under another claim.
func TestWhoWasNamedAndRestartedIsElectedInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 5*time.Minute)
		d.stands(d.session("a"), "n", 10*time.Second)
		first := d.session("c")
		d.stands(first, "n", 0)
		d.stands(d.session("x"), "n", 0)
		d.pause("n")
		time.AfterFunc(3*time.Second, func() {
			_ = first.Close(context.Background())
			d.stands(d.session("c"), "n", 0)
		})
		if did := d.m.One(t.Context(), d.state("n"), "c"); did.Err != nil || did.Now.Leader == nil ||
			did.Now.Leader.ID != "c" {
			t.Errorf("%+v", did)
		}
		time.Sleep(time.Minute)
		if l := d.leader("n"); l != "c" {
			t.Errorf("%q leads", l)
		}
	})
}

// One that is back only after the leader has stopped is not elected, and whoever asked is told.
func TestWhoWasNamedAndIsGoneIsToldInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 5*time.Minute)
		d.stands(d.session("a"), "n", 10*time.Second)
		c := d.session("c")
		d.stands(c, "n", 0)
		d.pause("n")
		time.AfterFunc(3*time.Second, func() { _ = c.Close(context.Background()) })
		time.AfterFunc(11*time.Second, func() { d.stands(d.session("c"), "n", 0) })
		did := d.m.One(t.Context(), d.state("n"), "c")
		if did.Result != Failed || did.Err == nil ||
			!strings.Contains(did.Err.Error(), "c does not lead: nobody does") {
			t.Errorf("%+v", did)
		}
		time.Sleep(5 * time.Minute)
		if l := d.leader("n"); l != "" {
			t.Errorf("%q leads", l)
		}
	})
}

// A claim that enters when the asked term is over is not admitted: the one that was named may have
// led, and an admission is for one term.
func TestNobodyIsAdmittedAgainOnceTheTermIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, time.Minute)
		d.stands(d.session("a"), "n", 0)
		d.stands(d.session("c"), "n", 0)
		d.pause("n")
		st := d.state("n")
		admitted := func() int {
			t.Helper()
			now, err := pauses.Read(t.Context(), d.store)
			if err != nil {
				t.Fatal(err)
			}
			return len(now.Admissions("n"))
		}
		k := keeper{m: d.m, e: d.ops.Election("n"), of: st.Leader.Token - 1, to: "c"}
		if k.keep(t.Context(), st); admitted() != 0 {
			t.Error("admitted though another term leads")
		}
		k.of = st.Leader.Token
		k.keep(t.Context(), st)
		if k.keep(t.Context(), st); admitted() != 1 {
			t.Errorf("%d are admitted while the term leads", admitted())
		}
	})
}

// A pause of a group's name is one of each of its shards: who resigns one is told that nobody
// follows. A name that only looks like a shard's is another election.
func TestAResignationOfAShardInAPauseOfItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 10*time.Second)
		a, b := d.session("a"), d.session("b")
		for _, name := range []string{"g/0001", "g/0009", "h/0001"} {
			d.stands(a, name, 0)
			d.stands(b, name, 0)
		}
		value := []byte(`{"shards":8,"instance":"i","weight":1,"ready":true}`)
		if _, err := a.Election("g").Campaign(t.Context(), &primacy.CampaignOptions{Value: value}); err != nil {
			t.Fatal(err)
		}
		d.pause("g")
		d.pause("h")
		if did := d.m.One(t.Context(), d.state("g/0001"), ""); !errors.Is(did.Err, ErrNobodyFollows) ||
			d.leader("g/0001") != "a" {
			t.Errorf("asked to resign: %+v", did)
		}
		for _, name := range []string{"g/0009", "h/0001"} {
			if did := d.m.One(t.Context(), d.state(name), ""); did.Err != nil || d.leader(name) != "b" {
				t.Errorf("%s, which is no shard: %+v", name, did)
			}
		}
		if _, err := d.m.Ask(t.Context(), d.ops.Election("g/0001"), "", 0); !errors.Is(err, ErrNobodyFollows) {
			t.Errorf("nobody follows: %v", err)
		}
		if did := d.m.One(t.Context(), d.state("g/0001"), "b"); did.Err != nil || d.leader("g/0001") != "b" {
			t.Errorf("handed over: %+v", did)
		}
	})
}

// Nobody leads after a drain in a pause if the candidate goes while the leader stops, or if the
// leader was over before it could be asked: that is no move.
func TestADrainThatLeavesNobodyIsTold(t *testing.T) {
	for _, over := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(t, 5*time.Minute)
			a, c := d.session("a"), d.session("c")
			d.stands(a, "n", 10*time.Second)
			d.stands(c, "n", 0)
			d.stands(d.session("x"), "n", 0)
			d.pause("n")
			st := d.state("n")
			if over {
				_ = a.Close(t.Context())
			} else {
				time.AfterFunc(3*time.Second, func() { _ = c.Close(context.Background()) })
			}
			told := 0
			d.m.Drain(t.Context(), Only("a"), []primacy.State{st}, func(did Move) {
				told++
				if did.Result != Failed || !errors.Is(did.Err, ErrGivenUp) || did.Now.Leader != nil {
					t.Errorf("over before: %v: %+v", over, did)
				}
			})
			if told != 1 {
				t.Errorf("told %d times", told)
			}
			time.Sleep(time.Minute)
			if l := d.leader("n"); l != "" {
				t.Errorf("%q leads", l)
			}
		})
	}
}

// Who is named for a term that is over is not admitted to the one that leads now.
func TestNobodyIsAdmittedForATermThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 5*time.Minute)
		d.stands(d.session("a"), "n", 0)
		d.stands(d.session("c"), "n", 0)
		d.pause("n")
		st := d.state("n")
		over := *st.Leader
		over.Token--
		st.Leader = &over
		did := d.m.One(t.Context(), st, "c")
		if did.Result != Failed || !strings.Contains(did.Err.Error(), "was over") {
			t.Errorf("%+v", did)
		}
		now, err := pauses.Read(t.Context(), d.store)
		if all := now.Admissions("n"); len(all) > 0 || err != nil || d.leader("n") != "a" {
			t.Errorf("admitted are %v, %v; %q leads", all, err, d.leader("n"))
		}
	})
}

// A process that was killed stands in the line until its lease is over. If it is named, and another
// one of its ID waits by then, whoever asked is told that the name went to one that may be dead.
func TestWhoWasNamedAndKilledIsNotTakenForTheLeader(t *testing.T) {
	for _, drained := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(t, 5*time.Minute)
			d.stands(d.session("a"), "n", 5*time.Second)
			l, err := d.store.Grant(t.Context(), "c", 15*time.Second) // never renewed
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "dead"}); err != nil {
				t.Fatal(err)
			}
			d.pause("n")
			st := d.state("n")
			time.AfterFunc(time.Second, func() { d.stands(d.session("c"), "n", 0) })
			check := func(did Move) {
				if did.Result != Failed || !errors.Is(did.Err, ErrGivenUp) ||
					!strings.Contains(did.Err.Error(), "handed to an earlier process of c, which may be dead") {
					t.Errorf("drained: %v: %+v", drained, did)
				}
			}
			if drained {
				d.m.Drain(t.Context(), Only("a"), []primacy.State{st}, check)
			} else {
				check(d.m.One(t.Context(), st, "c"))
			}
			time.Sleep(time.Minute)
			if l := d.leader("n"); l != "" {
				t.Errorf("%q leads", l)
			}
		})
	}
}

// hooked is a store on which something happens before the pauses are written.
type hooked struct {
	*memstore.Store
	before atomic.Pointer[func(context.Context) error]
}

func (h *hooked) Append(ctx context.Context, journal string, rec driver.Record, keep int,
) (driver.Record, bool, error) {
	if f := h.before.Load(); journal == "pauses" && f != nil {
		if err := (*f)(ctx); err != nil {
			return driver.Record{}, false, err
		}
	}
	return h.Store.Append(ctx, journal, rec, keep)
}

func (h *hooked) beforeEach(f func(context.Context) error) { h.before.Store(&f) }

// hooked returns another operator, on such a store.
func (d *desk) hooked(attempt time.Duration) (*hooked, *Mover) {
	d.Helper()
	h := &hooked{Store: d.store}
	ops, err := primacy.NewSession(h, &primacy.Options{ID: "ops"})
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = ops.Close(context.Background()) })
	m, err := NewMover(ops, h, "why", time.Minute, attempt)
	if err != nil {
		d.Fatal(err)
	}
	return h, m
}

// Two operators hand over to the same candidate: the second one has what he wanted.
func TestWhoWasNamedLeadsWhileItIsAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 10*time.Second)
		d.stands(d.session("a"), "n", 0)
		d.stands(d.session("b"), "n", 0)
		was := d.state("n").Leader.Token
		h, m := d.hooked(time.Second)
		h.beforeEach(func(ctx context.Context) error {
			if d.leader("n") == "a" {
				_, err := d.ops.Election("n").Ask(ctx, primacy.Request{To: "b", Automatic: true})
				for err == nil && d.leader("n") != "b" && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
			}
			return nil
		})
		if got, err := m.Ask(t.Context(), m.Session.Election("n"), "b", 0); got != was || err != nil {
			t.Errorf("asked: %d, %v; want %d", got, err, was)
		}
	})
}

// A leader is asked to resign though the pauses cannot be written: whoever is next is not admitted
// to a pause that comes later. What stands already is heeded all the same.
func TestAJournalThatTakesNothingKeepsNobodyFromResigning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 10*time.Second)
		d.stands(d.session("a"), "n", 0)
		d.stands(d.session("b"), "n", 0)
		h, m := d.hooked(8 * time.Second)
		h.beforeEach(func(context.Context) error { return errors.New("broken") })
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		if _, err := m.Ask(ctx, m.Session.Election("n"), "", 0); err != nil {
			t.Errorf("asked: %v", err)
		}
		time.Sleep(time.Second)
		if l := d.leader("n"); l != "b" {
			t.Errorf("%q leads", l)
		}
		d.pause("n")
		if _, err := m.Ask(t.Context(), m.Session.Election("n"), "", 0); !errors.Is(err, ErrNobodyFollows) {
			t.Errorf("asked in a pause: %v", err)
		}
	})
}

// Of two processes with one ID the older may be dead: what can be handed to another is.
func TestADrainTakesTwoOfOneIDLast(t *testing.T) {
	c1 := primacy.Entry{ID: "c", Lease: "1", Token: 1}
	c2, d := primacy.Entry{ID: "c", Lease: "2", Token: 2}, primacy.Entry{ID: "d", Lease: "3", Token: 3}
	foreign := primacy.Entry{Lease: "4", Token: 4}
	for want, line := range map[string][]primacy.Entry{"d": {c1, foreign, c2, d}, "c": {foreign, c1, c2},
		"": {foreign}} {
		st := primacy.State{Name: "n", Leader: &primacy.Entry{ID: "a", Token: 9}, Waiting: line}
		if to, ok := otherThan(st, Only("a")); to != want || !ok {
			t.Errorf("of %v: %q, %t; want %q", line, to, ok, want)
		}
	}
}

// Ask does not ask a shard's leader to hand over if a pause of the group would keep the one who is
// named out, and that may not be changed: the leader would stop for nobody.
func TestAShardIsNotHandedOverToWhoIsNotElected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 10*time.Second)
		a, b := d.session("a"), d.session("b")
		d.stands(a, "g/0001", 0)
		d.stands(b, "g/0001", 0)
		value := []byte(`{"shards":8,"instance":"i","weight":1,"ready":true}`)
		if _, err := a.Election("g").Campaign(t.Context(), &primacy.CampaignOptions{Value: value}); err != nil {
			t.Fatal(err)
		}
		st, m := d.hooked(time.Second)
		e := m.Session.Election("g/0001")
		st.beforeEach(func(context.Context) error { return driver.ErrRefused })
		d.pause("g")
		if _, err := m.Ask(t.Context(), e, "b", 0); !errors.Is(err, pauses.ErrNotAdmitted) {
			t.Errorf("asked: %v", err)
		}
		time.Sleep(time.Second)
		if l := d.leader("g/0001"); l != "a" {
			t.Errorf("%q leads", l)
		}
		st.beforeEach(func(context.Context) error { return nil })
		token := d.state("g/0001").Leader.Token
		if _, err := m.Ask(t.Context(), e, "b", token-1); !errors.Is(err, driver.ErrGone) {
			t.Errorf("asked of another term: %v", err)
		}
		if got, err := m.Ask(t.Context(), e, "b", token); got != token || err != nil {
			t.Errorf("asked: %d, %v", got, err)
		}
		time.Sleep(time.Second)
		if l := d.leader("g/0001"); l != "b" {
			t.Errorf("%q leads", l)
		}
		if _, err := m.Ask(t.Context(), e, "nobody", 0); !errors.Is(err, primacy.ErrNotInLine) ||
			!strings.Contains(err.Error(), `waiting: "a"`) {
			t.Errorf("of one that does not wait: %v", err)
		}
		if _, err := m.Ask(t.Context(), m.Session.Election("empty"), "", 0); !errors.Is(err, primacy.ErrNoLeader) {
			t.Errorf("where nobody leads: %v", err)
		}
	})
}
