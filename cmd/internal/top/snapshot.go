package top

import (
	"context"
	"fmt"
	"io"
	"strings"
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
	arrange(v.rows, byTrouble)
	var all []Entry
	for _, r := range v.rows {
		e := Entry{State: r.state, Health: r.health.word(r.shared()), Trouble: r.health < fine, Since: r.since, Changes: r.changes, Whole: r.whole}
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
	left := snapHistories
	for name := range w.tracks {
		if w.recorded[name] && left > 0 && ctx.Err() == nil {
			left--
			names <- name
		}
	}
	close(names)
	wg.Wait()
}

// Print writes a snapshot as a table.
func Print(out io.Writer, all []Entry, asOf time.Time, ascii bool) error {
	rows := [][]string{{"", "HEALTH", "NAME", "LEADER", "SINCE", "TOKEN", "WAIT", "CHG", "LEASE"}}
	for _, e := range all {
		r := &row{state: e.State, since: e.Since, changes: e.Changes, whole: e.Whole}
		since, token, lease := "-", "-", "-"
		if !e.Since.IsZero() {
			since = ago(asOf.Sub(e.Since))
		}
		if e.State.Leader != nil {
			token = e.State.Leader.Token.String()
		}
		if e.Lease != nil {
			lease = fmt.Sprintf("%s of %s", e.Lease.Left.Truncate(time.Second), e.Lease.TTL)
		}
		mark := ""
		if e.Trouble {
			mark = "!"
		}
		leader := r.leader()
		if n := r.holders(); n > 1 {
			leader += fmt.Sprintf(" +%d", n-1)
		}
		rows = append(rows, []string{mark, e.Health, e.State.Name, leader, since, token, fmt.Sprint(r.waiting()), changes(r), lease})
	}
	return printTable(out, rows, ascii)
}

// printTable writes rows in columns as wide as what they show.
func printTable(out io.Writer, rows [][]string, ascii bool) error {
	const most = 60
	width := make([]int, len(rows[0]))
	cells := make([][][]glyph, len(rows))
	for i, r := range rows {
		for j, text := range r {
			gs := cut(glyphs(text, ascii), most, ascii)
			cells[i] = append(cells[i], gs)
			width[j] = max(width[j], widthOf(gs))
		}
	}
	var b strings.Builder
	for _, r := range cells {
		line := ""
		for j, gs := range r {
			for _, g := range gs {
				line += g.text
			}
			line += strings.Repeat(" ", width[j]-widthOf(gs)+2)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
