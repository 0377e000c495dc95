package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// act has who act every step from one instant to another.
func (j *judge) act(who string, token uint64, from, to, step time.Duration) {
	for at := from; at <= to; at += step {
		j.wrote(who, at, token)
	}
}

func shown(token uint64, value string) driver.Line {
	return driver.Line{Holder: &driver.Entry{Token: token, Value: []byte(value)}}
}

// sound is a record in which the promise holds.
func sound() *judge {
	j := newJudge("n", time.Second)
	j.act("a", 5, 0, 100, 10)
	j.act("b", 9, 130, 200, 10)
	j.proclaimed(5, 1)
	j.proclaimed(9, 1)
	j.shows(ack{5, 1}, shown(5, "1"))
	j.shows(ack{9, 1}, shown(9, "2"))
	return j
}

func verdictOf(j *judge) *Verdict {
	v := &Verdict{Faults: map[string]int{"SIGKILL": 2}, many: 0, Recovered: true, length: time.Minute}
	v.judge(j.tally(), false)
	return v
}

func TestASoundRecordHolds(t *testing.T) {
	v := verdictOf(sound())
	if v.Outcome != Held || v.Terms != 2 || v.Overlaps != 0 || v.Stale != 0 || v.Acked != 2 || len(v.Lost) > 0 ||
		v.GapMax != 30e-9 {
		t.Errorf("%+v", v)
	}
}

// Each of these is one fact more than a sound record has, and breaks a promise.
func TestWhatDisprovesThePromise(t *testing.T) {
	for what, c := range map[string]struct {
		add  func(j *judge)
		says string
	}{
		"two leaders at once": {func(j *judge) { j.act("a", 5, 130, 150, 10) },
			"two leaders at once for 20ns"},
		"a new token inside an old term": {func(j *judge) { j.act("c", 11, 150, 160, 10) },
			"two leaders at once"},
		"a token that went back": {func(j *judge) { j.act("c", 7, 300, 310, 10) },
			"the token went back"},
		"one token, two owners": {func(j *judge) { j.act("c", 9, 210, 220, 10) }, "b and c both led"},
		"an acknowledged write that is missing": {func(j *judge) { j.shows(ack{9, 3}, shown(9, "2")) },
			"write 3 under token 9 was acknowledged"},
		"an old term after a newer one's write": {func(j *judge) { j.shows(ack{9, 1}, shown(5, "7")) },
			"showed write 7 under token 5"},
		"a register that goes back": {func(j *judge) { j.shows(ack{}, shown(9, "1")) },
			"after write 2 under token 9"},
	} {
		j := sound()
		c.add(j)
		if v := verdictOf(j); v.Outcome != Disproved || !strings.Contains(v.Sentence, "DISPROVED") ||
			!strings.Contains(v.Sentence, c.says) {
			t.Errorf("%s: %+v", what, v)
		}
	}
}

func TestALateActIsCountedAndNotHeldAgainstAnybody(t *testing.T) {
	j := sound()
	j.wrote("a", 100, 5) // read the clock and asked at 100, was paused, and wrote after b
	if v := verdictOf(j); v.Outcome != Held || v.Stale != 1 {
		t.Errorf("%+v", v)
	}
}

func TestWhatAnOperatorRemovedIsExcusedAndNothingElse(t *testing.T) {
	for what, c := range map[string]struct {
		r    removal
		held bool
	}{
		"the claim, before the next term":  {removal{token: 5, from: 120, to: 125}, true},
		"the lease, before the next term":  {removal{who: "a", from: 120, to: 125}, true},
		"the claim, of unknown outcome":    {removal{token: 5, from: 20, to: 1 << 62}, true},
		"the claim, after they both led":   {removal{token: 5, from: 140, to: 145}, false},
		"another's claim":                  {removal{token: 9, from: 300, to: 305}, false},
		"another's lease":                  {removal{who: "c", from: 120, to: 125}, false},
		"its claim, before its term began": {removal{token: 5, from: -20, to: -10}, false},
	} {
		j := sound()
		j.act("a", 5, 130, 150, 10) // two leaders, from 130 to 150
		j.removed(c.r)
		if v := verdictOf(j); (v.Outcome == Held) != c.held {
			t.Errorf("%s: %+v", what, v)
		}
	}
}

// A removal excuses its holder until it must have heard of it, and not for ever.
func TestWhoNeverHearsOfARemovalIsNotExcused(t *testing.T) {
	for what, r := range map[string]removal{
		"the claim": {token: 5, from: 10 * time.Second, to: 11 * time.Second},
		"the lease": {who: "a", from: 10 * time.Second, to: 11 * time.Second},
	} {
		for until, held := range map[time.Duration]bool{12 * time.Second: true, 13 * time.Second: true,
			14 * time.Second: false, time.Hour: false} {
			j := newJudge("n", time.Second)
			j.act("a", 5, 0, until, 100*time.Millisecond)
			j.act("b", 9, 11*time.Second, 2*time.Hour, time.Second)
			j.removed(r)
			j.proclaimed(9, 1)
			if v := verdictOf(j); (v.Outcome == Held) != held {
				t.Errorf("%s was removed, and its holder led on until %v: %s", what, until, v.Sentence)
			}
		}
	}
}

func TestTooLittleProvesNothing(t *testing.T) {
	one := newJudge("n", time.Second)
	one.act("a", 5, 0, 100, 10)
	one.proclaimed(5, 1)
	if v := verdictOf(one); v.Outcome != Unproved {
		t.Errorf("one term: %+v", v)
	}
	v := &Verdict{length: time.Minute, Recovered: true}
	if v.judge(sound().tally(), false); v.Outcome != Unproved {
		t.Errorf("no fault: %+v", v)
	}
	v = &Verdict{length: time.Minute, Faults: map[string]int{"SIGKILL": 1}}
	if v.judge(sound().tally(), false); v.Outcome != Unproved || !strings.Contains(v.Sentence, "nobody led again") {
		t.Errorf("nobody led again: %+v", v)
	}
}

func TestTransport(t *testing.T) {
	for url, want := range map[string]driver.Level{
		"etcd://127.0.0.1:2379":                           driver.Fine,
		"etcd://localhost,[::1]:2379/p":                   driver.Fine,
		"etcd://10.0.0.1:2379":                            driver.Warning,
		"etcd://127.0.0.1,10.0.0.1":                       driver.Warning,
		"etcd://u:p@db.example.com":                       driver.Warning,
		"etcds://db.example.com":                          driver.Warning,
		"etcds://u:SWORDFISH@db.example.com":              driver.Fine,
		"etcds://db.example.com/x?cert=a&key=b&ca=c.pem":  driver.Fine,
		"postgres://u:p@db.example.com/x":                 driver.Warning,
		"postgres://u:p@db.example.com/x?sslmode=require": driver.Fine,
		"redis://db.example.com":                          driver.Warning,
		"redis+quorum://a,b,c":                            driver.Warning,
		"rediss+quorum://u:SWORDFISH@a,b,c":               driver.Fine,
		"zk://127.0.0.1":                                  driver.Fine,
	} {
		c, ok := Transport(url)
		if !ok || c.Level != want || strings.Contains(c.Found+c.Advice, "SWORDFISH") ||
			(c.Level == driver.Fine) != (c.Advice == "") {
			t.Errorf("%s: %+v, %v, want %s", url, c, ok, want)
		}
	}
	for _, url := range []string{"embedded:/x", "postgres:///db?host=/run/postgresql"} {
		if _, ok := Transport(url); ok {
			t.Errorf("%s is reached over a network", url)
		}
	}
	for url, want := range map[string]string{"redis+quorum://a": "rediss+quorum://", "zk://a": "zks://",
		"postgresql://a/b": "sslmode=verify-full"} {
		if c, _ := Transport(url); !strings.Contains(c.Advice, want) {
			t.Errorf("%s: %+v, want %q", url, c, want)
		}
	}
}

func TestSplitURLPutsTogetherWhatItTookApart(t *testing.T) {
	for _, s := range []string{"etcd://h", "etcds://u:p%2F@a:1,b,[::1]:3/x/y?ca=f&server-name=n", "etcd://[fe80::1]"} {
		if u, ok := splitURL(s); !ok || u.String() != s {
			t.Errorf("%s: %q, %v", s, u.String(), ok)
		}
	}
	u, _ := splitURL("etcds://u:p@a:1,b,[::1]:3,[::2]/x?q=1")
	for i, want := range []string{"a:1", "b:2379", "[::1]:3", "[::2]:2379"} {
		if u.addr(i) != want {
			t.Errorf("host %d is dialled at %q, want %q", i, u.addr(i), want)
		}
	}
}
