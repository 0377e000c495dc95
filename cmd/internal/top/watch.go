package top

import (
	"context"
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
}

// How much is asked beside the list.
const (
	patience     = 10 * time.Second       // for one list
	leasesAtOnce = 64                     // asked of in one refresh
	termsRead    = 30                     // of one election
	historyPace  = 30 * time.Millisecond  // from one history to the next
	historyRests = 500 * time.Millisecond // where there is none to read
	recordEvery  = 30 * time.Second       // for the names with records
	keptFor      = 24 * time.Hour         // of what nobody stands for any more
	mostUnseen   = 300                    // names, with those that somebody stands for
)

// watcher keeps the page's figures up to date.
type watcher struct {
	src   Source
	every time.Duration
	now   func() time.Time
	ready func()        // there is something new to show
	kick  chan struct{} // refreshes now

	mu       sync.Mutex
	tracks   map[string]*track
	recorded map[string]bool
	old      map[string]bool // names whose records are older than keptFor
	wanted   []string        // names on the screen, the selected one first
	turn     int             // whose lease is asked for next of those that are not
	asOf     time.Time
	listed   bool      // there was a list before
	asked    time.Time // when recorded was read
	err      error     // of the last list
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
}

func newWatcher(src Source, every time.Duration) *watcher {
	return &watcher{src: src, every: every, now: time.Now, tracks: map[string]*track{}, recorded: map[string]bool{},
		old:   map[string]bool{},
		ready: func() {}, kick: make(chan struct{}, 1)}
}

// run refreshes until ctx ends. A list that takes long is asked for more seldom: at most a fifth of
// the time is spent on it.
func (w *watcher) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if w.src.History != nil {
		wg.Go(func() { w.readHistories(ctx) })
	}
	for ctx.Err() == nil {
		began := time.Now()
		w.refresh(ctx)
		w.ready()
		rest := time.NewTimer(max(w.every-time.Since(began), 4*time.Since(began)))
		select {
		case <-rest.C:
		case <-w.kick:
		case <-ctx.Done():
		}
		rest.Stop()
	}
}

// hurry has the next refresh come now: something has just been changed.
func (w *watcher) hurry() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// refresh reads all once.
func (w *watcher) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	slow := time.AfterFunc(2*time.Second, w.ready) // the page says that it waits
	defer slow.Stop()
	states, err := w.src.List(ctx)
	now := w.now()
	w.mu.Lock()
	if w.err = err; err != nil {
		w.mu.Unlock()
		return
	}
	w.take(states, now, w.listed && now.Sub(w.asOf) < 3*w.every+2*time.Second)
	w.asOf, w.listed = now, true
	leases, records := w.leasesToAsk(), w.src.Recorded != nil && now.Sub(w.asked) > recordEvery
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
		}
		if now.Sub(t.gone) > keptFor || now.Sub(t.gone) > window && !w.recorded[name] ||
			len(w.tracks) > 2*len(states)+1000 {
			delete(w.tracks, name)
		}
	}
}

func sameTerm(a, b *primacy.Entry) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Token == b.Token
}

// leasesToAsk chooses whose leases to ask for: those on the screen, and of the others some, in
// turn. The caller holds mu.
func (w *watcher) leasesToAsk() (ids []string) {
	add := func(t *track) {
		if t != nil && t.state.Leader != nil && t.state.Leader.Lease != "" && len(ids) < leasesAtOnce &&
			!slices.Contains(ids, t.state.Leader.Lease) {
			ids = append(ids, t.state.Leader.Lease)
		}
	}
	for _, name := range w.wanted {
		add(w.tracks[name])
	}
	var rest []string
	for _, t := range w.tracks {
		if t.state.Leader != nil {
			rest = append(rest, t.state.Leader.Lease)
		}
	}
	slices.Sort(rest)
	rest = slices.Compact(rest)
	for i := 0; i < len(rest) && len(ids) < leasesAtOnce; i++ {
		if id := rest[(w.turn+i)%len(rest)]; id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	w.turn += leasesAtOnce
	return ids
}

// takeLeases keeps what was told; where nothing was, nothing is known any more.
func (w *watcher) takeLeases(asked []string, left map[string]driver.Remaining, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tracks {
		if t.state.Leader == nil || !slices.Contains(asked, t.state.Leader.Lease) {
			continue
		}
		t.lease, t.leased = left[t.state.Leader.Lease]
		t.leased = t.leased && err == nil
	}
}

func (w *watcher) takeRecorded(names []string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = now
	for _, n := range names {
		if w.tracks[n] == nil && !w.old[n] && len(w.tracks) < mostUnseen {
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
