package pgstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
)

// watchPoll is how often lines that somebody follows are asked for, all of them in one call.
// Hand-overs are pushed.
const watchPoll = 200 * time.Millisecond

// lineWatch follows lines for all callers of Next.
type lineWatch struct {
	*db
	mu    sync.Mutex
	lines map[string]*watchedLine // by hashOf their names
	runs  bool
	now   chan struct{} // has the lines asked for now
}

// watchedLine is a line that callers of Next follow.
type watchedLine struct {
	name    string
	callers int
	at      uint64        // the revision that its callers know
	moved   chan struct{} // closed when the line is no longer at it
}

func newLineWatch(d *db) *lineWatch {
	return &lineWatch{db: d, lines: map[string]*watchedLine{}, now: make(chan struct{}, 1)}
}

// hashOf is how a hand-over names its line.
func hashOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:12])
}

// Line implements [driver.Store].
func (s *Store) Line(ctx context.Context, name string) (driver.Line, error) {
	if err := fit(name); err != nil {
		return driver.Line{}, err
	}
	lines, err := s.lines(ctx, "line", "SELECT * FROM {S}.line($1::text)", name)
	if err != nil || len(lines) == 0 {
		return driver.Line{Name: name}, err
	}
	return lines[0], nil
}

// Lines implements [driver.Store].
func (s *Store) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	if err := fit(prefix); err != nil {
		return nil, err
	}
	if err := s.do(ctx, "lines", "SELECT {S}.tidy_lines($1::text)", []any{prefix}, nil); err != nil {
		return nil, err
	}
	return s.lines(ctx, "lines", "SELECT * FROM {S}.all_lines($1::text)", prefix)
}

// lines reads lines, one row for each standing.
func (s *Store) lines(ctx context.Context, verb, sql, arg string) (all []driver.Line, err error) {
	err = s.do(ctx, verb, sql, []any{arg}, func(r pgx.Rows) error {
		var name string
		var revision int64
		var token *int64
		var slots *int
		var held *bool
		var value []byte
		var lease, owner *string
		if err := r.Scan(&name, &revision, &token, &slots, &held, &value, &lease, &owner); err != nil {
			return err
		}
		if n := len(all); n == 0 || all[n-1].Name != name {
			all = append(all, driver.Line{Name: name, Revision: uint64(revision)})
		}
		if token == nil {
			return nil
		}
		e := driver.Entry{Owner: *owner, Lease: *lease, Slots: *slots, Held: *held, Token: uint64(*token), Value: value}
		if ln := &all[len(all)-1]; ln.Holder == nil {
			ln.Holder = &e
		} else {
			ln.Waiters = append(ln.Waiters, e)
		}
		return nil
	})
	return all, err
}

// Next implements [driver.Store].
func (s *Store) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	for {
		ln, err := s.Line(ctx, name)
		if err != nil || ln.Revision > after {
			return ln, err
		}
		s.listener.listenToLines()
		if err := s.watch.wait(ctx, name, ln.Revision); err != nil {
			return driver.Line{}, err
		}
	}
}

// wait returns when the line may no longer be at that revision.
func (w *lineWatch) wait(ctx context.Context, name string, at uint64) error {
	hash := hashOf(name)
	w.mu.Lock()
	f := w.lines[hash]
	if f == nil {
		f = &watchedLine{name: name, at: at, moved: make(chan struct{})}
		w.lines[hash] = f
	}
	if f.at != at { // its callers know different revisions: for the older one the line has moved already
		w.movedLocked(hash)
		f.at = max(f.at, at)
	}
	f.callers++
	moved := f.moved
	if !w.runs {
		w.runs = true
		w.work.Go(w.run)
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if f.callers--; f.callers == 0 {
			delete(w.lines, hash)
		}
	}()
	select {
	case <-moved:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-w.ctx.Done():
		return errClosed
	}
}

// movedLocked wakes those who follow the line with that hash. The caller holds mu.
func (w *lineWatch) movedLocked(hash string) {
	if f := w.lines[hash]; f != nil {
		close(f.moved)
		f.moved = make(chan struct{})
	}
}

// handedOver wakes those who follow the line with that hash.
func (w *lineWatch) handedOver(hash string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.movedLocked(hash)
}

// run asks for all followed lines now and then, while there are any.
func (w *lineWatch) run() {
	for {
		select {
		case <-time.After(watchPoll + jitter(watchPoll/4)):
		case <-w.now:
		case <-w.ctx.Done():
			return
		}
		w.mu.Lock()
		if len(w.lines) == 0 {
			w.runs = false
			w.mu.Unlock()
			return
		}
		var all []watchedLine
		for _, f := range w.lines {
			all = append(all, *f)
		}
		w.mu.Unlock()
		for some := range slices.Chunk(all, 1000) {
			w.ask(some)
		}
	}
}

// ask asks for some lines, and wakes those who follow one that has moved.
func (w *lineWatch) ask(lines []watchedLine) {
	ctx, cancel := context.WithTimeout(w.ctx, callLimit)
	defer cancel()
	names, at := make([]string, len(lines)), make([]int64, len(lines))
	for i, f := range lines {
		names[i], at[i] = f.name, int64(f.at)
	}
	// What an error leaves out is asked for at the next turn.
	moved, _ := w.texts(ctx, "next", "SELECT * FROM {S}.moved($1::text[], $2::bigint[])", names, at)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range moved {
		w.movedLocked(hashOf(name))
	}
}
