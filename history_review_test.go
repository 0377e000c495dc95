package primacy

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
)

func TestATermThatWasToBeHandedOverAndWasDeposed(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a, heir := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		term := b.lead(a, "x")
		go func() { _, _ = heir.Election("x").Campaign(context.Background(), nil) }()
		time.Sleep(aSecond)
		if _, err := heir.Election("x").Ask(context.Background(), Request{To: "b", Reason: "please"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(aSecond)
		b.remove(term)
		time.Sleep(aSecond)
		_ = term.Resign(context.Background())
		time.Sleep(aSecond)
		all := b.past("x", 0)
		sameReigns(t, all, "b leading", "a deposed")
		if all[len(all)-1].Heir != "" {
			t.Errorf("%+v", all)
		}
	})
}

func TestATermThatWasAskedToEndAndExpired(t *testing.T) {
	for what, to := range map[string]string{"resign": "", "hand over": "b"} {
		bubble(t, func(t *testing.T, b *world) {
			net := drivertest.Faulty(b.store, drivertest.Faults{})
			a, heir := b.session("a", net, Options{}), b.session("b", b.store, Options{})
			term := b.lead(a, "x")
			go func() { _, _ = heir.Election("x").Campaign(context.Background(), nil) }()
			time.Sleep(aSecond)
			if _, err := heir.Election("x").ask(context.Background(), driver.Request{To: to, Reason: "please"}); err != nil {
				t.Fatal(err)
			}
			<-term.Context().Done() // and the work does not stop
			net.Hang(true)
			time.Sleep(30 * time.Second)
			net.Hang(false)
			time.Sleep(10 * time.Second)
			all := b.past("x", 0)
			if r := all[1]; r.Reason != Expired || r.Heir != "" || r.By != "" || r.To.Sub(r.From) > 12*time.Second {
				t.Errorf("asked to %s: %+v", what, r)
			}
			if n := a.Tallies(); n[0].Ended[Expired] != 1 {
				t.Errorf("asked to %s: %+v", what, n)
			}
		})
	}
}

func TestAHandOverThatFoundNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		a, heir := b.session("a", net, Options{}), b.session("b", b.store, Options{})
		term := b.lead(a, "x")
		go func() { _, _ = heir.Election("x").Campaign(context.Background(), nil) }()
		other := b.session("c", b.store, Options{})
		go func() {
			time.Sleep(100 * time.Millisecond)
			_, _ = other.Election("x").Campaign(context.Background(), nil)
		}()
		time.Sleep(aSecond)
		token, err := term.heir(context.Background(), "c")
		if err != nil {
			t.Fatal(err)
		}
		net.Hang(true)
		term.c.giveUpTo(token, "c")
		b.remove(term)
		time.Sleep(100 * time.Millisecond)
		net.Hang(false)
		time.Sleep(10 * aSecond)
		all := b.past("x", 0)
		if r := all[len(all)-1]; r.ID != "a" || r.Reason != Resigned || r.Heir != "" || !strings.Contains(r.Text, "not confirmed") {
			t.Errorf("%+v", r)
		}
	})
}

func TestAHandOverThatIsNeverConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		a, heir := b.session("a", net, Options{}), b.session("b", b.store, Options{})
		term := b.lead(a, "x")
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _, _ = heir.Election("x").Campaign(ctx, nil) }()
		time.Sleep(aSecond)
		token, err := term.heir(context.Background(), "b")
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
		all := b.past("x", 0)
		if r := all[len(all)-1]; r.ID != "a" || r.Reason != Resigned || r.Heir != "" || !strings.Contains(r.Text, "not confirmed") {
			t.Errorf("%+v", r)
		}
	})
}

func TestARecordCannotSayThatItLeads(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		for i, why := range []string{"leading", "unknown", ""} {
			_, _, err := b.store.Append(context.Background(), "terms/x", driver.Record{Key: recordKey(Token(7 + i)), Value: []byte(`{"v":1,"id":"z","why":"` + why + `"}`)}, 1000)
			if err != nil {
				t.Fatal(err)
			}
		}
		_, _, _ = b.store.Append(context.Background(), "terms/x", driver.Record{Key: recordKey(3) + endSuffix, Value: []byte(`{"v":1,"id":"z","why":"leading"}`)}, 1000)
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
			_, _, err := b.store.Append(context.Background(), "terms/x", driver.Record{Key: recordKey(Token(7 + i)), Value: []byte(`{"v":1,"from":"` + at + `","to":"` + at + `"}`)}, 1000)
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

// A process that was frozen past its deadline is told to have led until then, and not until it ran again.
func TestATermEndsAtItsDeadlineForWhoWasFrozen(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		clock, frozen := b.clock, atomic.Int64{} // at which its clock stands
		b.clock = func() time.Duration {
			if at := frozen.Load(); at != 0 {
				return time.Duration(at)
			}
			return clock()
		}
		a := b.session("a", net, Options{})
		b.lead(a, "x")
		time.Sleep(aSecond)
		frozen.Store(int64(clock()))
		net.Hang(true)
		time.Sleep(time.Minute)
		net.Hang(false)
		frozen.Store(0)
		time.Sleep(10 * time.Second)
		all := b.past("x", 0)
		if d, ok := all[0].Lasted(); !ok || d > 12*time.Second {
			t.Errorf("lasted %v: %+v", d, all[0])
		}
	})
}
