package shown

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/pause"
)

// TestWhoIsElectedAndDoesNotLeadIsNoLeader: in a pause of elections a claim that holds the place,
// and whose term has no record, waits. A term that has begun leads, and so does one that an
// operator has named, and a lock is held.
func TestWhoIsElectedAndDoesNotLeadIsNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		s, err := primacy.NewSession(st, &primacy.Options{ID: "a"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		term, err := s.Election("n").Campaign(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		lock, err := s.Mutex("lock", nil).TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lock.Unlock() }() // Close waits for it
		time.Sleep(time.Second)
		p := pause.Pause{By: "ops", Reason: "drill", NoElections: true}
		if _, err := pause.Set(t.Context(), st, p); err != nil {
			t.Fatal(err)
		}
		live, now := NewElected(s, st, true), NewElected(s, st, false)
		leader := func(e *Elected, name string) string {
			t.Helper()
			state, err := s.Election(name).State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			state = e.Correct(t.Context(), state)[0]
			switch {
			case state.Leader != nil:
				return state.Leader.ID
			case len(state.Waiting) == 0 || state.Waiting[0].Held || !strings.HasPrefix(state.Waiting[0].Note,
				"elected, and not leading: everything is paused by ops"):
				t.Errorf("%s: the line is %+v", name, state.Waiting)
			}
			return ""
		}
		for _, e := range []*Elected{now, live} {
			if n, l := leader(e, "n"), leader(e, "lock"); n != "a" || l != "a" {
				t.Errorf("live %v: n is led by %q, lock is held by %q", e.live, n, l)
			}
			leader(e, "n") // of the names of one list
		}
		// What a candidate that obeys pauses does, in the moment before it gives the place back.
		lease, err := st.Grant(t.Context(), "b", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		places, err := lease.Claim(t.Context(), driver.Claim{Name: "n", ID: "x"})
		if err != nil || !places[0].Held {
			t.Fatal(places, err)
		}
		if id := leader(live, "n"); id != "" {
			t.Errorf("%s is shown as the leader in the first moment", id)
		}
		gives := time.AfterFunc(time.Second, func() { _ = st.Revoke(context.Background(), lease.ID()) })
		if id := leader(now, "n"); id != "" {
			t.Errorf("%s, which gives back, is shown as the leader", id)
		}
		gives.Stop()
		// Whoever keeps the place leads, though its beginning is not recorded.
		if lease, err = st.Grant(t.Context(), "b", time.Minute); err != nil {
			t.Fatal(err)
		}
		if places, err = lease.Claim(t.Context(), driver.Claim{Name: "n", ID: "y"}); err != nil || !places[0].Held {
			t.Fatal(places, err)
		}
		if id := leader(live, "n"); id != "" {
			t.Errorf("%s is shown as the leader in the first moment", id)
		}
		if id := leader(now, "n"); id != "b" {
			t.Errorf("b has led for seconds; shown as the leader is %q", id)
		}
		if id := leader(live, "n"); id != "b" {
			t.Errorf("live: b has led for seconds; shown as the leader is %q", id)
		}
		if err := pause.Admit(t.Context(), st, "n", "b", places[0].Token, "ops"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(electedAge + time.Second)
		for _, e := range []*Elected{now, live} {
			if id := leader(e, "n"); id != "b" {
				t.Errorf("live %v: b was named by an operator; shown as the leader is %q", e.live, id)
			}
		}
	})
}
