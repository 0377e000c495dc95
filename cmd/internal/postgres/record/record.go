// Package record keeps the record of a PostgreSQL cluster in the store of its election: what
// core.Record says, as JSON under one key without a lease. Only the leader of a living term writes
// it.
package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/driver"
)

// Store is what a record asks of the election's store. *etcdstore.Store is one.
type Store interface {
	Kept(ctx context.Context, name string) (value []byte, version uint64, err error)
	Keep(ctx context.Context, name string, value []byte, version uint64, claimKey string, token uint64,
	) (next uint64, ok bool, err error)
	ClaimKey(ctx context.Context, name string, token uint64) (string, error)
}

// ErrConflict is the error of a write that was not carried out and never will be: the record has
// changed since it was read, or the writer's term is over.
var ErrConflict = errors.New("the cluster's record was written by somebody else meanwhile, or the term is over")

// Record is the record of one cluster. It is safe for concurrent use.
type Record struct {
	store Store
	name  string // of the election

	mu      sync.Mutex
	version uint64 // of what was read or written last
	seq     uint64 // its number; 0: there was none
	// What stood in its place, nil: nothing. Whom that names may write over it, and nobody else.
	mark  *core.Lost
	token uint64 // that key is of
	key   string // of the claim that holds the election
}

// New returns the record of the election of that name. It does no I/O.
func New(store Store, name string) *Record { return &Record{store: store, name: name} }

// Read returns the record, or nil if there is none. It is linearizable. The error is a *[core.Lost]
// where a member has found that the store was lost.
func (r *Record) Read(ctx context.Context) (*core.Record, error) {
	rec, version, err := r.kept(ctx)
	if err != nil {
		return nil, err
	}
	var lost *core.Lost
	if rec != nil {
		lost = rec.Lost
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if version >= r.version {
		r.version, r.seq, r.mark = version, 0, lost
		if rec != nil {
			r.seq = rec.Seq
		}
	}
	if lost != nil {
		return nil, lost
	}
	return rec, nil
}

// kept returns what stands in the place of the record, and its version.
func (r *Record) kept(ctx context.Context) (rec *core.Record, version uint64, err error) {
	value, version, err := r.store.Kept(ctx, r.name)
	if err != nil || version == 0 {
		return nil, 0, err
	}
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields() // a newer version's rules are not ours to break
	if err := d.Decode(&rec); err != nil {
		return nil, 0, fmt.Errorf("the record of %s cannot be read: %w (is it of a newer version of primacy?)",
			r.name, err)
	}
	return rec, version, nil
}

// Write writes the record if the one that was read last has the number before it, and while the
// term with this token lives. Where [core.Lost] was read in its place, only who was chosen there to
// begin the cluster anew writes it. [ErrConflict] says that nothing was written. After any other
// error it may have been, or may yet be: then read it again.
func (r *Record) Write(ctx context.Context, rec core.Record, token uint64) error {
	key, err := r.claimKey(ctx, token)
	if err != nil {
		return err
	}
	value, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	r.mu.Lock()
	version, seq, mark := r.version, r.seq, r.mark
	r.mu.Unlock()
	if rec.Seq != seq+1 || mark != nil && rec.Primary != mark.Anew {
		return ErrConflict
	}
	next, ok, err := r.store.Keep(ctx, r.name, value, version, key, token)
	switch {
	case errors.Is(err, driver.ErrGone):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case err != nil:
		return err
	case !ok:
		return ErrConflict
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if next > r.version {
		r.version, r.seq, r.mark = next, rec.Seq, nil
	}
	return nil
}

// claimKey returns the key of the claim that holds the election under token. It is read once a
// term.
func (r *Record) claimKey(ctx context.Context, token uint64) (string, error) {
	r.mu.Lock()
	key := r.key
	known := r.token == token
	r.mu.Unlock()
	if known {
		return key, nil
	}
	key, err := r.store.ClaimKey(ctx, r.name, token)
	if errors.Is(err, driver.ErrGone) {
		return "", fmt.Errorf("%w: %w", ErrConflict, err)
	}
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.token, r.key = token, key
	return key, nil
}
