package top

import (
	"context"
	"fmt"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
)

// Entry is one election or lock of a snapshot.
type Entry struct {
	State   primacy.State
	Health  string // in a word or two
	Mark    string // goes with it: for those who see no colours it has a shape
	Level   Level
	Trouble bool
	Since   time.Time         // zero: not known
	Before  time.Time         // where Since is not known: it led at that instant already
	Elected bool              // terms of it were recorded: an election, no lock
	Changes int               // of the leader in the last 15 minutes
	Whole   bool              // Changes counts all of them
	Lease   *driver.Remaining // nil: not known
	Last    Term              // the last one that ended; its Why is empty where none is known
	Terms   []Term            // that were recorded, the newest first, as far as they were read
	Read    bool              // Terms were read since the leader last changed
}

// How much a snapshot looks up beside the list.
const (
	snapHistories = 300 // elections whose history is read
	snapFor       = 3 * time.Second
)

// Snapshot reads all once, the worst first. Unlooked is how many names there are beside that nobody
// stands for, and whose records were not looked at: they may be deserted.
func Snapshot(ctx context.Context, src Source) (all []Entry, asOf time.Time, unlooked int, err error) {
	w := newWatcher(src, time.Second)
	if err := w.refresh(ctx); err != nil {
		return nil, time.Time{}, 0, err
	}
	w.readAll(ctx)
	v := w.view()
	return v.entries(), v.asOf, v.unlooked, nil
}

// entries returns all, the worst first.
func (v *view) entries() (all []Entry) {
	arrange(v.rows)
	all = make([]Entry, 0, len(v.rows))
	for _, r := range v.rows {
		e := Entry{State: r.state, Health: r.health.word(r.shared()), Mark: r.health.dot(false),
			Level:   r.health.level(),
			Trouble: r.health < fine, Since: r.since, Changes: r.changes, Whole: r.whole, Last: r.last,
			Before: r.before, Elected: r.elected, Terms: r.terms, Read: r.read}
		if r.leased {
			e.Lease = &r.lease
		}
		all = append(all, e)
	}
	return all
}

// Level is how bad it is, for a colour.
type Level string

// The levels.
const (
	Bad  Level = "bad"
	Warn Level = "warn"
	Good Level = "good"
	Idle Level = "idle"
)

func (h health) level() Level {
	switch h {
	case leaderless, deserted:
		return Bad
	case flapping, expiring:
		return Warn
	case free:
		return Idle
	}
	return Good
}

// readAll reads the histories of those that have one, as far as that can be done soon.
func (w *watcher) readAll(ctx context.Context) {
	if w.src.History == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, snapFor)
	defer cancel()
	w.readThese(ctx, ctx, w.withRecords(snapHistories))
}

// withRecords returns at most so many names with recorded terms. Those that nobody stands for may
// be in trouble, and are not shown without: half of the places are theirs. The maps are not read
// any more when it returns: those who read histories write to them.
func (w *watcher) withRecords(most int) (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var live, unseen []string
	for n, t := range w.tracks {
		switch {
		case !w.recorded[n]:
		case t.unseen:
			unseen = append(unseen, n)
		default:
			live = append(live, n)
		}
	}
	first := min(len(unseen), max(most/2, most-len(live)))
	return append(unseen[:first], live[:min(len(live), most-first)]...)
}

// Row returns what the page shows of an entry in text: leader, since, waiting, changes and lease.
func (e Entry) Row(asOf time.Time) (leader, since, waiting, changed, lease string) {
	r := e.row()
	leader, since, lease = r.leaders(), "-", "-"
	if !e.Since.IsZero() {
		since = ago(asOf.Sub(e.Since))
	}
	if e.Lease != nil {
		lease = fmt.Sprintf("%s of %s", e.Lease.Left.Truncate(time.Second), e.Lease.TTL)
	}
	return leader, since, fmt.Sprint(r.waiting()), changes(r), lease
}

func (e Entry) row() *row {
	return &row{name: e.State.Name, state: e.State, since: e.Since, changes: e.Changes, whole: e.Whole}
}

// Leader names the leader, or the first holder: by its ID, or by what else is known of a claim that
// another program entered. A dash where there is none.
func (e Entry) Leader() string { return e.row().leader() }

// Holders is how many hold it: one, but of a shared lock.
func (e Entry) Holders() int { return e.row().holders() }

// Waiting is how many wait.
func (e Entry) Waiting() int { return e.row().waiting() }

// Shown is an entry in JSON, as `primacy top -o json` and the page write it.
type Shown struct {
	shown.State
	Health  string     `json:"health"`
	Trouble bool       `json:"trouble"`
	Since   *time.Time `json:"since"`   // null: not known
	Changes int        `json:"changes"` // of the leader in the last 15 minutes
	All     bool       `json:"changes_complete"`
	LeftMS  *int64     `json:"lease_left_ms"` // null: not known
	TTLMS   *int64     `json:"lease_ttl_ms"`

	Paused *shown.Pause `json:"paused,omitempty"` // by an operator; whoever shows it fills it in
}

// Shown returns e as it is shown.
func (e Entry) Shown() Shown {
	j := Shown{State: shown.StateOf(e.State), Health: e.Health, Trouble: e.Trouble, Changes: e.Changes, All: e.Whole}
	if !e.Since.IsZero() {
		since := e.Since.UTC()
		j.Since = &since
	}
	if e.Lease != nil {
		left, ttl := e.Lease.Left.Milliseconds(), e.Lease.TTL.Milliseconds()
		j.LeftMS, j.TTLMS = &left, &ttl
	}
	return j
}
