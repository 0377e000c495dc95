package top

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// page is a page without a terminal, on a store and a clock of the test's.
type page struct {
	testing.TB
	*ui
	states  []primacy.State
	left    map[string]driver.Remaining
	terms   map[string][]Term
	err     error
	at      time.Time
	lists   int
	actions []Action
}

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func newPage(t testing.TB, w, h int) *page {
	p := &page{TB: t, at: noon, left: map[string]driver.Remaining{}, terms: map[string][]Term{}}
	src := Source{
		Store: "etcd 3.7.3",
		List: func(context.Context) ([]primacy.State, error) {
			p.lists++
			return slices.Clone(p.states), p.err
		},
		Leases: func(context.Context, ...string) (map[string]driver.Remaining, error) { return p.left, nil },
		Recorded: func(context.Context) (names []string, err error) {
			for n := range p.terms {
				names = append(names, n)
			}
			return names, nil
		},
		History: func(_ context.Context, name string, limit int) ([]Term, error) { return p.terms[name], nil },
	}
	watch := newWatcher(src, time.Second)
	now := func() time.Time { return p.at }
	watch.now = now
	p.ui = &ui{store: src.Store, watch: watch, now: now, can: true, w: w, h: h,
		said: func(_ string, e primacy.Entry) string { return "«" + string(e.Value) + "»" },
		act:  func(a Action) { p.actions = append(p.actions, a) }}
	p.view = watch.view()
	return p
}

// reads has the page read the store, and the histories that are due.
func (p *page) reads() *page {
	p.watch.refresh(context.Background())
	for range 1000 {
		name, ok := p.watch.unread()
		if !ok {
			break
		}
		p.watch.readHistory(context.Background(), name)
	}
	p.refresh()
	return p
}

// picture is what one sees.
func (p *page) picture() string {
	p.Helper()
	p.refresh()
	v := newVT(p.TB, p.w, p.h)
	pt := painter{}
	v.write(pt.paint(p.draw()))
	return v.text()
}

func (p *page) presses(keys ...string) {
	for _, k := range keys {
		p.refresh()
		p.press(k)
	}
}

func (p *page) types(text string) {
	for _, r := range text {
		p.presses(string(r))
	}
}

func (p *page) shows(texts ...string) {
	p.Helper()
	got := p.picture()
	for _, s := range texts {
		if !strings.Contains(got, s) {
			p.Errorf("the page lacks %q:\n%s", s, got)
		}
	}
}

func state(name string, leader string, token uint64, waiting ...string) primacy.State {
	st := primacy.State{Name: name, AsOf: noon}
	if leader != "" {
		st.Leader = &primacy.Entry{ID: leader, Token: primacy.Token(token), Held: true, Lease: "1f" + leader}
	}
	for i, w := range waiting {
		st.Waiting = append(st.Waiting, primacy.Entry{ID: w, Token: primacy.Token(token + uint64(i) + 1),
			Lease: "1f" + w})
	}
	return st
}

func aFleet(t testing.TB, w, h int) *page {
	p := newPage(t, w, h)
	p.states = []primacy.State{
		state("billing/invoicer", "web-1", 1843, "web-2", "web-3"),
		state("cron/nightly", "web-2", 1850, "web-1"),
		state("deploy", "", 0, "ci-7"),
		state("shard-1", "web-3", 1900, "web-1"),
		state("shard-2", "web-4", 1901),
	}
	p.states[0].Leader.Value = []byte("10.0.0.7")
	p.terms["billing/invoicer"] = []Term{
		{Token: 1843, From: noon.Add(-76 * time.Hour)},
		{Token: 1700, From: noon.Add(-90 * time.Hour), To: noon.Add(-76 * time.Hour)},
	}
	p.terms["shard-1"] = []Term{
		{Token: 1900, From: noon.Add(-2 * time.Minute)},
		{Token: 1899, From: noon.Add(-5 * time.Minute), To: noon.Add(-2 * time.Minute)},
		{Token: 1898, From: noon.Add(-9 * time.Minute), To: noon.Add(-5 * time.Minute)},
	}
	p.left["1fweb-1"] = driver.Remaining{Left: 12 * time.Second, TTL: 15 * time.Second, Step: time.Second}
	p.left["1fweb-4"] = driver.Remaining{Left: 3 * time.Second, TTL: 15 * time.Second, Step: time.Second}
	return p.reads()
}

func TestThePageAt80x24(t *testing.T) {
	p := aFleet(t, 80, 24)
	p.presses(keyEnd, keyUp) // billing and cron are in order, cron is last
	want := `primacy top  etcd 3.7.3  5 names, 3 in trouble                    read 12:00:00
   HEALTH       NAME             LEADER        SINCE  TOKEN WAIT CHG  LEASE
 ○ nobody leads deploy           -             >0s    -     1    0+   -
 ▲ flapping     shard-1          web-3         2m     1900  1    3    -
 ▼ lease ending shard-2          web-4         >0s    1901  0    0+   █░░░ 3s
>● ok           billing/invoicer web-1         3d04h  1843  2    0    ███░ 12s
 ● ok           cron/nightly     web-2         >0s    1850  1    0+   -








────────────────────────────────────────────────────────────────────────────────
billing/invoicer  ok
web-1, token 1843, for 3d04h, since DATE
lease 1fweb-1: 12s of 15s left; value «10.0.0.7»
LINE (2 waiting)
 1 web-2
 2 web-3

q quit  ? help  / filter  t transfer  r resign  d drain  j k move
`
	date := noon.Add(-76 * time.Hour).Local()
	want = strings.Replace(want, "DATE", date.Format("2006-01-02 15:04:05"), 1)
	if got := p.picture(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	p.ascii = true
	got := p.picture()
	if strings.ContainsFunc(got, func(r rune) bool { return r >= utf8.RuneSelf }) {
		t.Errorf("not ASCII:\n%s", got)
	}
	for _, s := range []string{"o nobody leads deploy", "^ flapping     shard-1", "v lease ending shard-2", "#... 3s",
		"###. 12s", "-----"} {
		if !strings.Contains(got, s) {
			t.Errorf("in ASCII it lacks %q:\n%s", s, got)
		}
	}
}

// Whatever the size, nothing is drawn outside, and what is left makes sense.
func TestSizes(t *testing.T) {
	for _, h := range []int{1, 2, 3, 4, 5, 8, 13, 14, 24} {
		for _, w := range []int{1, 2, 5, 9, 20, 33, 57, 80, 130} {
			p := aFleet(t, w, h)
			for _, keys := range [][]string{nil, {keyEnd}, {"?"}, {"?", keyEnter}, {keyEsc, "/", "w"},
				{keyEsc, keyEnd, "t"}, {keyEnter, "x", keyEnter}} {
				p.presses(keys...)
				got := p.picture()
				if w >= 30 && h >= 8 && p.mode == browsing && p.filter == "" &&
					(!strings.Contains(got, "billing") || !strings.Contains(got, "read ") && w > 65) &&
					len(keys) == 0 {
					t.Fatalf("%d×%d:\n%s", w, h, got)
				}
			}
			p.at = noon.Add(time.Minute)
			if got := p.picture(); w >= 5 && p.stale() && !strings.Contains(got, "STAL") {
				t.Fatalf("%d×%d, stale:\n%s", w, h, got)
			}
		}
	}
}

func TestTheSelectedOneStaysOnTheScreen(t *testing.T) {
	p := newPage(t, 80, 20)
	for i := range 1000 {
		p.states = append(p.states, state(fmt.Sprintf("n-%04d", i), "web-1", uint64(i+1)))
	}
	p.reads()
	for _, c := range []struct{ key, want string }{{keyEnd, "n-0999"}, {keyUp, "n-0998"}, {keyPgUp, "n-0989"},
		{keyHome, "n-0000"}, {keyPgDn, "n-0009"}, {"j", "n-0010"}, {"G", "n-0999"}, {"k", "n-0998"},
		{"g", "n-0000"}} {
		p.presses(c.key)
		p.picture()
		if got := p.current().name; got != c.want {
			t.Errorf("after %s %s is selected, want %s", c.key, got, c.want)
		}
		p.shows(">● ok           " + c.want)
	}
	p.presses("/")
	p.types("n-05")
	p.presses(keyEnter)
	p.shows(`100 of 1000 with "n-05"`, ">● ok           n-0500", "n-0501")
	p.presses("/")
	p.types("0x")
	p.shows(`no name or ID has "n-050x"`, "filter: n-050x")
	p.presses(keyBack)
	p.shows("10 of 1000")
	p.presses(keyClear)
	p.shows("1000 names")
	p.presses(keyEsc)
	if p.lists != 1 {
		t.Errorf("%d lists were asked for", p.lists)
	}
}

// A page must not look live when it is not.
func TestStale(t *testing.T) {
	p := aFleet(t, 100, 24)
	p.at = noon.Add(2 * time.Second)
	if got := p.picture(); strings.Contains(got, "STALE") {
		t.Errorf("stale after two seconds:\n%s", got)
	}
	p.err = errors.New("connection refused")
	p.at = noon.Add(90 * time.Second)
	p.reads()
	p.presses(keyHome)
	got := p.picture()
	for _, s := range []string{"STALE: as it was at 12:00:00, 1m ago; etcd 3.7.3 does not answer: connection refused",
		"? was nobody leads", "? was lease ending", "? was ok", "not known at present"} {
		if s == "not known at present" {
			p.presses(keyEnd)
			got = p.picture()
		}
		if !strings.Contains(got, s) {
			t.Errorf("it lacks %q:\n%s", s, got)
		}
	}
	for _, s := range []string{"●", "▼", "░", "12s", "read 12"} {
		if strings.Contains(got, s) {
			t.Errorf("it looks live, with %q:\n%s", s, got)
		}
	}
	if !strings.Contains(got, " 2m  ") {
		t.Errorf("since when it leads is not as of the last answer:\n%s", got)
	}
	p.presses("d")
	p.shows("nothing can be asked now")
	p.presses("?")
	p.shows("STALE: as it was")
	p.presses(keyEsc)
	// A suspended machine: the clock that times sleeps stood still.
	p.err, p.at = nil, noon.Add(100*time.Second)
	p.reads()
	if p.stale() {
		t.Error("it is stale with an answer of now")
	}
	// It has never answered.
	p = newPage(t, 80, 24)
	p.err = errors.New("no route")
	p.reads()
	p.shows("STALE: etcd 3.7.3 has not answered yet: no route")
}
