package record

import (
	"context"
	"encoding/json"
	"reflect"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// Mark puts l in the place of a record that a member has found not to be what it has seen; found is
// nil where there was none. No term guards this write. [ErrConflict] says that something else
// stands there by now, or that the members of the cluster have left it: then nothing was written.
// After any other error it may have been.
func (r *Record) Mark(ctx context.Context, found *core.Record, l core.Lost) error {
	now, version, err := r.kept(ctx)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(now, found) || now == nil && version != 0 {
		return ErrConflict
	}
	value, err := json.Marshal(core.Record{Lost: &l})
	if err != nil {
		return err
	}
	if _, ok, err := r.store.Keep(ctx, r.name, value, version, "", 0); ok || err != nil {
		return err
	}
	return ErrConflict
}
