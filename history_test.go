package primacy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
)

// summary is terms in short: who led, and why it ended.
func summary(all []TermRecord) (out []string) {
	for _, r := range all {
		out = append(out, r.ID+" "+string(r.Reason))
	}
	return out
}

func sameTerms(t *testing.T, got []TermRecord, want ...string) {
	t.Helper()
	if s := summary(got); !slices.Equal(s, want) {
		t.Errorf("the history says\n %q\nwant\n %q", s, want)
	}
}

// aSecond is long enough for the record of a beginning.
const aSecond = time.Second

func TestHistoryTellsWhyEachTermEnded(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		frozen := b.session("frozen", net, Options{})
		a, c := b.session("a", b.store, Options{}), b.session("c", b.store, Options{})

		start := time.Now()
		term := b.lead(a, "x")
		if err := term.Proclaim(ctx, []byte("later")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(aSecond)
		sameTerms(t, b.past("x", 0), "a leading")
		if _, err := c.Election("x").Ask(ctx, Request{Reason: "upgrade"}); err != nil {
			t.Fatal(err)
		}
		<-term.Context().Done()
		_ = term.Resign(ctx)
		resigned := time.Now()
		time.Sleep(2 * time.Second)

		term = b.lead(a, "x") // handed over
		go b.lead(c, "x")
		time.Sleep(aSecond)
		if err := term.Transfer(ctx, "c"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(aSecond)

		if holder := c.Terms(); len(holder) != 1 { // deleted by hand
			t.Fatalf("c holds %d terms", len(holder))
		} else {
			b.remove(holder[0])
		}
		time.Sleep(aSecond)

		b.lead(frozen, "x") // cut off until its lease has run out
		time.Sleep(aSecond)
		net.Hang(true)
		time.Sleep(20 * time.Second)
		net.Hang(false)
		time.Sleep(5 * time.Second)

		if err := a.Run(ctx, "x", func(context.Context, *Term) error {
			time.Sleep(aSecond)
			return errors.New("disk full")
		}); err == nil {
			t.Fatal("the work has not failed")
		}
		ending := b.session("d", b.store, Options{})
		stopped := b.lead(ending, "x")
		go func() { <-stopped.Context().Done(); _ = stopped.Resign(ctx) }()
		time.Sleep(aSecond)
		_ = ending.Close(ctx)
		b.lead(a, "x")

		all := b.past("x", 0)
		sameTerms(t, all, "a leading", "d closed", "a failed", "frozen expired", "c deposed", "a transferred",
			"a resigned")
		if r := all[6]; r.By != "c" || r.Text != "upgrade" || !r.From.Equal(start.Truncate(time.Millisecond)) ||
			!r.To.Equal(resigned.Truncate(time.Millisecond)) || string(r.Value) != "later" {
			t.Errorf("resigned: %+v", r)
		}
		if r := all[5]; r.Successor != "c" || r.Gap == nil || *r.Gap != 2*time.Second {
			t.Errorf("transferred: %+v, gap %v; want c, 2s", r, r.Gap)
		}
		if r := all[4]; r.Gap == nil || *r.Gap != 0 {
			t.Errorf("the gap after a hand-over is %v", r.Gap)
		}
		if r := all[2]; r.Text != "disk full" {
			t.Errorf("failed: %+v", r)
		}
		if d, ok := all[3].Lasted(); !ok || d < 9*time.Second || d > 11*time.Second {
			t.Errorf("the frozen one led %v, %v; want to its deadline, 10s on", d, ok)
		}
		for i, r := range all[1:] {
			if r.Token >= all[i].Token {
				t.Errorf("token %d is before %d", r.Token, all[i].Token)
			}
		}
		if limited := b.past("x", 2); len(limited) != 2 || limited[1].Gap == nil {
			t.Errorf("the last two: %+v", limited)
		}
	})
}

func TestHistoryOfWhatNobodyCouldWrite(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		dead := b.session("dead", net, Options{})
		token := b.lead(dead, "x").Token()
		time.Sleep(aSecond)
		net.Hang(true) // for ever: it was killed
		time.Sleep(30 * time.Second)
		sameTerms(t, b.past("x", 0), "dead unknown")
		b.lead(b.session("a", b.store, Options{}), "x")
		time.Sleep(aSecond)
		all := b.past("x", 0)
		sameTerms(t, all, "a leading", "dead unknown")
		if all[0].Gap != nil || !all[1].To.IsZero() {
			t.Errorf("%+v: nobody knows when it ended", all)
		}
		journal, r := RecordDeath("x", token, "dead", time.Now(), "its guardian says so")
		if _, added, err := b.store.Append(context.Background(), journal, r, math.MaxInt32); err != nil || !added {
			t.Fatalf("%v, %v", added, err)
		}
		all = b.past("x", 0)
		sameTerms(t, all, "a leading", "dead died")
		if all[1].From.IsZero() || all[1].Text != "its guardian says so" {
			t.Errorf("%+v", all[1])
		}
	})
}

func TestHistoryIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{History: 10})
		for range 600 {
			_ = b.lead(s, "x").Resign(context.Background())
		}
		time.Sleep(aSecond)
		all := b.past("x", 0)
		if len(all) < 10 || len(all) > 90 {
			t.Errorf("%d terms are kept, want 10 and some", len(all))
		}
		if records, _ := b.store.Records(context.Background(), "terms/x", "", 1000); len(records) > 90 {
			t.Errorf("%d records are kept", len(records))
		}
	})
}

func TestLocksAndSessionsWithoutHistoryLeaveNone(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		a, none := b.session("a", b.store, Options{}), b.session("n", b.store, Options{History: -1})
		lock, err := a.Mutex("lock", nil).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		slot, err := a.Semaphore("slots", 2).Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		term := b.lead(none, "x")
		time.Sleep(aSecond)
		sameTerms(t, b.past("x", 0), "n leading") // the line says so
		for _, t := range []*Term{lock, slot, term} {
			_ = t.Resign(ctx)
		}
		b.remove(b.lead(none, "y"))
		time.Sleep(aSecond)
		if names, _ := b.store.Journals(ctx, ""); len(names) != 0 {
			t.Errorf("records of %q", names)
		}
	})
}

func TestHistoryOfAStoreWithoutRecords(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", plainStore{b.store}, Options{})
		_, err := s.Election("x").History(context.Background(), 0)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "keeps no history") {
			t.Errorf("%v, want ErrInvalid that says why", err)
		}
		term := b.lead(s, "x")
		time.Sleep(aSecond)
		if err := term.Resign(context.Background()); err != nil {
			t.Error(err)
		}
		_, err = b.session("b", b.store, Options{}).Election("x").History(context.Background(), -1)
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("a limit of -1: %v", err)
		}
		if _, err := NewSession(b.store, &Options{History: maxHistory + 1}); !errors.Is(err, ErrInvalid) {
			t.Errorf("a history of %d terms: %v", maxHistory+1, err)
		}
	})
}

func TestAnHeirThatIsGoneIsNotToldAsTransferred(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, successor := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		term := b.lead(a, "x")
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _, _ = successor.Election("x").Campaign(ctx, nil) }()
		time.Sleep(aSecond)
		token, err := term.successorToken(context.Background(), "b")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(aSecond)
		term.c.giveUpTo(token, "b")
		if err := term.Resign(context.Background()); err != nil {
			t.Fatal(err)
		}
		all := b.past("x", 0)
		sameTerms(t, all, "a resigned")
		if all[0].Successor != "" || !strings.Contains(all[0].Text, "b, which stood no more") {
			t.Errorf("%+v", all[0])
		}
	})
}

func TestRecordsOfAnybodyAreRead(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		ctx := context.Background()
		s := b.session("a", b.store, Options{})
		_ = b.lead(s, "x").Resign(ctx)
		for key, text := range map[string]string{
			"zzz":                              "no key of ours",
			recordKey(7):                       "{",
			recordKey(8):                       `[]`,
			recordKey(9):                       `{"v":0,"id":"x"}`,
			recordKey(math.MaxUint64):          `{"v":1,"from":"yesterday"}`,
			recordKey(10) + endSuffix:          `{"v":1,"id":"x"}`,
			recordKey(11) + endSuffix + "more": `{"v":1,"why":"died"}`,
			"00000000000000000000":             `{"v":1,"id":"x"}`,
			recordKey(12): `{"v":2,"id":"future","from":"2030-01-01T00:00:00Z",` +
				`"to":"2029-01-01T00:00:00Z","why":"abducted","more":{"a":1}}`,
		} {
			if _, _, err := b.store.Append(ctx, "terms/x", driver.Record{Key: key, Value: []byte(text)},
				1000); err != nil {
				t.Fatal(err)
			}
		}
		reader := b.session("r", b.store, Options{})
		all, err := reader.Election("x").History(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		sameTerms(t, all, "future abducted", "a resigned")
		if n := reader.Stats().Unreadable; n != 8 {
			t.Errorf("%d records left out, want 8", n)
		}
		if _, known := all[0].Lasted(); known || all[0].Gap == nil {
			t.Errorf("%+v: it ended before it began, and began after the other's end", all[0])
		}
	})
}

// Two terms that overlap are not told as two that followed each other at once.
func TestAnOverlapOfTermsIsTold(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2026, 12, 1, 3, 12, s, 0, time.UTC) }
	all := complete([]TermRecord{{Token: 9, From: at(5), Reason: Leads},
		{Token: 5, From: at(1), To: at(14), Reason: Deposed}, {Token: 3, From: at(0), To: at(0), Reason: Resigned}}, 0)
	if all[0].Overlap != 9*time.Second || all[0].Gap == nil || *all[0].Gap != 0 {
		t.Errorf("%+v, want an overlap of 9s and no gap", all[0])
	}
	if all[1].Overlap != 0 || *all[1].Gap != time.Second {
		t.Errorf("%+v, want a gap of 1s", all[1])
	}
}

func TestARecordStaysSmall(t *testing.T) {
	long := strings.Repeat("ä", 5000)
	r := record{ID: strings.Repeat("\x7f", MaxName), Value: bytes.Repeat([]byte{0}, MaxValue), Text: long, By: long,
		Successor: long, From: time.Now(), To: time.Now()}
	d := r.encode(recordKey(math.MaxUint64) + endSuffix)
	if len(d.Value) > 4096 || len(d.Key) > 64 {
		t.Errorf("%d bytes under a key of %d", len(d.Value), len(d.Key))
	}
	r.Text, r.By = strings.Repeat("<", 5000), strings.Repeat("\x01", 5000) // six bytes each
	r.ID, r.Successor = strings.Repeat("<", MaxName), strings.Repeat("<", MaxName)
	d = r.encode(recordKey(7))
	if _, got, _, ok := readRecord(d); !ok || len(d.Value) > driver.MaxRecord || got.Successor != r.Successor {
		t.Errorf("%d bytes, read as %+v", len(d.Value), got)
	}
	if s := cut(long); len(s) > recordText || !strings.HasSuffix(s, "ä…") {
		t.Errorf("cut to %d bytes: %q", len(s), s[len(s)-10:])
	}
	if d := (record{From: time.Unix(1<<40, 0)}).encode("k"); len(d.Value) == 0 {
		t.Error("a time beyond all years leaves no record")
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(recordKey(5), []byte(`{"v":1,"id":"a","from":"2026-01-02T03:04:05Z"}`))
	f.Add(recordKey(5)+endSuffix, []byte(`{"v":1,"why":"died","to":"2026-01-02T03:04:05.678Z","value":"AAAA"}`))
	f.Add("x", []byte("{"))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		token, r, kind, ok := readRecord(driver.Record{Key: key, Value: value})
		if !ok {
			return
		}
		if want := recordKey(token) + []string{"", endSuffix, overSuffix}[kind]; key != want {
			t.Errorf("the key %q was read as token %d, kind %v", key, token, kind)
		}
		if again, r2, _, ok := readRecord(r.encode(key)); !ok || again != token || r2.Reason != r.Reason {
			t.Errorf("%q does not survive: %+v", value, r)
		}
		st := State{Name: "x", Leader: &Entry{Token: token}}
		past := TermRecord{Name: "x", Token: token, Reason: Unknown}
		past.merge(r, kind)
		past.Lasted()
		complete(st.withLeader([]TermRecord{past, past}), 1)
	})
}

// hookedLine calls before and after each look at the line, with its number.
type hookedLine struct {
	appends
	looks         int
	before, after func(look int)
}

func (s *hookedLine) Line(ctx context.Context, name string) (driver.Line, error) {
	s.looks++
	if s.before != nil {
		s.before(s.looks)
	}
	line, err := s.Store.Line(ctx, name)
	if s.after != nil {
		s.after(s.looks)
	}
	return line, err
}

func TestWhatTheLeaderSaidCountsFirst(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		term := b.lead(b.session("a", b.store, Options{}), "x")
		time.Sleep(aSecond)
		journal, r := RecordDeath("x", term.Token(), "a", time.Now(), "")
		if _, _, err := b.store.Append(context.Background(), journal, r, math.MaxInt32); err != nil {
			t.Fatal(err)
		}
		term.Explain("all is done", false)
		_ = term.Resign(context.Background())
		all := b.past("x", 0)
		sameTerms(t, all, "a resigned")
		if all[0].Text != "all is done" {
			t.Errorf("%+v", all[0])
		}
	})
}

func TestATermWonWhileTheHistoryIsReadLeads(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a := b.session("a", b.store, Options{})
		on := &hookedLine{appends: appends{Store: b.store}, after: func(look int) {
			if look == 1 {
				b.lead(a, "x")
				time.Sleep(aSecond)
			}
		}}
		all, err := b.session("r", on, Options{}).Election("x").History(context.Background(), 0)
		if err != nil {
			t.Fatal(err)
		}
		sameTerms(t, all, "a leading")
	})
}

func TestATermThatEndsWhileTheHistoryIsReadIsToldWhy(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var term *Term
		a, c := b.session("a", b.store, Options{}), b.session("c", b.store, Options{})
		on := &hookedLine{appends: appends{Store: b.store}}
		on.after = func(look int) {
			if look == 1 { // before the records
				term = b.lead(a, "x")
				time.Sleep(aSecond)
			}
		}
		on.before = func(look int) {
			if look == 2 { // after them
				_ = term.Resign(context.Background())
				b.lead(c, "x")
			}
		}
		all, err := b.session("r", on, Options{}).Election("x").History(context.Background(), 0)
		if err != nil {
			t.Fatal(err)
		}
		sameTerms(t, all, "c leading", "a resigned")
	})
}

func TestATermThatWasToBeHandedOverAndWasDeposed(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, successor := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		term := b.lead(a, "x")
		go func() { _, _ = successor.Election("x").Campaign(context.Background(), nil) }()
		time.Sleep(aSecond)
		if _, err := successor.Election("x").Ask(context.Background(), Request{To: "b", Reason: "please"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(aSecond)
		b.remove(term)
		time.Sleep(aSecond)
		_ = term.Resign(context.Background())
		time.Sleep(aSecond)
		all := b.past("x", 0)
		sameTerms(t, all, "b leading", "a deposed")
		if all[len(all)-1].Successor != "" {
			t.Errorf("%+v", all)
		}
	})
}

func TestATermThatWasAskedToEndAndExpired(t *testing.T) {
	for what, to := range map[string]string{"resign": "", "hand over": "b"} {
		bubble(t, func(t *testing.T, b *world) {
			net := drivertest.Faulty(b.store, drivertest.Faults{})
			a, successor := b.session("a", net, Options{}), b.session("b", b.store, Options{})
			term := b.lead(a, "x")
			go func() { _, _ = successor.Election("x").Campaign(context.Background(), nil) }()
			time.Sleep(aSecond)
			if _, err := successor.Election("x").ask(context.Background(),
				driver.Request{To: to, Reason: "please"}, 0, false); err != nil {
				t.Fatal(err)
			}
			<-term.Context().Done() // and the work does not stop
			net.Hang(true)
			time.Sleep(30 * time.Second)
			net.Hang(false)
			time.Sleep(10 * time.Second)
			all := b.past("x", 0)
			if r := all[1]; r.Reason != Expired || r.Successor != "" || r.By != "" || r.To.Sub(r.From) > 12*time.Second {
				t.Errorf("asked to %s: %+v", what, r)
			}
			if n := a.Tallies(); n[0].Ended[Expired] != 1 {
				t.Errorf("asked to %s: %+v", what, n)
			}
		})
	}
}

// notConfirmed wants the oldest term to be a's, and its hand-over not confirmed.
func notConfirmed(t *testing.T, all []TermRecord) {
	t.Helper()
	if r := all[len(all)-1]; r.ID != "a" || r.Reason != Resigned || r.Successor != "" ||
		!strings.Contains(r.Text, "not confirmed") {
		t.Errorf("%+v", r)
	}
}

func TestAHandOverThatFoundNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		a, successor := b.session("a", net, Options{}), b.session("b", b.store, Options{})
		term := b.lead(a, "x")
		go func() { _, _ = successor.Election("x").Campaign(context.Background(), nil) }()
		other := b.session("c", b.store, Options{})
		go func() {
			time.Sleep(100 * time.Millisecond)
			_, _ = other.Election("x").Campaign(context.Background(), nil)
		}()
		time.Sleep(aSecond)
		token, err := term.successorToken(context.Background(), "c")
		if err != nil {
			t.Fatal(err)
		}
		net.Hang(true)
		term.c.giveUpTo(token, "c")
		b.remove(term)
		time.Sleep(100 * time.Millisecond)
		net.Hang(false)
		time.Sleep(10 * aSecond)
		notConfirmed(t, b.past("x", 0))
	})
}

func TestAHandOverThatIsNeverConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		a, successor := b.session("a", net, Options{}), b.session("b", b.store, Options{})
		term := b.lead(a, "x")
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _, _ = successor.Election("x").Campaign(ctx, nil) }()
		time.Sleep(aSecond)
		token, err := term.successorToken(context.Background(), "b")
		if err != nil {
			t.Fatal(err)
		}
		net.Hang(true)
		term.c.giveUpTo(token, "b")
		time.Sleep(aSecond)
		cancel()
		time.Sleep(30 * time.Second)
		net.Hang(false)
		time.Sleep(10 * aSecond)
		notConfirmed(t, b.past("x", 0))
	})
}

func TestARecordCannotSayThatItLeads(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		for i, why := range []string{"leading", "unknown", ""} {
			_, _, err := b.store.Append(context.Background(), "terms/x",
				driver.Record{Key: recordKey(Token(7 + i)), Value: []byte(`{"v":1,"id":"z","why":"` + why + `"}`)},
				1000)
			if err != nil {
				t.Fatal(err)
			}
		}
		_, _, _ = b.store.Append(context.Background(), "terms/x",
			driver.Record{Key: recordKey(3) + endSuffix, Value: []byte(`{"v":1,"id":"z","why":"leading"}`)}, 1000)
		for _, r := range b.past("x", 0) {
			if r.Reason != Unknown {
				t.Errorf("%+v", r)
			}
		}
	})
}

func TestTimesOfRecordsCanBeTold(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		for i, at := range []string{"9999-12-31T23:59:59-23:59", "0000-01-01T00:00:00+23:59"} {
			_, _, err := b.store.Append(context.Background(), "terms/x",
				driver.Record{Key: recordKey(Token(7 + i)),
					Value: []byte(`{"v":1,"from":"` + at + `","to":"` + at + `"}`)}, 1000)
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range b.past("x", 0) {
			r.From, r.To = r.From.UTC(), r.To.UTC()
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
		}
	})
}

// A process that was frozen past its deadline is told to have led until then, and not until it ran
// again.
func TestATermEndsAtItsDeadlineForWhoWasFrozen(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		stop, goOn := b.frozenClock()
		a := b.session("a", net, Options{})
		b.lead(a, "x")
		time.Sleep(aSecond)
		stop()
		net.Hang(true)
		time.Sleep(time.Minute)
		net.Hang(false)
		goOn()
		time.Sleep(10 * time.Second)
		all := b.past("x", 0)
		if d, ok := all[0].Lasted(); !ok || d > 12*time.Second {
			t.Errorf("lasted %v: %+v", d, all[0])
		}
	})
}
