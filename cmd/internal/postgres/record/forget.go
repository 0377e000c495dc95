package record

import (
	"context"
	"reflect"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// Forget ends a cluster whose members have left it: there is no record of it any more, and no
// instructions. No term guards this write. The caller knows that no member is left whose state
// names an incarnation of the record: nobody could be promoted by it again. [ErrConflict] says that
// another record than rec stands there: then nothing has changed.
func (r *Record) Forget(ctx context.Context, rec core.Record) error {
	// One read says both what stands there and its version. A version that was read later could be
	// of the record of a primary that was elected meanwhile.
	now, version, err := r.kept(ctx)
	switch {
	case err != nil || version == 0:
		return err
	case now == nil: // an earlier try has written that
		return r.void(ctx)
	case !reflect.DeepEqual(*now, rec):
		return ErrConflict
	}
	if _, ok, err := r.store.Keep(ctx, r.name, []byte("null"), version, "", 0); err != nil {
		return err
	} else if !ok {
		return ErrConflict
	}
	return r.void(ctx)
}

// void takes back all that people have asked of the cluster.
func (r *Record) void(ctx context.Context) error {
	for { // somebody may ask for something at the same time
		_, version, err := r.store.Kept(ctx, asked(r.name))
		if err != nil || version == 0 {
			return err
		}
		if _, ok, err := r.store.Keep(ctx, asked(r.name), []byte("null"), version, "", 0); ok || err != nil {
			return err
		}
	}
}
