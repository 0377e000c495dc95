package registerstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
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

// maxFailures is how many calls in turn may fail before the caller is told: who repeats the whole
// verb does more than who repeats one of its calls.
const maxFailures = 4

// get is Get under Options.Patience: a call that hangs is given up.
func (a *access) get(ctx context.Context, key string) ([]byte, string, error) {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Patience)
	defer cancel()
	return a.reg.Get(ctx, key)
}

// put is Put under the same limit.
func (a *access) put(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Patience)
	defer cancel()
	return a.reg.Put(ctx, key, value, version)
}

// look is get, repeated a few times.
func (a *access) look(ctx context.Context, key string) (value []byte, version string, err error) {
	for try := range maxFailures {
		value, version, err = a.get(ctx, key)
		if err == nil || errors.Is(err, driver.ErrRefused) || storeutil.Sleep(ctx, backoff(4+try)) != nil {
			break
		}
	}
	return value, version, err
}

// changed blocks until key has another version than version, and returns what it has then. Beside a
// watch, which goes on, there is a slow poll: a watch may have gone deaf. [driver.ErrRefused] is
// returned at once.
func (a *access) changed(ctx context.Context, key, version string) ([]byte, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	told := make(chan change, 1)
	var watch sync.WaitGroup
	if a.watcher != nil {
		watch.Go(func() { a.watch(ctx, key, version, told) })
	}
	defer watch.Wait()
	defer cancel()
	for {
		timer := time.NewTimer(jitter(a.opts.Poll))
		select {
		case c := <-told:
			timer.Stop()
			return c.value, c.version, c.err
		case <-ctx.Done():
			timer.Stop()
			return nil, "", ctx.Err()
		case <-timer.C:
		}
		if c := a.lookAgain(ctx, key, version); c != nil {
			return c.value, c.version, c.err
		}
	}
}

// change is what a key has after a change, or why it cannot be asked for.
type change struct {
	value   []byte
	version string
	err     error
}

// watch tells of a change that a watch sees. Where the watch fails or returns early the key is
// polled, a few times a second.
func (a *access) watch(ctx context.Context, key, version string, told chan<- change) {
	for ctx.Err() == nil {
		value, next, err := a.watcher.Watch(ctx, key, version)
		if err == nil && next != version {
			told <- change{value, next, nil}
			return
		}
		if storeutil.Sleep(ctx, jitter(a.retryPause())) != nil {
			return
		}
		if c := a.lookAgain(ctx, key, version); c != nil {
			told <- *c
			return
		}
	}
}

// lookAgain reads key, and returns what it has if it has another version, or an ErrRefused; nil
// where there is nothing to tell.
func (a *access) lookAgain(ctx context.Context, key, version string) *change {
	value, next, err := a.get(ctx, key)
	if err == nil && next != version || errors.Is(err, driver.ErrRefused) {
		return &change{value, next, err}
	}
	return nil
}

// retryPause is how long to wait after a call that failed.
func (a *access) retryPause() time.Duration { return min(a.opts.Poll, 250*time.Millisecond) }

// each calls f, for several keys at once, with each value of that kind whose name begins with
// prefix.
func (a *access) each(
	ctx context.Context, kind, prefix string, f func(name string, value []byte, version string) error,
) error {
	keys, err := a.reg.List(ctx, a.opts.Prefix+kind+prefixPart(prefix))
	if err != nil {
		return err
	}
	return together(len(keys), func(i int) error {
		value, version, err := a.look(ctx, keys[i])
		if err != nil || version == "" {
			return err
		}
		var named struct {
			Name text `json:"name"`
		}
		if json.Unmarshal(value, &named) != nil || named.Name == "" {
			return fmt.Errorf("%s cannot be read, something else has written to it: %w", keys[i], driver.ErrRefused)
		}
		name := string(named.Name)
		if !strings.HasPrefix(name, prefix) || a.opts.Prefix+kind+keyPart(name) != keys[i] {
			return nil
		}
		return f(name, value, version)
	})
}

// wrap says what was tried. Of the errors of the port only ErrRefused is a register's to say: the
// others are not passed on as such.
func (a *access) wrap(what string, err error) error {
	if driver.IsFinal(err) && !errors.Is(err, driver.ErrRefused) {
		return fmt.Errorf("%s: %s: %v", a.opts.Name, what, err)
	}
	return fmt.Errorf("%s: %s: %w", a.opts.Name, what, err)
}

// wrapLine is wrap for the line of name.
func (a *access) wrapLine(verb, name string, err error) error {
	return a.wrap(verb+" the queue of "+strconv.Quote(name), err)
}

// jitter returns a time about d, so that not all ask at once.
func jitter(d time.Duration) time.Duration { return d*4/5 + rand.N(d*2/5+1) }

// backoff is how long to wait after so many tries that others were faster at: a random time, so
// that many who write at once thin out.
func backoff(tries int) time.Duration {
	return rand.N(min(time.Millisecond<<min(tries, 10), 200*time.Millisecond)) + 50*time.Microsecond
}

func (a *access) lineKey(name string) string { return a.opts.Prefix + lines + keyPart(name) }

func (a *access) leaseKey(id string) string { return a.opts.Prefix + leases + id }

func (a *access) journalKey(name string) string { return a.opts.Prefix + journals + keyPart(name) }
