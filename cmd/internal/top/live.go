package top

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/parallel"
)

// Live is the same picture as the terminal's page has, for readers elsewhere: kept up to date while
// [Live.Run] runs. It is safe for concurrent use.
type Live struct {
	w *watcher

	mu   sync.Mutex
	last Picture // the last one that was made
}

// forPage are the costs of a page in a browser, which stands open all day: a list that takes 20 ms
// is asked for twice a second, and costs 4 % of a core.
var forPage = costs{
	rests: 24, mostRest: 2 * time.Second, leases: 256, leasesEvery: 2 * time.Second, pace: 2 * historyPace,
	pausesEvery: time.Second,
}

// NewLive returns a picture that nothing has been read for yet. Ready is called on another
// goroutine whenever there may be something new to show.
func NewLive(src Source, every time.Duration, ready func()) *Live {
	w := newWatcher(src, every)
	w.costs, w.ready = forPage, ready
	return &Live{w: w}
}

// Run keeps the picture up to date until ctx ends.
func (l *Live) Run(ctx context.Context) { l.w.run(ctx) }

// Refresh reads the list once, now. It is for who cannot wait for Run's next one.
func (l *Live) Refresh(ctx context.Context) { _ = l.w.refresh(ctx) }

// Hurry has the next refresh come now: something has just been changed.
func (l *Live) Hurry() { l.w.hurry() }

// Want says which names are on a screen: their histories and leases are read first.
func (l *Live) Want(names []string) { l.w.want(names) }

// Look reads the histories of these names that are due, several at a time. After so long it begins
// no more of them, and returns when those that it began have been read.
func (l *Live) Look(ctx context.Context, names []string, within time.Duration) {
	l.w.mu.Lock()
	now := l.w.now()
	var due []string
	for _, n := range names {
		if t := l.w.tracks[n]; t != nil && t.stale(now) && (l.w.src.Recorded == nil || l.w.recorded[n]) {
			due = append(due, n)
		}
	}
	l.w.mu.Unlock()
	if l.w.src.History != nil && len(due) > 0 {
		late, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		l.w.readThese(ctx, late, due)
	}
}

// Read returns when the list was read, and why it could not be the last time.
func (l *Live) Read() (asOf time.Time, err error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.asOf, l.w.err
}

// Forget has an error of an earlier Run count no more.
func (l *Live) Forget() {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.w.err = nil
}

// Picture is what is known at one time.
type Picture struct {
	Entries []Entry   // the worst first
	AsOf    time.Time // when it was read; zero: not yet
	Err     error     // why the last list failed
	Every   time.Duration

	// Unlooked is how many names there are beside that nobody stands for, and whose records were
	// not looked at yet: they may be deserted.
	Unlooked int

	lasts   time.Duration
	version uint64    // of what the entries were made of
	made    time.Time // the AsOf that they were judged by
}

// Same says whether two pictures have the same entries, perhaps as of another instant.
func (p Picture) Same(other Picture) bool {
	return p.version == other.version && p.made.Equal(other.made)
}

// judgedFor is for how long entries are good of which nothing changes but the time: then something
// may have become too long ago to count.
const judgedFor = 2 * time.Second

// Picture returns what is known now. To judge and sort thousands of entries takes longer than to
// see that nothing has changed.
func (l *Live) Picture() Picture {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w.mu.Lock()
	version, asOf, err, lasts := l.w.version, l.w.asOf, l.w.err, l.w.lasts
	l.w.mu.Unlock()
	if p := &l.last; p.version == version && !p.made.IsZero() && asOf.Sub(p.made) < judgedFor {
		p.AsOf, p.Err, p.lasts = asOf, err, lasts
		return *p
	}
	v := l.w.view()
	l.last = Picture{Entries: v.entries(), AsOf: v.asOf, Err: v.err, Every: v.every, lasts: v.lasts,
		version: v.version, made: v.asOf, Unlooked: v.unlooked}
	return l.last
}

// Below returns the entries whose names begin with prefix. The caller must not change them.
func (p Picture) Below(prefix string) []Entry {
	if prefix == "" {
		return p.Entries
	}
	var all []Entry
	for i := range p.Entries {
		if strings.HasPrefix(p.Entries[i].State.Name, prefix) {
			all = append(all, p.Entries[i])
		}
	}
	return all
}

// Stale says whether the picture must not look live at an instant.
func (p Picture) Stale(now time.Time) bool {
	return p.AsOf.IsZero() || p.Err != nil || Older(p.AsOf, now.Add(-p.Lasts()))
}

// Lasts is for how long after it was read the picture may look live: after a list there is a rest
// of 2 s at most, and the next one takes its time.
func (p Picture) Lasts() time.Duration { return max(p.Every+3*time.Second, p.lasts) }

// Older says whether an instant was before another by either clock: while the machine slept, Go's
// monotonic one stood still, and the wall clock may have been set.
func Older(t, than time.Time) bool { return age(t, than) > 0 }

// readThese reads histories, and begins none after late has ended: one that is cut short would
// count as one that cannot be read.
func (w *watcher) readThese(ctx, late context.Context, all []string) {
	parallel.Each(len(all), func(i int) {
		if late.Err() == nil {
			w.readHistory(ctx, all[i])
		}
	})
}
