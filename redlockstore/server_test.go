package redlockstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/redistest"
)

// From when on a server counts, by what it says of itself and by what was seen of it.
func TestFromWhenAServerCounts(t *testing.T) {
	t.Parallel()
	const guard = 10 * time.Second
	for _, tc := range []struct {
		what   string
		before string // the process seen before
		uptime time.Duration
		want   time.Duration
	}{
		{"just started", "", 0, guard + time.Second},
		{"uptimes are whole seconds", "", guard, time.Second},
		{"old enough", "", guard + time.Second, 0},
		{"restarted under our eyes", "old", 0, guard},
		{"another one took the address, however long it runs", "old", time.Hour, guard},
		{"the same as ever", "new", 0, 0},
	} {
		v := &server{s: &Store{cfg: Config{Guard: guard}}, runID: tc.before}
		v.learnProcess("new", tc.uptime, time.Minute)
		if got := max(0, v.counts-time.Minute); got != tc.want {
			t.Errorf("%s: counts after %v, want %v", tc.what, got, tc.want)
		}
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	l := &lease{owner: `a "b"`, id: "L", s: &Store{servers: make([]*server, 3)}}
	c := &claim{l: l, Claim: driver.Claim{Name: "n", ID: "1", Value: []byte("\x00\xff")}}
	first, again := c.newAttemptLocked(), c.newAttemptLocked()
	if first.own == again.own {
		t.Error("two tries have one value: what deletes the keys of the first would delete those of the second")
	}
	if (&claim{l: l, Claim: c.Claim}).newAttemptLocked().own == first.own {
		t.Error("the same of a claim that was taken back, and one that was made under its ID again")
	}
	c.updates = 7
	own, stamp, in, ok := parse(again.valueLocked())
	if !ok || own != again.own || stamp != "0000000007" || in.Owner != l.owner || in.Lease != "L" || string(in.Value) != "\x00\xff" {
		t.Errorf("parse = %q %q %+v %v", own, stamp, in, ok)
	}
	for _, v := range []string{"", "x", strings.Repeat("a", 42), strings.Repeat("a", 32) + "000000000x{}", strings.Repeat("Z", 32) + "0000000000{}", again.valueLocked()[:50]} {
		if _, _, _, ok := parse(v); ok {
			t.Errorf("%q is taken for ours", v)
		}
	}
}

// A call that sets a key is under way when its claim is given up, and reaches the server after the
// one that deletes it.
func TestAMarkStopsACallUnderWay(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t, redistest.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := Open(ctx, Config{Addrs: []string{r.Addr()}, Guard: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	granted, err := s.Grant(ctx, "a", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	l, v := granted.(*lease), s.servers[0]
	all, _, err := l.prepare([]driver.Claim{{Name: "x", ID: "1"}})
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	a := all[0].newAttemptLocked()
	a.on[0].flying++
	a.giveUpLocked()
	l.mu.Unlock()
	if err := l.awaitOff(ctx, "release", []*attempt{a}); err != nil {
		t.Fatal(err)
	}
	late := func(latest int64) string {
		got, err := v.call(enter, time.Second, []string{s.revoked(l.id), s.key("x"), s.mark(a.own)}, latest, 5000, a.valueLocked(), s.channel("x"))
		if err != nil {
			t.Fatal(err)
		}
		return got[0].(string)
	}
	if is := late(v.latest(time.Second)); is != "spent" || r.Do("EXISTS", s.key("x")) != int64(0) {
		t.Errorf("the late call found %q and may have set the key", is)
	}
	r.Do("DEL", s.mark(a.own))
	if is := late(v.latest(0) - 10_000); is != "late" || r.Do("EXISTS", s.key("x")) != int64(0) {
		t.Errorf("the call that is too old found %q and may have set the key", is)
	}
	if is := late(v.latest(time.Second)); is != "own" {
		t.Errorf("the same call in time found %q", is)
	}
}

// An answer that took long, as over a suspend, says nothing of the server's clock: calls that were
// given up would be carried out for as much longer.
func TestAnAnswerThatTookLongSetsNoClock(t *testing.T) {
	t.Parallel()
	v := &server{s: &Store{}}
	v.heard(boottime.Now(), 1000)
	v.heard(boottime.Now()-time.Minute, 61_000)
	if got := v.latest(time.Second); got > 5000 {
		t.Errorf("a call may be carried out until %d, want about 2500", got)
	}
}
