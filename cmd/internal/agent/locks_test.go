package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/memstore"
)

func TestALockIsReleasedByItsTokenAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	first := into[lockJSON](t, s.want(200, "", s.ask("POST", "/v1/locks/a%2Fb", `{"id":"me"}`)))
	if first.Name != "a/b" || first.ID != "me" || first.LeaseMS <= 0 || first.LeaseMS > 8100 {
		t.Errorf("got %+v", first)
	}
	s.want(409, "held", s.ask("POST", "/v1/locks/a%2Fb", `{"id":"you"}`))
	s.want(409, "held", s.ask("POST", "/v1/locks/a%2Fb", `{"id":"me"}`))
	s.want(408, "wait-timeout", s.ask("POST", "/v1/locks/a%2Fb", `{"wait_ms":50}`))
	token := first.Token.String()
	for _, wrong := range []string{(first.Token + 1).String(), (first.Token - 1).String(), "1",
		"18446744073709551615"} {
		s.want(410, "not-held", s.ask("DELETE", "/v1/locks/a%2Fb", "", "Primacy-Token", wrong))
	}
	for _, wrong := range []string{"", "0", "-1", "x", "1.5", "1e3", "18446744073709551616", " 1 2", "0x10"} {
		s.want(400, "invalid", s.ask("DELETE", "/v1/locks/a%2Fb", "", "Primacy-Token", wrong))
	}
	s.want(410, "not-held", s.ask("DELETE", "/v1/locks/a", "", "Primacy-Token", token))
	s.want(410, "not-held", s.ask("DELETE", "/v1/locks/b", "", "Primacy-Token", token))
	s.want(410, "not-held", s.ask("POST", "/v1/elections/a%2Fb/resign", "", "Primacy-Token", token)) // it is a lock
	s.want(200, "", s.ask("POST", "/v1/locks/a%2Fb/renew", "", "Primacy-Token", token))
	s.want(200, "", s.ask("DELETE", "/v1/locks/a%2Fb", "", "Primacy-Token", token))
	second := into[lockJSON](t, s.want(200, "", s.ask("POST", "/v1/locks/a%2Fb", `{"id":"me"}`)))
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	// late: the successor of the same id is not hurt
	s.want(410, "not-held", s.ask("DELETE", "/v1/locks/a%2Fb", "", "Primacy-Token", token))
	s.want(200, "", s.ask("POST", "/v1/locks/a%2Fb/renew", "", "Primacy-Token", second.Token.String()))
	// The token of a server that has died means nothing to the next one.
	s.want(410, "not-held", newAgent(t, Options{}).ask("DELETE", "/v1/locks/a%2Fb", "", "Primacy-Token",
		second.Token.String()))
}

func TestALockThatIsNotRenewedIsReleasedAndNotBefore(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: time.Minute}})
	asked := boottime.Now()
	l := into[lockJSON](t, s.want(200, "", s.ask("POST", "/v1/locks/n", `{"lease_ms":10000}`)))
	if l.LeaseMS > 9000 {
		t.Errorf("got %+v", l)
	}
	for range 3 {
		time.Sleep(3500 * time.Millisecond) // thrice that is more than 10 s
		asked = boottime.Now()
		s.want(200, "", s.ask("POST", "/v1/locks/n/renew", "", "Primacy-Token", l.Token.String()))
	}
	next := into[lockJSON](t, s.want(200, "", s.ask("POST", "/v1/locks/n", `{"wait_ms":60000}`)))
	if after := boottime.Now() - asked; after < 10*time.Second || after > soon {
		t.Errorf("free %v after the last renewal, want 10 s", after)
	}
	s.want(200, "", s.ask("DELETE", "/v1/locks/n", "", "Primacy-Token", next.Token.String()))
	s.want(410, "not-held", s.ask("POST", "/v1/locks/n/renew", "", "Primacy-Token", l.Token.String()))
}

func TestSlotsAndReaders(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	tokens := map[primacy.Token]bool{}
	take := func(path, body string) primacy.Token {
		t.Helper()
		l := into[lockJSON](t, s.want(200, "", s.ask("POST", path, body)))
		if tokens[l.Token] {
			t.Errorf("two hold under token %d", l.Token)
		}
		tokens[l.Token] = true
		return l.Token
	}
	one := take("/v1/locks/sem", `{"slots":2}`)
	take("/v1/locks/sem", `{"slots":2}`)
	s.want(409, "held", s.ask("POST", "/v1/locks/sem", `{"slots":2}`))
	s.want(409, "slots-differ", s.ask("POST", "/v1/locks/sem", `{"slots":3}`)) // all must name the same number
	s.want(200, "", s.ask("DELETE", "/v1/locks/sem", "", "Primacy-Token", one.String()))
	take("/v1/locks/sem", `{"slots":2}`)
	clear(tokens)
	r1, r2 := take("/v1/locks/rw", `{"shared":true}`), take("/v1/locks/rw", `{"shared":true}`)
	s.want(409, "held", s.ask("POST", "/v1/locks/rw", ``))
	s.want(200, "", s.ask("DELETE", "/v1/locks/rw", "", "Primacy-Token", r1.String()))
	s.want(409, "held", s.ask("POST", "/v1/locks/rw", ``))
	s.want(200, "", s.ask("DELETE", "/v1/locks/rw", "", "Primacy-Token", r2.String()))
	take("/v1/locks/rw", `{"wait_ms":10000}`)
	for _, bad := range []string{`{"slots":-1}`, `{"slots":1001}`, `{"slots":1,"shared":true}`, `{"wait_ms":-1}`,
		`{"lease_ms":1}`, `{"ttl_ms":1000}`, `{"id":"x","ttl_ms":-1}`,
		`{"id":"a\nb"}`} {
		s.want(400, "invalid", s.ask("POST", "/v1/locks/x", bad))
	}
	for _, bad := range []string{`{`, `[]`, `null`, `"x"`, `{}{}`, `{"slot":1}`, `{"slots":"1"}`, `{"slots":1.5}`,
		`{"slots":99999999999999999999}`} {
		s.want(400, "bad-json", s.ask("POST", "/v1/locks/x", bad))
	}
}

// A lock that is bound to its connection goes with it.
func TestABoundLock(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: time.Minute}})
	one := s.post("/v1/locks/n", `{"bound":true,"direct":true}`)
	won := one.until("acquired")
	two := s.post("/v1/locks/n", `{"bound":true,"direct":true,"wait_ms":20000}`)
	two.until("waiting")
	three := s.post("/v1/locks/n", `{"bound":true,"direct":true}`)
	if end := three.until("ended"); end.Problem == nil || end.Problem.Type != "urn:primacy:held" {
		t.Errorf("got %+v", end)
	}
	one.conn.Close()
	if next := two.until("acquired"); next.Token <= won.Token {
		t.Errorf("token %d after %d", next.Token, won.Token)
	}
}

// Who goes away while he waits for a lock leaves nothing behind.
func TestWhoGoesAwayWhileHeWaits(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	l := into[lockJSON](t, s.want(200, "", s.ask("POST", "/v1/locks/n", ``)))
	gone := s.post("/v1/locks/n", `{"wait_ms":60000,"id":"gone"}`)
	eventually(t, "it waits", func() bool {
		return len(into[shown.State](t,
			s.ask("GET", "/v1/elections/n", "")).Waiting) == 1
	})
	gone.conn.Close()
	eventually(t, "it waits no more", func() bool {
		return len(into[shown.State](t,
			s.ask("GET", "/v1/elections/n", "")).Waiting) == 0
	})
	s.want(200, "", s.ask("DELETE", "/v1/locks/n", "", "Primacy-Token", l.Token.String()))
	s.want(200, "", s.ask("POST", "/v1/locks/n", ``))
}

func TestFence(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	one, two := newAgentOn(t, st, Options{}), newAgentOn(t, st, Options{})
	ask := func(s *site, name string, token string) reply {
		return s.ask("POST", "/v1/fence/"+name, `{"token":"`+token+`"}`)
	}
	one.want(200, "", ask(one, "disk", "9"))
	two.want(412, "stale-token", ask(two, "disk", "8"))
	two.want(200, "", ask(two, "disk", "9"))
	two.want(200, "", ask(two, "disk", "18446744073709551615"))
	if r := one.want(412, "stale-token",
		ask(one, "disk", "10")); r.Header.Get("Primacy-Largest") != "18446744073709551615" {
		t.Errorf("got %v", r.Header)
	}
	one.want(200, "", ask(one, "disk%2F", "1"))
	for _, bad := range []string{"", "0", "-1", "x", "18446744073709551616"} {
		one.want(400, "invalid", ask(one, "disk", bad))
	}
	one.want(400, "bad-json", one.ask("POST", "/v1/fence/disk", `{"token":9}`))
}

// Many ask at once: once a token has been let pass, no request that begins after that passes with a
// smaller one.
func TestAFenceNeverGoesBack(t *testing.T) {
	t.Parallel()
	st := memstore.New(memstore.Options{})
	var mu sync.Mutex
	var passed primacy.Token // the largest whose answer has come
	var all sync.WaitGroup
	refused := 0
	for i := range 8 {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for range 300 {
				token := primacy.Token(1 + rnd.Uint64N(2000))
				mu.Lock()
				before := passed
				mu.Unlock()
				largest, err := pass(context.Background(), st, "n", token)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				switch {
				case largest > token:
					refused++
				case token < before:
					t.Errorf("%d passed after %d", token, before)
				default:
					passed = max(passed, token)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if refused == 0 || passed < 1900 {
		t.Errorf("%d refused, %d the largest", refused, passed)
	}
}

// A store that keeps no journal is not made to look like one that does.
func TestAStoreWithoutAJournalOffersNoFence(t *testing.T) {
	t.Parallel()
	s := newAgentOn(t, struct{ driver.Store }{memstore.New(memstore.Options{})}, Options{})
	s.want(501, "not-offered", s.ask("POST", "/v1/fence/x", `{"token":"1"}`))
}

// Not the store is at fault, so no client should try again as after a 502.
func TestALockThatOthersShareInAnotherWay(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	s.want(200, "", s.ask("POST", "/v1/locks/n", `{"slots":2,"id":"a"}`))
	s.want(409, "slots-differ", s.ask("POST", "/v1/locks/n", `{"slots":3,"id":"b"}`))
	s.want(400, "invalid", s.ask("POST", "/v1/elections/n/resign", `{}`))
}

// The words are those of JSON, not of this program.
func TestABodyThatDoesNotFitIsToldInWordsOfJSON(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	for body, want := range map[string]string{
		`{"ttl_ms":"5s"}`: "ttl_ms must be a whole number, not: string",
		`{"ttl_ms":1.5}`:  "ttl_ms must be a whole number, not: number 1.5",
		`{"id":7}`:        "id must be a string, not: number",
		`{"shared":"no"}`: "shared must be true or false, not: string",
		`[]`:              "the body must be an object, not: array",
	} {
		if got := s.want(400, "bad-json", s.ask("POST", "/v1/locks/n", body)).text; !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %q", body, got, want)
		}
	}
}

func TestAnIDWithAnotherTTL(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{})
	s.campaign("n", `{"id":"x","ttl_ms":5000}`).until("elected")
	s.want(409, "ttl-differs", s.ask("POST", "/v1/elections/m/campaign", `{"id":"x","ttl_ms":6000}`))
	s.want(400, "invalid", s.ask("POST", "/v1/elections/m/campaign", `{"id":"y","ttl_ms":600000}`))
	s.want(400, "invalid", s.ask("POST", "/v1/elections/m/campaign", `{"value":"a","meta":{}}`))
	s.want(400, "invalid", s.ask("POST", "/v1/elections/m/campaign", `{"meta":[]}`))
	s.want(400, "invalid", s.ask("POST", "/v1/elections/m/campaign", fmt.Sprintf(`{"value":"%04097d"}`, 1)))
	s.want(400, "invalid", s.ask("POST", "/v1/elections/m/campaign", `{"priority":-1}`))
}
