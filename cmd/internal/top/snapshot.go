package top

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// Entry is one election or lock of a snapshot.
type Entry struct {
	State   primacy.State
	Health  string
	Trouble bool
	Since   time.Time         // zero: not known
	Changes int               // of the leader in the last 15 minutes
	Whole   bool              // Changes counts all of them
	Lease   *driver.Remaining // nil: not known
	Last    Term              // the last one that ended; its Why is empty where none is known
}

// How much a snapshot looks up beside the list.
const (
	snapHistories = 300 // elections whose history is read
	snapFor       = 3 * time.Second
	snapAtOnce    = 8
)

// Snapshot reads all once, the worst first.
func Snapshot(ctx context.Context, src Source) ([]Entry, time.Time, error) {
	w := newWatcher(src, time.Second)
	w.refresh(ctx)
	if w.err != nil {
		return nil, time.Time{}, w.err
	}
	w.readAll(ctx)
	v := w.view()
	arrange(v.rows)
	var all []Entry
	for _, r := range v.rows {
		e := Entry{State: r.state, Health: r.health.word(r.shared()), Trouble: r.health < fine, Since: r.since,
			Changes: r.changes, Whole: r.whole, Last: r.last}
		if r.leased {
			e.Lease = &r.lease
		}
		all = append(all, e)
	}
	return all, v.asOf, nil
}

// readAll reads the histories of those that have one, as far as that can be done soon.
func (w *watcher) readAll(ctx context.Context) {
	if w.src.History == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, snapFor)
	defer cancel()
	names := make(chan string)
	var wg sync.WaitGroup
	for range snapAtOnce {
		wg.Go(func() {
			for n := range names {
				w.readHistory(ctx, n)
			}
		})
	}
	for _, n := range w.withRecords(snapHistories) {
		if ctx.Err() == nil {
			names <- n
		}
	}
	close(names)
	wg.Wait()
}

// withRecords returns at most so many names with recorded terms. The maps are not read any more
// when it returns: those who read histories write to them.
func (w *watcher) withRecords(most int) (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range w.tracks {
		if w.recorded[n] && len(names) < most {
			names = append(names, n)
		}
	}
	return names
}

// Row returns what the page shows of an entry in text: leader, since, waiting, changes and lease.
func (e Entry) Row(asOf time.Time) (leader, since, waiting, changed, lease string) {
	r := &row{state: e.State, since: e.Since, changes: e.Changes, whole: e.Whole}
	leader, since, lease = r.leaders(), "-", "-"
	if !e.Since.IsZero() {
		since = ago(asOf.Sub(e.Since))
	}
	if e.Lease != nil {
		lease = fmt.Sprintf("%s of %s", e.Lease.Left.Truncate(time.Second), e.Lease.TTL)
	}
	return leader, since, fmt.Sprint(r.waiting()), changes(r), lease
}
