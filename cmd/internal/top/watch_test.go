package top

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

func (p *page) row(name string) *row {
	p.Helper()
	for _, r := range p.view.rows {
		if r.name == name {
			return r
		}
	}
	p.Fatalf("no row %s", name)
	return nil
}

func TestHealthAndOrder(t *testing.T) {
	p := aFleet(t, 80, 24)
	got := ""
	for _, r := range p.rows {
		got += " " + r.name
	}
	if want := " deploy shard-1 shard-2 billing/invoicer cron/nightly"; got != want {
		t.Errorf("in the order%s, want%s", got, want)
	}
	// All candidates of an election are gone; a lock, which has no records, is only free.
	p.states = p.states[:3]
	p.at = p.at.Add(time.Second)
	p.reads()
	if a, b := p.row("shard-1").health, p.row("shard-2").health; a != deserted || b != free {
		t.Errorf("gone: %v and %v", a.word(false), b.word(false))
	}
	p.at = p.at.Add(window + time.Second)
	p.reads()
	if got := len(p.view.rows); got != 4 || p.row("shard-1").health != deserted {
		t.Errorf("%d rows after a while", got)
	}
	p.at = p.at.Add(keptFor)
	if p.reads(); len(p.view.rows) != 3 {
		t.Errorf("%d rows after a day", len(p.view.rows))
	}
}

// Since when somebody leads is exact where his coming was seen or recorded, and a bound elsewhere.
func TestSinceAndChanges(t *testing.T) {
	p := newPage(t, 80, 24)
	see := func(after time.Duration, leader string, token uint64, since, changes string) {
		t.Helper()
		p.at = p.at.Add(after)
		p.states = []primacy.State{state("n", leader, token)}
		p.reads()
		r := p.row("n")
		if got := p.ui.since(r); got != since {
			t.Errorf("token %d: since %s, want %s", token, got, since)
		}
		if got := changesOf(r); got != changes {
			t.Errorf("token %d: %s changes, want %s", token, got, changes)
		}
	}
	see(0, "a", 1, ">0s", "0+")
	see(time.Second, "a", 1, ">1s", "0+")
	see(time.Second, "b", 2, "0s", "1+")
	see(time.Second, "b", 2, "1s", "1+")
	see(time.Minute, "c", 3, ">0s", "2+") // a minute in which nobody looked
	see(time.Second, "c", 3, ">1s", "2+")
	p.terms["n"] = []Term{{Token: 4, From: p.at.Add(-20 * time.Second)},
		{Token: 3, From: p.at.Add(-21 * time.Second), To: p.at}}
	see(time.Minute, "d", 4, "1m", "3") // recorded, though nobody looked
	see(window-10*time.Second, "d", 4, "16m", "0")
	// Records that cannot be read take nothing away from what was seen.
	p.watch.src.History = func(context.Context, string, int) ([]Term, error) { return nil, errors.New("no") }
	see(time.Second, "e", 5, "0s", "1")
}

func changesOf(r *row) string { return changes(r) }

// A record of the present term that is not there yet is looked for again, a few times.
func TestARecordThatComesLate(t *testing.T) {
	p := newPage(t, 80, 24)
	p.states = []primacy.State{state("n", "a", 7)}
	old := Term{Token: 6, From: noon.Add(-time.Hour), To: noon}
	p.terms["n"] = []Term{old}
	if p.reads(); !p.row("n").since.IsZero() {
		t.Error("another term's beginning is taken for this one's")
	}
	p.terms["n"] = []Term{{Token: 7, From: noon.Add(-time.Minute)}, old}
	for range 10 {
		p.at = p.at.Add(time.Second)
		p.reads()
	}
	if got := p.row("n").since; !got.Equal(noon.Add(-time.Minute)) {
		t.Errorf("since %v", got)
	}
	reads := 0
	p.watch.src.History = func(context.Context, string, int) ([]Term, error) { reads++; return nil, nil }
	p.states = []primacy.State{state("n", "b", 8)}
	for range 100 {
		p.at = p.at.Add(time.Second)
		p.reads()
	}
	if reads == 0 || reads > 6 {
		t.Errorf("a record that never comes was looked for %d times", reads)
	}
}

// A thousand elections of as many processes: one list a refresh, a bounded number of leases, each
// history once.
func TestAThousandElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var states []primacy.State
		for i := range 1000 {
			states = append(states, state(fmt.Sprintf("n-%04d", i), fmt.Sprintf("web-%d", i), uint64(i+1)))
		}
		var lists, leases, histories atomic.Int64
		seen := map[string]bool{}
		w := newWatcher(Source{
			List: func(context.Context) ([]primacy.State, error) { lists.Add(1); return states, nil },
			Leases: func(_ context.Context, ids ...string) (map[string]driver.Remaining, error) {
				if leases.Add(int64(len(ids))); len(ids) > leasesAtOnce {
					t.Errorf("%d leases at once", len(ids))
				}
				for _, id := range ids {
					seen[id] = true
				}
				return nil, nil
			},
			History: func(context.Context, string, int) ([]Term, error) { histories.Add(1); return nil, nil },
		}, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 59500*time.Millisecond)
		defer cancel()
		w.run(ctx)
		if lists.Load() != 60 || leases.Load() > 60*leasesAtOnce || histories.Load() != 1000 || len(seen) != 1000 {
			t.Errorf("in a minute: %d lists, %d leases of %d, %d histories", lists.Load(), leases.Load(), len(seen),
				histories.Load())
		}
	})
}

// A list that takes long is asked for more seldom.
func TestASlowStoreIsAskedLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists := 0
		w := newWatcher(Source{List: func(context.Context) ([]primacy.State, error) {
			lists++
			time.Sleep(2 * time.Second)
			return nil, nil
		}}, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 99*time.Second)
		defer cancel()
		if w.run(ctx); lists != 10 {
			t.Errorf("%d lists of 2 s in 99 s", lists)
		}
	})
}

// What a refresh of a full page costs on the line, when seconds tick, leases go up and down, and
// nothing else happens.
func TestBytesOfARefresh(t *testing.T) {
	p := newPage(t, 80, 24)
	for i := range 40 {
		p.states = append(p.states, state(fmt.Sprintf("n-%02d", i), fmt.Sprintf("web-%d", i%5), uint64(i+1), "web-8"))
	}
	pt := painter{colours: true}
	total, most, all := 0, 0, 0
	for i := range 60 {
		p.at = noon.Add(time.Duration(i) * time.Second)
		for j := range 5 {
			p.left[fmt.Sprintf("1fweb-%d", j)] = driver.Remaining{Left: time.Duration(15-(i+j)%4) * time.Second,
				TTL: 15 * time.Second}
		}
		p.reads()
		n := len(pt.paint(p.draw()))
		if i == 0 {
			all = n
			continue
		}
		total += n
		most = max(most, n)
	}
	t.Logf("the first picture %d bytes, then %d a refresh, at most %d", all, total/59, most)
	if all > 4500 || total/59 > 2500 {
		t.Errorf("the first picture took %d bytes, a refresh %d", all, total/59)
	}
}

// What a picture of a thousand elections costs.
func BenchmarkAThousand(b *testing.B) {
	p := newPage(b, 120, 40)
	for i := range 1000 {
		p.states = append(p.states, state(fmt.Sprintf("billing/shard-%04d", i), fmt.Sprintf("web-%d", i%9),
			uint64(i+1), "web-10", "web-11"))
	}
	p.reads()
	pt := painter{}
	for b.Loop() {
		p.refresh()
		pt.paint(p.draw())
	}
}

// Names that somebody led in the last day are shown though nobody stands for them; older ones are
// not, and each is read once.
func TestNamesThatNobodyStandsForAnyMore(t *testing.T) {
	now := time.Now()
	reads := map[string]int{}
	var mu sync.Mutex
	src := Source{
		List:     func(context.Context) ([]primacy.State, error) { return nil, nil },
		Recorded: func(context.Context) ([]string, error) { return []string{"loop", "lost", "old"}, nil },
		History: func(_ context.Context, name string, _ int) (terms []Term, _ error) {
			mu.Lock()
			defer mu.Unlock()
			reads[name]++
			switch name {
			case "loop":
				for i := range 5 {
					at := now.Add(-time.Duration(i+1) * time.Minute)
					terms = append(terms, Term{Token: primacy.Token(9 - i), From: at, To: at.Add(time.Second), ID: "a",
						Why: "failed"})
				}
			case "lost": // nobody knows when it ended
				terms = []Term{{Token: 3, From: now.Add(-48 * time.Hour), ToAfter: now.Add(-time.Hour), ID: "b",
					Why: "?"}}
			case "old":
				terms = []Term{{Token: 2, From: now.Add(-48 * time.Hour), To: now.Add(-25 * time.Hour),
					Why: "resigned"}}
			}
			return terms, nil
		},
	}
	w := newWatcher(src, time.Second)
	for range 3 {
		w.refresh(t.Context())
		w.readAll(t.Context())
		v := w.view()
		if len(v.rows) != 2 {
			t.Fatalf("%d rows, want loop and lost", len(v.rows))
		}
		arrange(v.rows)
		loop, lost := v.rows[0], v.rows[1]
		if loop.name != "loop" || loop.health != deserted || loop.changes != 5 || loop.last.Why != "failed" ||
			!loop.since.Equal(now.Add(-59*time.Second)) {
			t.Errorf("%+v", loop)
		}
		if lost.name != "lost" || lost.health != deserted || !lost.since.Equal(now.Add(-time.Hour)) ||
			lost.last.ID != "b" {
			t.Errorf("%+v", lost)
		}
		w.asked = time.Time{} // the names are read again
	}
	if reads["old"] != 1 {
		t.Errorf("the old one was read %d times", reads["old"])
	}
}

// Those who read histories note which names have records, while the next names are handed out: with
// the race detector this fails where the maps are read without the lock, and in production the
// process ended.
func TestASnapshotReadsManyHistoriesAtOnce(t *testing.T) {
	names := make([]string, mostUnseen)
	for i := range names {
		names[i] = fmt.Sprintf("n-%03d", i)
	}
	terms := []Term{{Token: 3, From: time.Now().Add(-time.Hour), To: time.Now(), Why: "failed"}}
	src := Source{
		List:     func(context.Context) ([]primacy.State, error) { return nil, nil },
		Recorded: func(context.Context) ([]string, error) { return names, nil },
		History:  func(context.Context, string, int) ([]Term, error) { return terms, nil },
	}
	for range 20 {
		before := time.Now()
		all, _, _, err := Snapshot(t.Context(), src)
		if err != nil || len(all) != len(names) {
			t.Fatalf("%d entries: %v", len(all), err)
		}
		if at := all[0].State.AsOf; at.Before(before) || at.After(time.Now()) {
			t.Fatalf("a name that nobody stands for is as of %v", at)
		}
	}
}

// Work that came to its end is no trouble, whether anybody watched it or not: a task that runs once
// would otherwise be the worst on the page for a day.
func TestWorkThatCameToItsEndIsNoTrouble(t *testing.T) {
	p := newPage(t, 80, 24)
	ended := func(reason primacy.Reason, by string) []Term {
		return []Term{{Token: 3, From: noon.Add(-time.Hour), To: noon.Add(-time.Minute), ID: "a", Reason: reason,
			By: by, Why: string(reason)}}
	}
	p.terms["once"] = ended(primacy.Resigned, "")
	p.terms["asked"] = ended(primacy.Resigned, "ops")
	p.terms["failed"] = ended(primacy.Failed, "")
	p.terms["died"] = ended(primacy.Died, "")
	p.terms["seen"] = []Term{{Token: 3, From: noon.Add(-time.Hour), Reason: primacy.Leads}}
	p.terms["unread"] = ended(primacy.Resigned, "") // of the term before
	p.states = []primacy.State{state("seen", "a", 3), state("unread", "a", 4)}
	p.reads()
	if h := p.row("seen").health; h != fine {
		t.Errorf("one that leads is %v", h.word(false))
	}
	p.at = p.at.Add(2 * time.Second)
	p.states, p.terms["seen"] = nil, ended(primacy.Resigned, "")
	history := p.watch.src.History
	p.watch.src.History = func(ctx context.Context, name string, limit int) ([]Term, error) {
		if name == "unread" {
			return nil, errors.New("no")
		}
		return history(ctx, name, limit)
	}
	p.reads()
	for name, want := range map[string]health{"once": free, "seen": free, "asked": deserted, "failed": deserted,
		"died": deserted, "unread": deserted} {
		if got := p.row(name).health; got != want {
			t.Errorf("%s is %s, want %s", name, got.word(false), want.word(false))
		}
	}
}

// A store that answers each list, but slowly, is not told as one that does not answer: a picture
// may look live until the next one is there.
func TestASlowStoreAnswers(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 700 * time.Millisecond, 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			down, ctx := make(chan struct{}), t.Context()
			src := Source{Store: "etcd", List: func(ctx context.Context) ([]primacy.State, error) {
				select {
				case <-down:
					<-ctx.Done()
					return nil, ctx.Err()
				case <-time.After(took):
				}
				return []primacy.State{state("n", "a", 3)}, nil
			}}
			w, l := newWatcher(src, time.Second), NewLive(src, 500*time.Millisecond, func() {})
			u := &ui{store: "etcd", watch: w, now: time.Now, w: 80, h: 24, can: true}
			ctx, cancel := context.WithCancel(ctx)
			var wg sync.WaitGroup
			wg.Go(func() { w.run(ctx) })
			wg.Go(func() { l.Run(ctx) })
			time.Sleep(30 * time.Second)
			stale := 0
			for range 500 {
				time.Sleep(100 * time.Millisecond)
				if u.refresh(); u.stale() || l.Picture().Stale(time.Now()) {
					stale++
				}
			}
			if stale > 0 {
				t.Errorf("lists take %v: %d of 500 looks were stale", took, stale)
			}
			close(down)
			time.Sleep(time.Minute)
			if u.refresh(); !u.stale() || !l.Picture().Stale(time.Now()) {
				t.Errorf("lists took %v: it does not answer, and that is not told", took)
			}
			cancel()
			wg.Wait()
		})
	}
}

// An end that is recorded late, by a leader that was cut off, is seen though the next leader stays.
// A history that could not be read does not pass for one that was.
func TestAnEndThatIsRecordedLateIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		reads := 0
		src := Source{List: func(context.Context) ([]primacy.State, error) {
			return []primacy.State{state("n", "b", 9)}, nil
		}, History: func(context.Context, string, int) ([]Term, error) {
			reads++
			old := Term{Token: 5, ID: "a", From: began.Add(-time.Hour), ToBefore: began, Reason: primacy.Unknown,
				Why: "no end was recorded"}
			if time.Since(began) > time.Minute {
				old.To, old.Reason, old.Why = began, primacy.Expired, "lease expired"
			}
			if time.Since(began) > 2*time.Hour {
				return nil, errors.New("refused")
			}
			return []Term{{Token: 9, ID: "b", From: began, Reason: primacy.Leads}, old}, nil
		}}
		w := newWatcher(src, time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.run(ctx) })
		time.Sleep(10 * time.Minute)
		if got := w.view().rows[0]; got.last.Why != "lease expired" || reads > 8 || !got.read {
			t.Errorf("after %d reads: %+v", reads, got.last)
		}
		cancel()
		wg.Wait()
		w.tracks["n"].read = false
		time.Sleep(2 * time.Hour)
		if w.readHistory(t.Context(), "n"); w.view().rows[0].read {
			t.Error("what could not be read counts as read")
		}
	})
}

// However many somebody stands for, an election that was led until a minute ago and is deserted now
// is found; and what was not looked at is counted.
func TestADesertedElectionAmongManyIsFound(t *testing.T) {
	var live []primacy.State
	var names []string
	for i := range 400 {
		live = append(live, state(fmt.Sprintf("n-%04d", i), "a", uint64(10+i)))
		names = append(names, live[i].Name)
	}
	names = append(names, "billing")
	src := Source{
		List:     func(context.Context) ([]primacy.State, error) { return live, nil },
		Recorded: func(context.Context) ([]string, error) { return names, nil },
		History: func(_ context.Context, name string, _ int) ([]Term, error) {
			if name == "billing" {
				return []Term{{Token: 3, From: time.Now().Add(-time.Hour), To: time.Now().Add(-time.Minute),
					Why: "lease expired", Reason: primacy.Expired}}, nil
			}
			return nil, errors.New("refused")
		},
	}
	all, _, unlooked, err := Snapshot(t.Context(), src)
	if err != nil || len(all) != 401 || all[0].State.Name != "billing" || all[0].Health != "deserted" || unlooked != 0 {
		t.Errorf("%d entries, %d not looked at, %v", len(all), unlooked, err)
	}
	for i := range 500 {
		names = append(names, fmt.Sprintf("refused-%03d", i))
	}
	if _, _, unlooked, err = Snapshot(t.Context(), src); err != nil || unlooked < 500 {
		t.Errorf("%d of 500 that cannot be read were not looked at, %v", unlooked, err)
	}
}

// Who asks once must not read "nobody leads" where the store was silent for all his time.
func TestASnapshotOfASilentStoreIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	src := Source{List: func(ctx context.Context) ([]primacy.State, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	if all, _, _, err := Snapshot(ctx, src); err == nil {
		t.Errorf("%d entries and no error", len(all))
	}
}
