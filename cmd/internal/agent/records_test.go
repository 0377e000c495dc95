package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/pause"
)

// The history tells why each term of a client ended, in its own words, in an operator's, or in
// ours.
func TestTheHistoryTellsWhy(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	page := func(query string) (h struct {
		Name  string
		Terms []shown.Term
	}) {
		t.Helper()
		return into[struct {
			Name  string
			Terms []shown.Term
		}](t, s.want(200, "", s.ask("GET", "/v1/elections/n/history"+query, "")))
	}
	if h := page(""); h.Name != "n" || len(h.Terms) != 0 {
		t.Errorf("got %+v", h)
	}
	one := s.campaign("n", `{"id":"one","value":"v"}`)
	first := one.until("elected")
	one.conn.Close()
	two := s.campaign("n", `{"id":"two"}`)
	second := two.until("elected")
	s.want(200, "", s.ask("POST", "/v1/elections/n/resign", `{"reason":"done"}`, "Primacy-Token",
		second.Token.String()))
	three := s.campaign("n", `{"id":"three"}`)
	third := three.until("elected")
	s.want(202, "", s.ask("POST", "/v1/elections/n/resign", `{"reason":"deploy"}`))
	three.until("stopping")
	three.conn.Close()
	four := s.campaign("n", `{"id":"four"}`)
	fourth := four.until("elected")
	h := page("?limit=4").Terms
	if len(h) != 4 {
		t.Fatalf("got %+v", h)
	}
	for i, want := range []shown.Term{{Token: fourth.Token, ID: "four", Reason: primacy.Leads},
		{Token: third.Token, ID: "three", Reason: primacy.Resigned, By: "side", Text: "deploy"},
		{Token: second.Token, ID: "two", Reason: primacy.Resigned, Text: "done"},
		{Token: first.Token, ID: "one", Reason: primacy.Resigned, Text: "its client closed the connection"}} {
		if g := h[i]; g.Token != want.Token || g.ID != want.ID || g.Reason != want.Reason || g.By != want.By ||
			g.Text != want.Text {
			t.Errorf("got %+v, want %+v", g, want)
		}
	}
	if len(page("?limit=1").Terms) != 1 {
		t.Error("the limit is not kept")
	}
	s.want(400, "invalid", s.ask("GET", "/v1/elections/n/history?limit=0", ""))
	s.want(400, "invalid", s.ask("GET", "/v1/elections/n/history?limit=x", ""))
	bare := newAgentOn(t, struct{ driver.Store }{memstore.New(memstore.Options{})}, Options{})
	bare.want(501, "not-offered", bare.ask("GET", "/v1/elections/n/history", ""))
	bare.want(501, "not-offered", bare.ask("GET", "/v1/cron", ""))
	bare.want(501, "not-offered", bare.ask("GET", "/v1/cron/x", ""))
	s.want(200, "", s.ask("GET", "/v1/cron", ""))
	s.want(404, "no-such-job", s.ask("GET", "/v1/cron/x", ""))
}

// journals is a store whose journal of the pauses fails as it is told.
type journals struct {
	*memstore.Store
	unread  atomic.Int32 // so many reads fail
	refuses atomic.Bool  // writes are refused
}

func (j *journals) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	if name == "pauses" && j.unread.Add(-1) >= 0 {
		return nil, errors.New("connection reset")
	}
	return j.Store.Records(ctx, name, before, limit)
}

func (j *journals) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	if name == "pauses" && j.refuses.Load() {
		return driver.Record{}, false, driver.ErrRefused
	}
	return j.Store.Append(ctx, name, r, keep)
}

// newShard returns an agent beside a group that is paused. Its shard g/0001 is led by a; b waits.
func newShard(t *testing.T) (*site, *journals) {
	st := &journals{Store: memstore.New(memstore.Options{})}
	s := newAgentOn(t, st, Options{})
	group := []byte(`{"shards":8,"instance":"i","weight":1,"ready":true}`)
	for _, id := range []string{"a", "b"} {
		own, err := primacy.NewSession(st, &primacy.Options{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			_ = own.Close(ctx) // what it leads nobody resigns
		})
		for _, name := range []string{"g", "g/0001"} {
			go func() { _, _ = own.Election(name).Campaign(t.Context(), &primacy.CampaignOptions{Value: group}) }()
			for len(s.line(name)) < map[string]int{"a": 1, "b": 2}[id] {
				time.Sleep(time.Millisecond)
			}
		}
	}
	p := pause.Pause{Scope: "g", By: "ops", Reason: "drill", NoElections: true}
	if _, err := pause.Set(t.Context(), st, p); err != nil {
		t.Fatal(err)
	}
	return s, st
}

// admitted is how many are admitted to the shard.
func (j *journals) admitted(t *testing.T) int {
	now, err := pause.Read(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	return len(now.Admissions("g/0001"))
}

// A resignation that is asked for in a pause of a group lets nobody follow in one of its shards,
// also if the first look at the pauses fails.
func TestAResignationInAPauseOfTheGroupAdmitsNobody(t *testing.T) {
	s, st := newShard(t)
	for _, unread := range []int32{0, 1} {
		st.unread.Store(unread)
		s.want(202, "", s.ask("POST", "/v1/elections/g%2F0001/resign", `{}`))
		if n := st.admitted(t); n != 0 {
			t.Errorf("after %d reads that failed %d are admitted in the pause", unread, n)
		}
	}
	if _, err := pause.Resume(t.Context(), st, "g", "ops"); err != nil {
		t.Fatal(err)
	}
	s.want(202, "", s.ask("POST", "/v1/elections/g%2F0001/resign", `{}`))
	if n := st.admitted(t); n != 1 {
		t.Errorf("%d are admitted, for a pause that may come", n)
	}
}

// A transfer of a shard is not asked for if a pause of its group keeps out whom it names, and the
// store refuses to let it in.
func TestATransferOfAShardInAPauseOfItsGroup(t *testing.T) {
	s, st := newShard(t)
	st.refuses.Store(true)
	s.want(502, "store-refused", s.ask("POST", "/v1/elections/g%2F0001/transfer", `{"to":"b"}`))
	st.refuses.Store(false)
	s.want(202, "", s.ask("POST", "/v1/elections/g%2F0001/transfer", `{"to":"b"}`))
	if n := st.admitted(t); n != 1 {
		t.Errorf("%d are admitted", n)
	}
}

// line returns who is in a line.
func (s *site) line(name string) []primacy.Entry {
	s.Helper()
	st, err := s.own.Election(name).State(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	if st.Leader == nil {
		return st.Waiting
	}
	return append([]primacy.Entry{*st.Leader}, st.Waiting...)
}
