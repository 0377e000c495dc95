package page

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
)

func formOf(verb, name string, token primacy.Token) string {
	return "/ui/act?" + url.Values{"verb": {verb}, "name": {name}, "token": {token.String()}}.Encode()
}

func (s *site) noted(name string) primacy.TermRecord {
	s.Helper()
	past, err := s.o.Session.Election(name).History(s.Context(), 0)
	if err != nil || len(past) < 2 {
		s.Fatalf("%d terms: %v", len(past), err)
	}
	return past[1]
}

func TestALeaderIsAskedToResign(t *testing.T) {
	within(t, Options{Actions: true, Person: "ops@desk"}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-2", "billing", "")
		token := s.leader("billing").Token
		s.wants(s.get("/ui/election?name=billing"), 200, "Resign…", "verb=resign")
		path := formOf("resign", "billing", token)
		s.wants(s.get(path), 200, "Ask web-1 to resign billing?", token.String(), "web-2, if it still waits",
			"ops@desk", "primacy resign billing --token "+token.String())
		if l := s.leader("billing"); l.Token != token {
			t.Fatal("to look at the form has asked the leader")
		}
		got := s.wants(s.ask("POST", "/ui/act", s.filled(path, "ops@desk")), 303)
		if to := got.Header().Get("Location"); to != "/ui/election?name=billing" {
			t.Errorf("it leads to %s", to)
		}
		time.Sleep(time.Second)
		s.wants(s.get("/ui/election?name=billing"), 200, "ops@desk asked web-1", "web-2 leads now, under token")
		if r := s.noted("billing"); r.By != "ops@desk" || r.Text != "a test" || r.Token != token {
			t.Errorf("the history has %+v", r)
		}
	})
}

func TestALeaderIsAskedToHandOver(t *testing.T) {
	within(t, Options{Actions: true}, func(s *site) {
		for _, id := range []string{"web-1", "web-2", "web-3"} {
			s.stands(id, "billing", "")
		}
		token := s.leader("billing").Token
		path := formOf("transfer", "billing", token)
		s.wants(s.get(path), 200, `<option value="web-2" selected>`, `<option value="web-3">`, `required`,
			"primacy transfer billing --to web-2 --token "+token.String())
		form := s.filled(path+"&to=web-3", "ops")
		form.Set("to", "web-3")
		if s.wants(s.ask("POST", "/ui/act", form), 303); t.Failed() {
			return
		}
		time.Sleep(time.Second)
		if l := s.leader("billing"); l.ID != "web-3" {
			t.Errorf("%s leads", l.ID)
		}
		s.wants(s.get("/ui/election?name=billing"), 200, "web-3 leads now")
		form = s.filled(formOf("transfer", "billing", s.leader("billing").Token), "ops")
		form.Set("to", "web-9")
		s.wants(s.ask("POST", "/ui/act", form), 409, "web-9 does not wait any more")
	})
}

// Only the term that the form showed is asked. Whoever leads next has not been looked at by
// anybody.
func TestAFormIsForOneTerm(t *testing.T) {
	within(t, Options{Actions: true}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-2", "billing", "")
		first := s.leader("billing").Token
		form := s.filled(formOf("resign", "billing", first), "ops")
		s.wants(s.ask("POST", "/ui/act", form), 303)
		time.Sleep(time.Second)
		second := s.leader("billing")
		if second.ID != "web-2" {
			t.Fatalf("%s leads", second.ID)
		}
		s.wants(s.ask("POST", "/ui/act", form), 409, "is over", "web-2 leads billing now")
		s.wants(s.get(formOf("resign", "billing", first)), 409, "is over")
		for what, change := range map[string]func(url.Values){
			"another token":    func(v url.Values) { v.Set("token", second.Token.String()) },
			"another election": func(v url.Values) { v.Set("name", "other") },
			"another request":  func(v url.Values) { v.Set("verb", "transfer") },
			"no seal":          func(v url.Values) { v.Del("seal") },
			"another seal":     func(v url.Values) { v.Set("seal", s.login.seal("x")) },
		} {
			forged := url.Values{}
			for k, v := range form {
				forged[k] = v
			}
			if change(forged); s.ask("POST", "/ui/act", forged).Code != 403 {
				t.Errorf("a form with %s is taken", what)
			}
		}
		time.Sleep(time.Second)
		if l := s.leader("billing"); l.Token != second.Token {
			t.Errorf("the term under token %d was asked, by a form for another", second.Token)
		}
	})
}

// A drain is of what the form listed: an election that the member has won since is not moved
// unseen.
func TestADrainIsOfWhatWasShown(t *testing.T) {
	within(t, Options{Actions: true}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-2", "billing", "")
		s.stands("web-1", "lonely", "")
		path := "/ui/act?verb=drain&member=web-1"
		form := s.filled(path, "ops")
		s.wants(s.get(path), 200, "These move", "billing", "These stay", "lonely")
		s.stands("web-1", "reports", "")
		s.stands("web-2", "reports", "")
		s.wants(s.ask("POST", "/ui/act", form), 409, "has changed")
		if l := s.leader("billing"); l.ID != "web-1" {
			t.Fatal("it was drained all the same")
		}
		got := s.wants(s.ask("POST", "/ui/act", s.filled(path, "ops")), 303)
		if to := got.Header().Get("Location"); to != "/ui/member?id=web-1" {
			t.Errorf("it leads to %s", to)
		}
		time.Sleep(5 * time.Second)
		for name, want := range map[string]string{"billing": "web-2", "reports": "web-2", "lonely": "web-1"} {
			if l := s.leader(name); l.ID != want {
				t.Errorf("%s leads %s, want %s", l.ID, name, want)
			}
		}
		s.wants(s.get("/ui/member?id=web-1"), 200, "hand over 2 of the 3", "All 2 have moved")
		s.wants(s.get("/ui/act?verb=drain&member=nobody"), 409, "leads nothing now")
	})
}

// A page that only shows does not act, whatever it is sent, and offers nothing but commands.
func TestAPageThatOnlyShows(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		token := s.leader("billing").Token
		form := url.Values{"verb": {"resign"}, "name": {"billing"}, "token": {token.String()}, "by": {"x"}}
		o, err := orderOf(form)
		if err != nil {
			t.Fatal(err)
		}
		form.Set("seal", s.login.seal(o.bound()))
		s.wants(s.ask("POST", "/ui/act", form), 403, "--ui-actions")
		s.wants(s.get(formOf("resign", "billing", token)), 403)
		for _, path := range []string{"/ui/election?name=billing", "/ui/member?id=web-1"} {
			if got := s.wants(s.get(path), 200, "primacy "); strings.Contains(got.text, "/ui/act") {
				t.Errorf("%s leads to a request", path)
			}
		}
	})
}

// Where the connection says who asks, the form does not count.
func TestWhoAsksIsWhoTheConnectionSays(t *testing.T) {
	within(t, Options{Actions: true, Asker: func(*http.Request) string { return "root@host" }}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-2", "billing", "")
		path := formOf("resign", "billing", s.leader("billing").Token)
		if got := s.wants(s.get(path), 200, "root@host"); strings.Contains(got.text, `name="by"`) {
			t.Error("the form asks for a name")
		}
		s.wants(s.ask("POST", "/ui/act", s.filled(path, "somebody else")), 303)
		time.Sleep(time.Second)
		if r := s.noted("billing"); r.By != "root@host" {
			t.Errorf("the history says that %q asked", r.By)
		}
	})
	within(t, Options{Actions: true}, func(s *site) {
		s.stands("web-1", "billing", "")
		form := s.filled(formOf("resign", "billing", s.leader("billing").Token), "")
		s.wants(s.ask("POST", "/ui/act", form), 400, "Who asks?")
		form.Set("by", strings.Repeat("x", 256))
		s.wants(s.ask("POST", "/ui/act", form), 400, "256 bytes")
	})
}

// A leader that does not stop is told as such.
func TestALeaderThatDoesNotStop(t *testing.T) {
	within(t, Options{Actions: true, Wait: 3 * time.Second}, func(s *site) {
		own := s.session("stuck")
		if _, err := own.Election("billing").Campaign(s.Context(), nil); err != nil {
			t.Fatal(err)
		}
		path := formOf("resign", "billing", s.leader("billing").Token)
		s.wants(s.ask("POST", "/ui/act", s.filled(path, "ops")), 303)
		s.wants(s.get("/ui/election?name=billing"), 200, "Waiting for the leader to stop its work")
		time.Sleep(5 * time.Second)
		s.wants(s.get("/ui/election?name=billing"), 200, "It has not: stuck has not given it up after 3s")
	})
}

// A drain ends the terms that the form showed. One that began since, of another process with the
// same ID, was confirmed by nobody.
func TestADrainEndsNoLaterTerm(t *testing.T) {
	within(t, Options{Actions: true}, func(s *site) {
		a := s.session("web-1")
		for i := range handover.Together - 1 { // they do not listen, so that the last ones wait for their turn
			name := fmt.Sprintf("deaf-%02d", i)
			if _, err := a.Election(name).Campaign(s.Context(), nil); err != nil {
				t.Fatal(err)
			}
			s.stands("web-3", name, "")
		}
		terms := map[string]*primacy.Term{}
		for _, name := range []string{"slow", "zz-late"} {
			term, err := a.Election(name).Campaign(s.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if terms[name] = term; name == "zz-late" {
				s.stands("web-1", name, "")
			}
			s.stands("web-3", name, "")
		}
		form := s.filled("/ui/act?verb=drain&member=web-1", "ops")
		s.wants(s.ask("POST", "/ui/act", form), 303)
		time.Sleep(time.Second)
		_ = terms["zz-late"].Resign(s.Context())
		time.Sleep(time.Second)
		second := s.leader("zz-late")
		if second.ID != "web-1" || second.Token == terms["zz-late"].Token() {
			t.Fatalf("%s leads under token %d", second.ID, second.Token)
		}
		_ = terms["slow"].Resign(s.Context())
		time.Sleep(5 * time.Second)
		if l := s.leader("zz-late"); l.Token != second.Token {
			t.Errorf("the term under token %d was ended, by a form for another", second.Token)
		}
	})
}

// What stays stays, though somebody has come to wait for it meanwhile: it was not confirmed.
func TestADrainMovesNothingThatStays(t *testing.T) {
	within(t, Options{Actions: true}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-2", "billing", "")
		s.stands("web-1", "lonely", "")
		form := s.filled("/ui/act?verb=drain&member=web-1", "ops")
		s.stands("web-2", "lonely", "")
		s.wants(s.ask("POST", "/ui/act", form), 409, "has changed")
		time.Sleep(5 * time.Second)
		for _, name := range []string{"billing", "lonely"} {
			if l := s.leader(name); l.ID != "web-1" {
				t.Errorf("%s leads %s", l.ID, name)
			}
		}
	})
}

// Who was chosen is not replaced by another.
func TestATransferIsToWhoWasChosen(t *testing.T) {
	within(t, Options{Actions: true}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-2", "billing", "")
		path := formOf("transfer", "billing", s.leader("billing").Token)
		s.wants(s.get(path+"&to=web-3"), 409, "web-3 does not wait any more")
		form := s.filled(path, "ops")
		form.Del("to")
		s.wants(s.ask("POST", "/ui/act", form), 400, "to whom")
		form = s.filled(path, "ops\x1b[2J")
		s.wants(s.ask("POST", "/ui/act", form), 400, "is no text")
	})
}
