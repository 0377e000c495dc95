package registerstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// doubts is how many calls in turn may fail before the caller is told so: who repeats the whole
// verb does more than who repeats one of its calls.
const doubts = 4

// look is Get, tried again a few times.
func (s *Store) look(ctx context.Context, key string) (value []byte, version string, err error) {
	for try := range doubts {
		value, version, err = s.get(ctx, key)
		if err == nil || errors.Is(err, driver.ErrRefused) || storeutil.Sleep(ctx, backoff(4+try)) != nil {
			break
		}
	}
	return value, version, err
}

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
			if unknown++; unknown == doubts || ctx.Err() != nil {
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

// backoff is how long to wait after try tries that others were faster at: a random time, so that
// many who want to write at once thin out.
func backoff(try int) time.Duration {
	return rand.N(min(time.Millisecond<<min(try, 10), 200*time.Millisecond)) + 50*time.Microsecond
}

// wrap says what was tried. It keeps the errors of a context and of the port, and nothing else of
// them becomes final: only ErrRefused is a register's to say.
func (s *Store) wrap(what string, err error) error {
	for _, not := range []error{driver.ErrGone, driver.ErrTaken, driver.ErrNoSuccessor} {
		if errors.Is(err, not) {
			return fmt.Errorf("%s: %s: %v", s.opts.Name, what, err)
		}
	}
	return fmt.Errorf("%s: %s: %w", s.opts.Name, what, err)
}

// purge removes the claims of a lease that has ended from the line of name.
func (s *Store) purge(ctx context.Context, name string, ended ...string) (*document, error) {
	return s.step(ctx, name, func(d *document) (bool, error) {
		d.purge(func(lease string) bool { return slices.Contains(ended, lease) })
		return false, nil
	})
}

// changed blocks until key has another version than version, and returns what it has then. It
// relies on no one signal: beside a watch there is a slow poll, and where the watch fails a faster
// one.
func (s *Store) changed(ctx context.Context, key, version string) (value []byte, next string, err error) {
	for ctx.Err() == nil {
		wait := s.opts.Poll
		if s.watcher != nil {
			wctx, cancel := context.WithTimeout(ctx, jitter(s.opts.Poll))
			value, next, err = s.watcher.Watch(wctx, key, version)
			wait = s.again()
			if wctx.Err() != nil {
				wait = 0 // it was long enough
			}
			cancel()
			if err == nil && next != version {
				return value, next, nil
			}
		}
		if wait > 0 && storeutil.Sleep(ctx, jitter(wait)) != nil {
			break
		}
		if value, next, err = s.get(ctx, key); err == nil && next != version {
			return value, next, nil
		}
	}
	return nil, "", ctx.Err()
}

// again is how long to wait after a call that failed.
func (s *Store) again() time.Duration { return min(s.opts.Poll, 250*time.Millisecond) }

// get is Get under a time limit of its own: a call that hangs must not make those deaf who ask in
// the background.
func (s *Store) get(ctx context.Context, key string) ([]byte, string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Patience)
	defer cancel()
	return s.reg.Get(ctx, key)
}

// put is Put under such a limit: one that hangs is repeated.
func (s *Store) put(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Patience)
	defer cancel()
	return s.reg.Put(ctx, key, value, version)
}

// jitter returns a time about d, so that not all ask at once.
func jitter(d time.Duration) time.Duration { return d*4/5 + rand.N(d*2/5+1) }
