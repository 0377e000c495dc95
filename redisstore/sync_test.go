package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/redistest"
)

// What a lost history must not leave behind, step by step: fleets meet these moments once in a
// thousand failovers.

// opened is a store and a lease of it.
func opened(t *testing.T, srv *redistest.Server, ttl time.Duration) (*Store, *lease) {
	t.Helper()
	s, err := Open(t.Context(), Config{Addrs: []string{srv.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	l, err := s.Grant(t.Context(), "x", ttl)
	if err != nil {
		t.Fatal(err)
	}
	return s, l.(*lease)
}

func stand(t *testing.T, l *lease, name, id string) driver.Place {
	t.Helper()
	p, err := l.Claim(t.Context(), driver.Claim{Name: name, ID: id})
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return p[0]
}

// forgets makes the server take its data for that of another history.
func forgets(srv *redistest.Server) {
	srv.Do("HSET", "{primacy}:server", "id", "0123456789abcdef", "run", "0123")
}

// A token that is drawn in the calm is larger than any that was lost, also where the lost one's
// clock was ahead by as much as the calm is long.
func TestTokensOfTheCalm(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	const ttl = time.Minute
	for _, most := range []string{"60000", "0"} { // 0: the largest ttl was lost too
		_, l := opened(t, srv, ttl)
		srv.Do("HSET", "{primacy}:server", "max", most, "n", 0)
		forgets(srv)
		begun := time.Now()
		p := stand(t, l, "n"+most, "1")
		if least := uint64(begun.Add(ttl-time.Second).UnixMilli() * 64); p.Held || p.Token < least {
			t.Errorf("a claim in the calm = %+v, want it to wait under a token of at least %d", p, least)
		}
	}
}

// Between the question and its answer, the old server's last word came: the place holds. Where the
// new one does not know that, the lease is over.
func TestAGrantOfALostHistoryEndsTheLease(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	_, first := opened(t, srv, time.Minute)
	_, l := opened(t, srv, time.Minute)
	stand(t, first, "n", "1")
	p := stand(t, l, "n", "2")
	stood := map[string]known{"2": {entered: true, settled: true, token: p.Token}}
	l.pushed([]string{"h", strconv.FormatUint(p.Token, 10), l.epoch, l.id})
	row := []any{"n", "", "2", strconv.FormatUint(p.Token, 10), int64(0), int64(100)}
	if _, err := l.syncer.note(stood, reply{"OK", "another history", "0", []any{row}, []any{}}); !errors.Is(err, driver.ErrGone) {
		t.Errorf("a lease whose place holds by a lost history = %v, want ErrGone", err)
	}
	// And a Claim that was answered meanwhile, of which the new server knows nothing.
	_, l = opened(t, srv, time.Minute)
	stand(t, l, "m", "3")
	if _, err := l.syncer.note(map[string]known{}, reply{"OK", "another history", "0", []any{}, []any{}}); !errors.Is(err, driver.ErrGone) {
		t.Errorf("a lease whose place was entered in a lost history = %v, want ErrGone", err)
	}
}

// An answer is noted only while the lease goes by the history that it tells of.
func TestAnAnswerOfALostHistoryIsNotNoted(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s, l := opened(t, srv, time.Minute)
	c := driver.Claim{Name: "n", ID: "1"}
	mine, err := l.beginClaim([]driver.Claim{c})
	if err != nil {
		t.Fatal(err)
	}
	old := l.epoch
	got, err := s.run(t.Context(), s.calls, claimScript, false, l.id, old, 0, 1, c.Name, "", 0, mine[0].n, c.ID, "", false)
	if err != nil {
		t.Fatal(err)
	}
	srv.Do("DEL", "{primacy}:line:n", "{primacy}:meta:n") // it is lost, and the answer still on its way
	srv.Do("HDEL", "{primacy}:lease:"+l.id, "s:n")
	forgets(srv)
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.note(old, got, func(got reply) { l.enteredLocked(mine, got) }) {
		t.Error("an answer of the history that was left counts")
	}
	if l.mu.Lock(); l.claims["1"].held {
		t.Error("a place holds that the server does not know")
	}
	l.mu.Unlock()
}

// A release that was lost is made again until it is done, though the way to the server is closed
// just then. It holds up no renewal.
func TestAGhostIsReleasedInTheEnd(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s, l := opened(t, srv, time.Minute)
	stand(t, l, "n", "1")
	l.mu.Lock()
	l.claims["1"].forgetLocked() // as after a Release that was answered
	l.mu.Unlock()
	forgets(srv)
	s.calls.mu.Lock()
	good := s.calls.client
	s.calls.client = redis.NewClient(own(&redis.Options{Addr: "127.0.0.1:1"}, 1))
	s.calls.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.Renew(ctx); err != nil {
		t.Errorf("Renew while a ghost cannot be released = %v, want nil", err)
	}
	s.calls.mu.Lock()
	s.calls.client.Close()
	s.calls.client = good
	s.calls.mu.Unlock()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if ln, err := s.Line(t.Context(), "n"); err == nil && ln.Holder == nil && len(ln.Waiters) == 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the line = %+v, %v: a claim stands for nobody", ln, err)
		}
	}
}

// A request that comes before the answer of the Claim it is meant for is told when that has come.
func TestARequestBeforeTheAnswerOfItsClaim(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s, l := opened(t, srv, time.Minute)
	c := driver.Claim{Name: "n", ID: "1"}
	mine, err := l.beginClaim([]driver.Claim{c})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.run(t.Context(), s.calls, claimScript, false, l.id, l.epoch, 0, 1, c.Name, "", 0, mine[0].n, c.ID, "", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ask(t.Context(), "n", driver.Request{Token: uint64(got.num(3)), By: "somebody"}); err != nil {
		t.Fatal(err)
	}
	if err := l.syncer.now(t.Context(), s.calls); err != nil {
		t.Fatal(err)
	}
	stand(t, l, "n", "1") // the answer was lost: the caller repeats it
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if news, err := l.News(ctx); err != nil || len(news) != 1 || news[0].Request == nil || news[0].Request.By != "somebody" {
		t.Errorf("News = %+v, %v, want the request", news, err)
	}
}

// Observers hear of what was lost: the line they saw last is gone, and the server that goes on has
// never known it.
func TestALostLineIsSeen(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	for _, lost := range []string{"its last change", "the line"} {
		s, l := opened(t, srv, 10*time.Minute) // longer than Next is waited for: its end is a change of the line too
		stand(t, l, lost, fmt.Sprint("id of ", lost))
		seen, err := s.Line(t.Context(), lost)
		if err != nil || seen.Revision%2 == 0 {
			t.Fatalf("Line = %+v, %v", seen, err)
		}
		if lost == "the line" {
			srv.Do("DEL", "{primacy}:line:"+lost, "{primacy}:meta:"+lost)
		} else {
			srv.Do("HSET", "{primacy}:meta:"+lost, "r", seen.Revision-1000)
		}
		srv.Do("HSET", "{primacy}:server", "n", seen.Revision-1000)
		forgets(srv)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if ln, err := s.Next(ctx, lost, seen.Revision); err != nil || ln.Revision <= seen.Revision {
			t.Errorf("Next after %s was lost = %+v, %v, want what is left", lost, ln, err)
		}
	}
}

// A line in which somebody always stands, though no session is a day old, must not vanish under its
// holder after three days.
func TestALineThatIsAlwaysWantedStays(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	_, a := opened(t, srv, time.Minute)
	_, b := opened(t, srv, time.Minute)
	if p := stand(t, a, "n", "1"); !p.Held {
		t.Fatal("not held")
	}
	srv.Do("HSET", "{primacy}:meta:n", "e", time.Now().Add(-71*time.Hour).UnixMilli())
	keys := []string{"{primacy}:line:n", "{primacy}:meta:n"}
	for _, key := range keys {
		srv.Do("PEXPIRE", key, 60000) // as three days after its first claim
	}
	p := stand(t, b, "n", "2")
	if err := b.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if left := srv.Do("TTL", key).(int64); left < 24*3600 {
			t.Errorf("%s vanishes in %d s, under its holder", key, left)
		}
	}
}

// TestDiff compares what the owner knew of one claim and knows now with what the server has of it.
func TestDiff(t *testing.T) {
	t.Parallel()
	waits := known{entered: true, settled: true, token: 7}
	holds := known{entered: true, settled: true, token: 7, held: true}
	ending, busy := holds, waits
	ending.ending, busy.settled = true, false
	none := known{}
	for what, c := range map[string]struct {
		before, now known
		moved       bool
		server      string // "", "waits", "holds", or "other": it holds under another token
		want        string
	}{
		"it stands":                                     {holds, holds, false, "holds", "stands"},
		"it has come to hold":                           {waits, waits, false, "holds", "stands"},
		"others have removed it":                        {holds, holds, false, "", "removed"},
		"it was given up and stands":                    {none, none, false, "holds", "forgotten"},
		"it was given up meanwhile":                     {waits, none, false, "waits", ""},
		"it entered meanwhile":                          {none, waits, false, "", ""},
		"its Claim is under way":                        {none, busy, false, "", ""},
		"its owner removes it":                          {holds, ending, false, "", ""},
		"it came to hold meanwhile":                     {waits, holds, false, "waits", "stands"},
		"another history has it":                        {holds, holds, true, "holds", "stands"},
		"another history lost it, which waits":          {waits, waits, true, "", "removed"},
		"another history lost it, which holds":          {holds, holds, true, "", "over"},
		"another history lost its grant":                {holds, holds, true, "waits", "over"},
		"another history lost a grant after the asking": {waits, holds, true, "waits", "over"},
		"another history gave it another token":         {waits, waits, true, "other", "forgotten removed"},
		"another history has one that was given up":     {waits, none, true, "waits", "forgotten"},
	} {
		of := func(k known) map[string]known {
			if k == none {
				return nil
			}
			return map[string]known{"id": k}
		}
		var server []standing
		if c.server != "" {
			s := standing{id: "id", token: 7, held: c.server != "waits"}
			if c.server == "other" {
				s.token = 8
			}
			server = append(server, s)
		}
		changes, over := diff(of(c.before), of(c.now), c.moved, server)
		got := ""
		for _, ch := range changes {
			got += []string{stands: " stands", forgotten: " forgotten", removed: " removed"}[ch.what]
		}
		if got = strings.TrimSpace(got); over {
			got = "over"
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
