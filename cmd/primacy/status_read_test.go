package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	pauses "github.com/primacy-go/primacy/pause"
)

// historyReads notes whose terms are read, and refuses those of some.
type historyReads struct {
	*memstore.Store
	mu      sync.Mutex
	pages   []string // the journal of each page that was read
	refused string   // a journal that cannot be read
	blind   bool     // the names of the journals cannot be read
}

func (s *historyReads) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	s.mu.Lock()
	if name != "pauses" { // one read beside the histories
		s.pages = append(s.pages, strings.TrimPrefix(name, termJournals))
	}
	s.mu.Unlock()
	if s.refused != "" && strings.HasPrefix(name, termJournals+s.refused) {
		return nil, fmt.Errorf("no permission: %w", driver.ErrRefused)
	}
	return s.Store.Records(ctx, name, before, limit)
}

func (s *historyReads) Journals(ctx context.Context, prefix string) ([]string, error) {
	if s.blind {
		return nil, fmt.Errorf("no permission: %w", driver.ErrRefused)
	}
	return s.Store.Journals(ctx, prefix)
}

func (s *historyReads) read(name string) (n int) {
	for _, p := range s.pages {
		if p == name {
			n++
		}
	}
	return n
}

// The list reads since when the present leaders lead before it looks for past ones, of which one
// term is enough unless there may be a loop; and it says what it could not read.
func TestStatusReadsNoMoreThanItNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &historyReads{Store: memstore.New(memstore.Options{})}
		session := func() *primacy.Session {
			s, err := primacy.NewSession(st, &primacy.Options{ID: "web-1", History: 1000})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		leads := func(s *primacy.Session, name string) *primacy.Term {
			term, err := s.Election(name).Campaign(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return term
		}
		once := func(s *primacy.Session, name string, lasts time.Duration) {
			term := leads(s, name)
			time.Sleep(lasts)
			if err := term.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s := session()
		for range 300 { // more than a page of records
			once(s, "old", time.Second)
			once(s, "long", time.Second)
		}
		time.Sleep(recent)
		once(s, "long", 2*shortTerm)
		for range 5 {
			once(s, "loop", time.Second)
		}
		once(s, "refused-1", time.Second)
		term := leads(s, "billing")
		time.Sleep(time.Second)
		synctest.Wait() // its begin is written
		st.pages = nil

		list := func() string {
			var out bytes.Buffer
			a := &app{stdout: &out, output: "table", timeout: time.Minute}
			if err := showAll(t.Context(), a, st, s, ""); err != nil {
				t.Error(err)
			}
			return out.String()
		}
		out := list()
		if len(st.pages) == 0 || st.pages[0] != "billing" {
			t.Errorf("read in the order %q: who leads comes first", slices.Compact(slices.Clone(st.pages)))
		}
		for name, most := range map[string]int{"old": 1, "long": 1, "billing": 1} {
			if n := st.read(name); n != most {
				t.Errorf("%d pages of %s were read, want %d", n, name, most)
			}
		}
		for _, row := range []string{"\nlong ", "\nloop ", "\nrefused-1 ", "resigned ×5"} {
			if !strings.Contains(out, row) {
				t.Errorf("the list lacks %q:\n%s", row, out)
			}
		}
		if strings.Contains(out, "\nold ") || strings.Contains(out, "could not be read") {
			t.Errorf("the list has too much:\n%s", out)
		}

		st.refused = "refused-1"
		if out = list(); strings.Contains(out, "\nrefused-1 ") || !strings.Contains(out, "\nloop ") ||
			!strings.Contains(out, "\nthe history of 1 name could not be read, or not whole: ") {
			t.Errorf("one that cannot be read:\n%s", out)
		}
		if !strings.Contains(out, "no permission") {
			t.Errorf("it does not say why:\n%s", out)
		}
		st.blind = true
		if out = list(); !strings.Contains(out, "\nbilling ") || !strings.Contains(out, "no permission") ||
			!strings.Contains(out, "\nwhat was led in the last day could not be read: ") {
			t.Errorf("names that cannot be read:\n%s", out)
		}
		if err := errors.Join(term.Resign(t.Context()), s.Close(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// One name is told as one.
func TestNamesThatAreNotLookedAtAreCounted(t *testing.T) {
	for n, want := range map[int]string{0: "", 1: "1 more name has a history: give a PREFIX\n",
		2: "2 more names have a history: give a PREFIX\n"} {
		var out bytes.Buffer
		if err := (leftAlone{more: n}).print(&app{stdout: &out}); err != nil || out.String() != want {
			t.Errorf("%d: %q %v, want %q", n, out.String(), err, want)
		}
	}
}

// silentLine is a store that does not show one line.
type silentLine struct {
	*memstore.Store
	name string
}

func (s silentLine) Line(ctx context.Context, name string) (driver.Line, error) {
	if name == s.name {
		return driver.Line{}, fmt.Errorf("no permission: %w", driver.ErrRefused)
	}
	return s.Store.Line(ctx, name)
}

// If the group of a shard cannot be read, nobody knows whether the shard is paused: status says so.
func TestStatusSaysThatAGroupIsNotKnown(t *testing.T) {
	st := silentLine{memstore.New(memstore.Options{}), "g"}
	s, err := primacy.NewSession(st, &primacy.Options{ID: "looks"})
	if err != nil {
		t.Fatal(err)
	}
	_, names, err := pausesAndNames(t.Context(), s, "g/0001")
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "g/0001 may be a shard of a group") ||
		!slices.Equal(names, []string{"g/0001"}) {
		t.Errorf("%v, %v", names, err)
	}
	if _, _, err := pausesAndNames(t.Context(), s, "other"); err != nil {
		t.Errorf("of no shard: %v", err)
	}
}

// In a pause of elections whoever holds a name for the moment of giving it back leads in no view.
func TestWhoGivesAPlaceBackIsToldAsNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		s, err := primacy.NewSession(st, &primacy.Options{ID: "web-1"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		term, err := s.Election("n").Campaign(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		p := pauses.Pause{By: "ops", Reason: "drill", NoElections: true}
		if _, err := pauses.Set(t.Context(), st, p); err != nil {
			t.Fatal(err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"observe", "status", "history"} {
			lease, err := st.Grant(t.Context(), "web-2", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := lease.Claim(t.Context(), driver.Claim{Name: "n", ID: "x" + verb}); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(time.Second, func() { _ = st.Revoke(context.Background(), lease.ID()) })
			var out bytes.Buffer
			a := &app{stdout: &out, stderr: &out, output: "ndjson", timeout: 10 * time.Second}
			switch verb {
			case "observe":
				err = showNow(t.Context(), a, st, s, []string{"n"})
			case "status":
				err = showOne(t.Context(), a, st, s, "n")
			case "history":
				err = showTerms(t.Context(), a, st, s, "n", 0)
			}
			if got := out.String(); strings.Contains(got, `"leads":true`) || verb == "observe" &&
				!strings.Contains(got, `"leader":null`) || !strings.Contains(got, "web-1") && verb != "observe" {
				t.Errorf("%s: %s (%v)", verb, got, err)
			}
			time.Sleep(time.Minute)
		}
	})
}

// The names that somebody stands for are told from the others in one look at each: with 10,000 of
// them each look at all the others took half a minute, before the first line.
func TestNamesThatNobodyStandsForAreFoundInOneLook(t *testing.T) {
	const n = 2000
	var states []primacy.State
	journals := []string{termJournals + "left"}
	for i := range n {
		states = append(states, primacy.State{Name: fmt.Sprintf("n-%04d", i)})
		journals = append(journals, termJournals+states[i].Name)
	}
	var got []string
	did := testing.AllocsPerRun(1, func() { got = unstood(slices.Clone(journals), states) })
	if !slices.Equal(got, journals[:1]) || did > 10*n {
		t.Errorf("%q; %v allocations for %d names", got, did, n)
	}
}

// What status could not read it names: an election whose history is refused is not told as one
// without a history.
func TestStatusSaysWhatItCouldNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &historyReads{Store: memstore.New(memstore.Options{})}
		s, err := primacy.NewSession(st, &primacy.Options{ID: "web-1"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		term, err := s.Election("billing").Campaign(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = term.Resign(context.Background()) }() // Close waits for that
		time.Sleep(time.Second)
		st.refused = "billing"
		for _, output := range []string{"table", "json"} {
			var out, said bytes.Buffer
			a := &app{stdout: &out, stderr: &said, output: output, timeout: time.Minute}
			if output == "table" {
				said = bytes.Buffer{}
				a.stderr = &out
			}
			if err := showOne(t.Context(), a, st, s, "billing"); err != nil {
				t.Fatal(err)
			}
			if err := showAll(t.Context(), a, st, s, ""); err != nil {
				t.Fatal(err)
			}
			told := out.String() + said.String()
			for _, want := range []string{"the history could not be read: ", "no permission",
				"since when could not be read of 1 name: "} {
				if !strings.Contains(told, want) {
					t.Errorf("%s lacks %q:\n%s", output, want, told)
				}
			}
		}
		all := make([]primacy.State, maxSince+1)
		if _, why := sinces(t.Context(), s, all); !strings.Contains(why, "give a PREFIX") {
			t.Errorf("of %d names: %q", len(all), why)
		}
		if got := commonRevision([]primacy.State{{Revision: 5}, {Revision: 7}}); got != 0 {
			t.Errorf("revision %d of two lines that have each their own", got)
		}
	})
}
