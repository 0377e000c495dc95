package pause_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/pause"
)

// set pauses a scope, for good if d is 0.
func set(t *testing.T, st driver.Store, scope string, d time.Duration, noElections bool) pause.Pause {
	t.Helper()
	p := pause.Pause{Scope: scope, By: "ann@desk", Reason: "upgrade", NoElections: noElections}
	if d > 0 {
		p.Until = time.Now().Add(d)
	}
	p, err := pause.Set(t.Context(), st, p)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// paused returns the scope of the pause that name is under, "-" if there is none.
func paused(t *testing.T, st driver.Store, name string) string {
	t.Helper()
	p, err := pause.Of(t.Context(), st, name)
	if err != nil {
		t.Fatal(err)
	}
	if p == nil {
		return "-"
	}
	return p.Scope
}

func TestAPauseCoversItsNames(t *testing.T) {
	for _, tc := range []struct {
		scope, name string
		want        bool
	}{
		{"billing", "billing", true}, {"billing", "billing/eu", false}, {"billing", "billing2", false},
		{"billing/", "billing/eu", true}, {"billing/", "billing", false}, {"billing/", "billing/", true},
		{"billing/eu/", "billing/us", false}, {"", "anything/at all", true},
	} {
		if got := (pause.Pause{Scope: tc.scope}).Covers(tc.name); got != tc.want {
			t.Errorf("a pause of %q covers %q: %v, want %v", tc.scope, tc.name, got, tc.want)
		}
	}
}

func TestAPauseStandsUntilItsEndOrUntilItIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		set(t, st, "billing/", time.Hour, false)
		set(t, st, "cron/report", 0, true)
		by := map[string]string{"billing/eu": "billing/", "cron/report": "cron/report", "other": "-"}
		for name, want := range by {
			if got := paused(t, st, name); got != want {
				t.Fatalf("%s is paused by %s, want %s", name, got, want)
			}
		}
		time.Sleep(time.Hour - time.Second)
		if got := paused(t, st, "billing/eu"); got != "billing/" {
			t.Errorf("a second before its end the pause is %s", got)
		}
		time.Sleep(2 * time.Second)
		if got := paused(t, st, "billing/eu"); got != "-" {
			t.Errorf("after its end the pause stands: %s", got)
		}
		was, err := pause.Resume(t.Context(), st, "cron/report", "night@desk")
		if err != nil || was.By != "ann@desk" || was.Reason != "upgrade" || !was.NoElections {
			t.Errorf("resumed %+v: %v", was, err)
		}
		if all, err := pause.List(t.Context(), st); err != nil || len(all) != 0 {
			t.Errorf("after all were resumed: %v, %v", all, err)
		}
		if _, err := pause.Resume(t.Context(), st, "cron/report", "night"); !errors.Is(err, pause.ErrNotPaused) {
			t.Errorf("resumed twice: %v", err)
		}
	})
}

func TestTheStrongestPauseIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		set(t, st, "", 3*time.Hour, false)
		set(t, st, "a/", time.Hour, true)
		set(t, st, "a/b", 2*time.Hour, true)
		for range 10 { // the order of a map must not show
			if got := paused(t, st, "a/b"); got != "a/b" {
				t.Fatalf("a/b is paused by %q, want the pause of a/b", got)
			}
		}
		if got := paused(t, st, "a/c"); got != "a/" {
			t.Errorf("a/c is paused by %q", got)
		}
		if p, err := pause.Elect(t.Context(), st, "z", "me", 1); err != nil || p != nil {
			t.Errorf("a pause of changes forbids an election: %v, %v", p, err)
		}
	})
}

// voter asks whether candidates may be elected, under the token 7 unless told otherwise.
type voter struct {
	t  *testing.T
	st driver.Store
}

const token = 7

func (v *voter) admit(name, id string) {
	v.t.Helper()
	if err := pause.Admit(v.t.Context(), v.st, name, id, token, "ops"); err != nil {
		v.t.Fatal(err)
	}
}

func (v *voter) may(name, id string, token uint64, over ...string) bool {
	v.t.Helper()
	p, err := pause.Elect(v.t.Context(), v.st, name, id, token, over...)
	if err != nil {
		v.t.Fatal(err)
	}
	return p == nil
}

// TestAnAdmissionLetsOneTermBegin: that one's, of that name, under that token, within fifteen
// minutes.
func TestAnAdmissionLetsOneTermBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &voter{t: t, st: memstore.New(memstore.Options{})}
		set(t, v.st, "", time.Hour, true)
		v.admit("a", "x")
		for _, when := range []string{"", " when it asks again"} {
			if !v.may("a", "x", token) {
				t.Errorf("x is not elected to a%s", when)
			}
		}
		for what, may := range map[string]bool{"y to a": v.may("a", "y", token), "x to b": v.may("b", "x", token),
			"a later term of x": v.may("a", "x", token+1), "x on a store without tokens": v.may("a", "x", 0)} {
			if may {
				t.Errorf("admitted x to a under one token; elected is %s", what)
			}
		}
		time.Sleep(15 * time.Minute)
		if v.may("a", "x", token) {
			t.Error("an admission stands after fifteen minutes")
		}
	})
}

// TestAnAdmissionCountsInWhicheverOrder: before the pause, since the request may be older; in one
// that is set anew; and in one whose Since comes from a clock that is ahead.
func TestAnAdmissionCountsInWhicheverOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		v := &voter{t: t, st: st}
		v.admit("a", "x")
		time.Sleep(time.Second)
		set(t, st, "a", time.Hour, true)
		if !v.may("a", "x", token) {
			t.Error("a request that is older than the pause ends with nobody")
		}
		time.Sleep(time.Second)
		set(t, st, "a", time.Hour, true)
		if !v.may("a", "x", token) {
			t.Error("an admission does not count in a pause that was set anew")
		}
		const form = `{"v":1,"id":"r","do":"pause","scope":"b","by":"night","reason":"r","at":%q,"no_elections":true}`
		ahead := fmt.Sprintf(form,
			time.Now().Add(3*time.Minute).UTC().Format(time.RFC3339))
		records, _ := st.Records(t.Context(), "pauses", "", 100)
		r := driver.Record{Key: fmt.Sprintf("%020d", len(records)+1), Value: []byte(ahead)}
		if _, added, err := st.Append(t.Context(), "pauses", r, 100); !added || err != nil {
			t.Fatal(added, err)
		}
		v.admit("b", "x")
		if !v.may("b", "x", token) {
			t.Error("the clock of who has paused is ahead, and an admission after it does not count")
		}
	})
}

// TestAHandOverLeavesOneRecord: an operator's, or a resignation; what can wait leaves none in a
// pause.
func TestAHandOverLeavesOneRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &voter{t: t, st: memstore.New(memstore.Options{})}
		records := func() int {
			all, _ := v.st.(driver.Journal).Records(t.Context(), "pauses", "", 100)
			return len(all)
		}
		v.admit("a", "x")
		if !v.may("a", "x", token) || records() != 1 {
			t.Errorf("outside a pause it leaves %d records", records())
		}
		p, err := pause.AdmitNext(t.Context(), v.st, "a", "z", token, "ops")
		if p != nil || err != nil || records() != 2 {
			t.Errorf("a resignation outside a pause: %v, %v, %d records", p, err, records())
		}
		set(t, v.st, "a", time.Hour, true)
		p, err = pause.AdmitNext(t.Context(), v.st, "a", "y", token, "ops")
		if p == nil || err != nil || records() != 3 || v.may("a", "y", token) || !v.may("a", "z", token) {
			t.Errorf("a resignation in the pause admits: %v, %v, %d records", p, err, records())
		}
	})
}

// TestAPauseOfAGroupIsOneOfItsShards: and an operator can admit to one all the same.
func TestAPauseOfAGroupIsOneOfItsShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &voter{t: t, st: memstore.New(memstore.Options{})}
		set(t, v.st, "g", time.Hour, true)
		if v.may("g/0001", "x", token, "g") {
			t.Error("a pause of the group elects for a shard")
		}
		if p, err := pause.AdmitNext(t.Context(), v.st, "g/0001", "y", token, "ops", "g"); p == nil || err != nil {
			t.Errorf("a pause of the group admits whoever is next for a shard: %v", err)
		}
		v.admit("g/0001", "x")
		if !v.may("g/0001", "x", token, "g") || v.may("g/0001", "y", token, "g") {
			t.Error("who was admitted is not elected, or another one is")
		}
		set(t, v.st, "h/", time.Hour, false)
		if p, err := pause.Of(t.Context(), v.st, "h", "h/"); p == nil || err != nil {
			t.Errorf("a pause of all shards is none of the group: %v", err)
		}
	})
}

func TestAChangeThatCouldWaitIsNotAdmittedInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &voter{t: t, st: memstore.New(memstore.Options{})}
		admit := func(token uint64) (*pause.Pause, error) {
			return pause.AdmitUnlessPaused(t.Context(), v.st, "a", "x", token, "h")
		}
		if p, err := admit(token); p != nil || err != nil {
			t.Fatal(p, err)
		}
		set(t, v.st, "a", time.Hour, true)
		if !v.may("a", "x", token) {
			t.Error("a change that had begun before the pause ends with nobody")
		}
		p, err := admit(token + 1)
		if p == nil || err != nil || v.may("a", "x", token+1) {
			t.Errorf("admitted in the pause %v: %v", p, err)
		}
	})
}

// guarded refuses to write the pauses, or to read them.
type guarded struct {
	*memstore.Store
	read, write bool
}

func (g *guarded) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	if g.write {
		return driver.Record{}, false, driver.ErrRefused
	}
	return g.Store.Append(ctx, name, r, keep)
}

func (g *guarded) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	if g.read {
		return nil, driver.ErrRefused
	}
	return g.Store.Records(ctx, name, before, limit)
}

// TestAnAdmissionThatIsRefused: it is told where it would have been needed.
func TestAnAdmissionThatIsRefused(t *testing.T) {
	st := &guarded{Store: memstore.New(memstore.Options{}), write: true}
	admit := func() error { return pause.Admit(t.Context(), st, "a", "x", token, "ops") }
	if err := admit(); err != nil {
		t.Errorf("nothing is paused: %v", err)
	}
	st.write = false
	set(t, st, "a", time.Hour, true)
	st.write = true
	if err := admit(); !errors.Is(err, pause.ErrNotAdmitted) || !errors.Is(err, driver.ErrRefused) {
		t.Errorf("nobody is elected, and the write is refused: %v", err)
	}
	st.read = true
	if err := admit(); errors.Is(err, pause.ErrNotAdmitted) || !errors.Is(err, driver.ErrRefused) {
		t.Errorf("the pauses may not be read: %v", err)
	}
}

// TestAPauseIsNotForgottenAmongOthers: the journal keeps a hundred records, and a pause stands
// however many come after it.
func TestAPauseIsNotForgottenAmongOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(memstore.Options{})
		first := set(t, st, "old", 0, true)
		for n := range 250 {
			set(t, st, "new", time.Hour, false)
			if n%2 == 0 {
				if _, err := pause.Resume(t.Context(), st, "new", "ops"); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		p, err := pause.Of(t.Context(), st, "old")
		if err != nil || p == nil || !p.Since.Equal(first.Since) || p.By != first.By || !p.NoElections {
			t.Fatalf("after 375 changes the first pause is %+v, %v; it was %+v", p, err, first)
		}
		if all, _ := st.Records(t.Context(), "pauses", "", 1000); len(all) > 150 {
			t.Errorf("the journal has %d records", len(all))
		}
	})
}

// TestAnAdmissionIsNotForgottenAmongOthers: a leader that is slow to stop still has its successor
// elected when hundreds of others have been handed over. There is a bound: what is repeated without
// one would leave no room for anything new.
func TestAnAdmissionIsNotForgottenAmongOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &counted{Store: memstore.New(memstore.Options{})}
		v := &voter{t: t, st: st}
		set(t, st, "", time.Hour, true)
		v.admit("slow", "x")
		for n := range 150 {
			v.admit(fmt.Sprintf("many/%04d", n), "new-host-4711-abcd")
			time.Sleep(time.Second)
		}
		if !v.may("slow", "x", token) {
			t.Error("the first admission was pushed out by 150 others")
		}
		for n := range 150 {
			if name := fmt.Sprintf("many/%04d", n); !v.may(name, "new-host-4711-abcd", token) {
				t.Fatalf("the admission to %s was pushed out", name)
			}
		}
		if n := st.appends.Load(); n > 152*5/4 {
			t.Errorf("152 changes were %d records", n)
		}
		for n := range 400 {
			v.admit(fmt.Sprintf("most/%04d", n), "new-host-4711-abcd")
		}
		if v.may("slow", "x", token) || !v.may("most/0300", "new-host-4711-abcd", token) || v.may("other", "x", token) {
			t.Error("of more admissions than are kept the newest should count")
		}
		if n := st.appends.Load(); n > 552*3/2 {
			t.Errorf("552 changes were %d records", n)
		}
		time.Sleep(15 * time.Minute)
		if v.may("most/0399", "new-host-4711-abcd", token) {
			t.Error("an admission that was repeated stands after fifteen minutes")
		}
		if all, _ := st.Records(t.Context(), "pauses", "", 1000); len(all) > 150 {
			t.Errorf("the journal has %d records", len(all))
		}
	})
}

// The longest names that there are, in characters that JSON writes as six.
func TestTheLongestAdmissionsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &voter{t: t, st: memstore.New(memstore.Options{})}
		long := func(n int) string { return fmt.Sprintf("%03d", n) + strings.Repeat("<", 252) }
		set(t, v.st, "", time.Hour, true)
		for n := range pause.MaxStanding - 1 {
			set(t, v.st, long(n), time.Hour, true)
		}
		for n := range 200 {
			v.admit(long(n), long(n))
		}
		if !v.may(long(199), long(199), token) || v.may("other", "x", token) || paused(t, v.st, long(0)) == "-" {
			t.Error("long names push out what stands")
		}
	})
}

func TestPausesThatAreSetAtOnceAllStand(t *testing.T) {
	st := memstore.New(memstore.Options{})
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			p := pause.Pause{Scope: fmt.Sprint("s", n), By: "a", Reason: "r"}
			if _, err := pause.Set(t.Context(), st, p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if all, err := pause.List(t.Context(), st); err != nil || len(all) != 20 {
		t.Errorf("of 20 pauses %d stand: %v", len(all), err)
	}
}

// counted counts the records that are put.
type counted struct {
	*memstore.Store
	appends atomic.Int64
}

func (c *counted) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	c.appends.Add(1)
	time.Sleep(time.Millisecond) // so that others read meanwhile
	return c.Store.Append(ctx, name, r, keep)
}

// Many leaders become unhealthy together, and each admits who is next: who has lost waits, by a
// time of his own.
func TestManyWritersMakeFewTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &counted{Store: memstore.New(memstore.Options{})}
		const n = 200
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if err := pause.Admit(t.Context(), st, fmt.Sprint("n", i), "next", 7, "ops"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most := int64(30 * n); st.appends.Load() > most {
			t.Errorf("%d writers made %d tries, want at most %d", n, st.appends.Load(), most)
		}
	})
}

// A record with the last number that there is: nobody says that a pause stands which nobody sees.
func TestAJournalThatIsFull(t *testing.T) {
	st := memstore.New(memstore.Options{})
	r := driver.Record{Key: fmt.Sprintf("%020d", 1<<60), Value: []byte(`{"v":1}`)}
	if _, _, err := st.Append(t.Context(), "pauses", r, 100); err != nil {
		t.Fatal(err)
	}
	p := pause.Pause{Scope: "a", By: "ops", Reason: "why"}
	if _, err := pause.Set(t.Context(), st, p); !errors.Is(err, pause.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

// lossy loses the answers of some appends: before the store has done them, or after.
type lossy struct {
	*memstore.Store
	n int
}

func (l *lossy) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	l.n++
	if l.n%3 == 1 {
		return driver.Record{}, false, errors.New("no answer")
	}
	there, added, err := l.Store.Append(ctx, name, r, keep)
	if l.n%3 == 2 {
		return driver.Record{}, false, errors.New("the answer was lost")
	}
	return there, added, err
}

func TestALostAnswerSetsNoPauseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &lossy{Store: memstore.New(memstore.Options{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for n := range 5 {
			p := pause.Pause{Scope: fmt.Sprint("s", n), By: "ops", Reason: "why"}
			if _, err := pause.Set(ctx, st, p); err != nil {
				t.Fatal(err)
			}
			if n == 2 {
				if _, err := pause.Resume(ctx, st, "s1", "ops"); err != nil {
					t.Fatal(err)
				}
			}
		}
		if all, _ := st.Records(t.Context(), "pauses", "", 100); len(all) != 6 {
			t.Errorf("six changes left %d records", len(all))
		}
		if all, err := pause.List(t.Context(), st); err != nil || len(all) != 4 {
			t.Errorf("%d pauses stand, want 4: %v", len(all), err)
		}
	})
}

// held loses its first append, and has others write more than is kept before the next one.
type held struct {
	*memstore.Store
	t    *testing.T
	lost bool
}

func (h *held) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	if !h.lost {
		h.lost = true
		for n := range 130 {
			set(h.t, h.Store, fmt.Sprint("other", n%3), time.Hour, false)
		}
		return driver.Record{}, false, errors.New("no answer")
	}
	return h.Store.Append(ctx, name, r, keep)
}

func TestAPauseThatComesLateIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &held{Store: memstore.New(memstore.Options{}), t: t}
		set(t, st, "a", time.Hour, true)
		if got := paused(t, st, "a"); got != "a" {
			t.Error("it was confirmed, and nobody reads it")
		}
	})
}

func TestWhatCannotBePausedIsRefused(t *testing.T) {
	st := memstore.New(memstore.Options{})
	good := pause.Pause{Scope: "a", By: "ops", Reason: "why"}
	for name, change := range map[string]func(*pause.Pause){
		"no reason": func(p *pause.Pause) { p.Reason = "" },
		"nobody":    func(p *pause.Pause) { p.By = "" },
		"long":      func(p *pause.Pause) { p.Reason = strings.Repeat("x", 201) },
		"control":   func(p *pause.Pause) { p.Reason = "a\nb" },
		"past":      func(p *pause.Pause) { p.Until = time.Now().Add(-time.Second) },
		"year":      func(p *pause.Pause) { p.Until = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		p := good
		change(&p)
		if _, err := pause.Set(t.Context(), st, p); !errors.Is(err, pause.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	for n := range pause.MaxStanding {
		set(t, st, fmt.Sprint("s", n), time.Hour, false)
	}
	if _, err := pause.Set(t.Context(), st, good); !errors.Is(err, pause.ErrInvalid) {
		t.Errorf("one pause more than can stand: %v", err)
	}
	set(t, st, "s3", 2*time.Hour, true) // in place of one that stands
}

// noJournal is a store that keeps no records.
type noJournal struct{ driver.Store }

func TestAStoreWithoutRecordsHasNoPauses(t *testing.T) {
	st := noJournal{memstore.New(memstore.Options{})}
	if _, err := pause.Set(t.Context(), st, pause.Pause{Scope: "a", By: "b", Reason: "c"}); !errors.Is(err,
		pause.ErrNoJournal) {
		t.Errorf("set: %v", err)
	}
	if p, err := pause.Of(t.Context(), st, "a"); p != nil || err != nil {
		t.Errorf("of: %v, %v", p, err)
	}
	if p, err := pause.Elect(t.Context(), st, "a", "x", 1); p != nil || err != nil {
		t.Errorf("elects: %v, %v", p, err)
	}
}

func TestForeignRecordsAreNoPauses(t *testing.T) {
	st := memstore.New(memstore.Options{})
	for key, value := range map[string]string{
		"x": "1", "99999999999999999999": `{"v":1,"do":"pause","scope":""}`,
		"00000000000000000001": `not JSON`, "00000000000000000002": `{"v":1,"do":"later"}`,
	} {
		r := driver.Record{Key: key, Value: []byte(value)}
		if _, _, err := st.Append(t.Context(), "pauses", r, 100); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := pause.List(t.Context(), st); err != nil || len(all) != 0 {
		t.Errorf("pauses: %v, %v", all, err)
	}
	set(t, st, "a", time.Hour, false)
	if got := paused(t, st, "a"); got != "a" {
		t.Errorf("a is not paused among foreign records: %s", got)
	}
}

// small is a store whose journals have 96 KiB, as on Kubernetes.
type small struct {
	*memstore.Store
	records []driver.Record // of the pauses, the oldest first
}

func (s *small) Append(_ context.Context, _ string, r driver.Record, keep int) (driver.Record, bool, error) {
	if i := slices.IndexFunc(s.records, func(x driver.Record) bool { return x.Key == r.Key }); i >= 0 {
		return s.records[i], false, nil
	}
	s.records = append(s.records, r)
	s.records = s.records[max(0, len(s.records)-keep):]
	size := 0
	for i, x := range slices.Backward(s.records) {
		if size += len(x.Key) + len(x.Value); size > 96<<10 {
			s.records = s.records[i+1:]
			break
		}
	}
	return r, true, nil
}

func (s *small) Records(_ context.Context, _, _ string, limit int) ([]driver.Record, error) {
	all := slices.Clone(s.records)
	slices.Reverse(all)
	return all[:min(limit, len(all))], nil
}

// Names and IDs may be long, and JSON may make them longer: no pause is forgotten for them.
func TestNoPauseIsForgottenAmongLongAdmissions(t *testing.T) {
	for _, sign := range []string{"x", "&", "<", `"`} {
		synctest.Test(t, func(t *testing.T) {
			st := &small{Store: memstore.New(memstore.Options{})}
			text := func(n, bytes int) string { return fmt.Sprintf("%04d", n) + strings.Repeat(sign, bytes-4) }
			for n := range pause.MaxStanding {
				p := pause.Pause{Scope: text(n, 255), By: text(n, 255), Reason: text(n, pause.MaxReason)}
				if _, err := pause.Set(t.Context(), st, p); err != nil {
					t.Fatal(err)
				}
			}
			for n := range 150 {
				err := pause.Admit(t.Context(), st, text(n, 255), text(n, 255), 7, text(n, 255))
				if err != nil {
					t.Fatalf("%q: admission %d: %v", sign, n, err)
				}
				if all, err := pause.List(t.Context(), st); err != nil || len(all) != pause.MaxStanding {
					t.Fatalf("%q: after %d admissions %d pauses stand, %v", sign, n+1, len(all), err)
				}
			}
		})
	}
}

// What no name, ID or person can be is not written.
func TestAnAdmissionOfWhatCannotBeIsRefused(t *testing.T) {
	st := memstore.New(memstore.Options{})
	long := strings.Repeat("x", 256)
	for _, c := range [][3]string{{long, "a", "ops"}, {"n", long, "ops"}, {"n", "a", long}, {"n", "a\n", "ops"},
		{"n", "a", "\xff"}} {
		if err := pause.Admit(t.Context(), st, c[0], c[1], 7, c[2]); !errors.Is(err, pause.ErrInvalid) {
			t.Errorf("%.10q: %v", c, err)
		}
	}
	if now, err := pause.Read(t.Context(), st); err != nil || len(now.Admissions("n")) != 0 {
		t.Errorf("admitted: %v, %v", now.Admissions("n"), err)
	}
}
