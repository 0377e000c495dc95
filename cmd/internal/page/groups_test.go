package page

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/pause"
	"github.com/primacy-go/primacy/shards"
)

// runs has a member own shards of a group until it is ended. It returns its end.
func (s *site) runs(id, name string, n int) (end func()) {
	s.Helper()
	g, err := shards.New(s.session(id), name, n, &shards.Options{Value: []byte("at " + id)})
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = g.Run(ctx, func(ctx context.Context, _ *shards.Shard) error { <-ctx.Done(); return nil })
	}()
	end = func() { cancel(); <-ended }
	s.Cleanup(end)
	time.Sleep(20 * time.Second)
	return end
}

func TestAGroupOfShardsIsOneRow(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "billing", "")
		s.stands("web-1", "billing/0001", "") // billing is no group: this is an election like others
		s.runs("web-1", "tenants", 6)
		s.runs("web-2", "tenants", 6)
		got := s.wants(s.get("/ui/"), 200, "tenants", "6 shards, 2 members", `href="/ui/group?name=tenants"`,
			"3 elections and locks", "1 group of 6 shards", "billing/0001", "nothing in trouble")
		if strings.Contains(got.text, "tenants/0003") {
			t.Error("each shard has a row")
		}
		s.wants(s.get("/ui/?prefix=tenants/"), 200, "tenants/0000", "tenants/0005", "6 elections and locks")
		s.wants(s.get("/ui/shards"), 200, "1 group of shards", "tenants", "web-1")
		s.wants(s.get("/ui/group?name=tenants"), 200, "6 of 6", "web-1", "web-2", "3 of 3", "at web-2", "Nothing moves",
			"primacy shards tenants", "for balance", "primacy pause tenants --reason WHY")
		s.wants(s.get("/ui/group?name=tenants&shard=3"), 200, "owns shard 0003,")
		s.wants(s.get("/ui/group?name=tenants&shard=6"), 400, "a number from 0 to 5")
		s.wants(s.get("/ui/group?name=billing"), 404, "no such group")
		s.wants(s.get("/ui/election?name=tenants%2F0003"), 200, `href="/ui/group?name=tenants"`)
		s.wants(s.get("/ui/election?name=tenants"), 200, "has the members of a group of shards")
		var j struct {
			Group  shards.Status
			Groups []groupJSON
		}
		text := s.get("/ui/group?name=tenants", "Accept", "application/json").text
		if err := json.Unmarshal([]byte(text), &j); err != nil || len(j.Group.Shards) != 6 ||
			len(j.Group.Members) != 2 {
			t.Errorf("in JSON: %s (%v)", text, err)
		}
		text = s.get("/ui/", "Accept", "application/json").text
		if err := json.Unmarshal([]byte(text), &j); err != nil || len(j.Groups) != 1 || j.Groups[0].Owned != 6 {
			t.Errorf("in JSON: %s (%v)", text, err)
		}
		s.pauses(pause.Pause{Scope: "tenants", By: "ops", Reason: "a drill", Until: time.Now().Add(time.Hour)})
		time.Sleep(3 * time.Second)
		for _, path := range []string{"/ui/group?name=tenants", "/ui/shards", "/ui/election?name=tenants%2F0003"} {
			s.wants(s.get(path), 200, "paused by <strong>ops")
		}
	})
}

// What a member leaves behind is told: who had which shard, who has it, and why.
func TestMovesOfTheLastHour(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.runs("web-1", "tenants", 4)
		end := s.runs("web-2", "tenants", 4)
		tb := s.opens("/ui/events/group?name=tenants")
		tb.next()
		end()
		tb.until("for drain")
		got := s.wants(s.get("/ui/group?name=tenants"), 200, "2 for drain", "4 of 4", "transferred to web-1")
		if strings.Contains(got.text, "not been read") {
			t.Error("it says that it does not know all")
		}
		time.Sleep(2 * time.Hour)
		s.wants(s.get("/ui/group?name=tenants"), 200, "No shard has changed its owner")
	})
}

// A shard that nobody owns is trouble, though nobody stands in its line.
func TestShardsWithoutAnOwnerComeFirst(t *testing.T) {
	within(t, Options{}, func(s *site) {
		s.stands("web-1", "another", "")
		s.stands("web-1", "tenants", `{"shards":5,"instance":"a","weight":1,"ready":true}`)
		s.stands("web-2", "tenants", `{"shards":5,"instance":"b","weight":1,"ready":false}`)
		for _, n := range []int{0, 3} {
			s.stands("web-1", fmt.Sprintf("tenants/%04d", n), "")
		}
		s.wants(s.get("/ui/"), 200, "1 in trouble", "3 without an owner", `class="bad"`)
		got := s.wants(s.get("/ui/group?name=tenants"), 200, "2 of 5", "3 shards have no owner", "→ web-1",
			"unhealthy")
		if sick, well := strings.Index(got.text, `member?id=web-2`), strings.LastIndex(got.text, "2 of 5"); sick < 0 ||
			sick < strings.Index(got.text, "ghead") && well < 0 {
			t.Error("the member that is not well is not there")
		}
		s.wants(s.get("/ui/group?name=tenants&shard=4"), 200, "Nobody owns shard 0004:", "web-1 is to take it")
	})
}

// A group whose members are all gone is one row too, and its shards are not lost from sight.
func TestAGroupThatNobodyRuns(t *testing.T) {
	within(t, Options{}, func(s *site) {
		end := s.runs("web-1", "tenants", 4)
		end()
		time.Sleep(time.Minute)
		s.get("/ui/")
		time.Sleep(5 * time.Second) // the histories have been read
		got := s.wants(s.get("/ui/"), 200, `href="/ui/group?name=tenants"`, "4 shards")
		if strings.Contains(got.text, "tenants/000") {
			t.Error("each shard has a row")
		}
		s.wants(s.get("/ui/group?name=tenants"), 200, "No member runs", "0 of at least 4")
	})
}

// Names of others cannot make a group of what is none, or leave the page without an answer.
func TestWhatOnlyLooksLikeAGroup(t *testing.T) {
	within(t, Options{}, func(s *site) {
		for _, value := range []string{`{"shards":-1}`, `{"shards":1e9}`, `{`, `{"shards":3}`,
			`{"shards":3,"plan":"AQ=="}`} {
			own := s.session("x")
			name := fmt.Sprintf("g%d", len(value))
			_, err := own.Election(name).Campaign(s.Context(), &primacy.CampaignOptions{Value: []byte(value)})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			if got := s.get("/ui/group?name=" + name); got.Code != 200 && got.Code != 404 {
				t.Errorf("%s: answered %d", value, got.Code)
			}
			s.wants(s.get("/ui/"), 200, name)
		}
	})
}

// A member that loses power records no end. That its shards have gone to others is told all the
// same, and a history that could not be read does not count as read.
func TestShardsOfACrashHaveMoved(t *testing.T) {
	now := clockAt(5, 0)
	e := top.Entry{State: primacy.State{Name: "tenants/0003"}, Read: true, Terms: []top.Term{
		{Token: 9, ID: "web-2", From: clockAt(4, 55), Reason: primacy.Leads},
		{Token: 5, ID: "web-1", From: clockAt(1, 0), ToAfter: clockAt(4, 54), ToBefore: clockAt(4, 55),
			Reason: primacy.Unknown, Why: "lease expired or process died"},
	}}
	g := &group{line: top.Entry{State: primacy.State{Name: "tenants"}}, all: []top.Entry{e}, shards: 6}
	all, counts, unread := pastMoves(g, now)
	if len(all) != 1 || !all[0].Latest || !all[0].At.Equal(clockAt(4, 55)) || all[0].To != "web-2" ||
		len(counts) != 1 || unread != 0 {
		t.Errorf("%+v, %v, %d unread", all, counts, unread)
	}
}
