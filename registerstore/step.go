package registerstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// read returns the document of name as it is now.
func (s *Store) read(ctx context.Context, name string) (*document, string, error) {
	call := s.calls.Add(1)
	value, version, err := s.look(ctx, s.lineKey(name))
	if err != nil {
		return nil, "", s.wrapLine("read", name, err)
	}
	d, err := parse(name, value, version)
	if err != nil {
		return nil, "", err
	}
	if d.call = call; version != "" {
		s.offer(name, d, version)
	}
	return d, version, nil
}

// step changes the document of name as one step, and returns the document as it is afterwards. F
// changes a clone, perhaps more than once, each time another clone. The clone is written if it
// differs, also beside an error of f. If the outcome of the write is unknown, then so is f's answer.
func (s *Store) step(ctx context.Context, name string, f func(d *document) error) (*document, error) {
	return s.stepAs(ctx, newMark(), name, func(d *document) (bool, error) { return false, f(d) })
}

// newMark returns a mark that was never used.
func newMark() string { return newID()[:12] }

// stepAs is step under a mark of the caller's: a document that has it came of this step. With force
// the clone is written though it does not differ.
func (s *Store) stepAs(
	ctx context.Context, mark, name string, f func(d *document) (force bool, err error),
) (*document, error) {
	unknown := 0            // writes that may be carried out yet
	compares := ""          // the version that the last of them compares
	var attempted *document // was written last
	var answer error        // of f, for that document
	for try := 0; ; try++ {
		d, version, err := s.read(ctx, name)
		if err != nil {
			return nil, unsettled(err, attempted != nil)
		}
		if attempted != nil && slices.Contains(d.Marks, mark) {
			return attempted, answer
		}
		to := d.clone()
		force, err := f(to)
		if to.Rev == d.Rev && to.Requests == d.Requests && !force {
			if unknown == 0 || compares != version {
				return d, err
			}
			// A write of this step could be carried out after this answer. It must find another
			// version, and should it come first, this answer is not its.
			mark = newMark()
		}
		to.next(d, mark)
		attempted, answer = to, err
		call := s.calls.Add(1)
		next, ok, err := s.put(ctx, s.lineKey(name), stored(to), version)
		switch {
		case err == nil && ok:
			to.call = call
			s.offer(name, to, next)
			return to, answer
		case errors.Is(err, driver.ErrRefused) && unknown == 0: // else an earlier one may happen yet
			return nil, s.wrapLine("write", name, err)
		case err != nil:
			if unknown++; unknown == maxFailures || ctx.Err() != nil {
				return nil, unsettled(s.wrapLine("write", name, err), true)
			}
			compares = version
		}
		if err := storeutil.Sleep(ctx, backoff(try)); err != nil {
			return nil, s.wrapLine("write", name, err)
		}
	}
}

// unsettled is err, which is not final if a write may have been carried out before it: a caller who
// is told that nothing happened leaves a claim behind.
func unsettled(err error, written bool) error {
	if written && driver.IsFinal(err) {
		return fmt.Errorf("it may have happened: %v", err)
	}
	return err
}

// purge removes the claims of leases that have ended from the line of name.
func (s *Store) purge(ctx context.Context, name string, ended ...string) (*document, error) {
	return s.step(ctx, name, func(d *document) error {
		d.purge(func(lease string) bool { return slices.Contains(ended, lease) })
		return nil
	})
}
