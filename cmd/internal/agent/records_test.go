package agent

import (
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
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
