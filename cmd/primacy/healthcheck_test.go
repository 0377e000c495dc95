//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/shards"
)

// healthy starts a candidate with a check that fails while there is a file sick-ID. A check may
// take long: a busy machine must not make it fail. Tests that wait for a hand-over, which comes a
// timeout later, give less.
func (w *world) healthy(id string, more ...string) *prog {
	w.Helper()
	check := fmt.Sprintf("[ ! -e sick-%s ] || { echo it is sick; exit 4; }", id)
	args := append([]string{"run", "--id", id, "--health", check, "--health-interval", "200ms",
		"--health-timeout", "20s"}, more...)
	return w.start(append(args, "n", "sh", "-c", stops)...)
}

func (w *world) remove(name string) {
	if err := os.Remove(filepath.Join(w.dir, name)); err != nil {
		w.Fatal(err)
	}
}

func TestASickFollowerLeavesTheLineAndComesBack(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	w.touch("sick-b")
	a := w.healthy("a").prints("up")
	b := w.healthy("b").tells("the health check fails: exit status 4: it is sick")
	if n := len(w.line("n")); n != 1 {
		t.Errorf("%d stand", n)
	}
	w.remove("sick-b")
	b.tells("the health check succeeds: b may lead")
	w.awaitLine("n", 2)
	w.touch("sick-b")
	w.awaitLine("n", 1)
	w.start("status", "n").ends(0).
		says("UNHEALTHY: b said so at ", "does not stand: exit status 4: it is sick")
	b.signal(syscall.SIGTERM).ends(128 + 15)
	a.signal(syscall.SIGTERM).ends(0)
}

// TestASickLeaderHandsOverAndStays: whatever --on-lost says, since what is known of its health, and
// of its hold, would be lost with the process.
func TestASickLeaderHandsOverAndStays(t *testing.T) {
	w := newWorld(t)
	a := w.healthy("a", "--events", "events", "--health-timeout", "5s").prints("up")
	b := w.healthy("b")
	w.awaitLine("n", 2)
	w.touch("sick-a")
	a.prints("bye")
	b.prints("up")
	a.tells("handed over to another candidate, asked by a (unhealthy since ")
	w.remove("sick-a")
	a.tells("the health check succeeds: a may lead")
	w.eventually("the events tell it", func() bool {
		text, _ := os.ReadFile(filepath.Join(w.dir, "events"))
		return strings.Contains(string(text), `"event":"health_changed"`) &&
			strings.Contains(string(text), `"event":"transferred"`) && strings.Contains(string(text), `"healthy":false`)
	})
	if n := len(w.line("n")); n != 1 {
		t.Errorf("it is held, and %d stand", n)
	}
	b.signal(syscall.SIGTERM).ends(0)
	w.eventually("where nobody leads no hold keeps it out", func() bool {
		return strings.Count(a.out.String(), "up") == 2
	})
	a.signal(syscall.SIGTERM).ends(0)
}

func TestASickLeaderWithoutAStandbyLeadsOn(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	a := w.healthy("a", "--health-timeout", "5s").prints("up")
	w.touch("sick-a")
	a.tells("unhealthy, and leads on: nobody else waits")
	w.start("status", "n").ends(0).prints("UNHEALTHY: a said so at ")
	if out := a.out.String(); out != "up\n" {
		t.Errorf("it stopped: %q", out)
	}
	a.signal(syscall.SIGTERM).ends(0)
	w.remove("sick-a")
	a = w.healthy("a", "--on-unhealthy", "resign", "--health-timeout", "5s").prints("up")
	w.touch("sick-a")
	a.prints("bye")
	w.awaitLine("n", 0)
	w.killAll()
}

// TestWhereAllAreSickNothingMoves: the check fails everywhere at once.
func TestWhereAllAreSickNothingMoves(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	a := w.healthy("a").prints("up")
	b, c := w.healthy("b"), w.healthy("c")
	w.awaitLine("n", 3)
	for _, id := range []string{"a", "b", "c"} {
		w.touch("sick-" + id)
	}
	w.awaitLine("n", 1)
	a.tells("unhealthy, and leads on: nobody else waits")
	if a.out.String() != "up\n" || b.out.String()+c.out.String() != "" {
		t.Errorf("a: %q, b: %q, c: %q", a.out.String(), b.out.String(), c.out.String())
	}
	w.killAll()
}

// TestAHungCheckIsKilledWhole: with what it has started in the background, outside its process
// group too.
func TestAHungCheckIsKilledWhole(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	p := w.start("run", "--health", `[ ! -e hang ] || { setsid sleep 4711 & sleep 4711; }`, "--health-interval",
		"200ms", "--health-timeout", "1s", "n", "sh", "-c", stops).prints("up")
	w.touch("hang")
	p.tells("the health check fails: ")
	w.remove("hang")
	w.eventually("nothing of it is left", func() bool {
		for _, link := range w.processes() {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
			if strings.HasPrefix(string(line), "sleep\x004711") {
				return false
			}
		}
		return true
	})
	p.signal(syscall.SIGTERM).ends(0)
}

func TestAURLIsAsked(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	var code atomic.Int32
	code.Store(302)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Location", "http://127.0.0.1:1/")
		rw.WriteHeader(int(code.Load()))
		fmt.Fprintln(rw, "disk full")
	}))
	defer server.Close()
	p := w.start("run", "--health", server.URL, "--health-interval", "100ms", "n", "sh", "-c", stops).prints("up")
	code.Store(503)
	p.tells("the health check fails: 503 Service Unavailable disk full")
	code.Store(200)
	p.tells("the health check succeeds")
	p.signal(syscall.SIGTERM).ends(0)
	for _, bad := range [][]string{{"--health", "http://"}, {"--health", "true", "--health-interval", "1ms"},
		{"--health", "true", "--health-fall", "0"}, {"--on-unhealthy", "x"}} {
		w.start(append(append([]string{"run"}, bad...), "n", "true")...).ends(exitUsage).inOneLine()
	}
}

// TestAnAnswerThatHangsInItsBodyIsAFailure: a server that is stuck may still send its first lines.
func TestAnAnswerThatHangsInItsBodyIsAFailure(t *testing.T) {
	onlyInVerify(t)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		rw.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(rw).Flush()
		<-req.Context().Done()
	}))
	defer server.Close()
	r := &runner{}
	r.candidacy.health = server.URL
	c := &healthCheck{r: r, client: server.Client()}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.get(ctx); err == nil {
		t.Error("a check whose answer did not end in time has succeeded")
	}
}

// healthy returns a session, and a health of it whose check succeeds.
func healthy(t *testing.T) (*primacy.Session, *primacy.Health) {
	t.Helper()
	s, err := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := primacy.NewHealth(s, func(context.Context) error { return nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, h
}

// TestAnyEventTellsAGroupWhoIsReady: the one that tells of a change of the health may be lost.
func TestAnyEventTellsAGroupWhoIsReady(t *testing.T) {
	s, h := healthy(t)
	group, err := shards.New(s, "n", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	group.SetReady(false)
	r := newRunner(&app{}, contest{name: "n"})
	r.session, r.healthCheck.member, r.healthCheck.h = s, group, h
	ctx, leave := context.WithCancel(t.Context())
	over, owns := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		_ = group.Run(ctx, func(ctx context.Context, _ *shards.Shard) error {
			close(owns)
			<-ctx.Done()
			return nil
		})
	}()
	ready := false
	for until := time.Now().Add(time.Minute); !ready && time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		r.healthCheck.notified(ctx, primacy.Event{Kind: primacy.Renewed})
		st, err := shards.Read(ctx, s, "n")
		ready = err == nil && st.Members[0].Ready
	}
	if !ready {
		t.Error("it is healthy, and not ready")
	}
	<-owns
	if got := r.healthCheck.role(); got != asLeader {
		t.Errorf("with a shard its check runs as %s", got)
	}
	leave()
	<-over
	_ = s.Close(context.Background())
}

// TestWhoIsUnhealthyStaysWithoutTokens: on a store that has none all terms look alike.
func TestWhoIsUnhealthyStaysWithoutTokens(t *testing.T) {
	s, h := healthy(t)
	r := newRunner(&app{}, contest{name: "n"})
	r.healthCheck.h = h
	for until := time.Now().Add(time.Minute); !h.State().Healthy && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	if r.forHealth(0, primacy.ErrExpired) || r.forHealth(0, primacy.ErrResigned) {
		t.Error("a healthy process that lost its lease stays, whatever --on-lost says")
	}
	_ = s.Close(context.Background())
}

func TestTheTargetOfAHealthCheck(t *testing.T) {
	o := candidacy{onUnhealthy: keepLeading}
	if err := o.validate(func(flag string) bool { return flag == "health" }); err == nil {
		t.Error("an empty --health checks nothing, and is not refused")
	}
	if err := o.validate(func(string) bool { return false }); err != nil {
		t.Error(err)
	}
	for health, want := range map[string]bool{"HTTP://localhost/": true, "https://h": true, "curl http://h": false} {
		if o.health = health; o.isURL() != want {
			t.Errorf("%s is a URL: %v", health, !want)
		}
	}
}
