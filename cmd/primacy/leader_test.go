//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/memstore"
)

func TestLeaderAnswers(t *testing.T) {
	w := newWorld(t)
	w.start("leader", "n").ends(exitNo).inOneLine().complains("nobody leads n")
	w.start("leader", "--is", "a", "n").ends(exitNo)
	w.start("leader", "--wait", "300ms", "n").ends(exitNo).inOneLine().complains("nobody leads n")
	waits := w.start("leader", "--wait", "1h", "n")
	waitsForB := w.start("leader", "--wait", "1h", "--is", "b", "n")
	a := w.start("run", "--id", "a", "n", "sleep", "1000").tells("leads n")
	waits.ends(0).says("a\n")
	if p := w.start("leader", "n").ends(0); p.out.String() != "a\n" || p.err.String() != "" {
		t.Errorf("stdout %q, stderr %q", p.out.String(), p.err.String())
	}
	for _, c := range []struct {
		args []string
		env  string
		code int
	}{
		{[]string{"leader", "--is", "a", "n"}, "", 0},
		{[]string{"leader", "--is", "b", "n"}, "", exitNo},
		{[]string{"leader", "--is-me", "--id", "a", "n"}, "", 0},
		{[]string{"leader", "--is-me", "--id", "b", "n"}, "PRIMACY_ID=a", exitNo},
		{[]string{"leader", "--is-me", "n"}, "PRIMACY_ID=a", 0},
		{[]string{"leader", "--wait", "300ms", "--is", "b", "n"}, "", exitNo},
	} {
		if p := w.with(c.env).start(c.args...).ends(c.code); p.out.String()+p.err.String() != "" {
			t.Errorf("%v: a yes or no, and it says %q, %q", p, p.out.String(), p.err.String())
		}
	}
	select {
	case <-waitsForB.exited:
		t.Error("it waited for b, and a leads")
	default:
	}
	b := w.start("run", "--id", "b", "n", "sleep", "1000").tells("waits for n")
	w.awaitLine("n", 2)
	a.signal(syscall.SIGTERM).ends(128 + 15)
	b.tells("leads n")
	waitsForB.ends(0)
}

// An empty --is is a variable that is not set, not the question whether anybody leads.
func TestWhetherNobodyInParticularLeadsIsNoQuestion(t *testing.T) {
	w := newWorld(t)
	w.start("run", "--id", "a", "n", "sleep", "1000").tells("leads n")
	w.start("leader", "n", "--is", "").ends(exitUsage).inOneLine().complains("--is is empty")
}

// dying is a store that answers once.
type dying struct {
	driver.Store
	asked atomic.Bool
}

func (d *dying) Line(ctx context.Context, name string) (driver.Line, error) {
	if d.asked.Swap(true) {
		return driver.Line{}, errors.New("it does not answer")
	}
	return d.Store.Line(ctx, name)
}

func (d *dying) Next(context.Context, string, uint64) (driver.Line, error) {
	return driver.Line{}, errors.New("it does not answer")
}

// That the store does not answer any more is not that nobody leads.
func TestAStoreThatDiesWhileALeaderIsWaitedFor(t *testing.T) {
	st := &dying{Store: memstore.New(memstore.Options{})}
	s, err := primacy.NewSession(st, &primacy.Options{ID: "asks"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	a := &app{timeout: limit}
	_, err = awaitLeader(t.Context(), a, s, st, "n", leaderOptions{wait: time.Second})
	if codeOf(err) != exitUnreachable {
		t.Errorf("got %v", err)
	}
}

func TestValidAsksNoNetwork(t *testing.T) {
	w := newWorld(t)
	none := w.with("PRIMACY_STORE=etcd://127.0.0.1:1") // whoever asks it fails
	p := w.start("run", "-q", "--ttl", "20s", "n", "sh", "-c", "echo $PRIMACY_STATE_FILE; sleep 1000").prints("\n")
	file := strings.TrimSpace(p.out.String())
	in := none.with("PRIMACY_STATE_FILE=" + file)
	in.start("leader", "n", "--valid").ends(0)
	in.start("leader", "other", "--valid").ends(exitNo).inOneLine().complains(`is of "n", not of "other"`)
	// Renewed: still so after the first lease would be over.
	first := deadlineIn(w, file)
	w.eventually("two renewals", func() bool { return deadlineIn(w, file) > first+2*time.Second })
	in.start("leader", "n", "--valid").ends(0)
	// Frozen, it renews nothing, and the answer turns to no.
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGSTOP)
	p.ends(exitLost) // the kernel has woken it, some time before the deadline
	in.start("leader", "n", "--valid").ends(exitNo).inOneLine().complains("the term is over", file)
	last := decode[termState](w, string(b)).Deadline
	w.eventually("the deadline of the file as it was passes", func() bool { return boottime.Now() > last })

	// The file of a killed run, of another boot, and no state file at all.
	left := filepath.Join(w.dir, "left")
	in = none.with("PRIMACY_STATE_FILE=" + left)
	for text, want := range map[string]string{
		string(b): "is over",
		regexp.MustCompile(`"deadline_boot_ns":"\d+"`).ReplaceAllString(strings.Replace(string(b), `"boot_id":"`,
			`"boot_id":"x`, 1), `"deadline_boot_ns":"9223372036854775807"`): "is over",
	} {
		if err := os.WriteFile(left, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		in.start("leader", "n", "--valid").ends(exitNo).inOneLine().complains(want)
	}
	for _, text := range []string{"", "{", "\x00\xff", `{"deadline_boot_ns":"x"}`, `[]`} {
		if err := os.WriteFile(left, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		in.start("leader", "n", "--valid").ends(exitUsage).inOneLine().complains(left, "not a state file")
	}
	none.with("PRIMACY_STATE_FILE="+w.dir).start("leader", "n", "--valid").ends(exitUsage).inOneLine().complains(w.dir)
}

func deadlineIn(w *world, file string) time.Duration {
	w.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		w.Fatal(err)
	}
	return decode[termState](w, string(b)).Deadline
}

func TestStatusShowsAllBelowOrOne(t *testing.T) {
	w := newWorld(t)
	w.start("status").ends(0).says("nobody leads or waits", "primacy run NAME -- COMMAND")
	w.start("status", "team/...").ends(0).says("nobody leads or waits below team/")
	w.start("status", "n").ends(exitNo).says("nobody leads n")
	w.start("run", "--id", "a", "--value", "10.0.0.1:80", "team/n", "sleep", "1000").tells("leads team/n")
	w.start("run", "--id", "b", "team/n", "sleep", "1000").tells("waits for team/n: a leads")
	w.start("run", "--id", "c", "teamster", "sleep", "1000").tells("leads teamster")
	w.eventually("b stands", func() bool { return len(w.keys(w.prefix+"team%2Fn/")) == 2 })

	w.eventually("both terms are told", func() bool { return len(w.keys(w.prefix+"@journal/")) == 2 })

	row := regexp.MustCompile(`(?m)^team/n\s+a\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s+(\d+)\s+1\s+10\.0\.0\.1:80$`)
	all := w.start("status").ends(0).says("NAME", "LEADER", "TOKEN", "teamster", "as read at ", "revision")
	if !row.MatchString(all.out.String()) {
		t.Errorf("status: %q", all.out.String())
	}
	below := w.start("status", "team/...").ends(0)
	if !row.MatchString(below.out.String()) || strings.Contains(below.out.String(), "teamster") {
		t.Errorf("status team/...: %q", below.out.String())
	}
	w.start("status", "team...").ends(0).says("team/n", "teamster")
	one := w.start("status", "team/n").ends(0).out.String()
	if !regexp.MustCompile(`(?m)^leads\s+a\s+\d+\s+[0-9a-f]+\s+10\.0\.0\.1:80`).MatchString(one) ||
		!regexp.MustCompile(`(?m)^waits 1\s+b\s+\d+`).MatchString(one) {
		t.Errorf("status team/n: %q", one)
	}

	// JSON: an array of all, an object for one, a line each for ndjson; 64-bit numbers are strings.
	states := decode[[]stateJSON](w, w.start("status", "-o", "json").ends(0).out.String())
	if len(states) != 2 || states[0].Name != "team/n" || states[0].Leader.ID != "a" ||
		states[0].Waiting[0].ID != "b" || len(states[1].Waiting) != 0 {
		t.Errorf("status -o json: %+v", states)
	}
	lines := strings.Split(strings.TrimSpace(w.with("PRIMACY_OUTPUT=ndjson").start("status").ends(0).out.String()),
		"\n")
	if len(lines) != 2 || decode[stateJSON](w, lines[1]).Name != "teamster" {
		t.Errorf("status -o ndjson: %q", lines)
	}
	if p := w.start("status", "-o", "json", "nobody...").ends(0); strings.TrimSpace(p.out.String()) != "[]" {
		t.Errorf("got %q, want an empty array", p.out.String())
	}
	if p := w.start("status", "-o", "json", "nobody").ends(exitNo); !strings.Contains(p.out.String(),
		`"leader": null`) || p.err.String() != "" {
		t.Errorf("got %q, %q", p.out.String(), p.err.String())
	}
	numbersAreStrings(w, w.start("status", "-o", "json", "team/n").ends(0).out.String())
	numbersAreStrings(w, w.start("leader", "-o", "json", "team/n").ends(0).out.String())
}

func numbersAreStrings(w *world, text string) {
	w.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		w.Fatal(err)
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case float64:
			w.Errorf("%s is the number %v: many readers round those", path, v)
		case map[string]any:
			for k, x := range v {
				walk(path+"."+k, x)
			}
		case []any:
			for i, x := range v {
				walk(path+"."+strconv.Itoa(i), x)
			}
		}
	}
	walk("", v)
	token := v.(map[string]any)["leader"].(map[string]any)["token"]
	if _, err := strconv.ParseUint(fmt.Sprint(token), 10, 64); err != nil {
		w.Errorf("the token is %v", token)
	}
}

func TestObserveTellsNowAndEachChange(t *testing.T) {
	w := newWorld(t)
	o := w.start("observe", "-o", "ndjson", "n").prints(`"leader":null`)
	people := w.start("watch", "n", "other").prints("  n  nobody leads").prints("  other  nobody leads")
	a := w.start("run", "--id", "a", "--value", "v1", "n", "sleep", "1000").tells("leads n")
	o.prints(`"id":"a"`)
	b := w.start("run", "--id", "b", "n", "sleep", "1000").tells("waits for n")
	w.awaitLine("n", 2)
	a.signal(syscall.SIGTERM).ends(128 + 15)
	o.prints(`"leader":{"id":"b"`)
	b.signal(syscall.SIGTERM).ends(128 + 15)
	people.prints("a leads  token ").prints("b leads  token ")
	seen := func() (seen []stateJSON) {
		for line := range strings.SplitSeq(strings.TrimSpace(o.out.String()), "\n") {
			seen = append(seen, decode[stateJSON](w, line))
		}
		return seen
	}
	w.eventually("nobody leads again", func() bool { s := seen(); return s[len(s)-1].Leader == nil && len(s) > 1 })
	for _, sig := range []struct {
		p   *prog
		sig syscall.Signal
	}{{o, syscall.SIGINT}, {people, syscall.SIGTERM}} {
		sig.p.signal(sig.sig).ends(0)
		if sig.p.err.String() != "" {
			t.Errorf("%v ends with %q", sig.p, sig.p.err.String())
		}
	}
	var story []string
	var revision, token uint64
	for _, s := range seen() {
		n, err := strconv.ParseUint(s.Revision, 10, 64)
		if err != nil || n <= revision || s.Name != "n" || s.AsOf.IsZero() || s.Error != "" {
			t.Errorf("after revision %d: %+v", revision, s)
		}
		revision = n
		who := "nobody"
		if s.Leader != nil {
			who = s.Leader.ID
			if uint64(s.Leader.Token) < token {
				t.Errorf("the token went back to %d from %d", s.Leader.Token, token)
			}
			token = uint64(s.Leader.Token)
		}
		if len(story) == 0 || story[len(story)-1] != who {
			story = append(story, who)
		}
	}
	if got := strings.Join(story, " "); got != "nobody a b nobody" {
		t.Errorf("observed %s", got)
	}
}

func TestObserveSurvivesARestartOfTheStoreAndTellsIt(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	shared.start(t)
	server := etcdtest.Start(t, etcdtest.Options{})
	w := newWorldOn(t, server).with("PRIMACY_TTL=60s") // a restart may take its time
	o := w.start("observe", "-o", "ndjson", "n").prints(`"leader":null`)
	people := w.start("observe", "n").prints("nobody leads")
	server.Kill()
	o.prints(`"error":"`)
	people.prints("the store does not answer (last known: (nobody))")
	server.Restart()
	a := w.start("run", "--id", "a", "n", "sleep", "1000").tells("leads n")
	o.prints(`"id":"a"`)
	people.prints("a leads  token ")
	// A leader outlives a restart, too.
	server.Restart()
	w.start("leader", "--is", "a", "n").ends(0)
	a.signal(syscall.SIGTERM).ends(128 + 15)
	for line := range strings.SplitSeq(strings.TrimSpace(o.out.String()), "\n") {
		decode[stateJSON](w, line)
	}
	o.signal(syscall.SIGINT).ends(0)
}

func TestOneEmbeddedStoreForAllOnTheMachine(t *testing.T) {
	t.Parallel()
	w := plainWorld(t).with("PRIMACY_TTL=20s") // no PRIMACY_STORE: the folder in XDG_STATE_HOME
	first := w.start("run", "--id", "first", "n", "sh", "-c", "echo up; sleep 1000").prints("up")
	second := w.start("run", "--id", "second", "n", "sh", "-c",
		`echo "$PRIMACY_TOKEN $PRIMACY_STORE"; sleep 1000`).tells("waits for n: first leads")
	w.start("leader", "n").ends(0).says("first\n")
	if _, err := os.Stat(filepath.Join(w.dir, "state", "primacy", "primacy.store")); err != nil {
		t.Error(err)
	}
	// The first hosts the store. Killed, another takes over both, store and name, after the lease.
	first.signal(syscall.SIGKILL)
	second.prints("\n")
	w.start("status", "n").ends(0).says("leads", "second")
	second.signal(syscall.SIGTERM).ends(128 + 15)
	// The data stays: tokens go on from there.
	var before, after uint64
	third := w.with("PRIMACY_STORE=embedded:").start("run", "-q", "n", "sh", "-c", "echo $PRIMACY_TOKEN").ends(0)
	if _, err := fmt.Sscan(second.out.String(), &before); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(third.out.String(), &after); err != nil || after <= before {
		t.Errorf("token %d after %d: %v", after, before, err)
	}
	// A folder named by its relative path is the same from everywhere.
	w.start("run", "-q", "--store", "embedded:rel", "n", "true").ends(0)
	if _, err := os.Stat(filepath.Join(w.dir, "rel", "primacy.store")); err != nil {
		t.Error(err)
	}
}

func TestObserveEndsWith0AlsoBeforeTheStoreHasAnswered(t *testing.T) {
	w := newWorld(t)
	hole := newHole(w)
	p := w.start("observe", "--timeout", "1h", "--store", "etcd://"+hole.Addr(), "n")
	w.eventually("it talks to the store", func() bool { return hole.Holds(etcdtest.Up, []byte("PRI * HTTP/2")) })
	if p.signal(syscall.SIGINT).ends(0); p.out.String()+p.err.String() != "" {
		t.Errorf("stdout %q, stderr %q", p.out.String(), p.err.String())
	}
}
