package record

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// asked is the name under which the instructions of an election's cluster are kept.
func asked(name string) string { return name + "/instructions" }

// Instructions returns what people ask of the cluster, or nil if nobody ever has. It is
// linearizable.
func (r *Record) Instructions(ctx context.Context) (*core.Instructions, error) {
	i, _, err := r.instructions(ctx)
	return i, err
}

func (r *Record) instructions(ctx context.Context) (*core.Instructions, uint64, error) {
	value, version, err := r.store.Kept(ctx, asked(r.name))
	if err != nil || version == 0 {
		return nil, 0, err
	}
	var i core.Instructions
	if err := json.Unmarshal(value, &i); err != nil {
		return nil, 0, fmt.Errorf("the instructions of %s cannot be read: %w (are they of a newer version of primacy?)",
			r.name, err)
	}
	return &i, version, nil
}

// Instruct changes what people ask of the cluster, and returns it as it was written; its Seq is the
// number of this change. change gets a copy whose Seq is that number already; it may be called
// several times, when others write at the same time. Its error is returned, and nothing is written.
// After any other error the change may have been written, or may yet be.
func (r *Record) Instruct(ctx context.Context, change func(*core.Instructions) error) (core.Instructions, error) {
	for {
		old, version, err := r.instructions(ctx)
		if err != nil {
			return core.Instructions{}, err
		}
		var next core.Instructions
		if old != nil {
			next = *old
		}
		next.Members = maps.Clone(next.Members)
		if next.Members == nil {
			next.Members = map[string]core.Task{}
		}
		next.Seq++
		if err := change(&next); err != nil {
			return next, err
		}
		value, err := json.Marshal(next)
		if err != nil {
			return next, err
		}
		if _, ok, err := r.store.Keep(ctx, asked(r.name), value, version, "", 0); ok || err != nil {
			return next, err
		}
	}
}
