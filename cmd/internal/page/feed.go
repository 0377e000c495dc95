package page

import (
	"context"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/top"
)

// feed keeps one picture of the store for all tabs, and only while somebody looks: nobody pays for
// a page that is closed.
type feed struct {
	ctx   context.Context
	live  *top.Live
	young time.Duration // how old a list may be that is shown at once: one that is older counts as stale
	wg    sync.WaitGroup

	mu      sync.Mutex
	running bool
	cancel  context.CancelFunc
	since   time.Time // it runs
	tabs    int       // that are open
	used    time.Time
	seq     uint64
	news    chan struct{}        // closed with each change
	wanted  map[string]time.Time // when a name was last on a screen
	pic     top.Picture
	picOf   uint64 // its number
	picked  bool
}

const (
	lingers  = 30 * time.Second       // after the last reader has gone
	opens    = 2 * time.Second        // for the first list
	onScreen = 10 * time.Second       // a name counts as shown, since a view showed it
	looks    = 120 * time.Millisecond // for the histories of one election, or a few
	glances  = 50 * time.Millisecond  // for those of a list: the stream brings the others in a second
	few      = 10
)

func newFeed(ctx context.Context, o Options) *feed {
	f := &feed{ctx: ctx, news: make(chan struct{}), wanted: map[string]time.Time{},
		young: top.Picture{Every: o.Every}.Lasts()}
	f.live = top.NewLive(o.Source, o.Every, f.changed)
	return f
}

// changed tells all tabs that there may be something new.
func (f *feed) changed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	close(f.news)
	f.news = make(chan struct{})
}

// number is that of the present picture, and later is closed when there is another.
func (f *feed) number() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seq
}

func (f *feed) later() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.news
}

// picture is the present one. It is made once for all who look.
func (f *feed) picture() top.Picture {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.picked || f.picOf != f.seq {
		f.pic, f.picOf, f.picked = f.live.Picture(), f.seq, true
	}
	return f.pic
}

// join counts a tab until the returned function is called.
func (f *feed) join() (leave func()) {
	f.mu.Lock()
	f.tabs++
	f.mu.Unlock()
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.tabs--
		f.used = time.Now()
	})
}

// use has the picture kept up to date from now on, and returns when there is one that may pass for
// the present, or the store has not answered for a while.
func (f *feed) use(ctx context.Context) {
	f.mu.Lock()
	f.used = time.Now()
	if !f.running && f.ctx.Err() == nil {
		run, cancel := context.WithCancel(f.ctx)
		f.running, f.cancel, f.since = true, cancel, time.Now()
		f.live.Forget() // what ended the last reading says nothing of the store as it is now
		f.picked = false
		f.wg.Go(func() { f.live.Run(run) })
		f.wg.Go(func() { f.rest(run) })
	}
	since := f.since
	f.mu.Unlock()
	if old := time.Now().Add(-f.young); top.Older(since, old) { // the store was slow, or the list long
		if asOf, _ := f.live.Read(); top.Older(asOf, old) {
			f.live.Hurry()
		}
		since = old
	}
	late := time.NewTimer(opens)
	defer late.Stop()
	for {
		later := f.later()
		if asOf, err := f.live.Read(); err != nil || asOf.After(since) && !top.Older(asOf, since) {
			return
		}
		select {
		case <-later:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// rest ends the reading of the store when nobody has looked for a while. Until then it has tabs
// told that the store does not answer: nothing else happens that they would hear of.
func (f *feed) rest(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if f.picture().Stale(time.Now()) {
			f.changed()
		}
		f.mu.Lock()
		if f.tabs == 0 && time.Since(f.used) > lingers {
			f.running = false
			f.cancel()
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
	}
}

// show says which names a view shows, and reads their histories that are not known yet, as far as
// that takes no time that a reader would notice.
func (f *feed) show(ctx context.Context, names []string) {
	f.mu.Lock()
	now := time.Now()
	for _, n := range names {
		f.wanted[n] = now
	}
	var all []string
	for n, at := range f.wanted {
		if now.Sub(at) > onScreen {
			delete(f.wanted, n)
			continue
		}
		all = append(all, n)
	}
	f.mu.Unlock()
	f.live.Want(all)
	within := looks
	if len(names) > few {
		within = glances
	}
	f.live.Look(ctx, names, within)
}

func (f *feed) wait() { f.wg.Wait() }
