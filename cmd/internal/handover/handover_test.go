package handover

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
)

// fleet has candidates who resign when they are asked, but for those that are deaf.
func fleet(t *testing.T, st *memstore.Store, name string, ids ...string) {
	for _, id := range ids {
		s, err := primacy.NewSession(st, &primacy.Options{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		go func() {
			for t.Context().Err() == nil {
				term, err := s.Election(name).Campaign(t.Context(), nil)
				if err != nil || strings.HasPrefix(id, "deaf") {
					return
				}
				<-term.Context().Done()
				_ = term.Resign(context.Background())
			}
		}()
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
		fleet(t, st, "n", "a", "b", "c")
		fleet(t, st, "quiet", "deaf", "d")
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
		if did := m.One(t.Context(), primacy.State{Name: "x"}, ""); did.Result != Failed {
			t.Errorf("where nobody leads: %+v", did)
		}
	})
}
