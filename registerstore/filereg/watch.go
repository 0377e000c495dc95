package filereg

import (
	"context"
	"errors"
	"time"
)

// gaze is how often Watch reads where the kernel does not tell of changes.
const gaze = 50 * time.Millisecond

var errClosed = errors.New("filereg: the register was closed")

// Watch blocks until key has another version, and returns then what Get would. On Linux the kernel says when to look; elsewhere, and where it has no more inotify
// instances, Watch reads every 50 ms. An error is the context's, one of Get, or says that the register was closed.
func (r *Register) Watch(ctx context.Context, key, version string) (value []byte, next string, err error) {
	for {
		value, next, err = r.look(ctx, key, version)
		if err != nil || next != version { // the same one: rung for an event of before. To return it would cost the adapter a pause
			return value, next, err
		}
	}
}

// look returns what Get would, at once if that is another version, else at the next sign of a change.
func (r *Register) look(ctx context.Context, key, version string) (value []byte, next string, err error) {
	rung, done, err := r.listen(key) // before the read: between them a change would go unheard
	if err != nil {
		return nil, "", err
	}
	defer done()
	value, next, err = r.Get(ctx, key)
	if err != nil || next != version {
		return value, next, err
	}
	var poll <-chan time.Time
	if rung == nil {
		poll = time.After(gaze)
	}
	select {
	case <-ctx.Done():
		return nil, "", ctx.Err()
	case <-rung:
	case <-poll:
	}
	return nil, version, nil
}

// listen returns a channel that is closed at a change of key, or nil if the kernel tells nothing.
func (r *Register) listen(key string) (rung <-chan struct{}, done func(), err error) {
	name, err := fileName(key)
	if err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, errClosed
	}
	if r.ears == nil && !r.deaf {
		if r.ears, err = newEars(); err != nil {
			r.deaf = true
		}
	}
	if !r.deaf {
		if rung, done, err := r.ears.listen(r.folder(key), name); err == nil {
			return rung, done, nil
		}
	}
	return nil, func() {}, nil
}
