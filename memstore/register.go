package memstore

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Register is a compare-and-swap register in memory: the reference for people who write one, and
// what package registerstore is tested over. All who share the value are clients of one storage. It
// is safe for concurrent use, and its calls wait for nothing but Watch.
type Register struct {
	mu      sync.Mutex
	count   uint64 // the last version given out: one counter for all keys, so that none repeats, also after a Delete
	values  map[string]versioned
	changed map[string]chan struct{} // closed at the next change of a key, for those who watch it
	calls   Calls
}

type versioned struct {
	value   []byte
	version string
}

// Calls counts what a [Register] was asked for.
type Calls struct{ Get, Put, Lost, Delete, List, Watch int }

// NewRegister returns an empty register.
func NewRegister() *Register {
	return &Register{values: map[string]versioned{}, changed: map[string]chan struct{}{}}
}

// Get returns the value of key and its version, which is "" if there is none.
func (r *Register) Get(ctx context.Context, key string) (value []byte, version string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls.Get++
	v := r.values[key]
	return bytes.Clone(v.value), v.version, nil
}

// Put writes value if key has that version; "" is that of a key that is not there.
func (r *Register) Put(ctx context.Context, key string, value []byte, version string) (next string, ok bool, err error) {
	if err := ctx.Err(); err != nil {
		return "", false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls.Put++
	if r.values[key].version != version {
		r.calls.Lost++
		return "", false, nil
	}
	r.count++
	next = strconv.FormatUint(r.count, 10)
	r.values[key] = versioned{bytes.Clone(value), next}
	r.tell(key)
	return next, true, nil
}

// Delete removes key if it has that version.
func (r *Register) Delete(ctx context.Context, key, version string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls.Delete++
	if v, ok := r.values[key]; ok && v.version == version {
		delete(r.values, key)
		r.tell(key)
	}
	return nil
}

// List returns the keys that begin with prefix, in order.
func (r *Register) List(ctx context.Context, prefix string) (keys []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls.List++
	for _, key := range slices.Sorted(maps.Keys(r.values)) {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// Watch blocks until key has another version than version, and returns what Get would.
func (r *Register) Watch(ctx context.Context, key, version string) (value []byte, next string, err error) {
	r.mu.Lock()
	r.calls.Watch++
	r.mu.Unlock()
	for {
		r.mu.Lock()
		v := r.values[key]
		changed := r.changed[key]
		if changed == nil {
			changed = make(chan struct{})
			r.changed[key] = changed
		}
		r.mu.Unlock()
		if v.version != version {
			return bytes.Clone(v.value), v.version, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
	}
}

// Calls returns what was asked for until now. Lost counts among the Puts those that found another
// version.
func (r *Register) Calls() Calls {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

// tell wakes those who watch key.
func (r *Register) tell(key string) {
	if changed := r.changed[key]; changed != nil {
		close(changed)
		delete(r.changed, key)
	}
}
