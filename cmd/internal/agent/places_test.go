package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/registerstore"
)

// Where somebody deletes the object that a line is kept in, the line begins anew, with smaller
// revisions. Who waits in it is told the place all the same.
func TestPlacesAreToldWhereALineBeginsAnew(t *testing.T) {
	// The clock of leases is not the bubble's: no lease ends in the two minutes of this test.
	synctest.Test(t, func(t *testing.T) {
		reg := memstore.NewRegister()
		session := func(id string) *primacy.Session {
			st, err := registerstore.FromRegister(reg, registerstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s, err := primacy.NewSession(st, &primacy.Options{ID: id, TTL: 5 * time.Minute, History: -1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close(context.Background()); _ = st.Close() })
			return s
		}
		lead := func(s *primacy.Session) *primacy.Term {
			term, err := s.Election("n").Campaign(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return term
		}
		first, next, waits := session("first"), session("next"), session("waits")
		hub := placesOf(session("hub"))
		defer hub.Close()
		r := hub.Join("n")
		defer r.Close()
		told := func(holder string, place int) {
			t.Helper()
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
				if n := r.Take(); n != nil && n.Value.holder == holder && n.Value.of["waits"] == place {
					return
				}
			}
			t.Fatalf("it is not told that %s leads and waits has place %d", holder, place)
		}
		for range 20 {
			_ = lead(first).Resign(t.Context())
		}
		term := lead(first)
		told("first", 0)
		_, version, err := reg.Get(t.Context(), "line.n")
		if err != nil || reg.Delete(t.Context(), "line.n", version) != nil {
			t.Fatal(err)
		}
		_ = term.Resign(t.Context())
		defer lead(next).Resign(context.Background())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = waits.Election("n").Campaign(ctx, nil) }()
		told("next", 1)
	})
}
