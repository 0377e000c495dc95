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

// Place is what stands in the place of a record.
type Place struct {
	Record  *core.Record // nil: there is none
	Lost    *core.Lost   // nil: nobody has found that the store was lost
	Left    bool         // the members of the cluster have left it
	version uint64
}

// Place returns what stands in the place of the record. It is linearizable.
func (r *Record) Place(ctx context.Context) (Place, error) {
	rec, version, err := r.kept(ctx)
	p := Place{Record: rec, Left: rec == nil && version != 0, version: version}
	if rec != nil && rec.Lost != nil {
		p.Record, p.Lost = nil, rec.Lost
	}
	return p, err
}

// Choose puts l in that place: it names the member that is to begin the cluster anew. What people
// have asked of the cluster before is void then. No term guards this write. [ErrConflict] says that
// something else stands there by now: then nothing has changed. After any other error l may stand
// there, and what was asked before may still count: choose again, under another incarnation.
func (r *Record) Choose(ctx context.Context, p Place, l core.Lost) error {
	value, err := json.Marshal(core.Record{Lost: &l})
	if err != nil {
		return err
	}
	if _, ok, err := r.store.Keep(ctx, r.name, value, p.version, "", 0); err != nil {
		return err
	} else if !ok {
		return ErrConflict
	}
	return r.void(ctx)
}
