package registerstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// read returns the document of name as it is now.
func (s *Store) read(ctx context.Context, name string) (*document, string, error) {
	value, version, err := s.look(ctx, s.lineKey(name))
	if err != nil {
		return nil, "", s.wrap("read the line of "+strconv.Quote(name), err)
	}
	d, err := parse(name, value, version)
	if err == nil && version != "" {
		s.offer(name, d, version)
	}
	return d, version, err
}

// step changes the document of name as one step: f gets a clone and changes it, perhaps more than
// once, each time another clone. It is written if f made it another one, or asked for that with
// force, also when f answers with an error; with an unknown outcome of the write f's answer is not
// known either. It returns the document as it is afterwards.
//
// A write that may have been carried out is looked for by its mark: a document that has it came of
// it.
func (s *Store) step(ctx context.Context, name string, f func(d *document) (force bool, err error)) (*document, error) {
	return s.stepAs(ctx, newMark(), name, f)
}

// newMark returns a mark that was never used.
func newMark() string { return newID()[:12] }

// stepAs is step under a mark of the caller's.
func (s *Store) stepAs(ctx context.Context, mark, name string, f func(d *document) (force bool, err error)) (*document, error) {
	unknown, open := 0, ""  // how many writes may be under way yet, and the version that the last of them compares
	var last error          // f's answer for the document that was written last
	var attempted *document // and that document
	for try := 0; ; try++ {
		d, version, err := s.read(ctx, name)
		if err != nil {
			return nil, unsettled(err, attempted != nil)
		}
		if attempted != nil && slices.Contains(d.Marks, mark) {
			return attempted, last
		}
		to := d.clone()
		force, err := f(to)
		// A write of this very step may be under way, and come after f's answer that nothing is to
		// be done: then it must find another version.
		if to.Rev == d.Rev && to.Wishes == d.Wishes && !force {
			if unknown == 0 || open != version {
				return d, err
			}
			mark = newMark() // should that one come first, this answer is not its
		}
		to.next(d, mark)
		attempted, last = to, err
		next, ok, err := s.put(ctx, s.lineKey(name), to.stored(), version)
		switch {
		case err == nil && ok:
			s.offer(name, to, next)
			return to, last
		case errors.Is(err, driver.ErrRefused) && unknown == 0: // or an earlier one may happen yet
			return nil, s.wrap("write the line of "+strconv.Quote(name), err)
		case err != nil:
			if unknown++; unknown == maxFailures || ctx.Err() != nil {
				return nil, unsettled(s.wrap("write the line of "+strconv.Quote(name), err), true)
			}
			open = version
		}
		if err := storeutil.Sleep(ctx, backoff(try)); err != nil {
			return nil, s.wrap("write the line of "+strconv.Quote(name), err)
		}
	}
}

// unsettled is err, which is not final if a write may have been carried out before it: who is told
// that nothing happened leaves his claim behind.
func unsettled(err error, written bool) error {
	if written && driver.IsFinal(err) {
		return fmt.Errorf("it may have happened: %v", err)
	}
	return err
}

// purge removes the claims of a lease that has ended from the line of name.
func (s *Store) purge(ctx context.Context, name string, ended ...string) (*document, error) {
	return s.step(ctx, name, func(d *document) (bool, error) {
		d.purge(func(lease string) bool { return slices.Contains(ended, lease) })
		return false, nil
	})
}
