package page

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/pause"
)

func (s *site) pauses(p pause.Pause) {
	s.Helper()
	if _, err := pause.Set(s.Context(), s.store, p); err != nil {
		s.Fatal(err)
	}
}

func (s *site) paused() []pause.Pause {
	s.Helper()
	all, err := pause.List(s.Context(), s.store)
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// Who paused what, why and until when stands wherever it matters.
func TestWhatIsPausedIsShown(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-1", "reports", "")
		s.job("nightly")
		s.pauses(pause.Pause{Scope: "cron/", By: "ops@desk", Reason: "the database <moves>",
			Until: time.Now().Add(time.Hour)})
		s.pauses(pause.Pause{Scope: "billing", By: "eve@desk", Reason: "incident 42", NoElections: true})
		said := []string{"everything below cron/</strong> is paused by <strong>ops@desk", "the database &lt;moves&gt;",
			"until <time", "primacy resume cron/"}
		s.wants(s.get("/ui/"), 200, append(said, "eve@desk", "until it is resumed", "nobody new is elected",
			"‖</span> no elections", "primacy pause --all --reason WHY")...)
		s.wants(s.get("/ui/cron"), 200, append(said, "‖</span> paused")...)
		s.wants(s.get("/ui/job?name=nightly"), 200, said...)
		s.wants(s.get("/ui/election?name=billing"), 200, "eve@desk", "incident 42", "primacy resume billing",
			"primacy pause billing --reason WHY")
		for _, path := range []string{"/ui/election?name=reports", "/ui/?prefix=rep"} {
			if got := s.wants(s.get(path), 200, "reports"); strings.Contains(got.text, "is paused by") {
				t.Errorf("%s tells of a pause that is not of it", path)
			}
		}
		var j struct {
			Election struct{ Paused struct{ By, Reason string } }
			Pauses   []struct{ Scope string }
		}
		got := s.get("/ui/election?name=billing", "Accept", "application/json")
		if err := json.Unmarshal([]byte(got.text), &j); err != nil || j.Election.Paused.By != "eve@desk" {
			t.Errorf("in JSON: %s (%v)", got.text, err)
		}
		got = s.get("/ui/", "Accept", "application/json")
		if err := json.Unmarshal([]byte(got.text), &j); err != nil || len(j.Pauses) != 2 {
			t.Errorf("in JSON: %s (%v)", got.text, err)
		}
		time.Sleep(time.Hour)
		if got := s.wants(s.get("/ui/"), 200, "eve@desk"); strings.Contains(got.text, "ops@desk") {
			t.Error("a pause is shown that is over")
		}
	})
}

// A tab that is open hears of a pause, and of its end, with the next list.
func TestATabIsToldOfAPause(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		tb := s.opens("/ui/events")
		tb.next()
		began := time.Now()
		s.pauses(pause.Pause{Scope: "billing", By: "ops@desk", Reason: "a drill", Until: began.Add(time.Hour)})
		tb.until("paused by <strong>ops@desk")
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("told after %v", took)
		}
		if _, err := pause.Resume(s.Context(), s.store, "billing", "ops@desk"); err != nil {
			t.Fatal(err)
		}
		tb.until(`<div id="pauses"></div>`)
	})
}

// unread is a store whose pauses cannot be read.
type unread struct{ *memstore.Store }

func (u unread) Records(ctx context.Context, journal, before string, n int) ([]driver.Record, error) {
	if journal == "pauses" {
		return nil, errors.New("no permission")
	}
	return u.Store.Records(ctx, journal, before, n)
}

// A page that cannot read the pauses must not look as if there were none.
func TestPausesThatCannotBeReadAreNotNone(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.standing.o.Store = unread{s.store}
		for _, path := range []string{"/ui/", "/ui/election?name=billing", "/ui/cron"} {
			s.wants(s.get(path), 200, "What is paused is not known", "no permission")
		}
	})
}

func TestAPauseIsSetAndEnded(t *testing.T) {
	within(t, Options{Actions: true, Person: "ops@desk", Effects: func(_ context.Context, p pause.Pause) ([]Effect,
		error) {
		return []Effect{{"billing", "web-1 leads on, after " + p.Reason}}, nil
	}}, func(s *site) {
		s.stands("web-1", "billing", "")
		path := "/ui/act?verb=pause&name=billing"
		s.wants(s.get("/ui/election?name=billing"), 200, "Pause…", "verb=pause")
		s.wants(s.get(path), 200, "Pause billing?", "1 election is covered", "ops@desk",
			"primacy pause billing --reason WHY", `value="1h"`)
		if all := s.paused(); len(all) != 0 {
			t.Fatal("to look at the form has paused it")
		}
		form := s.filled(path, "ops@desk")
		form.Del("no-elections") // a box that is not ticked is not sent
		form.Set("for", "2h")
		got := s.wants(s.ask("POST", "/ui/act", form), 303)
		if to := got.Header().Get("Location"); to != "/ui/election?name=billing" {
			t.Errorf("it leads to %s", to)
		}
		s.wants(s.get("/ui/election?name=billing"), 200, "is paused by", "a test")
		all := s.paused()
		if len(all) != 1 || all[0].By != "ops@desk" || all[0].Reason != "a test" || all[0].NoElections ||
			time.Until(all[0].Until) > 2*time.Hour || time.Until(all[0].Until) < 119*time.Minute {
			t.Fatalf("paused: %+v", all)
		}
		s.wants(s.ask("POST", "/ui/act", form), 409, "What is paused has changed")

		path = "/ui/act?verb=resume&name=billing"
		form = s.filled(path, "eve@desk")
		s.wants(s.get(path), 200, "Resume billing?", "web-1 leads on, after a test", "primacy resume billing")
		s.wants(s.ask("POST", "/ui/act", form), 303)
		if all := s.paused(); len(all) != 0 {
			t.Errorf("still paused: %+v", all)
		}
		s.wants(s.ask("POST", "/ui/act", form), 409, "What is paused has changed")
		s.wants(s.get(path), 409, "is not paused")
	})
}

// A form is for the pause that it showed: one that somebody has set since is not ended unseen, and
// not replaced.
func TestAFormIsForOnePause(t *testing.T) {
	within(t, Options{Actions: true}, func(s *site) {
		s.stands("web-1", "billing", "")
		first := s.filled("/ui/act?verb=pause&name=billing", "ops")
		s.pauses(pause.Pause{Scope: "billing", By: "eve", Reason: "incident 42", NoElections: true})
		s.wants(s.ask("POST", "/ui/act", first), 409, "has changed")
		resume := s.filled("/ui/act?verb=resume&name=billing", "ops")
		time.Sleep(time.Second)
		s.pauses(pause.Pause{Scope: "billing", By: "eve", Reason: "incident 43", NoElections: true})
		s.wants(s.ask("POST", "/ui/act", resume), 409, "has changed")
		if all := s.paused(); len(all) != 1 || all[0].Reason != "incident 43" {
			t.Errorf("paused: %+v", all)
		}
		for what, change := range map[string]func(url.Values){
			"another scope":   func(v url.Values) { v.Set("name", "reports") },
			"everything":      func(v url.Values) { v.Del("name"); v.Set("all", "yes") },
			"another request": func(v url.Values) { v.Set("verb", "pause") },
			"another pause":   func(v url.Values) { v.Set("terms", "none") },
			"no seal":         func(v url.Values) { v.Del("seal") },
		} {
			forged := url.Values{}
			for k, v := range resume {
				forged[k] = v
			}
			if change(forged); s.ask("POST", "/ui/act", forged).Code != 403 {
				t.Errorf("a form with %s is taken", what)
			}
		}
	})
}

// Everything is paused only where that was said in a word: an empty name is a mistake.
func TestWhatCannotBePaused(t *testing.T) {
	within(t, Options{Actions: true, Pausable: func(scope string) error {
		if strings.HasPrefix(scope, "postgres/") {
			return errors.New("use primacy postgres pause")
		}
		return nil
	}}, func(s *site) {
		s.wants(s.get("/ui/act?verb=pause"), 400, "no name, and no prefix")
		s.wants(s.get("/ui/act?verb=pause&name="), 400)
		s.wants(s.get("/ui/act?verb=pause&name=postgres/main"), 409, "primacy postgres pause")
		s.wants(s.get("/ui/act?verb=resume&name=billing"), 409, "is not paused")
		all := "/ui/act?verb=pause&all=yes"
		s.wants(s.get(all), 200, "Pause everything?", "primacy pause --all")
		form := s.filled(all, "ops")
		for what, value := range map[string]string{"for": "a while", "reason": "", "by": ""} {
			wrong := url.Values{}
			for k, v := range form {
				wrong[k] = v
			}
			wrong.Set(what, value)
			if got := s.ask("POST", "/ui/act", wrong); got.Code != 400 {
				t.Errorf("with %s=%q it is answered %d", what, value, got.Code)
			}
		}
		if form.Set("for", "forever"); len(s.paused()) != 0 {
			t.Fatal("a form with mistakes was taken")
		}
		s.wants(s.ask("POST", "/ui/act", form), 303)
		if got := s.paused(); len(got) != 1 || got[0].Scope != "" || !got[0].Until.IsZero() {
			t.Errorf("paused: %+v", got)
		}
		s.wants(s.get("/ui/"), 200, "<strong>everything</strong> is paused")
	})
	within(t, Options{}, func(s *site) {
		s.wants(s.get("/ui/act?verb=pause&all=yes"), 403, "--ui-actions")
	})
}

// To resign in a pause in which nobody follows is refused by who asks: the form says so first.
func TestAResignationInAPauseIsWarnedOf(t *testing.T) {
	within(t, Options{Actions: true}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-2", "billing", "")
		s.pauses(pause.Pause{Scope: "billing", By: "eve", Reason: "incident 42", NoElections: true})
		s.get("/ui/") // reads it
		path := formOf("resign", "billing", s.leader("billing").Token)
		s.wants(s.get(path), 200, "nobody new is elected while this pause stands")
		s.wants(s.ask("POST", "/ui/act", s.filled(path, "ops")), 303)
		time.Sleep(time.Second)
		if l := s.leader("billing"); l.ID != "web-1" {
			t.Errorf("%s leads", l.ID)
		}
	})
}

// What checks say of a candidate stands with its election, and in the list if it leads on.
func TestWhoIsUnhealthyIsShown(t *testing.T) {
	sick := func(context.Context) (map[string][]Sick, error) {
		return map[string][]Sick{"billing": {{ID: "web-1", At: time.Now(), Text: "exit status 1"},
			{ID: "web-9", At: time.Now(), Text: "<timeout>"}}}, nil
	}
	within(t, Options{Sick: sick}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-1", "reports", "")
		got := s.wants(s.get("/ui/"), 200, "✗</span> unhealthy")
		if n := strings.Count(got.text, "✗</span> unhealthy"); n != 1 {
			t.Errorf("%d are unhealthy", n)
		}
		s.wants(s.get("/ui/election?name=billing"), 200, "web-1</a> is unhealthy and <strong>leads on",
			"web-9</a> is unhealthy and <strong>does not stand", "exit status 1", "&lt;timeout&gt;")
		if got := s.get("/ui/election?name=reports"); strings.Contains(got.text, "is unhealthy") {
			t.Error("it tells of another election's")
		}
	})
}

// Who is elected in a pause of elections, and gives the place back, leads in no part of a view.
func TestWhoGivesAPlaceBackLeadsNowhere(t *testing.T) {
	within(t, Options{}, func(s *site) {
		leader := s.stands("web-1", "billing", "")
		s.get("/ui/")
		next, err := s.store.Grant(t.Context(), "web-2", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := next.Claim(t.Context(), driver.Claim{Name: "billing", ID: "next"}); err != nil {
			t.Fatal(err)
		}
		p := pause.Pause{Scope: "billing", By: "ops", Reason: "drill", NoElections: true}
		if _, err := pause.Set(t.Context(), s.store, p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2500 * time.Millisecond)
		s.get("/ui/")
		_ = leader.Close(context.Background())
		time.Sleep(1200 * time.Millisecond)
		got := s.wants(s.get("/ui/election?name=billing"), 200, "elected, and not leading", "web-1")
		j := s.get("/ui/election?name=billing", "Accept", "application/json").text
		if strings.Contains(got.text, "<td>leads now</td>") || strings.Contains(j, `"leads":true`) {
			t.Errorf("somebody leads: %s\n%s", mainOf(got.text), j)
		}
	})
}
