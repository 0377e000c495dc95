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

// observed is how often lines that somebody follows are asked for, all of them in one call. Hand-overs are pushed.
const observed = 200 * time.Millisecond

// watch follows lines for all callers of Next.
type watch struct {
	s     *Store
	mu    sync.Mutex
	names map[string]*followed
	runs  bool
	poke  chan struct{}
}

// followed is a name that somebody follows.
type followed struct {
	callers int
	hash    string
	at      uint64        // the revision that its callers know
	moved   chan struct{} // closed when the line is no longer at it
}

func newWatch(s *Store) *watch {
	return &watch{s: s, names: map[string]*followed{}, poke: make(chan struct{}, 1)}
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

// Lines implements [driver.Lister].
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
		st := driver.Entry{Owner: *owner, Lease: *lease, Slots: *slots, Held: *held, Token: uint64(*token), Value: value}
		if ln := &all[len(all)-1]; ln.Holder == nil {
			ln.Holder = &st
		} else {
			ln.Waiters = append(ln.Waiters, st)
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
		if err := s.watch.wait(ctx, name, ln.Revision); err != nil {
			return driver.Line{}, err
		}
	}
}

// wait returns when the line may no longer be at that revision.
func (w *watch) wait(ctx context.Context, name string, at uint64) error {
	w.s.ear.observe()
	w.mu.Lock()
	f := w.names[name]
	if f == nil {
		sum := sha256.Sum256([]byte(name))
		f = &followed{hash: hex.EncodeToString(sum[:12]), at: at, moved: make(chan struct{})}
		w.names[name] = f
	}
	if f.at != at { // callers who know different revisions: the older one has something to read, and reading does the newer one no harm
		w.signal(f)
		f.at = max(f.at, at)
	}
	f.callers++
	moved := f.moved
	if !w.runs {
		w.runs = true
		w.s.work.Go(w.run)
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if f.callers--; f.callers == 0 && w.names[name] == f {
			delete(w.names, name)
		}
	}()
	select {
	case <-moved:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-w.s.ctx.Done():
		return errClosed
	}
}

// signal wakes those who wait. The caller has the mutex.
func (w *watch) signal(f *followed) {
	close(f.moved)
	f.moved = make(chan struct{})
}

// hint wakes who follows the line that was handed over.
func (w *watch) hint(hash string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.names {
		if f.hash == hash {
			w.signal(f)
		}
	}
}

// all has every line asked for now.
func (w *watch) all() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// run asks for all followed lines now and then, while there are any.
func (w *watch) run() {
	for {
		select {
		case <-time.After(observed + jitter(observed/4)):
		case <-w.poke:
		case <-w.s.ctx.Done():
			return
		}
		w.mu.Lock()
		if len(w.names) == 0 {
			w.runs = false
			w.mu.Unlock()
			return
		}
		var names []string
		var at []int64
		for name, f := range w.names {
			names, at = append(names, name), append(at, int64(f.at))
		}
		w.mu.Unlock()
		for some := range slices.Chunk(make([]struct{}, len(names)), 1000) {
			w.ask(names[:len(some)], at[:len(some)])
			names, at = names[len(some):], at[len(some):]
		}
	}
}

// ask asks for some lines, and wakes who follows one that has moved.
func (w *watch) ask(names []string, at []int64) {
	ctx, cancel := context.WithTimeout(w.s.ctx, callLimit)
	defer cancel()
	var moved []string
	err := w.s.do(ctx, "next", "SELECT * FROM {S}.moved($1::text[], $2::bigint[])", []any{names, at}, func(r pgx.Rows) error {
		moved = append(moved, "")
		return r.Scan(&moved[len(moved)-1])
	})
	if err != nil {
		return // again at the next turn
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range moved {
		if f := w.names[name]; f != nil {
			w.signal(f)
		}
	}
}
