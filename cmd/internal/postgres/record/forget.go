package record

import (
	"context"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// Forget ends a cluster whose members have left it: there is no record of it any more, and no
// instructions. No term guards this write. The caller knows that no member is left whose state
// names an incarnation of the record: nobody could be promoted by it again. [ErrConflict] says that
// the record is another one by now.
func (r *Record) Forget(ctx context.Context, rec core.Record) error {
	now, err := r.Read(ctx)
	if err != nil || now == nil {
		return err
	}
	if now.Seq != rec.Seq {
		return ErrConflict
	}
	for _, name := range []string{r.name, asked(r.name)} {
		_, version, err := r.store.Kept(ctx, name)
		if err != nil {
			return err
		}
		if version == 0 {
			continue
		}
		if _, ok, err := r.store.Keep(ctx, name, []byte("null"), version, "", 0); err != nil {
			return err
		} else if !ok {
			return ErrConflict
		}
	}
	return nil
}
