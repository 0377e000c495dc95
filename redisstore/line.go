package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Line implements [driver.Store]. It removes claims whose leases have ended.
func (s *Store) Line(ctx context.Context, name string) (driver.Line, error) {
	ln, _, err := s.look(ctx, name)
	return ln, err
}

// look returns a line, and in how long its holder's lease may end.
func (s *Store) look(ctx context.Context, name string) (driver.Line, time.Duration, error) {
	got, err := s.run(ctx, s.calls, linesScript, false, name)
	if err != nil {
		return driver.Line{}, 0, err
	}
	if got.str(0) != "OK" {
		return driver.Line{}, 0, s.unexpected("line", got)
	}
	return shown(name, got.list(2)), got.list(2).ms(1), nil
}

// shown makes a line of the script's answer.
func shown(name string, row reply) driver.Line {
	ln := driver.Line{Name: name, Revision: uint64(row.num(0))}
	for i := 2; i+5 < len(row); i += 6 {
		st := driver.Entry{
			Owner: row.str(i), Lease: row.str(i + 1), Slots: int(row.num(i + 2)), Held: row.num(i+3) == 1,
			Token: uint64(row.num(i + 4)), Value: []byte(row.str(i + 5)),
		}
		if i == 2 && st.Held {
			ln.Holder = &st
		} else {
			ln.Waiters = append(ln.Waiters, st)
		}
	}
	return ln
}

// newer says whether a line differs from that with the revision after. Revisions of empty lines are
// even and kept nowhere, so two of them are the same line.
func newer(ln driver.Line, after uint64) bool {
	empty := ln.Holder == nil && len(ln.Waiters) == 0
	return ln.Revision > after && !(empty && after != 0 && after%2 == 0)
}

// Next implements [driver.Store]: it looks after a push, at the holder's expiry, and after
// pollWaiting.
func (s *Store) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	var o *watchedLine
	for {
		var changed <-chan struct{}
		if o != nil {
			changed = s.listener.next(o) // before the look: what comes between the two is not missed
		}
		ln, left, err := s.look(ctx, name)
		if err != nil || newer(ln, after) {
			return ln, err
		}
		if o == nil {
			var done func()
			o, done = s.listener.observe(name)
			defer done()
			continue
		}
		again := pollWaiting
		if ln.Holder != nil || len(ln.Waiters) > 0 {
			again = min(pollWaiting, max(left, 0)+2*time.Millisecond)
		}
		timer := time.NewTimer(again)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			err = ctx.Err()
		case <-s.ctx.Done():
			err = errClosed
		}
		timer.Stop()
		if err != nil {
			return driver.Line{}, err
		}
	}
}

// index returns the members of an index that begin with prefix, in order.
func (s *Store) index(ctx context.Context, which, prefix string) (names []string, err error) {
	last := ""
	for {
		got, err := s.run(ctx, s.calls, namesScript, false, which, prefix, last)
		if err != nil {
			return nil, err
		}
		if len(got) <= 2 {
			slices.Sort(names)
			return slices.Compact(names), nil
		}
		for i := 2; i+1 < len(got); i += 2 {
			last = got.str(i)
			if got.num(i+1) == 1 && strings.HasPrefix(last, prefix) {
				names = append(names, last)
			}
		}
	}
}

// Lines implements [driver.Lister].
func (s *Store) Lines(ctx context.Context, prefix string) (all []driver.Line, err error) {
	names, err := s.index(ctx, "names", prefix)
	if err != nil {
		return nil, err
	}
	for part := range slices.Chunk(names, 50) {
		args := make([]any, len(part))
		for i, name := range part {
			args[i] = name
		}
		got, err := s.run(ctx, s.calls, linesScript, false, args...)
		if err != nil {
			return nil, err
		}
		if got.str(0) != "OK" {
			return nil, s.unexpected("lines", got)
		}
		for i, name := range part {
			if ln := shown(name, got.list(2+i)); ln.Holder != nil || len(ln.Waiters) > 0 {
				all = append(all, ln)
			}
		}
	}
	return all, nil
}

// Ask implements [driver.Asker].
func (s *Store) Ask(ctx context.Context, name string, r driver.Request) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("redis: ask: %w", err)
	}
	got, err := s.run(ctx, s.calls, askScript, false, name, strconv.FormatUint(r.Token, 10), text)
	if err != nil {
		return err
	}
	switch got.str(0) {
	case "OK":
		return nil
	case "GONE":
		return driver.ErrGone
	case "REFUSED":
		return fmt.Errorf("%s is shared: nobody holds it alone: %w", name, driver.ErrRefused)
	}
	return s.unexpected("ask", got)
}
