package handover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	pauses "github.com/primacy-go/primacy/pause"
)

// fleet has candidates stand for all the names, one after the other. They resign when they are
// asked, but for those that are deaf.
func fleet(t *testing.T, st *memstore.Store, names []string, ids ...string) {
	for _, id := range ids {
		s, err := primacy.NewSession(st, &primacy.Options{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // what deaf candidates lead is never resigned
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = s.Close(ctx)
		})
		for _, name := range names {
			go func() {
				for t.Context().Err() == nil {
					term, err := s.Election(name).Campaign(t.Context(), nil)
					if err != nil || strings.HasPrefix(id, "deaf") || name == "deaf" {
						return
					}
					<-term.Context().Done()
					_ = term.Resign(context.Background())
				}
			}()
		}
		synctest.Wait()
	}
}

func TestOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		s, err := primacy.NewSession(st, &primacy.Options{ID: "operator"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		fleet(t, st, []string{"n"}, "a", "b", "c")
		fleet(t, st, []string{"quiet"}, "deaf", "d")
		m, err := NewMover(s, st, "why", time.Second, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		state := func(name string) primacy.State {
			now, err := s.Election(name).State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return now
		}
		before := state("n")
		if did := m.One(t.Context(), before, "c"); did.Result != Moved || did.Err != nil ||
			did.Now.Leader.ID != "c" || did.Token != before.Leader.Token {
			t.Fatalf("%+v", did)
		}
		// The request is for the term that was shown: its successor is not asked.
		now := state("n")
		if did := m.One(t.Context(), before, ""); did.Result != Failed || did.Err == nil ||
			!strings.Contains(did.Err.Error(), "was over before it could be asked") {
			t.Fatalf("of a term that was over: %+v", did)
		}
		time.Sleep(time.Second)
		if later := state("n"); later.Leader.Token != now.Leader.Token {
			t.Errorf("a later term was ended: %+v, was %+v", later.Leader, now.Leader)
		}
		if did := m.One(t.Context(), state("quiet"), ""); did.Result != Late ||
			!strings.Contains(did.Err.Error(), "deaf has not given it up after 1s") {
			t.Errorf("of one that does not listen: %+v", did)
		}
		// Two wait under one ID: nobody can say which is meant, and the leader is not asked.
		fleet(t, st, []string{"n"}, "same", "same")
		now = state("n")
		if did := m.One(t.Context(), now, "same"); did.Result != Failed ||
			!errors.Is(did.Err, primacy.ErrDuplicateID) || state("n").Leader.Token != now.Leader.Token {
			t.Errorf("two of one ID: %+v", did)
		}
		if did := m.One(t.Context(), primacy.State{Name: "x"}, ""); did.Result != Failed {
			t.Errorf("where nobody leads: %+v", did)
		}
	})
}

// More than are asked at once, and one of them does not stop: all others have moved.
func TestDrainOfManyWithOneThatDoesNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		s, err := primacy.NewSession(st, &primacy.Options{ID: "operator"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		names := []string{"deaf"}
		for i := range Together + 2 {
			names = append(names, fmt.Sprint("n", i))
		}
		fleet(t, st, names, "old", "new")
		m, err := NewMover(s, st, "why", 5*time.Second, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		states, err := s.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		results := map[Result]int{}
		m.Drain(t.Context(), Only("old"), states, func(did Move) {
			results[did.Result]++
			if (did.Name == "deaf") != (did.Result == Late) || did.Result == Moved && did.Now.Leader.ID != "new" {
				t.Errorf("%+v", did)
			}
		})
		if results[Moved] != Together+2 || results[Late] != 1 || len(results) != 2 {
			t.Errorf("%v", results)
		}
	})
}

// Nobody of those who are asked first stops, so the time is over before the others are asked: that
// is not said to be the others' doing.
func TestADrainSaysWhoWasNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 5*time.Second)
		old, next := d.session("old"), d.session("new")
		const more = 3
		for i := range Together + more {
			d.stands(old, fmt.Sprint("n", i), 10*time.Second)
			d.stands(next, fmt.Sprint("n", i), 0)
		}
		states, err := d.ops.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		said := map[string]int{}
		d.m.Drain(t.Context(), Only("old"), states, func(did Move) {
			if did.Result != Late {
				t.Errorf("%+v", did)
			}
			said[did.Err.Error()]++
		})
		if said["old has not given it up after 5s"] != Together ||
			said["old was not asked: the 5s were over before its turn"] != more {
			t.Error(said)
		}
		time.Sleep(time.Minute) // until they have stopped
	})
}

// TestWhoIsNamedIsElectedInAPause: a move names the next leader, and a pause without elections does
// not keep it out. Where nobody can be named the leader is not asked, unless it is forced.
func TestWhoIsNamedIsElectedInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 5*time.Second)
		fleet(t, d.store, []string{"n"}, "a", "b")
		d.pause("")
		did := d.m.One(t.Context(), d.state("n"), "")
		if !errors.Is(did.Err, ErrNobodyFollows) || d.leader("n") != "a" {
			t.Errorf("asked to resign: %+v", did)
		}
		d.m.Drain(t.Context(), Only("a"), []primacy.State{d.state("n")}, func(did Move) {
			if did.Result != Moved || did.Err != nil {
				t.Errorf("drained: %+v", did)
			}
		})
		p, err := pauses.Elect(t.Context(), d.store, "n", "b", uint64(d.state("n").Leader.Token))
		if p != nil || err != nil {
			t.Errorf("b was named, and is not elected: %v, %v", p, err)
		}
		d.m.Force = true
		if did := d.m.One(t.Context(), d.state("n"), ""); did.Result != Moved {
			t.Errorf("forced: %+v", did)
		}
	})
}
