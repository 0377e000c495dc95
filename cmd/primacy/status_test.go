//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	pauses "github.com/primacy-go/primacy/pause"
)

// past returns the history of n, once it has that many terms and the begin of the present one is
// told.
func (w *world) past(terms int) (all []shown.Term) {
	w.Helper()
	w.eventually(fmt.Sprintf("%d terms of n are told", terms), func() bool {
		p := w.start("history", "-o", "json", "--limit", "0", "n")
		if p.wait() != 0 {
			return false
		}
		all = decode[[]shown.Term](w, p.out.String())
		return len(all) >= terms && !all[0].From.IsZero()
	})
	return all
}

// whys tells terms in short.
func whys(all []shown.Term) (out []string) {
	for _, r := range all {
		out = append(out, r.ID+" "+string(r.Reason))
	}
	return out
}

func TestHistoryTellsWhatHappened(t *testing.T) {
	w := newWorld(t)
	w.start("history", "n").ends(exitNo).inOneLine().complains("nothing is known of n")
	stand := func(id string, more ...string) *prog {
		return w.start(append(append([]string{"run", "--id", id}, more...), "n", "sh", "-c", stops)...)
	}
	a := stand("a").prints("up")
	b := stand("b").tells("waits for n")
	c := stand("c").tells("waits for n")
	w.awaitLine("n", 3)
	w.past(1) // its begin is written

	w.start("resign", "--id", "ops", "--reason", "new kernel", "n").ends(0)
	a.ends(exitResigned)
	b.prints("up")
	w.start("transfer", "n", "--id", "ops", "--to", "c", "--reason", "closer to the data").ends(0)
	b.ends(exitResigned)
	c.prints("up")

	d := w.candidate("d").tells("waits for n")
	w.delete("n/" + hexLease(w.awaitLine("n", 2)[0]))
	c.ends(exitLost)
	d.prints("up")
	w.past(4)

	// Frozen later; it goes on after that, so it has all the time to tell of its end.
	e := stand("e", "--ttl", "10s", "--on-lost", "recampaign").tells("waits for n")
	w.awaitLine("n", 2)
	d.kill()
	e.prints("up")
	w.past(5)

	f := w.start("run", "--id", "f", "n", "sh", "-c",
		"echo up; while ! test -e go; do sleep 0.05; done; exit 3").tells("waits for n")
	w.awaitLine("n", 2)
	e.signal(syscall.SIGSTOP)
	f.prints("up")
	w.awaitBeginning("n")
	w.eventually("who was frozen tells", func() bool { return w.past(6)[1].Reason == primacy.Expired })
	e.signal(syscall.SIGTERM).ends(128 + 15)
	if err := os.WriteFile(filepath.Join(w.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.ends(3)

	all := w.past(6)
	if got, want := whys(all), []string{"f failed", "e expired", "d died", "c deposed", "b transferred",
		"a resigned"}; !slices.Equal(got, want) {
		t.Errorf("the history says %q, want %q", got, want)
	}
	if r := all[5]; r.By != "ops" || r.Text != "new kernel" || r.Lasted == "" {
		t.Errorf("resigned: %+v", r)
	}
	if r := all[4]; r.By != "ops" || r.Text != "closer to the data" || r.Successor != "c" || r.Gap == "" {
		t.Errorf("transferred: %+v", r)
	}
	// From the end of one right to the beginning of the next: the name is never free. It is some
	// milliseconds, some thousand on a busy machine, and a lease would run out in 30,000.
	if r := all[3]; r.Gap == "" || len(r.Gap) > 4 {
		t.Errorf("the gap after a hand-over: %+v", r)
	}
	w.start("history", "--limit", "2", "n").ends(0).says("lease expired", "failed: the command ended with status 3")
	w.start("history", "n").ends(0).says("TOKEN", "GAP BEFORE", "resigned: new kernel", "ops",
		"transferred to c: closer to the data",
		"deposed: its claim was removed", "process died: the supervisor was killed")
	w.start("status", "n").ends(exitNo).says("nobody leads n", "the last terms:",
		"failed: the command ended with status 3")
	w.start("history", "--limit", "-1", "n").ends(exitUsage).inOneLine()
}

// awaitBeginning waits until the beginning of the present term is recorded, some 50 ms after the
// win.
func (w *world) awaitBeginning(name string) {
	w.Helper()
	w.eventually("the beginning of a term of "+name+" is recorded", func() bool {
		return strings.Contains(w.start("history", name).done(), "so far")
	})
}

func TestHistoryOfATermWhoseEndNobodySaw(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	first := w.start("run", "--id", "first", "--ttl", "15s", "n", "sh", "-c", upAndSleep).prints("up")
	w.past(1) // its begin is written
	guardian := first.guardian()
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} { // neither sees the other's end
		first.signal(sig)
		if err := syscall.Kill(guardian, sig); err != nil {
			t.Fatal(err)
		}
	}
	second := w.start("run", "--id", "second", "n", "sh", "-c", upAndSleep).prints("up")
	if got := w.past(2)[1]; got.Reason != primacy.Unknown || got.ID != "first" || !got.To.IsZero() {
		t.Errorf("the killed one: %+v", got)
	}
	w.awaitBeginning("n")
	w.start("history", "n").ends(0).says("lease expired or process died: no end was recorded", "<= ", "so far")
	second.signal(syscall.SIGTERM).ends(128 + 15)
}

func TestHistorySurvivesTheStoresRestart(t *testing.T) {
	onlyInVerify(t)
	w := plainWorld(t)
	for i := range 3 { // each hosts the store, which ends with it
		w.start("run", "--id", fmt.Sprint("h", i), "n", "sh", "-c", "sleep 0.3").ends(0)
	}
	all := w.past(3)
	if got, want := whys(all), []string{"h2 resigned", "h1 resigned", "h0 resigned"}; !slices.Equal(got, want) {
		t.Errorf("the history says %q, want %q", got, want)
	}
	for _, r := range all {
		if r.Lasted == "" || r.Text != "the command ended with status 0" {
			t.Errorf("%+v", r)
		}
	}
}

func TestStatusTellsSinceWhen(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	w.start("run", "n", "true").ends(0)
	p := w.start("run", "n", "sh", "-c", upAndSleep).prints("up")
	w.past(2)
	out := w.start("status", "n").ends(0).says("leads", "leads since ", "the last terms:", "resigned").out.String()
	if strings.Contains(out, "or holds") {
		t.Errorf("it is not known to lead: %s", out)
	}
	all := w.start("status").ends(0).says("SINCE").out.String()
	if year := time.Now().Format("2006-"); !strings.Contains(all, year) {
		t.Errorf("no time: %s", all)
	}
	st := decode[stateJSON](w, w.start("status", "-o", "json", "n").ends(0).out.String())
	if st.Since.IsZero() || time.Since(st.Since) > time.Minute || len(st.Terms) != 2 || !st.Terms[0].Leads {
		t.Errorf("%+v", st)
	}
	l := w.start("lock", "l", "sh", "-c", upAndSleep).prints("up")
	w.start("status", "l").ends(0).says("leader or lock holder")
	w.start("history", "l").ends(0).says("leader or lock holder")
	for _, p := range []*prog{p, l} {
		p.signal(syscall.SIGTERM)
		p.wait()
	}
	w.start("history", "l").ends(exitNo).inOneLine().complains("or it is a lock")
}

func TestTheCommandsOfTheHistoryPage(t *testing.T) {
	w := newWorld(t)
	page, err := os.ReadFile("../../docs/history.md")
	if err != nil {
		t.Fatal(err)
	}
	p := w.start("run", "billing", "sh", "-c", upAndSleep).prints("up")
	w.awaitBeginning("billing")
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 2 {
		t.Fatalf("the page has %d commands", len(blocks))
	}
	for _, b := range blocks {
		for line := range strings.Lines(b[1]) {
			args := strings.Fields(line)
			if args[0] != "primacy" {
				t.Fatalf("not a command of ours: %s", line)
			}
			w.start(args[1:]...).ends(0).says("leads")
		}
	}
	for _, r := range primacy.Reasons() {
		if !strings.Contains(string(page), "| `"+string(r)+"` |") {
			t.Errorf("the page lacks the reason %s", r)
		}
	}
	p.signal(syscall.SIGTERM).wait()
}

// Who was named under a claim that is gone, and has not led under it, is told: it is not elected.
func TestStatusTellsWhoseNamedPlaceIsLost(t *testing.T) {
	st := primacy.State{Name: "n", Leader: &primacy.Entry{ID: "a", Token: 5},
		Waiting: []primacy.Entry{{ID: "b", Token: 7}, {ID: "c", Token: 9}}}
	past := []primacy.TermRecord{{Token: 5, ID: "a"}, {Token: 4, ID: "d"}}
	admitted := []pauses.Admission{{ID: "d", Token: 4, By: "ops"}, {ID: "a", Token: 5}, {ID: "b", Token: 7},
		{ID: "c", Token: 8, By: "ops"}}
	want := []lostPlace{{"c", 8, "ops"}}
	if got := lostPlaces(admitted, st, past); !slices.Equal(got, want) {
		t.Errorf("lost are %v, want %v", got, want)
	}
	if got := lostPlaces(admitted, primacy.State{Name: "n"}, nil); got != nil {
		t.Errorf("where no terms are recorded nobody knows who has led: %v", got)
	}
}

// Who was named, restarted and admitted again under its new claim has lost nothing if that claim
// stands or has led.
func TestStatusTellsNoPlaceLostThatWasGivenAnew(t *testing.T) {
	admitted := []pauses.Admission{{ID: "c", Token: 8}, {ID: "c", Token: 11}}
	a, c := primacy.Entry{ID: "a", Token: 5}, primacy.Entry{ID: "c", Token: 11}
	past := []primacy.TermRecord{{Token: 5, ID: "a"}}
	for what, st := range map[string]primacy.State{
		"waits": {Leader: &a, Waiting: []primacy.Entry{c}}, "leads": {Leader: &c}, "has led": {},
	} {
		terms := past
		if what == "has led" {
			terms = append(terms, primacy.TermRecord{Token: 11, ID: "c"})
		}
		if got := lostPlaces(admitted, st, terms); got != nil {
			t.Errorf("%s: lost are %v", what, got)
		}
	}
	want := []lostPlace{{ID: "c", Token: 8}, {ID: "c", Token: 11}}
	if got := lostPlaces(admitted, primacy.State{Leader: &a}, past); !slices.Equal(got, want) {
		t.Errorf("lost are %v, want %v", got, want)
	}
}
