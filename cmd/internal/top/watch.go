package top

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// Source is where the page's figures come from. List is asked once for each refresh, however many
// elections there are.
type Source struct {
	Store string // its name, for people
	List  func(context.Context) ([]primacy.State, error)

	// What not every store can tell; nil where this one cannot.
	Leases   func(ctx context.Context, leases ...string) (map[string]driver.Remaining, error)
	Recorded func(context.Context) ([]string, error) // names with recorded terms
	History  func(ctx context.Context, name string, limit int) ([]Term, error)
	Paused   func(context.Context) ([]string, error) // what operators have paused, a line for each
}

// How much is asked beside the list.
const (
	patience     = 10 * time.Second       // for one list
	leasesAtOnce = 64                     // asked of in one refresh
	termsRead    = 30                     // of one election
	historyPace  = 30 * time.Millisecond  // from one history to the next
	historyRests = 500 * time.Millisecond // where there is none to read
	recordEvery  = 30 * time.Second       // for the names with records
	pausesEvery  = 5 * time.Second        // for what is paused
	pausesLimit  = 3 * time.Second        // for one reading of that: the list waits for it
	keptFor      = 24 * time.Hour         // of what nobody stands for any more
	mostUnseen   = 300                    // names that nobody stands for, whose records are looked at
)

// costs bound what is asked of a store.
type costs struct {
	rests       int           // times as long as a list took: no list is asked for
	mostRest    time.Duration // but no longer than that
	leases      int           // asked of in one refresh
	leasesEvery time.Duration // 0: in each refresh
	pace        time.Duration // from one history to the next
	pausesEvery time.Duration // what is paused is read
}

// onTerminal are the costs of one operator's page.
var onTerminal = costs{rests: 4, mostRest: 8 * time.Second, leases: leasesAtOnce, pace: historyPace,
	pausesEvery: pausesEvery}

// watcher keeps the page's figures up to date.
type watcher struct {
	src   Source
	every time.Duration
	now   func() time.Time
	ready func()        // there is something new to show
	kick  chan struct{} // refreshes now
	costs costs

	mu       sync.Mutex
	tracks   map[string]*track
	recorded map[string]bool
	old      map[string]bool // names whose records are older than keptFor
	missed   int             // names with records that nobody stands for, and that are in no track
	wanted   []string        // names on the screen, the selected one first
	turn     int             // whose lease is asked for next of those that are not
	asOf     time.Time
	listed   bool      // there was a list before
	asked    time.Time // when recorded was read
	askedOf  time.Time // when leases were asked for
	paused   []string
	pausedAt time.Time     // when that was read
	err      error         // of the last list
	lasts    time.Duration // a picture may look live: until the next one is there
	version  uint64        // grows with each change of what is known of any name
	due      []string      // names whose terms should be read
	dueAsOf  time.Time     // when they were looked for
}

// track is what is known of one name.
type track struct {
	state     primacy.State
	gone      time.Time // since when nobody stands; zero: somebody does
	unseen    bool      // nobody has stood for it while we watched: its records say that it was led
	first     time.Time // when it was first seen
	led       time.Time // when its present leader was first seen
	exact     bool      // it won just before that: somebody else, or nobody, was seen then
	changes   []change  // that were seen
	lease     driver.Remaining
	leased    bool
	terms     []Term
	termErr   error
	read      bool          // terms were read
	readToken primacy.Token // who led then
	readAt    time.Time
	tries     int // to find the present term among the recorded ones
}

// change is that a leader was seen who did not lead before.
type change struct {
	token primacy.Token
	at    time.Time
}

// view is one picture of all, which does not change any more.
type view struct {
	rows  []*row
	asOf  time.Time // when it was read; zero: not yet
	err   error
	every time.Duration
	lasts time.Duration // it may look live for so long after it was read

	unlooked int // names that nobody stands for, and whose records were not looked at: they may be deserted

	version uint64 // of what it was made of
	paused  []string
}

func newWatcher(src Source, every time.Duration) *watcher {
	return &watcher{src: src, every: every, now: time.Now, tracks: map[string]*track{}, recorded: map[string]bool{},
		old:   map[string]bool{},
		ready: func() {}, kick: make(chan struct{}, 1), costs: onTerminal}
}

// run refreshes until ctx ends. A list that takes long is asked for more seldom: on a terminal a
// fifth of the time is spent on it, or more where it takes longer than two seconds.
func (w *watcher) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if w.src.History != nil {
		wg.Go(func() { w.readHistories(ctx) })
	}
	for ctx.Err() == nil {
		began := time.Now()
		_ = w.refresh(ctx) // told by w.err
		took := time.Since(began)
		pause := max(w.every-took, min(time.Duration(w.costs.rests)*took, w.costs.mostRest))
		w.restsFor(pause, took)
		w.ready()
		rest := time.NewTimer(pause)
		select {
		case <-rest.C:
		case <-w.kick:
		case <-ctx.Done():
		}
		rest.Stop()
	}
}

// atLeast is for how long a picture may look live beside the rest after it and the next reading.
const atLeast = 2 * time.Second

// restsFor keeps for how long the picture that was just read is the newest that there can be: the
// next one comes after a rest, and takes its time. Without that a store that answers each list, but
// slowly, would be told as one that does not answer.
func (w *watcher) restsFor(pause, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.lasts = pause + 2*took + atLeast
	}
}

// hurry has the next refresh come now: something has just been changed.
func (w *watcher) hurry() {
	w.mu.Lock()
	w.pausedAt = time.Time{}
	w.mu.Unlock()
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// refresh reads all once. Its error is that of the list.
func (w *watcher) refresh(over context.Context) error {
	ctx, cancel := context.WithTimeout(over, patience)
	defer cancel()
	slow := time.AfterFunc(2*time.Second, w.ready) // the page says that it waits
	defer slow.Stop()
	pausesRead := w.readPaused(ctx)
	states, err := w.src.List(ctx)
	pausesRead()
	now := w.now()
	w.mu.Lock()
	if err != nil && over.Err() != nil { // nobody waits for it any more: that says nothing of the store
		w.mu.Unlock()
		return err
	}
	if w.err = err; err != nil {
		w.mu.Unlock()
		return err
	}
	w.take(states, now, w.listed && now.Sub(w.asOf) < 3*w.every+2*time.Second)
	w.asOf, w.listed = now, true
	var leases []string
	if now.Sub(w.askedOf) >= w.costs.leasesEvery {
		leases, w.askedOf = w.leasesToAsk(), now
	}
	records := w.src.Recorded != nil && now.Sub(w.asked) > recordEvery
	w.mu.Unlock()
	if w.src.Leases != nil && len(leases) > 0 {
		left, err := w.src.Leases(ctx, leases...)
		w.takeLeases(leases, left, err)
	}
	if records {
		if names, err := w.src.Recorded(ctx); err == nil {
			w.takeRecorded(names, now)
		}
	}
	return nil
}

// take compares what was read with what was known. Close says that the last list was a moment ago:
// what has changed has changed just now. The caller holds mu.
func (w *watcher) take(states []primacy.State, now time.Time, close bool) {
	seen := make(map[string]bool, len(states))
	for _, st := range states {
		seen[st.Name] = true
		t := w.tracks[st.Name]
		fresh := t == nil
		if fresh {
			t = &track{first: now}
			w.tracks[st.Name] = t
		}
		if fresh || !sameTerm(t.state.Leader, st.Leader) {
			if w.listed && st.Leader != nil {
				t.changes = append(t.changes, change{st.Leader.Token, now})
			}
			t.led, t.exact, t.tries, t.leased = now, close, 0, false
		}
		if fresh || !t.gone.IsZero() || !sameState(t.state, st) {
			w.version++
		}
		t.state, t.gone, t.unseen = st, time.Time{}, false
		delete(w.old, st.Name)
	}
	for name, t := range w.tracks {
		t.changes = slices.DeleteFunc(t.changes, func(c change) bool { return now.Sub(c.at) > window })
		if seen[name] {
			continue
		}
		if t.gone.IsZero() {
			t.gone, t.leased = now, false
			t.state.Leader, t.state.Waiting = nil, nil
			w.version++
		}
		if now.Sub(t.gone) > keptFor || now.Sub(t.gone) > window && !w.recorded[name] ||
			len(w.tracks) > 2*len(states)+1000 {
			delete(w.tracks, name)
			w.version++
		}
	}
}

func sameTerm(a, b *primacy.Entry) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Token == b.Token
}

// sameState says whether two states of a name show the same.
func sameState(a, b primacy.State) bool {
	if (a.Leader == nil) != (b.Leader == nil) || a.Leader != nil && !sameEntry(*a.Leader, *b.Leader) {
		return false
	}
	return slices.EqualFunc(a.Waiting, b.Waiting, sameEntry)
}

func sameEntry(a, b primacy.Entry) bool {
	return a.ID == b.ID && a.Token == b.Token && a.Slots == b.Slots && a.Held == b.Held && a.Lease == b.Lease &&
		a.Note == b.Note && bytes.Equal(a.Value, b.Value)
}

// leasesToAsk chooses whose leases to ask for: those on the screen, and of the others some, in
// turn. The caller holds mu.
func (w *watcher) leasesToAsk() (ids []string) {
	chosen := map[string]bool{"": true}
	add := func(id string) {
		if len(ids) < w.costs.leases && !chosen[id] {
			ids, chosen[id] = append(ids, id), true
		}
	}
	for _, name := range w.wanted {
		if t := w.tracks[name]; t != nil && t.state.Leader != nil {
			add(t.state.Leader.Lease)
		}
	}
	all := map[string]bool{}
	for _, t := range w.tracks {
		if t.state.Leader != nil {
			all[t.state.Leader.Lease] = true
		}
	}
	rest := slices.Sorted(maps.Keys(all))
	for i := range rest {
		add(rest[(w.turn+i)%len(rest)])
	}
	w.turn += w.costs.leases
	return ids
}

// takeLeases keeps what was told; where nothing was, nothing is known any more.
func (w *watcher) takeLeases(asked []string, left map[string]driver.Remaining, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := make(map[string]bool, len(asked))
	for _, id := range asked {
		of[id] = true
	}
	for _, t := range w.tracks {
		if t.state.Leader == nil || !of[t.state.Leader.Lease] {
			continue
		}
		was, known := t.lease, t.leased
		t.lease, t.leased = left[t.state.Leader.Lease]
		if t.leased = t.leased && err == nil; t.lease != was || t.leased != known {
			w.version++
		}
	}
}

// readPaused begins to read what is paused, if that is due, and returns what waits for it. It is
// read beside the list, so that no list is shown before it: a name would look as if it were not
// paused.
func (w *watcher) readPaused(ctx context.Context) (wait func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if w.src.Paused == nil || !w.pausedAt.IsZero() && now.Sub(w.pausedAt) < w.costs.pausesEvery {
		return func() {}
	}
	w.pausedAt = now
	var wg sync.WaitGroup
	wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, pausesLimit)
		defer cancel()
		paused, err := w.src.Paused(ctx)
		if err != nil {
			paused = []string{"not known: " + err.Error()}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.paused = paused
	})
	return wg.Wait
}

func (w *watcher) takeRecorded(names []string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = now
	w.version++
	unseen := 0
	for _, t := range w.tracks {
		if t.unseen {
			unseen++
		}
	}
	w.missed = 0
	for _, n := range names {
		switch {
		case w.tracks[n] != nil || w.old[n]:
		case unseen == mostUnseen:
			w.missed++
		default:
			unseen++
			w.tracks[n] = &track{state: primacy.State{Name: n, AsOf: now}, first: now, gone: now, unseen: true}
		}
		if w.tracks[n] != nil {
			w.recorded[n] = true
		}
	}
	for n := range w.recorded {
		if w.tracks[n] == nil {
			delete(w.recorded, n)
		}
	}
}

// want says which names are on the screen.
func (w *watcher) want(names []string) {
	w.mu.Lock()
	w.wanted = names
	w.mu.Unlock()
}
