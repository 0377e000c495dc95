package registerstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// access is the register with the keys of one store, a time limit for each call, and errors that
// say what was tried.
type access struct {
	reg     Register
	watcher Watcher // nil: poll
	opts    Options
}

// look is Get, tried again a few times.
func (a *access) look(ctx context.Context, key string) (value []byte, version string, err error) {
	for try := range maxFailures {
		value, version, err = a.get(ctx, key)
		if err == nil || errors.Is(err, driver.ErrRefused) || storeutil.Sleep(ctx, backoff(4+try)) != nil {
			break
		}
	}
	return value, version, err
}

// changed blocks until key has another version than version, and returns what it has then. It
// relies on no one signal: beside a watch there is a slow poll, and where the watch fails a faster
// one.
func (a *access) changed(ctx context.Context, key, version string) (value []byte, next string, err error) {
	for ctx.Err() == nil {
		wait := a.opts.Poll
		if a.watcher != nil {
			wctx, cancel := context.WithTimeout(ctx, jitter(a.opts.Poll))
			value, next, err = a.watcher.Watch(wctx, key, version)
			wait = a.again()
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
		if value, next, err = a.get(ctx, key); err == nil && next != version {
			return value, next, nil
		}
	}
	return nil, "", ctx.Err()
}

// again is how long to wait after a call that failed.
func (a *access) again() time.Duration { return min(a.opts.Poll, 250*time.Millisecond) }

// get is Get under a time limit of its own: a call that hangs must not make those deaf who ask in
// the background.
func (a *access) get(ctx context.Context, key string) ([]byte, string, error) {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Patience)
	defer cancel()
	return a.reg.Get(ctx, key)
}

// put is Put under such a limit: one that hangs is repeated.
func (a *access) put(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Patience)
	defer cancel()
	return a.reg.Put(ctx, key, value, version)
}

// wrap says what was tried. It keeps the errors of a context and of the port, and nothing else of
// them becomes final: only ErrRefused is a register's to say.
func (a *access) wrap(what string, err error) error {
	for _, not := range []error{driver.ErrGone, driver.ErrTaken, driver.ErrNoSuccessor} {
		if errors.Is(err, not) {
			return fmt.Errorf("%s: %s: %v", a.opts.Name, what, err)
		}
	}
	return fmt.Errorf("%s: %s: %w", a.opts.Name, what, err)
}

// jitter returns a time about d, so that not all ask at once.
func jitter(d time.Duration) time.Duration { return d*4/5 + rand.N(d*2/5+1) }

// backoff is how long to wait after try tries that others were faster at: a random time, so that
// many who want to write at once thin out.
func backoff(try int) time.Duration {
	return rand.N(min(time.Millisecond<<min(try, 10), 200*time.Millisecond)) + 50*time.Microsecond
}

// maxFailures is how many calls in turn may fail before the caller is told so: who repeats the whole
// verb does more than who repeats one of its calls.
const maxFailures = 4

func (a *access) lineKey(name string) string { return a.opts.Prefix + lines + keyPart(name) }

func (a *access) leaseKey(id string) string { return a.opts.Prefix + leases + id }

func (a *access) journalKey(name string) string { return a.opts.Prefix + journals + keyPart(name) }
